//! Removes casts that other casts undo, and joins those that follow each other.

use std::collections::HashMap;

use mil::eval::{Arithmetic, Value};
use mil::{Arg, Function, Literal, OpError, OpId, OpKind, Payload, Program, ValueDef, ValueId};
use tensor::DType;

use crate::dead_code::DeadCode;
use crate::rebuild::{Results, Site, rebuild, uses};
use crate::rewrite::{is_own, weight_uses};
use crate::{Pass, Property};

/// Removes casts that other casts undo, and joins those that follow each other.
pub(crate) struct CastFusion;

impl Pass for CastFusion {
    fn name(&self) -> &'static str {
        "cast_fusion"
    }

    fn doc(&self) -> &'static str {
        "Joins casts that follow each other where the type between holds every value of the first, removes \
         them where they end at the type they began with, also around operations that only move or compare \
         elements, and computes casts of constants. A cast that may lose something stays.\n\
         before: a = cast(x = h, dtype = \"fp32\"); b = reshape(x = a, shape = s); \
         c = cast(x = b, dtype = \"fp16\") -> (c)\n\
         after:  c = reshape(x = h, shape = s) -> (c)"
    }

    fn breaks(&self) -> &'static [Property] {
        &[Property::UniqueConstants]
    }

    fn run(&self, program: &mut Program, name: &str) -> mil::Result<usize> {
        let mut total = 0;
        loop {
            let Some(function) = program.functions.get(name) else { return Ok(total) };
            let uses = uses(function);
            let constants = constant_casts(program, function, name, &uses);
            let changed = rebuild(program, name, &mut |site| fuse(site, &uses, &constants))?;
            if changed == 0 {
                return Ok(total);
            }
            DeadCode.run(program, name)?;
            total += changed;
        }
    }
}

/// How often values are used.
type Uses = HashMap<ValueId, usize>;

/// What casts of constants give, for constants that nothing else uses or that do not grow.
fn constant_casts(
    program: &Program,
    function: &Function,
    name: &str,
    uses: &Uses,
) -> HashMap<OpId, Literal> {
    let mut found = HashMap::new();
    let shared = weight_uses(program);
    for (id, op) in &function.ops {
        let (OpKind::Cast, Some(Arg::Value(x))) = (op.kind, op.arg("x")) else { continue };
        let Some(literal) = function.const_of(*x) else { continue };
        let tensor = literal.resolve(&program.weights);
        let (Some(tensor), Some(to)) = (tensor, function.tensor_ty(op.outputs[0])) else {
            continue;
        };
        // A copy of a constant that stays costs memory unless it is small.
        let once = uses.get(x) == Some(&1) && is_own(literal, &shared);
        let grows = !once || to.dtype.bits() > tensor.dtype().bits();
        if (grows && tensor.bytes().len() > SMALL) || tensor.dtype().is_block_quantized() {
            continue;
        }
        let value = Literal::tensor(tensor.clone());
        let given = Value::from_literal(&value, &program.weights).map(|v| [(*x, v)]);
        let states = &mut std::collections::BTreeMap::new();
        let cast = given.ok().and_then(|given| {
            mil::eval::run_op(program, name, id, Arithmetic::Fp16, given, states).ok()
        });
        let tensor = cast.and_then(|values| values.first()?.array().ok()?.to_tensor().ok());
        if let Some(tensor) = tensor {
            found.insert(id, Literal::tensor(tensor));
        }
    }
    found
}

/// Bytes up to which a constant may be held twice.
const SMALL: usize = 4096;

