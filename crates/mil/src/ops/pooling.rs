//! Pooling over one, two or three spatial axes.

use super::reduction::{extreme, mean, square_sum};
use super::windows::{Windows, sizes};
use super::{Domain, OpDef, OpView, Param, elements};
use crate::eval::exact::root;
use crate::eval::{Array, Data, EvalCx, Value};
use crate::{Dim, OpError, TensorType, Type};

fn kernels(op: &OpView<'_>, axes: usize) -> Result<Vec<usize>, OpError> {
    sizes(op, "kernel_sizes", axes, 1, 1)
}

fn infer(op: &OpView<'_>, max_axes: usize) -> Result<Vec<Type>, OpError> {
    let x = op.tensor("x")?;
    let axes = x.rank().saturating_sub(2);
    if !(1..=max_axes).contains(&axes) {
        return Err(OpError::invalid(format!("x {x} has not one to {max_axes} spatial axes")));
    }
    let (windows, kernels) = (Windows::of(op, axes)?, kernels(op, axes)?);
    let mut shape = x.shape[..2].to_vec();
    for (axis, (size, &kernel)) in x.shape[2..].iter().zip(&kernels).enumerate() {
        shape.push(match size.fixed() {
            Some(n) => Dim::Fixed(
                windows
                    .axis(axis, n, kernel)
                    .ok_or_else(|| {
                        OpError::invalid(format!("windows of {kernels:?} do not fit x {x}"))
                    })?
                    .out,
            ),
            None if windows.keeps(axis, kernel) => size.clone(),
            None => Dim::Unknown,
        });
    }
    Ok(vec![TensorType { dtype: x.dtype, shape }.into()])
}

/// Reduces each window: `function` gets its elements and the number of its places that are elements
/// or padding.
fn pool(
    cx: &EvalCx<'_, '_>,
    function: impl Fn(&[f64], usize) -> f64,
) -> Result<Vec<Value>, OpError> {
    let x = cx.array("x")?;
    let axes = x.shape.len().saturating_sub(2);
    let (windows, kernels) = (Windows::of(&cx.op, axes)?, kernels(&cx.op, axes)?);
    let ([d, h, w], sizes) = windows
        .spatial(x.shape.get(2..).unwrap_or(&[]), &kernels)
        .filter(|_| axes > 0)
        .ok_or_else(|| {
            OpError::invalid(format!("windows of {kernels:?} do not fit x {:?}", x.shape))
        })?;
    let shape = [&x.shape[..2], &*sizes].concat();
    let mut out = Vec::with_capacity(shape.iter().product());
    let mut elements = Vec::new();
    for plane in x.floats()?.chunks_exact((d.size * h.size * w.size).max(1)) {
        for o in 0..d.out * h.out * w.out {
            let (rows, columns) = (h.window(o / w.out % h.out), w.window(o % w.out));
            let (slices, depth) = d.window(o / (h.out * w.out));
            elements.clear();
            for i in slices {
                for j in rows.0.clone() {
                    let start = (i * h.size + j) * w.size;
                    elements.extend_from_slice(&plane[start..][columns.0.clone()]);
                }
            }
            out.push(function(&elements, depth * rows.1 * columns.1));
        }
    }
    Ok(vec![Array { dtype: x.dtype, shape, data: Data::Float(out) }.into()])
}

/// One for each place of each window.
fn flops(op: &OpView<'_>, results: &[Type]) -> f64 {
    let axes = op.tensor("x").map_or(0, |x| x.rank().saturating_sub(2));
    let places = kernels(op, axes).map_or(1, |k| k.iter().product());
    elements(results) * places as f64
}

/// Defines pooling operations by their number of spatial axes at most and what they make of a
/// window.
macro_rules! pools {
    ($($(#[$doc:meta])* $kind:ident $name:literal $axes:literal [$($more:expr),*] $function:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// `x` is `[n, C, d...]`. Constants, one number a spatial axis: `kernel_sizes`, and as
            /// in convolution `strides`, `pad_type` and `pad`. With `ceil_mode` (false by default)
            /// a last window that is not full counts too, unless it begins in the padding.
            pub(super) struct $kind;

            impl OpDef for $kind {
                fn name(&self) -> &'static str {
                    $name
                }

                fn params(&self) -> &'static [Param] {
                    const {
                        &[
                            Param::new("x", Domain::Float),
                            Param::new("kernel_sizes", Domain::Int).constant(),
                            Param::new("strides", Domain::Int).optional().constant(),
                            Param::new("pad_type", Domain::Str).constant(),
                            Param::new("pad", Domain::Int).optional().constant(),
                            Param::new("ceil_mode", Domain::Bool).optional().constant(),
                            $($more,)*
                        ]
                    }
                }

                fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
                    infer(op, $axes)
                }

                fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
                    let exclude = cx.op.bool_or("exclude_padding_from_average", false)?;
                    let function: fn(&[f64], usize, bool) -> f64 = $function;
                    pool(cx, |window, places| function(window, places, exclude))
                }

                /// One for each place of each window.
                fn flops(&self, op: &OpView<'_>, results: &[Type]) -> f64 {
                    flops(op, results)
                }
            }
        )*
    };
}

pools! {
    /// The mean of each window, padding counting as zeros, or, with
    /// `exclude_padding_from_average`, not at all.
    AvgPool "avg_pool" 3
        [Param::new("exclude_padding_from_average", Domain::Bool).optional().constant()]
        |window, places, exclude| {
            mean(window, if exclude { window.len() } else { places })
        };
    /// The root of the sum of squares of each window.
    L2Pool "l2_pool" 2 [] |window, _, _| root(square_sum(window));
    /// The greatest element of each window.
    MaxPool "max_pool" 3 [] |window, _, _| extreme(window, |a, b| a > b, f64::NEG_INFINITY);
}
