//! Reductions over axes.

use tensor::DType;

use super::{Domain, OpDef, OpView, Param, elements};
use crate::eval::exact::{Sum, product, quotient, root};
use crate::eval::{Array, Data, EvalCx, Value, wrap};
use crate::{Dim, OpError, TensorType, Type};

/// The axes that the constant argument `axes` names, all by default; sorted.
pub(super) fn axes(op: &OpView<'_>, rank: usize) -> Result<Vec<usize>, OpError> {
    let Some(given) = op.ints("axes")? else { return Ok((0..rank).collect()) };
    let mut axes = given.iter().map(|&a| op.axis(a, rank)).collect::<Result<Vec<_>, _>>()?;
    axes.sort_unstable();
    if axes.windows(2).any(|w| w[0] == w[1]) {
        return Err(OpError::invalid(format!("axes {given:?} name one twice")));
    }
    Ok(axes)
}

/// All axes, those of `last` at the end.
pub(super) fn axes_last(rank: usize, last: &[usize]) -> Vec<usize> {
    (0..rank).filter(|a| !last.contains(a)).chain(last.iter().copied()).collect()
}

/// `shape` without `axes`, or with `one` in their places.
fn reduced<T: Clone>(shape: &[T], axes: &[usize], keep: bool, one: &T) -> Vec<T> {
    let mut out = Vec::with_capacity(shape.len());
    for (i, size) in shape.iter().enumerate() {
        match (axes.contains(&i), keep) {
            (false, _) => out.push(size.clone()),
            (true, true) => out.push(one.clone()),
            (true, false) => {}
        }
    }
    out
}

fn infer(op: &OpView<'_>, axes: &[usize], dtype: DType) -> Result<Vec<Type>, OpError> {
    let keep = op.bool_or("keep_dims", false)?;
    let shape = reduced(&op.tensor("x")?.shape, axes, keep, &Dim::Fixed(1));
    Ok(vec![TensorType { dtype, shape }.into()])
}

/// Reduces rows of the elements of `axes` with `float` or `int`.
fn reduce(
    x: &Array,
    axes: &[usize],
    keep: bool,
    float: impl Fn(&[f64]) -> f64,
    int: impl Fn(&[i64]) -> Option<i64>,
) -> Result<Array, OpError> {
    let shape = reduced(&x.shape, axes, keep, &1);
    let moved = x.transposed(&axes_last(x.shape.len(), axes));
    let n: usize = axes.iter().map(|&a| x.shape[a]).product();
    let rows: usize = shape.iter().product();
    let row = |i: usize| i * n..(i + 1) * n;
    let data = match &moved.data {
        Data::Float(v) => Data::Float((0..rows).map(|i| float(&v[row(i)])).collect()),
        Data::Int(v) => {
            let values = (0..rows).map(|i| int(&v[row(i)]).map(|r| wrap(x.dtype, r)));
            let values: Option<Vec<i64>> = values.collect();
            Data::Int(values.ok_or_else(|| OpError::invalid("no result for these integers"))?)
        }
        _ => return Err(OpError::invalid(format!("{} values where numbers are needed", x.dtype))),
    };
    Ok(Array { dtype: x.dtype, shape, data })
}

/// Defines reductions of `x` over the constant `axes` (all by default), whose axes stay with size 1
/// if `keep_dims`.
macro_rules! reductions {
    ($($(#[$doc:meta])* $kind:ident $name:literal $domain:ident $float:expr, $int:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// Over the constant `axes`, all by default, which stay with size 1 if `keep_dims`.
            pub(super) struct $kind;

            impl OpDef for $kind {
                fn name(&self) -> &'static str {
                    $name
                }

                fn params(&self) -> &'static [Param] {
                    const {
                        &[
                            Param::new("x", Domain::$domain),
                            Param::new("axes", Domain::Int).optional().constant(),
                            Param::new("keep_dims", Domain::Bool).optional().constant(),
                        ]
                    }
                }

                fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
                    let x = op.tensor("x")?;
                    infer(op, &axes(op, x.rank())?, x.dtype)
                }

                fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
                    let x = cx.array("x")?;
                    let axes = axes(&cx.op, x.shape.len())?;
                    let keep = cx.op.bool_or("keep_dims", false)?;
                    Ok(vec![reduce(&x, &axes, keep, $float, $int)?.into()])
                }

                /// One for each element of `x`.
                fn flops(&self, op: &OpView<'_>, _: &[Type]) -> f64 {
                    op.tensor("x").map_or(0.0, |x| elements(&[x.clone().into()]))
                }
            }
        )*
    };
}

fn sum(row: &[f64]) -> f64 {
    row.iter().copied().collect::<Sum>().value()
}

/// The sum of squares.
pub(super) fn square_sum(row: &[f64]) -> f64 {
    row.iter().map(|v| v * v).collect::<Sum>().value()
}

/// The sum over `count`.
pub(super) fn mean(row: &[f64], count: usize) -> f64 {
    quotient(sum(row), count as f64)
}

fn sum_int(row: &[i64]) -> Option<i64> {
    Some(row.iter().fold(0i64, |s, &v| s.wrapping_add(v)))
}

fn no_int(_: &[i64]) -> Option<i64> {
    None
}

fn log_sum_exp(row: &[f64]) -> f64 {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max.is_infinite() {
        return max;
    }
    max + row.iter().map(|v| (v - max).exp()).sum::<f64>().ln()
}

