//! What conditions see: the program, its functions and operations with what rules ask of them.

use std::fmt::Display;

use cranelift_entity::SecondaryMap;
use mil::{
    Arg, Block, Function, Literal, OpId, OpKind, OpView, Operation, Payload, Program, TensorType,
    Type, ValueDef, ValueId,
};

use super::{CheckOptions, Finding, Path, Severity};
use crate::chip::{Chip, Fact, Verdict};
use crate::os::Os;

/// A program under check.
#[derive(Debug)]
pub struct ProgramCx<'a> {
    /// The program.
    pub program: &'a Program,
    /// Its functions, by name.
    pub functions: Vec<FunctionCx<'a>>,
    /// The chip.
    pub chip: &'a Chip,
    /// The path.
    pub path: Path,
    /// The system.
    pub os: Option<Os>,
}

/// A function under check.
#[derive(Debug)]
pub struct FunctionCx<'a> {
    /// The program it is of.
    pub program: &'a Program,
    /// Its name.
    pub name: &'a str,
    /// The function.
    pub function: &'a Function,
    /// The chip.
    pub chip: &'a Chip,
    /// The path.
    pub path: Path,
    /// The system.
    pub os: Option<Os>,
    /// All operations in the order of the text, nested ones after the one they are in.
    pub order: Vec<OpId>,
    positions: SecondaryMap<OpId, Option<u32>>,
    users: SecondaryMap<ValueId, Vec<OpId>>,
}

impl<'a> ProgramCx<'a> {
    pub(crate) fn new(program: &'a Program, options: &CheckOptions<'a>) -> Self {
        let functions = program.functions.iter();
        let functions = functions.map(|(n, f)| FunctionCx::new(program, n, f, options)).collect();
        let CheckOptions { chip, path, os } = *options;
        ProgramCx { program, functions, chip, path, os }
    }

    /// Bytes of all weights that a weight file holds, each once.
    pub fn weight_bytes(&self) -> u64 {
        let mut seen = std::collections::HashSet::new();
        let mut total = 0;
        self.program.for_each_literal(&mut |literal| {
            if let Payload::Weight(id) = &literal.payload
                && seen.insert(*id)
            {
                total += literal.ty.as_tensor().map_or(0, byte_len);
            }
        });
        total
    }
}

impl<'a> FunctionCx<'a> {
    fn new(
        program: &'a Program,
        name: &'a str,
        function: &'a Function,
        options: &CheckOptions<'a>,
    ) -> Self {
        let mut order = Vec::new();
        collect(function, &function.body, &mut order);
        let mut positions = SecondaryMap::new();
        let mut users: SecondaryMap<ValueId, Vec<OpId>> = SecondaryMap::new();
        for (i, &op) in order.iter().enumerate() {
            positions[op] = u32::try_from(i).ok();
            function.ops[op].for_each_arg_value(|v| users[v].push(op));
        }
        let CheckOptions { chip, path, os } = *options;
        FunctionCx { program, name, function, chip, path, os, order, positions, users }
    }

    /// The number of an operation in the order of the text.
    pub fn position(&self, op: OpId) -> Option<usize> {
        self.positions[op].map(|i| i as usize)
    }

    /// Operations that take a value as an argument.
    pub fn users(&self, value: ValueId) -> &[OpId] {
        &self.users[value]
    }

    /// The operation that makes a value.
    pub fn maker(&self, value: ValueId) -> Option<&'a Operation> {
        match self.function.values[value].def {
            ValueDef::Result(op, _) => Some(&self.function.ops[op]),
            ValueDef::Param => None,
        }
    }

    /// Whether a value is known when compiling: a constant or a compressed one.
    pub fn is_constant(&self, value: ValueId) -> bool {
        self.maker(value).is_some_and(|op| is_constant_kind(op.kind))
    }

    /// Operations that compute, in order.
    pub fn computing(&self) -> impl Iterator<Item = (OpId, &'a Operation)> {
        let ops = self.order.iter().map(|&op| (op, &self.function.ops[op]));
        ops.filter(|(_, op)| !is_constant_kind(op.kind))
    }

    /// Inputs that are tensors, with their names.
    pub fn inputs(&self) -> impl Iterator<Item = (&'a str, &'a TensorType)> {
        self.named(&self.function.inputs)
    }

    /// Outputs, with their names.
    pub fn outputs(&self) -> impl Iterator<Item = (&'a str, &'a TensorType)> {
        self.named(&self.function.body.outputs)
    }

    fn named(&self, values: &'a [ValueId]) -> impl Iterator<Item = (&'a str, &'a TensorType)> {
        let values = values.iter().map(|&v| &self.function.values[v]);
        values.filter_map(|data| Some((data.name.as_str(), data.ty.as_tensor()?)))
    }

    /// Inputs that are states, with their names.
    pub fn states(&self) -> impl Iterator<Item = (&'a str, &'a TensorType)> {
        let values = self.function.inputs.iter().map(|&v| &self.function.values[v]);
        values.filter_map(|data| Some((data.name.as_str(), data.ty.as_state()?)))
    }

    /// The constant behind a value: a const's, or that of the operand that a compressed one holds.
    pub fn literal(&self, value: ValueId) -> Option<&'a Literal> {
        self.function.const_of(value)
    }
}

