//! Computes in half precision what is computed in single.

use std::collections::{HashMap, HashSet};

use mil::{
    Arg, Error, Function, Literal, OpError, OpId, OpKind, OpView, Operation, Program, TensorType,
    Type, ValueData, ValueDef, ValueId,
};
use tensor::{DType, WeightStore};

use crate::half::{self, Beyond};
use crate::{Pass, Property, rewrite};

/// Computes in half precision what is computed in single.
pub(crate) struct ToFp16;

impl Pass for ToFp16 {
    fn name(&self) -> &'static str {
        "to_fp16"
    }

    fn doc(&self) -> &'static str {
        "Computes in fp16 what is computed in fp32, constants included; inputs and outputs of the \
         function keep their types and get casts. What is computed from integers alone stays fp32 (up to \
         a sine or cosine: positions times frequencies exceed what fp16 tells apart), and so do states, \
         nested blocks, random numbers and the constant options of composite operations. Constants \
         beyond fp16's range are clamped where they are added, selected or compared (masks), and refused \
         elsewhere.\n\
         before: y = mul(x = x, y = w) -> (y)\n\
         after:  a = cast(x = x, dtype = \"fp16\"); b = mul(x = a, y = w_to_fp16); y = cast(x = b, \
         dtype = \"fp32\") -> (y)"
    }

    fn breaks(&self) -> &'static [Property] {
        &[Property::NoDeadCode, Property::UniqueConstants]
    }

    fn exact(&self) -> bool {
        false
    }

    fn run(&self, program: &mut Program, name: &str) -> mil::Result<usize> {
        let Some(function) = program.functions.get(name).cloned() else { return Ok(0) };
        let mut weights = program.weights.clone();
        let mut halver = Halver {
            name,
            body: Vec::with_capacity(function.body.ops.len()),
            function,
            weights: &mut weights,
            halves: HashMap::new(),
            singles: HashMap::new(),
            integers: HashSet::new(),
            became: HashSet::new(),
            changes: 0,
        };
        for id in halver.function.body.ops.clone() {
            halver.operation(id)?;
        }
        halver.outputs();
        let Halver { mut function, body, changes, .. } = halver;
        if changes > 0 {
            function.body.ops = body;
            rewrite::make_names_unique(&mut function);
            program.weights = weights;
            program.functions.insert(name.to_owned(), function);
        }
        Ok(changes)
    }
}

/// A function on its way to half precision. A value keeps its id when its type changes.
struct Halver<'a> {
    name: &'a str,
    function: Function,
    /// The new body so far.
    body: Vec<OpId>,
    weights: &'a mut WeightStore,
    /// Values that stand for single-precision ones, in half precision.
    halves: HashMap<(ValueId, Beyond), ValueId>,
    /// Values that stand for ones that have become half, in single precision.
    singles: HashMap<ValueId, ValueId>,
    /// Floats computed from integers alone.
    integers: HashSet<ValueId>,
    /// Values of the function that were of single precision and are of half.
    became: HashSet<ValueId>,
    changes: usize,
}

