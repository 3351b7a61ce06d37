//! Elementwise operations of two arguments: arithmetic, comparison, logic.
//!
//! Both arguments have one element type and broadcast by the numpy rule.

use tensor::DType;

use super::{Domain, OpDef, OpView, Param, broadcast};
use crate::eval::{EvalCx, Value};
use crate::{OpError, TensorType, Type};

/// The broadcast type of `x` and `y`, of element type `dtype` or theirs.
fn infer(op: &OpView<'_>, dtype: Option<DType>) -> Result<Vec<Type>, OpError> {
    let (x, y) = (op.tensor("x")?, op.tensor("y")?);
    let shape = (x.dtype == y.dtype).then(|| broadcast(&x.shape, &y.shape).ok()).flatten();
    let shape =
        shape.ok_or_else(|| OpError::invalid(format!("x {x} and y {y} do not go together")))?;
    Ok(vec![TensorType { dtype: dtype.unwrap_or(x.dtype), shape }.into()])
}

/// Defines operations from a name, a domain, the result's element type if not the arguments', and
/// what [`Array::zip`](crate::eval::Array::zip) or `compare` takes.
macro_rules! binary {
    ($($(#[$doc:meta])* $kind:ident $name:literal $domain:ident $dtype:expr,
       $method:ident($($function:expr),*);)*) => {
        $(
            $(#[$doc])*
            pub(super) struct $kind;

            impl OpDef for $kind {
                fn name(&self) -> &'static str {
                    $name
                }

                fn params(&self) -> &'static [Param] {
                    const { &[Param::new("x", Domain::$domain), Param::new("y", Domain::$domain)] }
                }

                fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
                    infer(op, $dtype)
                }

                fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
                    let (x, y) = (cx.array("x")?, cx.array("y")?);
                    Ok(vec![x.$method(&y, $($function),*)?.into()])
                }
            }
        )*
    };
}

/// `a - b * floor(a / b)`: the remainder with the divisor's sign, a zero's too.
fn floor_mod(a: f64, b: f64) -> f64 {
    match a % b {
        0.0 => 0f64.copysign(b),
        r if (r < 0.0) != (b < 0.0) => r + b,
        r => r,
    }
}

fn floor_div_int(a: i64, b: i64) -> Option<i64> {
    let q = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q })
}

fn floor_mod_int(a: i64, b: i64) -> Option<i64> {
    floor_div_int(a, b).map(|q| a - q * b)
}

/// `a^b` of integers: a negative exponent gives the power rounded toward zero.
fn pow_int(a: i64, b: i64) -> Option<i64> {
    match u32::try_from(b) {
        Ok(n) => Some(a.wrapping_pow(n)),
        Err(_) if b > 0 => None,
        Err(_) => match a {
            0 => None,
            1 => Some(1),
            -1 => Some(if b % 2 == 0 { 1 } else { -1 }),
            _ => Some(0),
        },
    }
}

/// The greater of the two; NaN if one is.
fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// The lesser of the two; NaN if one is.
fn minimum(a: f64, b: f64) -> f64 {
    if a.is_nan() || a < b { a } else { b }
}

binary! {
    /// `x + y`.
    Add "add" Number None, zip(|a, b| a + b, |a, b| Some(a.wrapping_add(b)));
    /// `x - y`.
    Sub "sub" Number None, zip(|a, b| a - b, |a, b| Some(a.wrapping_sub(b)));
    /// `x * y`.
    Mul "mul" Number None, zip(|a, b| a * b, |a, b| Some(a.wrapping_mul(b)));
    /// `x / y`; of integers, rounded toward zero.
    RealDiv "real_div" Number None, zip(|a, b| a / b, i64::checked_div);
    /// `x / y` rounded down.
    FloorDiv "floor_div" Number None, zip(|a, b| (a / b).floor(), floor_div_int);
    /// The remainder of `x / y` rounded down; it has the sign of `y`, as a zero too.
    Mod "mod" Number None, zip(floor_mod, floor_mod_int);
    /// `x` to the power `y`.
    Pow "pow" Number None, zip(f64::powf, pow_int);
    /// The greater of `x` and `y`.
    Maximum "maximum" Number None, zip(maximum, |a, b| Some(a.max(b)));
    /// The lesser of `x` and `y`.
    Minimum "minimum" Number None, zip(minimum, |a, b| Some(a.min(b)));
    /// Whether `x = y`.
    Equal "equal" Number Some(DType::Bool), compare(|a, b| a == b, |a, b| a == b);
    /// Whether `x` and `y` differ.
    NotEqual "not_equal" Number Some(DType::Bool), compare(|a, b| a != b, |a, b| a != b);
    /// Whether `x < y`.
    Less "less" Number Some(DType::Bool), compare(|a, b| a < b, |a, b| a < b);
    /// Whether `x <= y`.
    LessEqual "less_equal" Number Some(DType::Bool),
        compare(|a, b| a <= b, |a, b| a <= b);
    /// Whether `x > y`.
    Greater "greater" Number Some(DType::Bool), compare(|a, b| a > b, |a, b| a > b);
    /// Whether `x >= y`.
    GreaterEqual "greater_equal" Number Some(DType::Bool),
        compare(|a, b| a >= b, |a, b| a >= b);
    /// Whether both hold.
    LogicalAnd "logical_and" Bool None, logic(|a, b| a & b);
    /// Whether at least one holds.
    LogicalOr "logical_or" Bool None, logic(|a, b| a | b);
    /// Whether exactly one holds.
    LogicalXor "logical_xor" Bool None, logic(|a, b| a ^ b);
}
