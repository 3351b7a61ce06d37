//! Constants.

use super::{OpDef, OpView, Param};
use crate::eval::{EvalCx, Value};
use crate::{OpError, Type};

/// A constant: the attribute `val`, as a value.
pub(super) struct Const;

impl OpDef for Const {
    fn name(&self) -> &'static str {
        "const"
    }

    fn params(&self) -> &'static [Param] {
        &[]
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let val = op.attributes.get("val");
        Ok(vec![val.ok_or_else(|| OpError::invalid("attribute \"val\" is missing"))?.ty.clone()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let op = cx.op;
        let val = op.attributes.get("val");
        let val = val.ok_or_else(|| OpError::invalid("attribute \"val\" is missing"))?;
        Ok(vec![Value::from_literal(val, op.weights)?])
    }
}
