//! Computes now what does not depend on inputs.

use std::collections::{BTreeMap, HashMap};

use mil::eval::{self, Arithmetic, Value};
use mil::{Arg, Effect, Function, Literal, OpId, OpKind, Program, Type, ValueId};
use tensor::DType;

use crate::{Pass, rewrite};

/// The largest result that is folded, in bytes: beyond, a constant costs more memory than computing
/// it again costs time.
const MAX_BYTES: usize = 1 << 20;

/// Replaces operations on constants by their result.
pub(crate) struct Fold;

impl Pass for Fold {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn doc(&self) -> &'static str {
        "Replaces operations whose arguments are all constants by their results, computed by the \
         reference evaluation, up to 1 MiB a result. Decompressing a weight is left to whoever uses it.\n\
         before: a = add(x = 1.0, y = 2.0); b = mul(x = x, y = a) -> (b)\n\
         after:  a = const(val = 3.0); b = mul(x = x, y = a) -> (b)"
    }

    fn run(&self, program: &mut Program, name: &str) -> mil::Result<usize> {
        let mut folded: HashMap<OpId, Literal> = HashMap::new();
        let mut known: HashMap<ValueId, Value> = HashMap::new();
        let Some(function) = program.functions.get(name) else { return Ok(0) };
        for &id in &function.body.ops {
            if !foldable(program, function, id, &known) {
                continue;
            }
            let mut given = Vec::new();
            function.for_each_use(id, &mut |v| {
                if let Some(value) = known.get(&v) {
                    given.push((v, value.clone()));
                }
            });
            // Rounding to the types in the program is what running it would do.
            let arithmetic = Arithmetic::Fp16;
            let states = &mut BTreeMap::new();
            // An operation that fails stays, so that it fails where and when it is run.
            let Ok(values) = eval::run_op(program, name, id, arithmetic, given, states) else {
                continue;
            };
            let result = function.ops[id].outputs[0];
            let [value] = &values[..] else { continue };
            let Some(literal) = literal(value, function.ty(result)) else { continue };
            known.insert(result, value.clone());
            folded.insert(id, literal);
        }
        let Some(function) = program.functions.get_mut(name) else { return Ok(0) };
        for (&id, literal) in &folded {
            make_const(function, id, literal.clone());
        }
        Ok(folded.len())
    }
}

/// Whether `id` has one result of known, bounded size that depends on small constants only.
fn foldable(
    program: &Program,
    function: &Function,
    id: OpId,
    known: &HashMap<ValueId, Value>,
) -> bool {
    let op = &function.ops[id];
    // A compressed weight stays compressed: whoever uses it decompresses it.
    if op.kind == OpKind::Const
        || op.kind.is_constexpr()
        || !op.blocks.is_empty()
        || op.outputs.len() != 1
        || rewrite::effect(function, &program.weights, id) != Effect::Pure
    {
        return false;
    }
    let small = |bytes: Option<usize>| bytes.is_some_and(|n| n <= MAX_BYTES);
    let result = function.tensor_ty(op.outputs[0]).is_some_and(|t| {
        let elements = t.fixed_shape().and_then(|s| tensor::element_count(&s));
        small(elements.and_then(|n| t.dtype.byte_len(n)))
    });
    let constant = |literal: &Literal| match literal.resolve(&program.weights) {
        Some(t) => !t.dtype().is_block_quantized() && small(Some(t.bytes().len())),
        None => true,
    };
    let mut constants = true;
    op.for_each_arg_value(|v| {
        constants &= known.contains_key(&v) || function.const_of(v).is_some_and(constant);
    });
    result && constants
}

/// The constant with the value and type given; `None` if no tensor literal holds it exactly.
fn literal(value: &Value, ty: &Type) -> Option<Literal> {
    let array = value.array().ok()?;
    if matches!(array.dtype, DType::Str) {
        return None;
    }
    let literal = Literal::tensor(array.to_tensor().ok()?);
    ty.compatible(&literal.ty).then_some(literal)
}

/// Turns an operation of one result into a const.
fn make_const(function: &mut Function, id: OpId, literal: Literal) {
    let op = &mut function.ops[id];
    op.kind = OpKind::Const;
    op.args = Vec::<Option<Arg>>::new();
    let ty = literal.ty.clone();
    op.attributes.retain(|name, _| name == "name");
    op.attributes.insert("val".to_owned(), literal);
    let result = op.outputs[0];
    function.values[result].ty = ty;
}
