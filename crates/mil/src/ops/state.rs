//! Reading and writing states.

use super::{Domain, OpDef, OpView, Param, bytes};
use crate::eval::{Data, EvalCx, Value};
use crate::{Cost, Effect, OpError, Opset, Type};

/// The content of the state `input`.
pub(super) struct ReadState;

impl OpDef for ReadState {
    fn name(&self) -> &'static str {
        "read_state"
    }

    fn opset(&self) -> Opset {
        Opset::Ios18
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("input", Domain::State)] }
    }

    fn effect(&self, _: &OpView<'_>) -> Effect {
        Effect::ReadsState
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        Ok(vec![op.state("input")?.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        Ok(vec![cx.state("input")?.clone().into()])
    }

    /// No flops; the state is read and its copy written.
    fn cost(&self, _: &OpView<'_>, results: &[Type]) -> Cost {
        Cost { flops: 0.0, bytes: 2.0 * bytes(results) }
    }
}

/// Makes `data` the content of the state `input`; no result. (`coreml_update_state` of coremltools is
/// this and a [`ReadState`].)
pub(super) struct WriteState;

impl OpDef for WriteState {
    fn name(&self) -> &'static str {
        "write_state"
    }

    fn opset(&self) -> Opset {
        Opset::Ios18
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("input", Domain::State), Param::new("data", Domain::Any)] }
    }

    fn effect(&self, _: &OpView<'_>) -> Effect {
        Effect::WritesState
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (state, data) = (op.state("input")?, op.tensor("data")?);
        if !state.compatible(data) {
            return Err(OpError::invalid(format!("data {data} does not fit state {state}")));
        }
        Ok(vec![])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let data = cx.array("data")?;
        let dtype = cx.state("input")?.dtype;
        let mut content = (*data).clone();
        if let Data::Float(v) = &mut content.data {
            v.iter_mut().for_each(|x| *x = cx.round(dtype, *x));
        }
        let state = cx.state_mut("input")?;
        if state.shape != content.shape || state.dtype != content.dtype {
            return Err(OpError::invalid(format!(
                "data {} {:?} does not fit state {dtype} {:?}",
                content.dtype, content.shape, state.shape
            )));
        }
        *state = content;
        Ok(vec![])
    }

    /// No flops; the data is read and written.
    fn cost(&self, op: &OpView<'_>, _: &[Type]) -> Cost {
        Cost { flops: 0.0, bytes: 2.0 * op.arg_bytes() }
    }
}