impl Halver<'_> {
    fn operation(&mut self, id: OpId) -> mil::Result<()> {
        let kind = self.function.ops[id].kind;
        let halved = match kind {
            OpKind::Const | OpKind::ReadState => Some(()),
            OpKind::Cast => {
                self.cast(id);
                Some(())
            }
            _ if self.stays_single(id) => None,
            _ => self.halved(id)?,
        };
        if halved.is_none() {
            self.restore_uses(id);
        }
        self.body.push(id);
        Ok(())
    }

    fn is(&self, v: ValueId, dtype: DType) -> bool {
        self.function.tensor_ty(v).is_some_and(|t| t.dtype == dtype)
    }

    /// A cast to single precision stays: of a half value it is that value's twin, of integers it
    /// begins what stays single. One of truth values is exact in half precision.
    fn cast(&mut self, id: OpId) {
        let op = &self.function.ops[id];
        let (Some(Arg::Value(x)), [result]) = (op.arg("x"), &op.outputs[..]) else { return };
        let (x, result) = (*x, *result);
        if !self.is(result, DType::F32) {
            return;
        }
        match self.function.tensor_ty(x).map(|t| t.dtype) {
            Some(DType::F16) => {
                self.halves.insert((result, Beyond::Refuse), x);
                self.singles.insert(x, result);
            }
            Some(DType::Bool) => {
                set_arg(&mut self.function.ops[id], "dtype", Literal::string(DType::F16.name()));
                self.retype(result);
                self.changes += 1;
            }
            Some(dtype) if dtype.is_int() => {
                self.integers.insert(result);
            }
            _ => {}
        }
    }

    fn retype(&mut self, v: ValueId) {
        if let Type::Tensor(t) = &self.function.values[v].ty {
            self.function.values[v].ty = half::of_type(t).into();
            self.became.insert(v);
        }
    }

    /// Whether the operation must not change, apart from casts of its arguments.
    fn stays_single(&mut self, id: OpId) -> bool {
        let op = &self.function.ops[id];
        let effect = rewrite::effect(&self.function, self.weights, id);
        let random = effect == mil::Effect::Random;
        if random || !op.blocks.is_empty() || op.kind == OpKind::WriteState {
            return true;
        }
        // Positions, without a cast in front.
        if op.kind == OpKind::Range1d && self.is(op.outputs[0], DType::F32) {
            let positions = op.outputs[0];
            self.integers.insert(positions);
            return true;
        }
        let mut from_integers = false;
        let mut from_others = false;
        op.for_each_arg_value(|v| {
            if self.integers.contains(&v) {
                from_integers = true;
            } else if self.function.const_of(v).is_none()
                && self.function.tensor_ty(v).is_some_and(|t| t.dtype.is_float())
            {
                from_others = true;
            }
        });
        if !from_integers || from_others {
            return false;
        }
        if !matches!(op.kind, OpKind::Sin | OpKind::Cos) {
            let results: Vec<ValueId> =
                op.outputs.iter().copied().filter(|&v| self.is(v, DType::F32)).collect();
            self.integers.extend(results);
        }
        true
    }

    /// Tries the operation with its arguments in half precision; `None` if its definition then does
    /// not give each single-precision result in half precision, or if there is nothing to change.
    fn halved(&mut self, id: OpId) -> mil::Result<Option<()>> {
        let mut op = self.function.ops[id].clone();
        if !self.has_singles(&op) {
            return Ok(Some(()));
        }
        let place = |e: OpError, f: &Function| Error::at_op(e, self.name, f.describe(id));
        let composite = op.kind.def().is_composite();
        let beyond = beyond(op.kind);
        for (param, arg) in op.kind.def().params().iter().zip(&mut op.args) {
            let Some(arg) = arg.as_mut().filter(|_| !(composite && param.constant)) else {
                continue;
            };
            self.halve_arg(arg, beyond).map_err(|e| place(e, &self.function))?;
        }
        if matches!(op.kind, OpKind::LlmEmbedding | OpKind::LlmDequantize) {
            set_arg(&mut op, "dtype", Literal::string(DType::F16.name()));
        }
        let Ok(types) = op.kind.def().infer(&OpView::new(&self.function, self.weights, &op)) else {
            return Ok(None);
        };
        let fits = |(&v, ty): (&ValueId, &Type)| match (self.function.ty(v), ty) {
            (Type::Tensor(old), Type::Tensor(new)) if old.dtype == DType::F32 => {
                new.dtype == DType::F16
            }
            (old, new) => old.compatible(new),
        };
        if !op.outputs.iter().zip(&types).all(fits) {
            return Ok(None);
        }
        for v in op.outputs.clone() {
            if self.is(v, DType::F32) {
                self.retype(v);
            }
        }
        self.function.ops[id] = op;
        self.changes += 1;
        Ok(Some(()))
    }

    /// Whether an argument or result is of single precision.
    fn has_singles(&self, op: &Operation) -> bool {
        let mut found = op.outputs.iter().any(|&v| self.is(v, DType::F32));
        op.for_each_arg_value(|v| found |= self.is(v, DType::F32));
        found
    }

    fn halve_arg(&mut self, arg: &mut Arg, beyond: Beyond) -> Result<(), OpError> {
        match arg {
            Arg::Value(v) => *v = self.half(*v, beyond)?,
            Arg::Literal(l) if wide(l.ty.as_tensor(), true) => {
                **l = half::literal(l, self.weights, beyond)?
            }
            Arg::Literal(_) => {}
            Arg::List(items) => {
                return items.iter_mut().try_for_each(|a| self.halve_arg(a, beyond));
            }
        }
        Ok(())
    }

    /// The value in half precision: itself if it is no float that is wider, else a constant or a cast.
    fn half(&mut self, v: ValueId, beyond: Beyond) -> Result<ValueId, OpError> {
        let constant = self.function.const_of(v).cloned();
        if !wide(self.function.tensor_ty(v), constant.is_some()) {
            return Ok(v);
        }
        // Only constants can be beyond the range.
        let beyond = if constant.is_some() { beyond } else { Beyond::Refuse };
        if let Some(&half) = self.halves.get(&(v, beyond)) {
            return Ok(half);
        }
        let name = format!("{}_to_fp16", self.function.values[v].name);
        let half = match constant {
            Some(literal) => {
                let literal = half::literal(&literal, self.weights, beyond)?;
                let mut op = operation(OpKind::Const, &name);
                let ty = literal.ty.clone();
                op.attributes.insert("val", literal);
                self.push(op, &name, ty)
            }
            None => self.cast_to(v, DType::F16, &name),
        };
        self.halves.insert((v, beyond), half);
        Ok(half)
    }

    fn cast_to(&mut self, v: ValueId, dtype: DType, name: &str) -> ValueId {
        let mut op = operation(OpKind::Cast, name);
        set_arg(&mut op, "x", v);
        set_arg(&mut op, "dtype", Literal::string(dtype.name()));
        let shape = self.function.tensor_ty(v).map(|t| t.shape.clone()).unwrap_or_default();
        self.push(op, name, TensorType { dtype, shape }.into())
    }

    /// Appends an operation of one result.
    fn push(&mut self, mut op: Operation, name: &str, ty: Type) -> ValueId {
        let id = self.function.ops.next_key();
        let def = ValueDef::Result(id, 0);
        let v = self.function.values.push(ValueData { name: name.to_owned(), ty, def });
        op.outputs.push(v);
        self.function.ops.push(op);
        self.body.push(id);
        v
    }

    /// The value in single precision, for one that has become half.
    fn single(&mut self, v: ValueId) -> ValueId {
        if let Some(&single) = self.singles.get(&v) {
            return single;
        }
        let name = format!("{}_to_fp32", self.function.values[v].name);
        let single = self.cast_to(v, DType::F32, &name);
        self.singles.insert(v, single);
        single
    }

    /// Hands the operation and its nested blocks single precision where they had it.
    fn restore_uses(&mut self, id: OpId) {
        let mut used = Vec::new();
        self.function.for_each_use(id, &mut |v| used.push(v));
        let mut twins = HashMap::new();
        for v in used {
            if self.became.contains(&v) {
                twins.insert(v, self.single(v));
            }
        }
        replace_uses(&mut self.function, id, &twins);
    }

    /// Gives the function's outputs the types that they had, under the names that they had.
    fn outputs(&mut self) {
        for i in 0..self.function.body.outputs.len() {
            let v = self.function.body.outputs[i];
            if self.became.contains(&v) {
                let public = self.function.values[v].name.clone();
                // A cast of its own: one that is there may be another output.
                let single = self.cast_to(v, DType::F32, &format!("{public}_to_fp32"));
                self.function.values[v].name = format!("{public}_fp16");
                self.function.values[single].name = public;
                self.function.body.outputs[i] = single;
            }
        }
    }
}

