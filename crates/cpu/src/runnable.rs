//! A prepared program: plans by function and sizes, made when first needed.

use std::collections::BTreeMap;
use std::sync::Arc;

use exec::{ExecError, Fallback, Result, Runnable, State, Tensors};
use kernels::Pool;
use mil::{Dim, Function, OpId, Program, Type};
use tensor::{AlignedBuf, Tensor};

use crate::execute::{Kept, execute};
use crate::lower;
use crate::op_cx::{Constants, Reason};
use crate::plan::{Plan, StepTime};

/// Plans kept for sizes that come from inputs; the one not used for longest goes first.
const KEPT_PLANS: usize = 16;

/// What stands for a symbol when a function is looked at without inputs.
const SAMPLE_SIZE: usize = 8;

/// A program made ready for the CPU.
pub struct CpuRunnable {
    program: Program,
    pool: Arc<Pool>,
    constants: Constants,
    fallbacks: Vec<Fallback>,
    plans: Vec<(PlanKey, Plan)>,
    kept: Kept,
}

/// A function and the sizes of its symbols.
#[derive(Clone, PartialEq, Eq, Debug)]
struct PlanKey {
    function: String,
    sizes: BTreeMap<String, usize>,
}

/// Memory and steps of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanSize {
    /// The function.
    pub function: String,
    /// Sizes of its symbols.
    pub sizes: BTreeMap<String, usize>,
    /// Steps.
    pub steps: usize,
    /// Bytes of working memory.
    pub arena_bytes: usize,
    /// Bytes that working memory would take if no two values shared any.
    pub unshared_bytes: usize,
}

impl CpuRunnable {
    /// Optimises and plans `program`; functions without symbols at once, others when they run.
    ///
    /// # Errors
    /// When the program is invalid.
    pub(crate) fn new(program: &Program, pool: Arc<Pool>) -> Result<Self> {
        let mut program = program.clone();
        passes::run(&mut program, passes::pipelines::OPTIMIZE).map_err(mil::Error::from)?;
        name_unknown_sizes(&mut program);
        let mut constants = Constants::default();
        let fallbacks = fallbacks(&program, &mut constants);
        let mut runnable = CpuRunnable {
            program,
            pool,
            constants,
            fallbacks,
            plans: Vec::new(),
            kept: Kept::default(),
        };
        let fixed = |f: &Function| f.symbols().is_empty();
        let functions = runnable.program.functions.iter().filter(|(_, f)| fixed(f));
        let names: Vec<String> = functions.map(|(name, _)| name.clone()).collect();
        for function in names {
            runnable.plan(&PlanKey { function, sizes: BTreeMap::new() })?;
        }
        Ok(runnable)
    }

    /// The plans made so far.
    pub fn plans(&self) -> impl Iterator<Item = PlanSize> {
        self.plans.iter().map(|(key, plan)| PlanSize {
            function: key.function.clone(),
            sizes: key.sizes.clone(),
            steps: plan.steps.len(),
            arena_bytes: plan.arena_bytes,
            unshared_bytes: plan.unshared_bytes,
        })
    }

    /// Measures the time of each step from now on; [`CpuRunnable::step_times`] has it.
    pub fn time_steps(&mut self) {
        self.kept.times = Some(Vec::new());
    }

    /// The steps of the plan that ran last, each with the time that all runs since
    /// [`CpuRunnable::time_steps`] took for it: of use where one function ran at one size.
    pub fn step_times(&self) -> Vec<StepTime> {
        let (Some((_, plan)), Some(times)) = (self.plans.last(), &self.kept.times) else {
            return Vec::new();
        };
        plan.times(times)
    }

    /// The plan for `key`, made if there is none; the last of the kept ones.
    fn plan(&mut self, key: &PlanKey) -> Result<&Plan> {
        match self.plans.iter().position(|(k, _)| k == key) {
            Some(i) => self.plans[i..].rotate_left(1),
            None => {
                let single = self.program.specialize_function(&key.function, &key.sizes)?;
                let (plan, reasons) = lower::lower(&single, &key.function, &mut self.constants);
                self.report(&key.function, &single, reasons);
                if self.plans.len() >= KEPT_PLANS {
                    self.drop_oldest();
                }
                if self.kept.arena.as_ref().map_or(0, |a| a.len()) < plan.arena_bytes {
                    let bytes = plan.arena_bytes;
                    let arena = AlignedBuf::try_zeroed(bytes).ok_or_else(|| {
                        let what = format!("intermediate results of {}", key.function);
                        ExecError::Memory { what, bytes }
                    })?;
                    self.kept.arena = Some(arena);
                }
                self.plans.push((key.clone(), plan));
            }
        }
        let last = self.plans.last().map(|(_, plan)| plan);
        last.ok_or_else(|| ExecError::NoFunction(key.function.clone()))
    }

