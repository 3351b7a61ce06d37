//! Elementwise operations of one argument, clipping and casts.

use tensor::DType;

use super::{Domain, OpDef, OpView, Param};
use crate::eval::{Array, Data, EvalCx, Value, functions, wrap};
use crate::{OpError, TensorType, Type};

/// Applies `float` or `int` to every element.
fn map(
    x: &Array,
    float: impl Fn(f64) -> f64,
    int: impl Fn(i64) -> Option<i64>,
) -> Result<Array, OpError> {
    let data = match &x.data {
        Data::Float(v) => Data::Float(v.iter().map(|&a| float(a)).collect()),
        Data::Int(v) => {
            let values = v.iter().map(|&a| int(a).map(|r| wrap(x.dtype, r)));
            let values: Option<Vec<i64>> = values.collect();
            Data::Int(values.ok_or_else(|| OpError::invalid("no result for these integers"))?)
        }
        _ => return Err(OpError::invalid(format!("{} values where numbers are needed", x.dtype))),
    };
    Ok(Array { dtype: x.dtype, shape: x.shape.clone(), data })
}

/// Defines operations that map `x` elementwise, of floats only or of integers too.
macro_rules! unary {
    ($($(#[$doc:meta])* $kind:ident $name:literal $domain:ident $float:expr, $int:expr;)*) => {
        $(
            $(#[$doc])*
            pub(super) struct $kind;

            impl OpDef for $kind {
                fn name(&self) -> &'static str {
                    $name
                }

                fn params(&self) -> &'static [Param] {
                    const { &[Param::new("x", Domain::$domain)] }
                }

                fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
                    Ok(vec![op.tensor("x")?.clone().into()])
                }

                fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
                    Ok(vec![map(&*cx.array("x")?, $float, $int)?.into()])
                }
            }
        )*
    };
}

fn no_int(_: i64) -> Option<i64> {
    None
}

/// -1, 0 or 1.
fn sign(x: f64) -> f64 {
    if x == 0.0 { x } else { x.signum() }
}

unary! {
    /// `|x|`.
    Abs "abs" Number f64::abs, |a| Some(a.wrapping_abs());
    /// Arc cosine, in radians.
    Acos "acos" Float f64::acos, no_int;
    /// Arc sine, in radians.
    Asin "asin" Float f64::asin, no_int;
    /// Arc tangent, in radians.
    Atan "atan" Float f64::atan, no_int;
    /// Inverse hyperbolic tangent.
    Atanh "atanh" Float libm::atanh, no_int;
    /// The least integer not below `x`.
    Ceil "ceil" Float f64::ceil, no_int;
    /// Cosine.
    Cos "cos" Float f64::cos, no_int;
    /// Hyperbolic cosine.
    Cosh "cosh" Float f64::cosh, no_int;
    /// The error function.
    Erf "erf" Float libm::erf, no_int;
    /// `e^x`.
    Exp "exp" Float f64::exp, no_int;
    /// `2^x`.
    Exp2 "exp2" Number f64::exp2, |a| u32::try_from(a).ok().map(|n| 2i64.wrapping_pow(n));
    /// The greatest integer not above `x`.
    Floor "floor" Float f64::floor, no_int;
    /// `max(x, 0)`.
    Relu "relu" Float |a| if a < 0.0 { 0.0 } else { a }, no_int;
    /// `x` confined to `0..=6`.
    Relu6 "relu6" Float |a| a.clamp(0.0, 6.0), no_int;
    /// The nearest integer, ties to even.
    Round "round" Float f64::round_ties_even, no_int;
    /// `1 / (1 + e^-x)`.
    Sigmoid "sigmoid" Float functions::sigmoid, no_int;
    /// -1, 0 or 1 as `x` is negative, zero or positive.
    Sign "sign" Number sign, |a| Some(a.signum());
    /// `x / (1 + e^-x)`.
    Silu "silu" Float functions::silu, no_int;
    /// Sine.
    Sin "sin" Float f64::sin, no_int;
    /// Hyperbolic sine.
    Sinh "sinh" Float f64::sinh, no_int;
    /// `log(1 + e^x)`.
    Softplus "softplus" Float functions::softplus, no_int;
    /// `x / (1 + |x|)`.
    Softsign "softsign" Float |a| a / (1.0 + a.abs()), no_int;
    /// Square root.
    Sqrt "sqrt" Float f64::sqrt, no_int;
    /// `x^2`.
    Square "square" Number |a| a * a, |a| Some(a.wrapping_mul(a));
    /// Tangent.
    Tan "tan" Float f64::tan, no_int;
    /// Hyperbolic tangent.
    Tanh "tanh" Float f64::tanh, no_int;
}