/// Replaces values in the arguments of `id` and inside of its nested blocks.
fn replace_uses(function: &mut Function, id: OpId, twins: &HashMap<ValueId, ValueId>) {
    if twins.is_empty() {
        return;
    }
    let replace = |v: &mut ValueId| {
        if let Some(&twin) = twins.get(v) {
            *v = twin;
        }
    };
    let op = &mut function.ops[id];
    op.args.iter_mut().flatten().for_each(|a| a.for_each_value_mut(&mut |v| replace(v)));
    op.blocks.iter_mut().for_each(|b| b.outputs.iter_mut().for_each(replace));
    let inner: Vec<OpId> = op.blocks.iter().flat_map(|b| b.ops.clone()).collect();
    inner.into_iter().for_each(|id| replace_uses(function, id, twins));
}

/// Whether a type is of floats that half precision replaces: of single precision, and for constants
/// bfloat16, which plain MIL does not compute with.
fn wide(ty: Option<&TensorType>, constant: bool) -> bool {
    ty.is_some_and(|t| t.dtype == DType::F32 || constant && t.dtype == DType::Bf16)
}

/// What large constants mean to an operation.
fn beyond(kind: OpKind) -> Beyond {
    use OpKind::*;
    match kind {
        Add | Sub | Select | Maximum | Minimum | Clip | Pad | Fill | FillLike => Beyond::Clamp,
        _ => Beyond::Refuse,
    }
}

/// An operation without arguments and results.
fn operation(kind: OpKind, name: &str) -> Operation {
    Operation {
        kind,
        args: vec![None; kind.def().params().len()],
        outputs: Vec::new(),
        blocks: Vec::new(),
        opset: None,
        attributes: [("name", Literal::string(name))].into(),
    }
}

fn set_arg(op: &mut Operation, name: &str, arg: impl Into<Arg>) {
    if let Some(index) = op.kind.param_index(name) {
        op.args[index] = Some(arg.into());
    }
}