/// `f64::max` and `f64::min` would hide a NaN.
pub(super) fn extreme(row: &[f64], better: impl Fn(f64, f64) -> bool, start: f64) -> f64 {
    row.iter().fold(start, |best, &v| if v.is_nan() || better(v, best) { v } else { best })
}

reductions! {
    /// Sum of magnitudes.
    ReduceL1Norm "reduce_l1_norm" Number |r| r.iter().map(|v| v.abs()).collect::<Sum>().value(),
        |r| Some(r.iter().fold(0i64, |s, v| s.wrapping_add(v.wrapping_abs())));
    /// Root of the sum of squares.
    ReduceL2Norm "reduce_l2_norm" Float |r| root(square_sum(r)), no_int;
    /// Logarithm of the sum.
    ReduceLogSum "reduce_log_sum" Float |r| sum(r).ln(), no_int;
    /// Logarithm of the sum of exponentials.
    ReduceLogSumExp "reduce_log_sum_exp" Float log_sum_exp, no_int;
    /// The greatest element.
    ReduceMax "reduce_max" Number |r| extreme(r, |a, b| a > b, f64::NEG_INFINITY),
        |r| r.iter().copied().max();
    /// The mean; of integers, rounded toward zero.
    ReduceMean "reduce_mean" Number |r| mean(r, r.len()),
        |r| sum_int(r)?.checked_div(r.len() as i64);
    /// The least element.
    ReduceMin "reduce_min" Number |r| extreme(r, |a, b| a < b, f64::INFINITY),
        |r| r.iter().copied().min();
    /// The product.
    ReduceProd "reduce_prod" Number product,
        |r| Some(r.iter().fold(1i64, |p, &v| p.wrapping_mul(v)));
    /// The sum.
    ReduceSum "reduce_sum" Number sum, sum_int;
    /// The sum of squares.
    ReduceSumSquare "reduce_sum_square" Number square_sum,
        |r| Some(r.iter().fold(0i64, |s, &v| s.wrapping_add(v.wrapping_mul(v))));
}

/// Index of the best of a row, the first among equals; `better` tells a strictly better one.
fn arg<T: Copy>(row: &[T], better: impl Fn(T, T) -> bool) -> i64 {
    let mut best = 0;
    for (i, &v) in row.iter().enumerate().skip(1) {
        if better(v, row[best]) {
            best = i;
        }
    }
    best as i64
}

/// Defines the search for an extreme's index along one axis.
macro_rules! arg_reductions {
    ($($(#[$doc:meta])* $kind:ident $name:literal $float:expr, $int:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// Along the constant `axis`, by default the last, which stays with size 1 if
            /// `keep_dims`; the first among equals. The result is of the constant `output_dtype`,
            /// `int32` (default) or `uint16`.
            pub(super) struct $kind;

            impl OpDef for $kind {
                fn name(&self) -> &'static str {
                    $name
                }

                fn params(&self) -> &'static [Param] {
                    const {
                        &[
                            Param::new("x", Domain::Number),
                            Param::new("axis", Domain::Int).optional().constant(),
                            Param::new("keep_dims", Domain::Bool).optional().constant(),
                            Param::new("output_dtype", Domain::Str).optional().constant(),
                        ]
                    }
                }

                fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
                    let axis = op.axis(op.int("axis")?.unwrap_or(-1), op.tensor("x")?.rank())?;
                    infer(op, &[axis], index_dtype(op, "output_dtype")?)
                }

                fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
                    let dtype = index_dtype(&cx.op, "output_dtype")?;
                    let x = cx.array("x")?;
                    let axis = cx.op.axis(cx.op.int("axis")?.unwrap_or(-1), x.shape.len())?;
                    let keep = cx.op.bool_or("keep_dims", false)?;
                    if x.shape[axis] == 0 {
                        return Err(OpError::invalid(format!("axis {axis} of x is empty")));
                    }
                    let indices = reduce(
                        &x,
                        &[axis],
                        keep,
                        |r| arg(r, $float) as f64,
                        |r| Some(arg(r, $int)),
                    )?;
                    let data = match indices.data {
                        Data::Float(v) => Data::Int(v.into_iter().map(|i| i as i64).collect()),
                        other => other,
                    };
                    Ok(vec![Array { dtype, shape: indices.shape, data }.into()])
                }

                /// One for each element of `x`.
                fn flops(&self, op: &OpView<'_>, _: &[Type]) -> f64 {
                    op.tensor("x").map_or(0.0, |x| elements(&[x.clone().into()]))
                }
            }
        )*
    };
}

/// The element type for indices that the constant `name` gives: `int32` (default) or `uint16`.
pub(super) fn index_dtype(op: &OpView<'_>, name: &str) -> Result<DType, OpError> {
    match op.str(name)? {
        None | Some("int32") => Ok(DType::I32),
        Some("uint16") => Ok(DType::U16),
        Some(other) => {
            Err(OpError::invalid(format!("{name} \"{other}\" is neither int32 nor uint16")))
        }
    }
}

arg_reductions! {
    /// Index of the greatest element.
    ReduceArgmax "reduce_argmax" |a, b| a > b, |a, b| a > b;
    /// Index of the least element.
    ReduceArgmin "reduce_argmin" |a, b| a < b, |a, b| a < b;
}