fn fuse(
    site: &mut Site<'_, '_>,
    uses: &Uses,
    constants: &HashMap<OpId, Literal>,
) -> Result<Option<Results>, OpError> {
    let view = site.view();
    let (OpKind::Cast, Some(&Arg::Value(x))) = (view.kind, view.arg("x")) else { return Ok(None) };
    let function = site.function;
    let result = function.ops[site.id].outputs[0];
    if let Some(literal) = constants.get(&site.id) {
        let name = &function.values[result].name;
        let literal = literal.clone();
        let made = match (function.const_of(x).map(|l| &l.payload), &literal.payload) {
            (Some(Payload::Weight(_)), Payload::Tensor(t)) => site.b.new_weight(name, t.clone())?,
            _ => site.b.constant(name, literal),
        };
        return Ok(Some(vec![Some(made)]));
    }
    let (Some(from), Some(to)) = (function.tensor_ty(x), function.tensor_ty(result)) else {
        return Ok(None);
    };
    if let Some((source, first)) = cast_behind(function, x)
        && joins(first, from.dtype, to.dtype)
    {
        if first == to.dtype {
            return Ok(Some(vec![Some(source)]));
        }
        let dtype = view.required("dtype")?.clone();
        let joined = site.b.op(OpKind::Cast).arg("x", source).arg("dtype", dtype).result()?;
        return Ok(Some(vec![Some(joined)]));
    }
    let Some(chain) = undone_around(function, x, from.dtype, to.dtype, uses) else {
        return Ok(None);
    };
    let mut made: HashMap<ValueId, ValueId> = HashMap::new();
    for id in chain {
        let op = &function.ops[id];
        let mut next = site.b.op(op.kind).name(function.values[op.outputs[0]].name.clone());
        for (param, arg) in op.kind.def().params().iter().zip(&op.args) {
            let arg = arg.clone().map(|mut arg| {
                if operands(op.kind).contains(&param.name) {
                    arg.for_each_value_mut(&mut |v| {
                        let source = cast_behind(function, *v).map(|(source, _)| source);
                        *v = made.get(v).copied().or(source).unwrap_or(*v);
                    });
                }
                arg
            });
            next = next.opt_arg(param.name, arg);
        }
        made.insert(op.outputs[0], next.result()?);
    }
    Ok(made.get(&x).map(|&v| vec![Some(v)]))
}

/// What the cast that makes `v` casts, and its type.
fn cast_behind(function: &Function, v: ValueId) -> Option<(ValueId, DType)> {
    let ValueDef::Result(id, 0) = function.values[v].def else { return None };
    let op = &function.ops[id];
    match (op.kind, op.arg("x")) {
        (OpKind::Cast, Some(&Arg::Value(x))) => Some((x, function.tensor_ty(x)?.dtype)),
        _ => None,
    }
}

/// Whether a cast from `a` to `b` and on to `c` is the cast from `a` to `c`.
fn joins(a: DType, b: DType, c: DType) -> bool {
    let wraps = a.is_int() && b.is_int() && c.is_int() && c.bits() <= b.bits();
    // From floats to integers values are confined, from integers to integers they wrap around.
    let confined = a.is_int() && b.is_float() && c.is_int() && !holds(c, a);
    (holds(b, a) && !confined) || wraps
}

/// Whether every value of type `narrow` is one of type `wide`.
fn holds(wide: DType, narrow: DType) -> bool {
    if wide == narrow {
        return true;
    }
    match (narrow, float_form(narrow), wide, float_form(wide)) {
        (DType::Bool, ..) => wide.is_int() || wide.is_float(),
        (_, Some(n), _, Some(w)) => n.digits <= w.digits && n.least >= w.least && n.most <= w.most,
        (_, None, _, Some(w)) => narrow.int_range().is_some_and(|(low, high)| {
            let limit = 1i128 << w.digits;
            -limit <= low && high <= limit && w.digits <= w.most
        }),
        (_, None, _, None) => match (narrow.int_range(), wide.int_range()) {
            (Some((a, b)), Some((low, high))) => low <= a && b <= high,
            _ => false,
        },
        (_, Some(_), _, None) => false,
    }
}

/// A float format: binary digits, exponent of the last digit of the least number, and exponent of the
/// greatest.
struct FloatForm {
    digits: i32,
    least: i32,
    most: i32,
}

/// IEEE 754's formats and bfloat16; no conclusions are drawn on others.
fn float_form(dtype: DType) -> Option<FloatForm> {
    let (digits, least, most) = match dtype {
        DType::F16 => (11, -24, 15),
        DType::Bf16 => (8, -133, 127),
        DType::F32 => (24, -149, 127),
        DType::F64 => (53, -1074, 1023),
        _ => return None,
    };
    Some(FloatForm { digits, least, most })
}

