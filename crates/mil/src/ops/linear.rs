//! Linear layers, products of matrices, scaled dot-product attention.

use tensor::DType;

use super::emit::{Emit, value};
use super::llm::{eval_linear, linear_flops, linear_type};
use super::{Domain, OpDef, OpView, Param, broadcast, elements};
use crate::eval::{Array, Data, EvalCx, Strided, Value, broadcast_shape, matmul_nt};
use crate::{Dim, FunctionBuilder, OpError, OpKind, Opset, TensorType, Type, ValueId};

/// `x weight^T + bias`: `x` `[..., in]`, `weight` `[out, in]`, `bias` `[out]`, zero by default.
pub(super) struct Linear;

impl OpDef for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("weight", Domain::Float),
                Param::new("bias", Domain::Float).optional(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        Ok(vec![linear_type(x, op.tensor("weight")?, op.opt_tensor("bias")?)?.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, weight, bias) = (cx.array("x")?, cx.array("weight")?, cx.opt_array("bias")?);
        let bias = bias.as_deref().map(Array::floats).transpose()?;
        Ok(vec![eval_linear(&x, &weight, bias)?.into()])
    }

    fn flops(&self, op: &OpView<'_>, results: &[Type]) -> f64 {
        linear_flops(op, results)
    }
}

/// `x y` of the last two axes, the others broadcasting, as numpy's `matmul`: a vector counts as one
/// row (`x`) or one column (`y`). The constants `transpose_x` and `transpose_y` (false by default)
/// swap the last two axes first.
pub(super) struct Matmul;

/// The matrices' sizes `[m, k]` and `[k, n]` with the shapes of the axes before, vectors expanded.
struct Operands<T> {
    batch_x: Vec<T>,
    batch_y: Vec<T>,
    x: [T; 2],
    y: [T; 2],
}

impl<T: Clone> Operands<T> {
    fn new(x: &[T], y: &[T], transpose: [bool; 2], one: T) -> Option<Self> {
        let (mut x, mut y) = (x.to_vec(), y.to_vec());
        if x.len() == 1 {
            x.insert(0, one.clone());
        }
        if y.len() == 1 {
            y.push(one);
        }
        let (mut sx, mut sy) = (x.pop_pair()?, y.pop_pair()?);
        if transpose[0] {
            sx.reverse();
        }
        if transpose[1] {
            sy.reverse();
        }
        Some(Operands { batch_x: x, batch_y: y, x: sx, y: sy })
    }
}

/// Taking the last two items.
trait PopPair<T> {
    fn pop_pair(&mut self) -> Option<[T; 2]>;
}

impl<T> PopPair<T> for Vec<T> {
    fn pop_pair(&mut self) -> Option<[T; 2]> {
        let b = self.pop()?;
        let a = self.pop()?;
        Some([a, b])
    }
}

/// `x` `[..., m, k]` times the transpose of `y` `[..., n, k]`, the axes before broadcasting.
pub(super) fn batched_nt(x: &Array, y: &Array) -> Result<Array, OpError> {
    let mismatch =
        || OpError::invalid(format!("shapes {:?} and {:?} do not multiply", x.shape, y.shape));
    let split = |s: &[usize]| {
        let mut batch = s.to_vec();
        batch.pop_pair().map(|sizes| (batch, sizes))
    };
    let (bx, [m, k]) = split(&x.shape).ok_or_else(mismatch)?;
    let (by, [n, k2]) = split(&y.shape).ok_or_else(mismatch)?;
    if k != k2 {
        return Err(mismatch());
    }
    let mut shape = broadcast_shape(&bx, &by)?;
    let (xs, ys) = (x.floats()?, y.floats()?);
    let mut out = Vec::with_capacity(shape.iter().product::<usize>() * m * n);
    for (i, j) in Strided::broadcast(&bx, &shape).zip(Strided::broadcast(&by, &shape)) {
        let (a, b) = (&xs[i * m * k..][..m * k], &ys[j * n * k..][..n * k]);
        out.extend(matmul_nt(a, b, None, [m, k, n]));
    }
    shape.extend([m, n]);
    Ok(Array { dtype: x.dtype, shape, data: Data::Float(out) })
}

/// The array with its last two axes swapped.
pub(super) fn swap_last(a: &Array) -> Array {
    let mut perm: Vec<usize> = (0..a.shape.len()).collect();
    let n = perm.len();
    if n >= 2 {
        perm.swap(n - 1, n - 2);
    }
    a.transposed(&perm)
}

