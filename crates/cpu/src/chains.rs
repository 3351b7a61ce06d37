//! Runs of elementwise operations that one step computes: what lies between them needs no memory.

use std::collections::{HashMap, HashSet};

use kernels::{Activation, Chain, ChainFunction, ChainOperand, ChainStep};
use mil::{Arg, Function, OpError, OpId, OpKind, OpView, ValueId};
use tensor::DType;

use crate::kernel::{Kernel, Native, Operand, RunCx, Source, f32s, f32s_mut};
use crate::op_cx::{Bind, OpCx};

/// Steps of a chain at most: their results lie in the nearest cache.
const STEPS: usize = 16;
/// Inputs of a chain at most.
const INPUTS: usize = 6;

/// Operations next to each other that became one kernel.
pub(crate) struct Found {
    pub(crate) ops: Vec<OpId>,
    /// What is used elsewhere, in the order of the kernel's outputs.
    pub(crate) results: Vec<ValueId>,
    pub(crate) native: Native,
}

/// Who uses each value of a function.
pub(crate) struct Uses(HashMap<ValueId, Vec<Option<OpId>>>);

impl Uses {
    pub(crate) fn of(function: &Function) -> Self {
        let mut uses: HashMap<ValueId, Vec<Option<OpId>>> = HashMap::new();
        for &id in &function.body.ops {
            function.for_each_use(id, &mut |v| uses.entry(v).or_default().push(Some(id)));
        }
        for &v in &function.body.outputs {
            uses.entry(v).or_default().push(None);
        }
        Uses(uses)
    }

    /// Whether something other than `ops` uses `v`.
    fn beyond(&self, v: ValueId, ops: &[OpId]) -> bool {
        let users = self.0.get(&v).map(Vec::as_slice).unwrap_or_default();
        users.iter().any(|user| user.is_none_or(|id| !ops.contains(&id)))
    }
}

/// A chain under construction.
#[derive(Default)]
struct Draft {
    chain: Chain,
    inputs: Vec<Operand>,
    ops: Vec<OpId>,
    /// The step that makes each value.
    made: HashMap<ValueId, usize>,
    shape: Option<Vec<usize>>,
}

