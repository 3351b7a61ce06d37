//! Runs the steps of a plan.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use exec::{ExecError, Result, State};
use kernels::Pool;
use mil::eval::{self, Arithmetic, Array, States, Value};
use mil::{Error, ErrorKind, OpError, OpId, ValueId};
use tensor::{AlignedBuf, Bytes, Tensor};

use crate::kernel::RunCx;
use crate::memory::Cut;
use crate::plan::{Held, InterpretedStep, NativeStep, Place, Plan, Step};

/// One run of a plan.
pub(crate) struct Run<'a> {
    plan: &'a Plan,
    pool: &'a Pool,
    /// The function's tensor inputs, in order.
    inputs: &'a [Tensor],
    arena: &'a mut [u8],
    state: &'a mut State,
    direct: Vec<AlignedBuf>,
    /// Values that only the interpreter holds.
    dynamic: HashMap<ValueId, Value>,
}

/// Memory that a prepared program has between runs.
#[derive(Default)]
pub(crate) struct Kept {
    /// At least the bytes that a plan needs.
    pub(crate) arena: Option<AlignedBuf>,
    /// Large results of the last run, whose memory is used again once they are dropped: it costs much to
    /// have the system clear so many pages.
    results: Vec<Bytes>,
    /// The time that each step of the last plan took in all runs, if it is measured.
    pub(crate) times: Option<Vec<Duration>>,
}

/// Results from this size on are kept.
const LARGE: usize = 1 << 20;

impl Kept {
    /// Memory for a result, whose content is any.
    fn result(&mut self, bytes: usize) -> Option<AlignedBuf> {
        while let Some(at) = self.results.iter().position(|r| r.len() == bytes) {
            if let Ok(buffer) = self.results.swap_remove(at).into_buf() {
                return Some(buffer);
            }
        }
        AlignedBuf::try_zeroed(bytes)
    }
}

/// Runs `plan` and gives each output to `take` once it is done.
///
/// # Errors
/// When an operation fails; says which.
pub(crate) fn execute(
    plan: &Plan,
    pool: &Pool,
    inputs: &[Tensor],
    kept: &mut Kept,
    state: &mut State,
    take: &mut dyn FnMut(String, Tensor),
) -> Result<()> {
    let buffer = |&bytes: &usize| {
        let what = || format!("results of {}", plan.function);
        kept.result(bytes).ok_or_else(|| ExecError::Memory { what: what(), bytes })
    };
    let direct = plan.direct.iter().map(buffer).collect::<Result<_>>()?;
    kept.results.clear();
    // Empty windows of it are aligned too.
    let arena = kept.arena.get_or_insert_with(|| AlignedBuf::zeroed(0));
    let mut run = Run { plan, pool, inputs, arena, state, direct, dynamic: HashMap::new() };
    let mut given = 0;
    for (i, step) in plan.steps.iter().enumerate() {
        let start = kept.times.is_some().then(Instant::now);
        match step {
            Step::Native(step) => {
                run.native(step).map_err(|e| plan.error(e, step.op))?;
            }
            Step::Interpreted(step) => run.interpreted(step)?,
        }
        if let (Some(times), Some(start)) = (&mut kept.times, start) {
            times.resize(plan.steps.len(), Duration::ZERO);
            times[i] += start.elapsed();
        }
        while plan.outputs.get(given).is_some_and(|o| o.done <= i + 1) {
            run.give(given, &mut kept.results, take)?;
            given += 1;
        }
    }
    // Those that need no step.
    (given..plan.outputs.len()).try_for_each(|i| run.give(i, &mut kept.results, take))
}

impl Plan {
    /// An operation's error, with its place.
    fn error(&self, e: OpError, op: OpId) -> ExecError {
        let describe = |f: &mil::Function| f.describe(op);
        let operation =
            self.program.functions.get(&self.function).map_or_else(String::new, describe);
        Error::at_op(e, &self.function, operation).into()
    }
}