fn collect(function: &Function, block: &Block, order: &mut Vec<OpId>) {
    for &op in &block.ops {
        order.push(op);
        for inner in &function.ops[op].blocks {
            collect(function, inner, order);
        }
    }
}

/// An operation under check.
#[derive(Clone, Copy, Debug)]
pub struct OpCx<'a> {
    /// The function it stands in.
    pub cx: &'a FunctionCx<'a>,
    /// Its id.
    pub id: OpId,
    /// The operation.
    pub op: &'a Operation,
}

impl<'a> OpCx<'a> {
    pub(crate) fn new(cx: &'a FunctionCx<'a>, id: OpId) -> Self {
        OpCx { cx, id, op: &cx.function.ops[id] }
    }

    /// Which operation.
    pub fn kind(&self) -> OpKind {
        self.op.kind
    }

    /// The chip.
    pub fn chip(&self) -> &'a Chip {
        self.cx.chip
    }

    /// Arguments by name.
    pub fn view(&self) -> OpView<'a> {
        OpView::new(self.cx.function, &self.cx.program.weights, self.op)
    }

    /// The sizes of argument `name`, if it is a tensor of known sizes.
    pub fn shape(&self, name: &str) -> Option<Vec<u64>> {
        sizes(self.view().opt_tensor(name).ok()??)
    }

    /// The sizes of the first result, if known.
    pub fn result(&self) -> Option<Vec<u64>> {
        sizes(self.result_type()?)
    }

    /// The type of the first result.
    pub fn result_type(&self) -> Option<&'a TensorType> {
        self.cx.function.tensor_ty(*self.op.outputs.first()?)
    }

    /// The value that argument `name` is, if it is one.
    pub fn value(&self, name: &str) -> Option<ValueId> {
        match self.op.arg(name)? {
            Arg::Value(v) => Some(*v),
            _ => None,
        }
    }

    /// Whether argument `name` is known when compiling.
    pub fn is_constant(&self, name: &str) -> bool {
        match self.op.arg(name) {
            Some(Arg::Literal(_)) => true,
            Some(Arg::Value(v)) => self.cx.is_constant(*v),
            _ => false,
        }
    }

    /// The operation that makes argument `name`.
    pub fn maker(&self, name: &str) -> Option<&'a Operation> {
        self.cx.maker(self.value(name)?)
    }

    /// Operations that take a result.
    pub fn users(&self) -> impl Iterator<Item = &'a Operation> {
        let cx = self.cx;
        let users = self.op.outputs.iter().flat_map(move |&v| cx.users(v));
        users.map(move |&op| &cx.function.ops[op])
    }

    /// Whether it computes: constants and compressed constants do not.
    pub fn computes(&self) -> bool {
        !is_constant_kind(self.kind())
    }
}

/// Whether operations of this kind make constants.
pub(crate) fn is_constant_kind(kind: OpKind) -> bool {
    use OpKind::*;
    matches!(
        kind,
        Const
            | ConstexprBlockwiseShiftScale
            | ConstexprLutToDense
            | ConstexprSparseToDense
            | ConstexprLutToSparse
            | ConstexprSparseBlockwiseShiftScale
            | ConstexprAffineDequantize
            | ConstexprCast
    )
}

/// The sizes of a tensor, if all are known.
pub(crate) fn sizes(ty: &TensorType) -> Option<Vec<u64>> {
    ty.shape.iter().map(|d| d.fixed().map(|n| n as u64)).collect()
}

/// Bytes of a packed tensor; unknown sizes count 1.
pub(crate) fn byte_len(ty: &TensorType) -> u64 {
    mil::ops::bytes(&[Type::Tensor(ty.clone())]).ceil() as u64
}

/// `1024 x 16`.
pub(crate) fn dims(sizes: &[u64]) -> String {
    sizes.iter().map(u64::to_string).collect::<Vec<_>>().join("x")
}

/// A finding if `n` is beyond a limit: of the rule's severity if every source says so, a warning if
/// sources disagree.
pub(super) fn above(limit: &Option<Fact<u64>>, n: u64, what: impl Display) -> Option<Finding> {
    let limit = limit.as_ref()?;
    let message = format!("{what}, the limit is {limit}{}", others(limit));
    match limit.verdict(n) {
        Verdict::Within => None,
        Verdict::Exceeded => Some(Finding::new(message)),
        Verdict::Disputed => Some(Finding::at(message, Severity::Warning)),
    }
}

/// A finding if a switch stands at `bad`: a warning if it does not and a source says that it should.
pub(super) fn stands<T: PartialEq + Display>(
    switch: &Option<Fact<T>>,
    bad: T,
    what: impl Display,
) -> Option<Finding> {
    let switch = switch.as_ref()?;
    let message = format!(
        "{what}: {} ({}: {}){}",
        switch.value,
        switch.status,
        switch.source,
        others(switch)
    );
    if switch.value == bad {
        Some(Finding::new(message))
    } else {
        let said = switch.claims.iter().any(|c| c.value == bad);
        said.then(|| Finding::at(message, Severity::Warning))
    }
}

/// `; others say 65536 (source)`, if others say anything.
fn others<T: Display>(fact: &Fact<T>) -> String {
    let claims: Vec<String> =
        fact.claims.iter().map(|c| format!("{} ({})", c.value, c.source)).collect();
    if claims.is_empty() { String::new() } else { format!("; others say {}", claims.join(", ")) }
}