    /// Adds to the fallbacks those that only these sizes, or a neighbour's, lead to.
    fn report(&mut self, name: &str, single: &Program, reasons: Vec<(OpId, Reason)>) {
        let Some(function) = single.functions.get(name) else { return };
        for found in reasons.into_iter().map(|r| fallback(name, function, r)) {
            let same = |f: &Fallback| f.function == name && f.operation == found.operation;
            if !self.fallbacks.iter().any(same) {
                self.fallbacks.push(found);
            }
        }
    }

    /// Drops the plan not used for longest among those whose sizes came from inputs.
    fn drop_oldest(&mut self) {
        if let Some(i) = self.plans.iter().position(|(k, _)| !k.sizes.is_empty()) {
            self.plans.remove(i);
        }
    }

    fn function(&self, name: &str) -> Result<&Function> {
        let function = self.program.functions.get(name);
        function.ok_or_else(|| ExecError::NoFunction(name.to_owned()))
    }
}

impl Runnable for CpuRunnable {
    fn new_state(&self) -> Result<State> {
        State::new(&self.program)
    }

    fn run(&mut self, function: &str, inputs: &Tensors, state: &mut State) -> Result<Tensors> {
        let mut outputs = Tensors::new();
        self.run_giving(function, inputs, state, &mut |name, tensor| {
            outputs.insert(name, tensor);
        })?;
        Ok(outputs)
    }

    fn run_giving(
        &mut self,
        function: &str,
        inputs: &Tensors,
        state: &mut State,
        take: &mut dyn FnMut(String, Tensor),
    ) -> Result<()> {
        let f = self.function(function)?;
        let (tensors, sizes) = exec::check_inputs(function, f, inputs)?;
        state.check(f)?;
        self.plan(&PlanKey { function: function.to_owned(), sizes })?;
        let Some((_, plan)) = self.plans.last() else {
            return Err(ExecError::NoFunction(function.to_owned()));
        };
        execute(plan, &self.pool, &tensors, &mut self.kept, state, take)
    }

    fn fallbacks(&self) -> &[Fallback] {
        &self.fallbacks
    }
}

/// Gives sizes of inputs that have no name one of their own, so that plans are made for them too.
fn name_unknown_sizes(program: &mut Program) {
    for function in program.functions.values_mut() {
        for v in function.inputs.clone() {
            let data = &mut function.values[v];
            let Type::Tensor(ty) = &mut data.ty else { continue };
            for (axis, dim) in ty.shape.iter_mut().enumerate() {
                if *dim == Dim::Unknown {
                    *dim = Dim::symbol(&format!("{}.{axis}", data.name));
                }
            }
        }
    }
}

/// The operations of `program` that the reference interpreter runs. Where a size is a symbol, a sample
/// stands for it.
pub(crate) fn fallbacks(program: &Program, constants: &mut Constants) -> Vec<Fallback> {
    let mut found = Vec::new();
    for (name, function) in &program.functions {
        let sample = function.symbols().into_iter().map(|s| (s, SAMPLE_SIZE)).collect();
        // A function that does not allow the sample says so when it is run with real sizes.
        let Ok(single) = program.specialize_function(name, &sample) else { continue };
        let Some(function) = single.functions.get(name) else { continue };
        let reasons = lower::reasons(&single, name, function, constants);
        found.extend(reasons.into_iter().map(|r| fallback(name, function, r)));
    }
    found
}

fn fallback(name: &str, function: &Function, (op, Reason(reason)): (OpId, Reason)) -> Fallback {
    let operation = function.ops[op].outputs.first().map(|&v| function.values[v].name.clone());
    Fallback {
        function: name.to_owned(),
        kind: function.ops[op].kind,
        operation: operation.unwrap_or_default(),
        reason,
    }
}
