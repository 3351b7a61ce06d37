//! Elementwise operations: arithmetic, comparison, unary functions.

use super::{Domain, OpDef, OpView, Param, broadcast};
use crate::eval::{EvalCx, Value};
use crate::{OpError, TensorType, Type};

/// `x + y` with broadcasting.
pub(super) struct Add;

impl OpDef for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("x", Domain::Number), Param::new("y", Domain::Number)] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (x, y) = (op.tensor("x")?, op.tensor("y")?);
        Ok(vec![TensorType { dtype: x.dtype, shape: broadcast(&x.shape, &y.shape)? }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, y) = (cx.array("x")?, cx.array("y")?);
        x.zip(&y, |a, b| a + b, |a, b| Some(a.wrapping_add(b))).map(|a| vec![a.into()])
    }
}
