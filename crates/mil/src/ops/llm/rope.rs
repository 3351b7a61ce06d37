//! Rotary position embedding.

use tensor::DType;

use crate::eval::{EvalCx, Value};
use crate::ops::emit::{Emit, value};
use crate::ops::{Domain, Param, elements};
use crate::{Arg, FunctionBuilder, OpDef, OpError, OpKind, OpView, Type, ValueId};

/// Rotary position embedding (Su et al. 2021): rotates pairs of elements of each head by
/// `positions[t] * inv_freq[i]`.
///
/// `x` float `[B, T, H, D]`, `positions` `[T]`, `inv_freq` constant `[R/2]` with `R <= D`. Pair `i`
/// is `(2i, 2i + 1)` if `interleaved`, else `(i, i + R/2)`; elements from `R` on stay. The result
/// is as `x`.
pub(in crate::ops) struct LlmRope;

impl OpDef for LlmRope {
    fn name(&self) -> &'static str {
        "llm.rope"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("positions", Domain::Int),
                Param::new("inv_freq", Domain::Float).constant(),
                Param::new("interleaved", Domain::Bool).constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, positions) = (op.tensor("x")?, op.tensor("positions")?);
        let inv_freq = op.tensor("inv_freq")?;
        if x.rank() != 4 {
            return Err(OpError::invalid(format!("x {x} is not [B, T, H, D]")));
        }
        if positions.rank() != 1 || !positions.shape[0].compatible(&x.shape[1]) {
            return Err(OpError::invalid(format!("positions {positions} are not [T] of x {x}")));
        }
        let pairs = match inv_freq.fixed_shape().as_deref() {
            Some(&[n]) => n,
            _ => return Err(OpError::invalid(format!("inv_freq {inv_freq} is not [R/2]"))),
        };
        if x.shape[3].fixed().is_some_and(|d| 2 * pairs > d) {
            return Err(OpError::invalid(format!(
                "inv_freq {inv_freq} rotates more elements than a head of x {x} has"
            )));
        }
        op.bool_or("interleaved", false)?;
        Ok(vec![x.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, positions, inv_freq) =
            (cx.array("x")?, cx.array("positions")?, cx.array("inv_freq")?);
        let interleaved = cx.op.bool_or("interleaved", false)?;
        let (positions, inv_freq) = (positions.ints()?, inv_freq.floats()?);
        let &[_, t, h, d] = &x.shape[..] else {
            return Err(OpError::invalid(format!("x of shape {:?} is not [B, T, H, D]", x.shape)));
        };
        if t != positions.len() || 2 * inv_freq.len() > d {
            return Err(OpError::invalid(format!(
                "{} positions and {} frequencies for x of shape {:?}",
                positions.len(),
                inv_freq.len(),
                x.shape
            )));
        }
        let mut out = x.floats()?.to_vec();
        if h * d == 0 {
            return Ok(vec![x.with_floats(out).into()]);
        }
        for (token, &position) in out.chunks_exact_mut(h * d).zip(positions.iter().cycle()) {
            for (i, f) in inv_freq.iter().enumerate() {
                let (sin, cos) = (position as f64 * f).sin_cos();
                let (a, b) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + inv_freq.len()) };
                for head in token.chunks_exact_mut(d) {
                    let (p, q) = (head[a], head[b]);
                    head[a] = p * cos - q * sin;
                    head[b] = p * sin + q * cos;
                }
            }
        }
        Ok(vec![x.with_floats(out).into()])
    }

    fn is_composite(&self) -> bool {
        true
    }

    fn decompose(
        &self,
        op: &OpView<'_>,
        b: &mut FunctionBuilder<'_>,
    ) -> Result<Vec<ValueId>, OpError> {
        let (x, positions) = (op.required("x")?, op.required("positions")?);
        let ty = op.tensor("x")?;
        let pairs = op.tensor("inv_freq")?.fixed_shape().map_or(0, |s| s[0]);
        let width = ty.shape[3].fixed().ok_or_else(|| {
            OpError::unsupported(format!("the size of a head of x {ty} is not known"))
        })?;
        let mut e = Emit::new(b);
        let (cos, sin) = tables(&mut e, positions, op.required("inv_freq")?, ty.dtype)?;
        let interleaved = op.bool_or("interleaved", false)?;
        // The first elements of the pairs, then the second; strided if they alternate.
        let (step, second) = if interleaved { (2, 1) } else { (1, pairs) };
        let first = e.last_axis(x, 0, if interleaved { 2 * pairs } else { pairs }, step)?;
        let second = e.last_axis(x, second, 2 * pairs, step)?;
        let (a, c) = (e.mul(&first, &cos)?, e.mul(&second, &sin)?);
        let (s, t) = (e.mul(&first, &sin)?, e.mul(&second, &cos)?);
        let turned = [e.binary(OpKind::Sub, &a, &c)?, e.binary(OpKind::Add, &s, &t)?];
        let axis = e.int(-1);
        let rest =
            if 2 * pairs < width { Some(e.last_axis(x, 2 * pairs, width, 1)?) } else { None };
        let mut parts = turned.to_vec();
        if interleaved {
            let interleave = e.bool(true);
            let values = ("values", Arg::List(parts));
            let axis = ("axis", axis.clone());
            parts = vec![e.op(OpKind::Concat, [values, axis, ("interleave", interleave)])?];
        }
        parts.extend(rest);
        match <[Arg; 1]>::try_from(parts) {
            Ok([whole]) => Ok(value(whole)),
            Err(parts) => {
                e.op(OpKind::Concat, [("values", Arg::List(parts)), ("axis", axis)]).map(value)
            }
        }
    }

    /// Three flops an element; the tables of sines and cosines are not counted.
    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        3.0 * elements(results)
    }
}

/// Cosines and sines of all angles, `[T, 1, R/2]` of `dtype`. The angles are of `fp32`: positions
/// exceed what `fp16` holds exactly.
fn tables(
    e: &mut Emit<'_, '_>,
    positions: &Arg,
    inv_freq: &Arg,
    dtype: DType,
) -> Result<(Arg, Arg), OpError> {
    let positions = e.cast(positions.clone(), DType::F32)?;
    let behind = e.ints(&[1, 2]);
    let column = e.op(OpKind::ExpandDims, [("x", positions), ("axes", behind)])?;
    let inv_freq = e.cast(inv_freq.clone(), DType::F32)?;
    let angles = e.mul(&column, &inv_freq)?;
    let cos = e.op(OpKind::Cos, [("x", angles.clone())])?;
    let sin = e.op(OpKind::Sin, [("x", angles)])?;
    Ok((e.cast(cos, dtype)?, e.cast(sin, dtype)?))
}