impl Matmul {
    fn transposes(op: &OpView<'_>) -> Result<[bool; 2], OpError> {
        Ok([op.bool_or("transpose_x", false)?, op.bool_or("transpose_y", false)?])
    }
}

impl OpDef for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("y", Domain::Float),
                Param::new("transpose_x", Domain::Bool).optional().constant(),
                Param::new("transpose_y", Domain::Bool).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, y) = (op.tensor("x")?, op.tensor("y")?);
        let mismatch = || OpError::invalid(format!("x {x} and y {y} do not multiply"));
        let o = Operands::new(&x.shape, &y.shape, Self::transposes(op)?, Dim::Fixed(1))
            .filter(|o| o.x[1].compatible(&o.y[0]) && x.dtype == y.dtype)
            .ok_or_else(mismatch)?;
        let mut shape = broadcast(&o.batch_x, &o.batch_y).map_err(|_| mismatch())?;
        if x.rank() > 1 {
            shape.push(o.x[0].clone());
        }
        if y.rank() > 1 {
            shape.push(o.y[1].clone());
        }
        Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let [transpose_x, transpose_y] = Self::transposes(&cx.op)?;
        let (x, y) = (cx.array("x")?, cx.array("y")?);
        let (vector_x, vector_y) = (x.shape.len() == 1, y.shape.len() == 1);
        let mut a = (*x).clone();
        if vector_x {
            a.shape.insert(0, 1);
        }
        if transpose_x {
            a = swap_last(&a);
        }
        let mut b = (*y).clone();
        if vector_y {
            b.shape.push(1);
        }
        if !transpose_y {
            b = swap_last(&b);
        }
        let mut product = batched_nt(&a, &b)?;
        let rank = product.shape.len();
        if vector_y {
            product.shape.remove(rank - 1);
        }
        if vector_x {
            product.shape.remove(rank - 2);
        }
        Ok(vec![product.into()])
    }

    /// Two for each element of the result and of the common axis.
    fn flops(&self, op: &OpView<'_>, results: &[Type]) -> f64 {
        let inner = (|| {
            let (x, y) = (op.tensor("x").ok()?, op.tensor("y").ok()?);
            let transposes = Self::transposes(op).ok()?;
            Operands::new(&x.shape, &y.shape, transposes, Dim::Fixed(1))?.x[1].fixed()
        })();
        2.0 * elements(results) * inner.unwrap_or(1) as f64
    }
}

/// `softmax(query key^T / sqrt(E) + mask) value`: `query` `[B, ..., L, E]`, `key` `[B, ..., S, E]`,
/// `value` `[B, ..., S, EV]`. `attn_mask`, broadcast to `[B, ..., L, S]`, is added, or, if of truth
/// values, says which keys take part.
pub(super) struct ScaledDotProductAttention;