/// Defines operations on `x + epsilon`.
macro_rules! with_epsilon {
    ($($(#[$doc:meta])* $kind:ident $name:literal $default:literal, $function:expr;)*) => {
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
                            Param::new("epsilon", Domain::Float).optional().constant(),
                        ]
                    }
                }

                fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
                    op.float("epsilon")?;
                    Ok(vec![op.tensor("x")?.clone().into()])
                }

                fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
                    let epsilon = cx.op.float("epsilon")?.unwrap_or(f64::from($default));
                    let function: fn(f64) -> f64 = $function;
                    Ok(vec![map(&*cx.array("x")?, |a| function(a + epsilon), no_int)?.into()])
                }
            }
        )*

        impl crate::OpKind {
            /// What is added to `x` where an operation on `x + epsilon` has no epsilon written: a number of single
            /// precision, as it would be in a file.
            pub fn default_epsilon(self) -> Option<f64> {
                match self {
                    $(crate::OpKind::$kind => Some(f64::from($default)),)*
                    _ => None,
                }
            }
        }
    };
}

with_epsilon! {
    /// `1 / (x + epsilon)`; `epsilon` is 1e-4 if not given.
    Inverse "inverse" 1e-4_f32, |a| 1.0 / a;
    /// Natural logarithm of `x + epsilon`; `epsilon` is 1e-45 if not given.
    Log "log" 1e-45_f32, f64::ln;
    /// `1 / sqrt(x + epsilon)`; `epsilon` is 1e-12 if not given.
    Rsqrt "rsqrt" 1e-12_f32, |a| 1.0 / a.sqrt();
}

/// `x` confined to `alpha..=beta`, constant scalars with `alpha < beta`.
pub(super) struct Clip;

impl OpDef for Clip {
    fn name(&self) -> &'static str {
        "clip"
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
        match (op.float("alpha")?, op.float("beta")?) {
            (Some(alpha), Some(beta)) if alpha < beta => Ok(vec![op.tensor("x")?.clone().into()]),
            (Some(alpha), Some(beta)) => {
                Err(OpError::invalid(format!("alpha {alpha} is not below beta {beta}")))
            }
            _ => Err(OpError::invalid("alpha and beta are not numbers")),
        }
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let low = cx.op.float("alpha")?.unwrap_or(f64::NEG_INFINITY);
        let high = cx.op.float("beta")?.unwrap_or(f64::INFINITY);
        let clip = |a: f64| {
            if a < low {
                low
            } else if a > high {
                high
            } else {
                a
            }
        };
        Ok(vec![map(&*cx.array("x")?, clip, no_int)?.into()])
    }
}

/// Whether `x` does not hold.
pub(super) struct LogicalNot;

impl OpDef for LogicalNot {
    fn name(&self) -> &'static str {
        "logical_not"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Bool)] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        Ok(vec![op.tensor("x")?.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let data = Data::Bool(x.bools()?.iter().map(|b| !b).collect());
        Ok(vec![Array { dtype: x.dtype, shape: x.shape.clone(), data }.into()])
    }
}

/// `x` itself.
pub(super) struct Identity;

impl OpDef for Identity {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Any)] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        Ok(vec![op.tensor("x")?.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        Ok(vec![cx.value("x")?])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// `x` as the element type that the constant string `dtype` names.
///
/// Floats become integers rounded toward zero and confined to the type's range; integers wrap
/// around; anything but zero becomes `true`.
pub(super) struct Cast;

impl Cast {
    fn dtype(op: &OpView<'_>) -> Result<DType, OpError> {
        let name = op.str("dtype")?.unwrap_or_default();
        name.parse()
            .ok()
            .filter(|d: &DType| d.is_float() || d.is_int() || *d == DType::Bool)
            .ok_or_else(|| OpError::invalid(format!("dtype \"{name}\" is no type to cast to")))
    }
}

impl OpDef for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Any), Param::new("dtype", Domain::Str).constant()] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        if !(x.dtype.is_float() || x.dtype.is_int() || x.dtype == DType::Bool) {
            return Err(OpError::invalid(format!("x {x} cannot be cast")));
        }
        Ok(vec![TensorType { dtype: Self::dtype(op)?, shape: x.shape.clone() }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let dtype = Self::dtype(&cx.op)?;
        let x = cx.array("x")?;
        let data = match (&x.data, dtype) {
            (Data::Float(v), DType::Bool) => Data::Bool(v.iter().map(|&a| a != 0.0).collect()),
            (Data::Int(v), DType::Bool) => Data::Bool(v.iter().map(|&a| a != 0).collect()),
            (Data::Float(v), d) if d.is_int() => {
                let (low, high) = d.int_range().unwrap_or((i64::MIN.into(), i64::MAX.into()));
                let confine = |a: f64| (a as i128).clamp(low, high) as i64;
                Data::Int(v.iter().map(|&a| confine(a)).collect())
            }
            (Data::Int(v), d) if d.is_int() => Data::Int(v.iter().map(|&a| wrap(d, a)).collect()),
            (Data::Int(v), _) => Data::Float(v.iter().map(|&a| a as f64).collect()),
            (Data::Bool(v), d) if d.is_int() => {
                Data::Int(v.iter().map(|&a| i64::from(a)).collect())
            }
            (Data::Bool(v), d) if d.is_float() => {
                Data::Float(v.iter().map(|&a| f64::from(u8::from(a))).collect())
            }
            (same, _) => same.clone(),
        };
        Ok(vec![Array { dtype, shape: x.shape.clone(), data }.into()])
    }
}