/// The operations between a cast to `wide` and the one back to `narrow`, first to last, that give the
/// same elements in either type; the last of them makes `x`.
fn undone_around(
    function: &Function,
    x: ValueId,
    wide: DType,
    narrow: DType,
    uses: &Uses,
) -> Option<Vec<OpId>> {
    let plain = matches!(narrow, DType::F16 | DType::F32 | DType::I32);
    if !plain || !holds(wide, narrow) {
        return None;
    }
    let mut chain = Vec::new();
    let mut at = x;
    loop {
        let ValueDef::Result(id, 0) = function.values[at].def else { return None };
        let op = &function.ops[id];
        let names = operands(op.kind);
        let compares = COMPARING.contains(&op.kind) && !(wide.is_float() && narrow.is_float());
        if names.is_empty() || compares || op.outputs.len() != 1 || uses.get(&at) != Some(&1) {
            return None;
        }
        chain.push(id);
        let mut sources = Vec::new();
        names.iter().filter_map(|n| op.arg(n)).for_each(|a| {
            a.for_each_value(&mut |v| sources.push(v));
            a.for_each_literal(&mut |_| sources.push(at));
        });
        let ends = |v: &ValueId| cast_behind(function, *v).is_some_and(|(_, t)| t == narrow);
        if !sources.is_empty() && sources.iter().all(ends) {
            chain.reverse();
            return Some(chain);
        }
        match sources[..] {
            [source] if source != at => at = source,
            _ => return None,
        }
    }
}

/// Operations that choose among the elements of their operands, of floats.
const COMPARING: &[OpKind] = &[
    OpKind::Relu,
    OpKind::Maximum,
    OpKind::Minimum,
    OpKind::ReduceMax,
    OpKind::ReduceMin,
    OpKind::MaxPool,
];

/// The parameters whose elements, moved or chosen, are those of the result; none for operations that
/// compute.
fn operands(kind: OpKind) -> &'static [&'static str] {
    match kind {
        OpKind::Reshape
        | OpKind::Transpose
        | OpKind::ExpandDims
        | OpKind::Squeeze
        | OpKind::SliceByIndex
        | OpKind::SliceBySize
        | OpKind::Tile
        | OpKind::Flatten2d
        | OpKind::Gather
        | OpKind::GatherAlongAxis
        | OpKind::Reverse
        | OpKind::DepthToSpace
        | OpKind::SpaceToDepth
        | OpKind::PixelShuffle
        | OpKind::Relu
        | OpKind::ReduceMax
        | OpKind::ReduceMin
        | OpKind::MaxPool => &["x"],
        OpKind::Maximum | OpKind::Minimum => &["x", "y"],
        OpKind::Concat | OpKind::Stack => &["values"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_hold_others() {
        use DType::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16};
        for (wide, narrow) in
            [(F32, F16), (F32, Bf16), (F64, F32), (F16, I8), (F16, U8), (F32, U16), (F64, I32)]
        {
            assert!(holds(wide, narrow), "{wide} {narrow}");
            assert!(!holds(narrow, wide), "{narrow} {wide}");
        }
        for (wide, narrow) in [(F16, Bf16), (Bf16, F16), (F16, I16), (F32, I32), (U8, I8)] {
            assert!(!holds(wide, narrow), "{wide} {narrow}");
        }
        assert!(holds(F16, Bool) && holds(I8, Bool) && holds(I64, I32));
    }

    #[test]
    fn casts_that_join() {
        use DType::{F16, F32, F64, I8, I16, I32, U8};
        assert!(joins(F16, F32, F16) && joins(F16, F32, I32) && joins(I32, I16, I8));
        // Rounding twice is not rounding once; an integer that leaves its type is confined by way of
        // a float and wraps around without.
        for (a, b, c) in [(F32, F16, F32), (F64, F32, F16), (I32, F64, U8), (I32, I8, I16)] {
            assert!(!joins(a, b, c), "{a} {b} {c}");
        }
    }
}
