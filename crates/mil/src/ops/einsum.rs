//! Products over named axes.

use std::collections::BTreeMap;

use super::emit::{Emit, value};
use super::{Domain, OpDef, OpView, Param, elements};
use crate::eval::exact::Sum;
use crate::eval::{Array, Data, EvalCx, Strided, Value, strides};
use crate::{Arg, Dim, FunctionBuilder, OpError, OpKind, TensorType, Type, ValueId};

/// The product of two tensors, `values`, summed over the axes that the constant `equation` names for
/// both but not for the result. MIL has two equations, up to the letters chosen: `nchw,nwhu->nchu`
/// and `chw,whr->chr`.
pub(super) struct Einsum;

/// The letters of both operands and of the result.
struct Equation {
    operands: [Vec<char>; 2],
    result: Vec<char>,
}

impl Equation {
    fn of(op: &OpView<'_>) -> Result<Self, OpError> {
        let text = op.str("equation")?.unwrap_or_default();
        // Letters numbered in the order of their appearance say which of the two it is.
        let mut seen: Vec<char> = Vec::new();
        let mut plain = String::new();
        for c in text.chars().filter(|c| !c.is_whitespace()) {
            if c.is_alphabetic() {
                let number = seen.iter().position(|&s| s == c).unwrap_or(seen.len());
                if number == seen.len() {
                    seen.push(c);
                }
                plain.push_str(&number.to_string());
            } else {
                plain.push(c);
            }
        }
        if !["0123,0324->0124", "012,213->013"].contains(&&*plain) {
            return Err(OpError::unsupported(format!("equation \"{text}\"")));
        }
        let letters = |s: &str| s.chars().filter(|c| c.is_alphabetic()).collect();
        let parts = text.split_once("->").and_then(|(l, r)| Some((l.split_once(',')?, r)));
        match parts {
            Some(((x, y), r)) => {
                Ok(Equation { operands: [letters(x), letters(y)], result: letters(r) })
            }
            None => Err(OpError::unsupported(format!("equation \"{text}\""))),
        }
    }

    /// What each letter stands for; `None` if the operands contradict each other.
    fn sizes<T: Clone>(
        &self,
        shapes: [&[T]; 2],
        same: impl Fn(&T, &T) -> bool,
    ) -> Option<BTreeMap<char, T>> {
        let mut sizes: BTreeMap<char, T> = BTreeMap::new();
        for (letters, shape) in self.operands.iter().zip(shapes) {
            if letters.len() != shape.len() {
                return None;
            }
            for (&letter, size) in letters.iter().zip(shape) {
                let known = sizes.entry(letter).or_insert_with(|| size.clone());
                if !same(known, size) {
                    return None;
                }
            }
        }
        Some(sizes)
    }

    /// Letters that are summed over.
    fn summed(&self) -> Vec<char> {
        self.operands[0].iter().copied().filter(|c| !self.result.contains(c)).collect()
    }
}

impl OpDef for Einsum {
    fn name(&self) -> &'static str {
        "einsum"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("values", Domain::Float).variadic(),
                Param::new("equation", Domain::Str).constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let equation = Equation::of(op)?;
        let values = op.tensors("values")?;
        let &[x, y] = &values[..] else {
            return Err(OpError::invalid(format!("{} values, not 2", values.len())));
        };
        let sizes = equation.sizes([&x.shape, &y.shape], Dim::compatible);
        match sizes.filter(|_| x.dtype == y.dtype) {
            Some(sizes) => {
                let shape = equation.result.iter().map(|c| sizes[c].clone()).collect();
                Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
            }
            None => Err(OpError::invalid(format!("values {x} and {y} do not fit the equation"))),
        }
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let equation = Equation::of(&cx.op)?;
        let values = cx.arrays("values")?;
        let [x, y] = &values[..] else {
            return Err(OpError::invalid(format!("{} values, not 2", values.len())));
        };
        let sizes = equation.sizes([&x.shape[..], &y.shape[..]], |a, b| a == b);
        let sizes = sizes.ok_or_else(|| {
            OpError::invalid(format!("{:?} and {:?} do not fit the equation", x.shape, y.shape))
        })?;
        // Every place of the result, and for each every place that is summed.
        let summed = equation.summed();
        let axes: Vec<char> = equation.result.iter().chain(&summed).copied().collect();
        let shape: Vec<usize> = axes.iter().map(|c| sizes[c]).collect();
        let view = |a: &Array, letters: &[char]| {
            let steps = strides(&a.shape);
            let step = |c| letters.iter().position(|l| l == c).map_or(0, |at| steps[at]);
            Strided::new(&shape, &axes.iter().map(step).collect::<Vec<_>>(), 0)
        };
        let (xs, ys) = (x.floats()?, y.floats()?);
        let places = view(x, &equation.operands[0]).zip(view(y, &equation.operands[1]));
        let count: usize = summed.iter().map(|c| sizes[c]).product();
        let shape: Vec<usize> = equation.result.iter().map(|c| sizes[c]).collect();
        let mut sums = vec![Sum::default(); shape.iter().product()];
        for (n, (i, j)) in places.enumerate() {
            sums[n / count].add(xs[i] * ys[j]);
        }
        let data = Data::Float(sums.into_iter().map(Sum::value).collect());
        Ok(vec![Array { dtype: x.dtype, shape, data }.into()])
    }

    fn is_composite(&self) -> bool {
        true
    }

    /// A product of matrices: of `[n, h, c, w]` and `[n, h, w, u]`, or of `[h, c, w]` and `[h, w, r]`.
    fn decompose(
        &self,
        op: &OpView<'_>,
        b: &mut FunctionBuilder<'_>,
    ) -> Result<Vec<ValueId>, OpError> {
        let Some(Arg::List(values)) = op.arg("values") else {
            return Err(OpError::invalid("values are missing"));
        };
        let ([x, y], equation) = (&values[..], Equation::of(op)?) else {
            return Err(OpError::invalid(format!("{} values, not 2", values.len())));
        };
        // The axis h moves to the front of the matrices: from behind c in `x`, from behind w in `y`.
        let swap: &[i32] = if equation.result.len() == 4 { &[0, 2, 1, 3] } else { &[1, 0, 2] };
        let e = &mut Emit::new(b);
        let (x, y) = (e.transpose(x, swap)?, e.transpose(y, swap)?);
        let product = e.binary(OpKind::Matmul, &x, &y)?;
        e.transpose(&product, swap).map(value)
    }

    /// Two for each element of the result and of the axes summed over.
    fn flops(&self, op: &OpView<'_>, results: &[Type]) -> f64 {
        let summed = (|| {
            let equation = Equation::of(op).ok()?;
            let values = op.tensors("values").ok()?;
            let shapes = [&values.first()?.shape[..], &values.get(1)?.shape[..]];
            let sizes = equation.sizes(shapes, Dim::compatible)?;
            let size = |c: &char| sizes[c].fixed().unwrap_or(1) as f64;
            Some(equation.summed().iter().map(size).product::<f64>())
        })();
        2.0 * elements(results) * summed.unwrap_or(1.0)
    }
}
