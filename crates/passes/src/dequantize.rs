//! Replaces block-quantised constants by constants in half precision.

use mil::{Error, Function, Literal, OpId, OpKind, Payload, Program, Type, ValueId};
use tensor::WeightStore;

use crate::Pass;
use crate::half::{self, Beyond};

/// Replaces block-quantised constants by constants in half precision.
pub(crate) struct Dequantize;

impl Pass for Dequantize {
    fn name(&self) -> &'static str {
        "dequantize"
    }

    fn doc(&self) -> &'static str {
        "Replaces block-quantised constants, which plain MIL does not have, by their values in fp16. A \
         weight that several functions use is decoded once and stays one weight.\n\
         before: w = const(val = tensor<q4_1, [4, 32]>(...)); y = llm.linear(x = x, weight = w) -> (y)\n\
         after:  w = const(val = tensor<fp16, [4, 32]>(...)); y = llm.linear(x = x, weight = w) -> (y)"
    }

    fn exact(&self) -> bool {
        false
    }

    fn run(&self, program: &mut Program, name: &str) -> mil::Result<usize> {
        let Program { functions, weights, .. } = program;
        let Some(function) = functions.get_mut(name) else { return Ok(0) };
        let quantized: Vec<OpId> =
            function.ops.keys().filter(|&id| quantized(function, id)).collect();
        for &id in &quantized {
            let Some(literal) = function.ops[id].const_value() else { continue };
            let half = decoded(literal, weights)
                .map_err(|e| Error::at_op(e, name, function.describe(id)))?;
            retype(function, id, half);
        }
        Ok(quantized.len())
    }
}

/// Whether `id` is a const of a block-quantised type.
fn quantized(function: &Function, id: OpId) -> bool {
    let op = &function.ops[id];
    let result = |v: &ValueId| function.tensor_ty(*v).is_some_and(|t| t.dtype.is_block_quantized());
    op.kind == OpKind::Const && op.outputs.iter().any(result)
}

/// The constant's values in half precision. A weight's are put in its place in the store, where other
/// functions find them when it is their turn.
fn decoded(literal: &Literal, weights: &mut WeightStore) -> Result<Literal, mil::OpError> {
    let Payload::Weight(id) = literal.payload else {
        return half::literal(literal, weights, Beyond::Refuse);
    };
    if let Some(weight) = weights.get(id).cloned()
        && weight.tensor.dtype().is_block_quantized()
    {
        weights.replace(id, half::tensor(&weight.tensor, Beyond::Refuse)?);
    }
    Literal::weight(weights, id)
}

fn retype(function: &mut Function, id: OpId, literal: Literal) {
    let result = function.ops[id].outputs[0];
    function.values[result].ty = Type::clone(&literal.ty);
    function.ops[id].attributes.insert("val", literal);
}
