//! Activations with constant parameters, of all elements or one for each channel.

use super::{Domain, OpDef, OpView, Param, elements};
use crate::eval::{Array, Data, EvalCx, Value, wrap};
use crate::{OpError, Type};

/// Defines activations with the constant scalars that are named.
macro_rules! activations {
    ($($(#[$doc:meta])* $kind:ident $name:literal [$($param:literal),+] $function:expr;)*) => {
        $(
            $(#[$doc])*
            pub(super) struct $kind;

            impl OpDef for $kind {
                fn name(&self) -> &'static str {
                    $name
                }

                fn params(&self) -> &'static [Param] {
                    const {
                        &[
                            Param::new("x", Domain::Float),
                            $(Param::new($param, Domain::Float).constant(),)+
                        ]
                    }
                }

                fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
                    $(op.float($param)?;)+
                    Ok(vec![op.tensor("x")?.clone().into()])
                }

                fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
                    let constants = [$(cx.op.float($param)?.unwrap_or_default()),+];
                    let function: fn(f64, [f64; [$($param),+].len()]) -> f64 = $function;
                    let x = cx.array("x")?;
                    let values = x.floats()?.iter().map(|&v| function(v, constants)).collect();
                    Ok(vec![x.with_floats(values).into()])
                }
            }
        )*
    };
}

activations! {
    /// `min(x, beta)` for `x >= 0`, `min(alpha * x, beta)` below.
    ClampedRelu "clamped_relu" ["alpha", "beta"]
        |x, [alpha, beta]| {
            let y = if x < 0.0 { alpha * x } else { x };
            if y > beta { beta } else { y }
        };
    /// `x` for `x >= 0`, `alpha * (e^x - 1)` below.
    Elu "elu" ["alpha"] |x, [alpha]| if x < 0.0 { alpha * x.exp_m1() } else { x };
    /// `x` for `x >= 0`, `alpha * x` below.
    LeakyRelu "leaky_relu" ["alpha"] |x, [alpha]| if x < 0.0 { alpha * x } else { x };
    /// `alpha * x + beta`.
    LinearActivation "linear_activation" ["alpha", "beta"] |x, [alpha, beta]| alpha * x + beta;
    /// `alpha * tanh(beta * x)`.
    ScaledTanh "scaled_tanh" ["alpha", "beta"] |x, [alpha, beta]| alpha * (beta * x).tanh();
    /// `alpha * x + beta` confined to `0..=1`.
    SigmoidHard "sigmoid_hard" ["alpha", "beta"] |x, [alpha, beta]| (alpha * x + beta).clamp(0.0, 1.0);
    /// `x` where it is at least `alpha`, else 0.
    ThresholdedRelu "thresholded_relu" ["alpha"] |x, [alpha]| if x < alpha { 0.0 } else { x };
}

/// `max(x, alpha)`, where the constant scalar `alpha` has the element type of `x`.
pub(super) struct Threshold;

impl OpDef for Threshold {
    fn name(&self) -> &'static str {
        "threshold"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Number), Param::new("alpha", Domain::Number).constant()] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, alpha) = (op.tensor("x")?, op.tensor("alpha")?);
        if alpha.rank() != 0 || alpha.dtype.is_int() != x.dtype.is_int() {
            return Err(OpError::invalid(format!("alpha {alpha} is no scalar for x {x}")));
        }
        Ok(vec![x.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, alpha) = (cx.array("x")?, cx.array("alpha")?);
        let data = match (&x.data, &alpha.data) {
            (Data::Int(v), Data::Int(a)) => {
                let low = a.first().copied().unwrap_or(i64::MIN);
                Data::Int(v.iter().map(|&v| wrap(x.dtype, v.max(low))).collect())
            }
            _ => {
                let low = alpha.floats()?.first().copied().unwrap_or(f64::NEG_INFINITY);
                Data::Float(x.floats()?.iter().map(|&v| if v < low { low } else { v }).collect())
            }
        };
        Ok(vec![Array { dtype: x.dtype, shape: x.shape.clone(), data }.into()])
    }
}

/// Checks that `x` is `[n, C, ...]` of rank 3 or more and each named argument `[C]`.
pub(super) fn check_channels(op: &OpView<'_>, names: &[&str]) -> Result<(), OpError> {
    let x = op.tensor("x")?;
    for name in names {
        let Some(t) = op.opt_tensor(name)? else { continue };
        let fits = x.rank() >= 3 && t.rank() == 1 && t.shape[0].compatible(&x.shape[1]);
        if !fits {
            return Err(OpError::invalid(format!("{name} {t} is not [C] of x {x} [n, C, ...]")));
        }
    }
    Ok(())
}

/// The channel of each element of an array `[n, C, ...]` and, row by row, its elements.
pub(super) fn channels(shape: &[usize]) -> Result<(usize, usize), OpError> {
    match shape {
        [_, channels, inner @ ..] => Ok((*channels, inner.iter().product())),
        _ => Err(OpError::invalid(format!("{shape:?} has no axis of channels"))),
    }
}

/// Applies `function` to each element and the `C` constants of its channel.
fn by_channel<const N: usize>(
    cx: &EvalCx<'_, '_>,
    names: [&str; N],
    function: impl Fn(f64, [f64; N]) -> f64,
) -> Result<Vec<Value>, OpError> {
    let x = cx.array("x")?;
    let (channels, inner) = channels(&x.shape)?;
    let mut constants = Vec::with_capacity(N);
    for name in names {
        let array = cx.array(name)?;
        if array.floats()?.len() != channels {
            return Err(OpError::invalid(format!("{name} does not have {channels} elements")));
        }
        constants.push(array);
    }
    let constants = constants.iter().map(|a| a.floats()).collect::<Result<Vec<_>, _>>()?;
    let mut out = x.floats()?.to_vec();
    for (i, row) in out.chunks_exact_mut(inner.max(1)).enumerate() {
        let own = std::array::from_fn(|k| constants[k][i % channels]);
        row.iter_mut().for_each(|v| *v = function(*v, own));
    }
    Ok(vec![x.with_floats(out).into()])
}

/// `x` `[n, C, ...]` where it is not negative, else `alpha[c] * x`; `alpha` `[C]` is constant.
pub(super) struct Prelu;

impl OpDef for Prelu {
    fn name(&self) -> &'static str {
        "prelu"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Float), Param::new("alpha", Domain::Float).constant()] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        check_channels(op, &["alpha"])?;
        Ok(vec![op.tensor("x")?.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        by_channel(cx, ["alpha"], |x, [alpha]| if x < 0.0 { alpha * x } else { x })
    }
}

/// `alpha[c] * log(1 + e^(beta[c] * x))` of `x` `[n, C, ...]`; `alpha` and `beta` `[C]` are constant.
pub(super) struct SoftplusParametric;

impl OpDef for SoftplusParametric {
    fn name(&self) -> &'static str {
        "softplus_parametric"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("alpha", Domain::Float).constant(),
                Param::new("beta", Domain::Float).constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        check_channels(op, &["alpha", "beta"])?;
        Ok(vec![op.tensor("x")?.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        by_channel(cx, ["alpha", "beta"], |x, [alpha, beta]| {
            alpha * crate::eval::functions::softplus(beta * x)
        })
    }

    /// Four an element: two products, exponential, logarithm.
    fn flops(&self, _: &OpView<'_>, results: &[Type]) -> f64 {
        4.0 * elements(results)
    }
}