impl OpDef for ScaledDotProductAttention {
    fn name(&self) -> &'static str {
        "scaled_dot_product_attention"
    }

    fn opset(&self) -> Opset {
        Opset::Ios18
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("query", Domain::Float),
                Param::new("key", Domain::Float),
                Param::new("value", Domain::Float),
                Param::new("attn_mask", Domain::Any).optional(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (query, key, value) = (op.tensor("query")?, op.tensor("key")?, op.tensor("value")?);
        let rank = query.rank();
        let fits = rank >= 3
            && [key, value].iter().all(|t| {
                t.dtype == query.dtype
                    && t.rank() == rank
                    && t.shape.iter().zip(&query.shape).take(rank - 2).all(|(a, b)| a.compatible(b))
            })
            && key.shape[rank - 1].compatible(&query.shape[rank - 1])
            && key.shape[rank - 2].compatible(&value.shape[rank - 2]);
        if !fits {
            return Err(OpError::invalid(format!(
                "query {query}, key {key} and value {value} do not go together"
            )));
        }
        if let Some(mask) = op.opt_tensor("attn_mask")? {
            let mut scores = query.shape.clone();
            scores[rank - 1] = key.shape[rank - 2].clone();
            let typed = mask.dtype == DType::Bool || mask.dtype.is_float();
            let shape = broadcast(&mask.shape, &scores).ok().filter(|s| s.len() == rank && typed);
            if shape.is_none_or(|s| s.iter().zip(&scores).any(|(a, b)| !a.compatible(b))) {
                return Err(OpError::invalid(format!(
                    "attn_mask {mask} does not fit query {query} and key {key}"
                )));
            }
        }
        let mut shape = query.shape.clone();
        shape[rank - 1] = value.shape[rank - 1].clone();
        Ok(vec![TensorType { dtype: query.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (query, key, value) = (cx.array("query")?, cx.array("key")?, cx.array("value")?);
        let mask = cx.opt_array("attn_mask")?;
        let width = query.shape.last().copied().unwrap_or(1) as f64;
        let mut scores = batched_nt(&query, &key)?;
        let keys = scores.shape.last().copied().unwrap_or(1).max(1);
        let bias = mask.map(|m| mask_bias(&m, &scores.shape)).transpose()?;
        for (i, row) in scores.floats_mut()?.chunks_exact_mut(keys).enumerate() {
            row.iter_mut().for_each(|s| *s /= width.sqrt());
            if let Some(bias) = &bias {
                row.iter_mut().zip(&bias[i * keys..]).for_each(|(s, b)| *s += b);
            }
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            row.iter_mut().for_each(|s| *s = (*s - max).exp());
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|s| *s /= sum);
        }
        Ok(vec![batched_nt(&scores, &swap_last(&value))?.into()])
    }

    fn is_composite(&self) -> bool {
        true
    }

    /// Queries are scaled, not scores, which could leave the range of half precision.
    fn decompose(
        &self,
        op: &OpView<'_>,
        b: &mut FunctionBuilder<'_>,
    ) -> Result<Vec<ValueId>, OpError> {
        let query = op.tensor("query")?;
        let (dtype, width) = (query.dtype, query.shape.last().and_then(Dim::fixed));
        let width = width.ok_or_else(|| {
            OpError::unsupported(format!("the width of query {query} is not known"))
        })?;
        let e = &mut Emit::new(b);
        let factor = e.scalar(dtype, 1.0 / (width as f64).sqrt())?;
        let scaled = e.mul(op.required("query")?, &factor)?;
        let (key, yes) = (op.required("key")?.clone(), e.bool(true));
        let product = [("x", scaled), ("y", key), ("transpose_y", yes)];
        let mut scores = e.op(OpKind::Matmul, product)?;
        if let Some(mask) = op.arg("attn_mask") {
            scores = match e.ty(mask)?.dtype {
                DType::Bool => {
                    let hidden = e.scalar(dtype, hidden_score(dtype))?;
                    let choice = [("cond", mask.clone()), ("a", scores), ("b", hidden)];
                    e.op(OpKind::Select, choice)?
                }
                _ => {
                    let mask = e.cast(mask.clone(), dtype)?;
                    e.binary(OpKind::Add, &scores, &mask)?
                }
            };
        }
        let last = e.int(-1);
        let weights = e.op(OpKind::Softmax, [("x", scores), ("axis", last)])?;
        e.binary(OpKind::Matmul, &weights, op.required("value")?).map(value)
    }

    /// Two for each score and element of a query, and for each score and element of a value.
    fn flops(&self, op: &OpView<'_>, results: &[Type]) -> f64 {
        let size = |name, from_end: usize| {
            let t = op.tensor(name).ok()?;
            t.shape.get(t.rank().checked_sub(from_end)?)?.fixed()
        };
        let (span, width) = (size("key", 2).unwrap_or(1), size("query", 1).unwrap_or(1));
        let values = size("value", 1).unwrap_or(1).max(1);
        2.0 * elements(results) * span as f64 * (1.0 + width as f64 / values as f64)
    }
}

/// The score of what a mask hides: not infinity, which engines multiply into NaN; its exponential is 0
/// all the same.
pub(super) fn hidden_score(dtype: DType) -> f64 {
    if dtype == DType::F16 { -6e4 } else { -1e30 }
}

/// What a mask adds to scores of `shape`.
fn mask_bias(mask: &Array, shape: &[usize]) -> Result<Vec<f64>, OpError> {
    if broadcast_shape(&mask.shape, shape)? != shape {
        return Err(OpError::invalid(format!("mask {:?} exceeds scores {shape:?}", mask.shape)));
    }
    Ok(match mask.broadcast_to(shape).data {
        Data::Bool(v) => v.into_iter().map(|b| if b { 0.0 } else { f64::NEG_INFINITY }).collect(),
        Data::Float(v) => v,
        _ => return Err(OpError::invalid("mask is neither of floats nor of truth values")),
    })
}