impl Run<'_> {
    fn native(&mut self, step: &NativeStep) -> Result<(), OpError> {
        let Run { plan, inputs, arena, direct, .. } = self;
        // Outputs of the function that this step writes are taken out while it does.
        let mut taken: Vec<AlignedBuf> = Vec::new();
        for place in &step.outs {
            if let Place::Direct(i, _) = place {
                taken.push(std::mem::replace(&mut direct[*i], AlignedBuf::zeroed(0)));
            }
        }
        // So is the memory of states that it reads as it lies.
        let mut lent: Vec<(usize, AlignedBuf)> = Vec::new();
        for &i in &step.states {
            let buffer = self.state.get_mut(&plan.states[i]).map_err(bug)?;
            lent.push((i, std::mem::replace(&mut buffer.data, AlignedBuf::zeroed(0))));
        }
        let cut = Cut::new(arena, &step.arena, &step.sorted);
        let ins: Vec<&[u8]> = step
            .ins
            .iter()
            .enumerate()
            .map(|(i, place)| match place {
                _ if step.in_place == Some(i) => &[][..],
                Place::Const(i, range) => &plan.constants[*i].bytes()[range.clone()],
                Place::Input(i, range) => &inputs[*i].bytes()[range.clone()],
                Place::Direct(i, range) => &direct[*i][range.clone()],
                Place::Arena(range) => cut.read(range),
                Place::State(i, range) => match lent.iter().find(|(state, _)| state == i) {
                    Some((_, data)) => &data[range.clone()],
                    None => &[],
                },
            })
            .collect();
        let mut written = cut.into_written().into_iter();
        let mut whole = taken.iter_mut();
        let mut outs: Vec<&mut [u8]> = Vec::with_capacity(step.outs.len());
        for place in &step.outs {
            outs.extend(match place {
                Place::Direct(..) => whole.next().map(|buf| &mut buf[..]),
                _ => written.next(),
            });
        }
        let mut cx = RunCx { pool: self.pool, state: self.state, in_place: step.in_place };
        let done = step.kernel.run(&mut cx, &ins, &mut outs);
        for (i, data) in lent {
            self.state.get_mut(&plan.states[i]).map_err(bug)?.data = data;
        }
        done?;
        let places = step.outs.iter().filter_map(|place| match place {
            Place::Direct(i, _) => Some(*i),
            _ => None,
        });
        places.zip(taken).for_each(|(i, buf)| direct[i] = buf);
        Ok(())
    }

    fn interpreted(&mut self, step: &InterpretedStep) -> Result<()> {
        let plan = self.plan;
        let place = |e| plan.error(e, step.op);
        let mut given: Vec<(ValueId, Value)> = Vec::new();
        for (v, held) in &step.uses {
            let array = self.tensor(held).and_then(|t| Array::from_tensor(&t));
            given.push((*v, array.map_err(place)?.into()));
        }
        for v in &step.dynamic {
            given.extend(self.dynamic.get(v).map(|value| (*v, value.clone())));
        }
        let mut states = States::new();
        for (v, name) in &step.states {
            let buffer = self.state.get(name)?;
            let bytes = Bytes::copy_from(&buffer.data);
            let tensor = Tensor::new(buffer.dtype, &buffer.shape, bytes).map_err(bug);
            let array = tensor.and_then(|t| Array::from_tensor(&t)).map_err(place)?;
            states.insert(name.clone(), array);
            given.push((*v, Value::State(name.clone())));
        }
        // Each value has its own type's precision, as between native steps.
        let arithmetic = Arithmetic::Fp16;
        let name = &plan.function;
        let results = eval::run_op(&plan.program, name, step.op, arithmetic, given, &mut states)?;
        for (name, array) in &states {
            let tensor = array.to_tensor().map_err(place)?;
            self.state.get_mut(name)?.data.copy_from_slice(tensor.bytes());
        }
        for ((v, held), value) in step.results.iter().zip(results) {
            match held {
                Some(held) => self.store(held, &value).map_err(place)?,
                None => {
                    self.dynamic.insert(*v, value);
                }
            }
        }
        Ok(())
    }

    fn store(&mut self, held: &Held, value: &Value) -> Result<(), OpError> {
        let tensor = value.array()?.to_tensor()?;
        if tensor.dtype() != held.dtype || tensor.shape() != held.shape {
            return Err(bug(format!(
                "{} {:?} where {} {:?} was inferred",
                tensor.dtype(),
                tensor.shape(),
                held.dtype,
                held.shape
            )));
        }
        match &held.place {
            Place::Arena(range) => self.arena[range.clone()].copy_from_slice(tensor.bytes()),
            Place::Direct(i, range) => {
                self.direct[*i][range.clone()].copy_from_slice(tensor.bytes());
            }
            Place::Const(..) | Place::Input(..) | Place::State(..) => {
                return Err(bug("a result in a constant"));
            }
        }
        Ok(())
    }

    /// A copy of the tensor at a place (constants and inputs are shared).
    fn tensor(&self, held: &Held) -> Result<Tensor, OpError> {
        let bytes = match &held.place {
            Place::Const(i, range) => self.plan.constants[*i].bytes().slice(range.clone()),
            Place::Input(i, range) => self.inputs[*i].bytes().slice(range.clone()),
            Place::Arena(range) => Some(Bytes::copy_from(&self.arena[range.clone()])),
            Place::Direct(i, range) => Some(Bytes::copy_from(&self.direct[*i][range.clone()])),
            Place::State(i, range) => {
                let buffer = self.state.get(&self.plan.states[*i]).map_err(bug)?;
                buffer.data.get(range.clone()).map(Bytes::copy_from)
            }
        };
        let bytes = bytes.ok_or_else(|| bug("a place outside of its memory"))?;
        Tensor::new(held.dtype, &held.shape, bytes).map_err(bug)
    }

    /// Gives output number `i`, and keeps its memory if it is large.
    fn give(
        &mut self,
        i: usize,
        kept: &mut Vec<Bytes>,
        take: &mut dyn FnMut(String, Tensor),
    ) -> Result<()> {
        let plan = self.plan;
        let output = &plan.outputs[i];
        let tensor = match &output.held {
            // A value that is an output twice is moved out for the last one only.
            Some(Held { place: Place::Direct(d, range), dtype, shape })
                if range.len() == self.direct[*d].len() && !plan.direct_again(i, *d) =>
            {
                let buf = std::mem::replace(&mut self.direct[*d], AlignedBuf::zeroed(0));
                Tensor::new(*dtype, shape, Bytes::from_buf(buf)).map_err(bug)
            }
            Some(held) => self.tensor(held),
            None => match self.dynamic.get(&output.value) {
                Some(value) => value.array().and_then(|a| a.to_tensor()),
                None => Err(bug("it has no value")),
            },
        };
        let tensor = tensor.map_err(|e| {
            let e = Error::new(e.kind, format!("output {}: {}", output.name, e.message));
            ExecError::from(e.in_function(&plan.function))
        })?;
        let bytes = tensor.bytes();
        if bytes.len() >= LARGE && !bytes.is_mapped() {
            kept.push(bytes.clone());
        }
        take(output.name.clone(), tensor);
        Ok(())
    }
}

impl Plan {
    /// Whether an output after number `i` lies in direct output `d`.
    fn direct_again(&self, i: usize, d: usize) -> bool {
        let lies = |held: &Held| matches!(held.place, Place::Direct(other, _) if other == d);
        self.outputs[i + 1..].iter().any(|o| o.held.as_ref().is_some_and(lies))
    }
}

fn bug(message: impl ToString) -> OpError {
    OpError { kind: ErrorKind::Bug, message: message.to_string() }
}