/// The chain that begins with the first of `ops`, if there is one worth it. `with` gives what binding an
/// operation sees.
pub(crate) fn find(
    function: &Function,
    ops: &[OpId],
    done: &HashSet<OpId>,
    uses: &Uses,
    mut with: impl FnMut(OpId, &mut dyn FnMut(&mut OpCx<'_>) -> bool) -> bool,
) -> Option<Found> {
    let mut draft = Draft::default();
    for &id in ops {
        let kind = function.ops[id].kind;
        if kind == OpKind::Const {
            continue;
        }
        let room = draft.ops.len() < STEPS && !done.contains(&id);
        if !room || !with(id, &mut |cx| draft.add(id, cx).is_ok()) {
            break;
        }
    }
    draft.finish(function, uses)
}

impl Draft {
    /// Adds an operation; on an error nothing has changed but what is not used.
    fn add(&mut self, id: OpId, cx: &mut OpCx<'_>) -> Bind<()> {
        let function = function_of(&cx.view)?.ok_or("not elementwise")?;
        let (dtype, shape) = cx.result(0)?;
        let same = self.shape.as_ref().is_none_or(|s| *s == shape);
        if dtype != DType::F32 || !same || shape.contains(&0) {
            return Err("of another type or shape".into());
        }
        let (inputs, numbers) = (self.inputs.len(), self.chain.numbers.len());
        let names: &[&str] =
            if matches!(function, ChainFunction::Of(_)) { &["x"] } else { &["x", "y"] };
        let found: Bind<Vec<ChainOperand>> =
            names.iter().map(|name| self.operand(cx, name, &shape)).collect();
        let fits = found.as_ref().is_ok_and(|f| {
            self.inputs.len() <= INPUTS && f.iter().any(|o| !matches!(o, ChainOperand::Number(_)))
        });
        if !fits {
            self.inputs.truncate(inputs);
            self.chain.numbers.truncate(numbers);
            return Err("operands that do not fit".into());
        }
        let found = found?;
        let operands = [found[0], found.get(1).copied().unwrap_or(found[0])];
        self.made.insert(cx.op.outputs[0], self.chain.steps.len());
        self.chain.steps.push(ChainStep { function, operands });
        self.ops.push(id);
        self.shape = Some(shape);
        Ok(())
    }

    fn operand(&mut self, cx: &mut OpCx<'_>, name: &str, shape: &[usize]) -> Bind<ChainOperand> {
        if let Some(Arg::Value(v)) = cx.view.arg(name)
            && let Some(step) = self.made.get(v)
        {
            return Ok(ChainOperand::Step(*step));
        }
        let operand = cx.float(name)?;
        if let (1, Some(tensor)) = (operand.len(), operand.as_const()) {
            let value = tensor.as_slice::<f32>().map_err(|e| e.to_string())?[0];
            self.chain.numbers.push(value);
            return Ok(ChainOperand::Number(self.chain.numbers.len() - 1));
        }
        if operand.shape != shape {
            return Err("broadcasting".into());
        }
        let same = |other: &Operand| match (&other.source, &operand.source) {
            (Source::Value(a), Source::Value(b)) | (Source::Widened(a), Source::Widened(b)) => {
                a == b
            }
            _ => false,
        };
        let place = self.inputs.iter().position(same).unwrap_or_else(|| {
            self.inputs.push(operand.clone());
            self.inputs.len() - 1
        });
        Ok(ChainOperand::Input(place))
    }

    fn finish(mut self, function: &Function, uses: &Uses) -> Option<Found> {
        // A single operation of two arguments has a kernel of its own, unless one is a number.
        if self.ops.len() < 2 && self.chain.numbers.is_empty() {
            return None;
        }
        let results = self.ops.iter().map(|&id| function.ops[id].outputs[0]).enumerate();
        let (outputs, results): (Vec<usize>, Vec<ValueId>) =
            results.filter(|&(_, v)| uses.beyond(v, &self.ops)).unzip();
        if results.is_empty() {
            return None;
        }
        self.chain.outputs = outputs;
        let native = Native::floats(Elementwise { chain: self.chain }, self.inputs);
        Some(Found { ops: self.ops, results, native })
    }
}

/// What a chain computes for an operation, if it can.
fn function_of(op: &OpView<'_>) -> Result<Option<ChainFunction>, OpError> {
    Ok(Some(match op.kind {
        OpKind::Add => ChainFunction::Add,
        OpKind::Sub => ChainFunction::Sub,
        OpKind::Mul => ChainFunction::Mul,
        OpKind::RealDiv => ChainFunction::Div,
        OpKind::Exp => ChainFunction::Of(Activation::Exp),
        OpKind::Relu => ChainFunction::Of(Activation::Relu),
        OpKind::Sigmoid => ChainFunction::Of(Activation::Sigmoid),
        OpKind::Silu => ChainFunction::Of(Activation::Silu),
        OpKind::Tanh => ChainFunction::Of(Activation::Tanh),
        OpKind::Gelu => match op.str("mode")? {
            None | Some("EXACT") => ChainFunction::Of(Activation::GeluErf),
            Some("TANH_APPROXIMATION") => ChainFunction::Of(Activation::GeluTanh),
            _ => return Ok(None),
        },
        _ => return Ok(None),
    }))
}

struct Elementwise {
    chain: Chain,
}

impl Kernel for Elementwise {
    fn in_place(&self) -> &'static [usize] {
        &[0, 1, 2, 3, 4, 5]
    }

    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let ins: Vec<&[f32]> = ins.iter().map(|x| f32s(x)).collect();
        let mut outs: Vec<&mut [f32]> = outs.iter_mut().map(|out| f32s_mut(out)).collect();
        kernels::chain(cx.pool, &self.chain, &ins, cx.in_place, &mut outs);
        Ok(())
    }
}
