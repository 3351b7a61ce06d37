//! Reverse mode: goes through a function's operations from the last to the first and adds up, for each
//! value, the derivative of the loss by it.

use std::collections::{HashMap, HashSet};

use mil::{
    Arg, Emit, Error, Function, FunctionBuilder, OpError, OpId, OpKind, OpView, Program,
    TensorType, ValueDef, ValueId,
};
use tensor::{DType, WeightStore};

use super::activity::Activity;
use super::recompute::Recompute;
use super::rules::{Rule, rule};
use super::site::Site;
use super::{LOSS_SCALE, Request, loss_of};

/// The function with its gradients under construction.
pub(super) struct Tape<'a, 'w> {
    /// Adds operations behind all others.
    pub(super) b: FunctionBuilder<'w>,
    /// The function as it was; the builder keeps its ids.
    pub(super) function: &'a Function,
    weights: &'a WeightStore,
    activity: Activity,
    recompute: Recompute,
    /// The derivatives of the loss by values, as far as their uses were visited.
    adjoints: HashMap<ValueId, Arg>,
    loss: ValueId,
    /// The loss as an operation of the gradients computes it too.
    loss_again: Option<ValueId>,
}

/// Appends to function `name` of `program`, which is `function`, the gradients of the loss by `inputs`, and
/// returns their names.
pub(super) fn reverse(
    program: &mut Program,
    name: &str,
    function: &Function,
    inputs: &[String],
    request: &Request<'_>,
) -> mil::Result<Vec<String>> {
    let place = |e: Error| e.in_function(name);
    let loss = loss_of(function, request.loss).map_err(place)?;
    let sources: Vec<ValueId> = inputs.iter().filter_map(|i| function.input(i)).collect();
    let activity = Activity::new(program, name, function, sources.iter().copied(), loss)?;
    let weights = program.weights.clone();
    let recompute = Recompute::new(function, &weights, request.checkpoints).map_err(place)?;
    let b = FunctionBuilder::reopen(name, function.clone(), &mut program.weights);
    let adjoints = HashMap::new();
    let mut tape = Tape {
        b,
        function,
        weights: &weights,
        activity,
        recompute,
        adjoints,
        loss,
        loss_again: None,
    };
    tape.seed(request.scaled).map_err(|e| place(Error::new(e.kind, e.message)))?;
    for &id in function.body.ops.iter().rev() {
        tape.operation(id).map_err(|e| Error::at_op(e, name, function.describe(id)))?;
    }
    let (built, names) = tape.finish(&sources).map_err(|e| place(Error::new(e.kind, e.message)))?;
    program.functions.insert(name.to_owned(), built);
    Ok(names)
}

impl<'a, 'w> Tape<'a, 'w> {
    /// Puts the operations of the function back, and the derivative of the loss by itself.
    fn seed(&mut self, scaled: bool) -> Result<(), OpError> {
        let scale = scaled.then(|| self.b.input(LOSS_SCALE, TensorType::scalar(DType::F32)));
        self.function.body.ops.iter().for_each(|&id| self.b.keep(id));
        let loss = self.function.tensor_ty(self.loss).cloned();
        let loss = loss.ok_or_else(|| OpError::invalid("the loss is no tensor"))?;
        let shape: Vec<usize> = loss.shape.iter().map(|_| 1).collect();
        let e = &mut self.emit();
        let one = match scale {
            Some(scale) => e.cast(scale.into(), loss.dtype)?,
            None => e.scalar(loss.dtype, 1.0)?,
        };
        let one = if shape.is_empty() { one } else { e.reshape(&one, &shape)? };
        self.adjoints.insert(self.loss, one);
        Ok(())
    }

    fn operation(&mut self, id: OpId) -> Result<(), OpError> {
        let operation = &self.function.ops[id];
        let outputs = operation.outputs.iter();
        let grads: Vec<Option<Arg>> = outputs.map(|v| self.adjoints.remove(v)).collect();
        if grads.iter().all(Option::is_none) || !self.activity.of_op(self.function, id) {
            return Ok(());
        }
        let view = OpView::new(self.function, self.weights, operation);
        match rule(operation.kind) {
            Rule::Emit(emit) => emit(&mut Site { tape: self, op: view, id, grads }),
            Rule::Zero => Ok(()),
            Rule::Expand(_) | Rule::Decompose | Rule::Unsupported => Err(OpError::unsupported(
                "the loss depends on what it is differentiated by through this operation, \
                 which has no gradient",
            )),
        }
    }

    /// A builder of gradients.
    pub(super) fn emit(&mut self) -> Emit<'_, 'w> {
        Emit::new(&mut self.b)
    }

    /// Whether the derivative by `v` is of use.
    pub(super) fn wants(&self, v: ValueId) -> bool {
        self.activity.contains(v)
    }

    /// An argument of a forward operation as the gradients use it.
    pub(super) fn arg(&mut self, arg: &Arg) -> Result<Arg, OpError> {
        Ok(match arg {
            Arg::Value(v) => self.recompute.value(&mut self.b, self.function, *v)?.into(),
            Arg::Literal(_) => arg.clone(),
            Arg::List(items) => {
                Arg::List(items.iter().map(|a| self.arg(a)).collect::<Result<_, _>>()?)
            }
        })
    }

    /// Takes what uses of `v` have contributed so far, for a rule that adds to it itself.
    pub(super) fn take(&mut self, v: ValueId) -> Option<Arg> {
        self.adjoints.remove(&v)
    }

    /// Adds `grad`, of the type of `v` up to broadcasting and precision, to the derivative by `v`.
    pub(super) fn give(&mut self, v: ValueId, grad: Arg) -> Result<(), OpError> {
        if !self.wants(v) {
            return Ok(());
        }
        let ty = self.function.tensor_ty(v).cloned();
        let ty = ty.ok_or_else(|| OpError::unsupported("a gradient by what is no tensor"))?;
        let before = self.adjoints.remove(&v);
        let e = &mut self.emit();
        let grad = e.cast(grad, ty.dtype)?;
        let grad = fit(e, grad, &fixed(&ty)?)?;
        let sum = match before {
            Some(before) => e.add(&before, &grad)?,
            None => grad,
        };
        self.adjoints.insert(v, sum);
        Ok(())
    }

    /// Says that `twin` equals `v`: if that is the loss, it takes its place as an output.
    pub(super) fn computed_again(&mut self, v: ValueId, twin: &Arg) {
        if let (true, Arg::Value(twin)) = (v == self.loss, twin) {
            self.loss_again = Some(*twin);
        }
    }

    /// The finished function, and the names of its gradients.
    fn finish(mut self, sources: &[ValueId]) -> Result<(Function, Vec<String>), OpError> {
        let loss = match self.loss_again {
            Some(again) => {
                let name = self.function.values[self.loss].name.clone();
                self.b.rename(self.loss, &format!("{name}_before"));
                self.b.rename(again, &name);
                again
            }
            None => self.loss,
        };
        let (mut outputs, mut names) = (vec![loss], Vec::new());
        for &source in sources {
            let grad = self.gradient(source, &outputs)?;
            let name = format!("grad_{}", self.function.values[source].name);
            self.b.rename(grad, &name);
            names.push(self.b.function().values[grad].name.clone());
            outputs.push(grad);
        }
        Ok((self.b.finish(outputs), names))
    }

    /// The derivative by `source` as a value of its own.
    fn gradient(&mut self, source: ValueId, outputs: &[ValueId]) -> Result<ValueId, OpError> {
        let grad = match self.adjoints.remove(&source) {
            Some(grad) => grad,
            None => {
                let ty = self.function.tensor_ty(source).cloned();
                let ty = ty.ok_or_else(|| OpError::invalid("an input that is no tensor"))?;
                self.emit().full(ty.dtype, &fixed(&ty)?, 0.0)?
            }
        };
        let own = |b: &FunctionBuilder<'_>, v: ValueId| match b.function().values[v].def {
            ValueDef::Result(op, _) => b.function().ops[op].kind != OpKind::Const,
            ValueDef::Param => false,
        };
        match grad {
            Arg::Value(v) if own(&self.b, v) && !outputs.contains(&v) => Ok(v),
            shared => match self.emit().unary(OpKind::Identity, &shared)? {
                Arg::Value(v) => Ok(v),
                Arg::Literal(_) | Arg::List(_) => Err(OpError::invalid("no value")),
            },
        }
    }
}

/// The sizes of a type.
///
/// # Errors
/// When one is not fixed.
pub(super) fn fixed(ty: &TensorType) -> Result<Vec<usize>, OpError> {
    ty.fixed_shape().ok_or_else(|| {
        OpError::unsupported(format!("sizes of {ty} that are not fixed; specialise first"))
    })
}

/// `x` with `shape`: summed over axes along which something of that shape was broadcast to it, or repeated
/// along axes along which it would be broadcast.
pub(super) fn fit(e: &mut Emit<'_, '_>, x: Arg, shape: &[usize]) -> Result<Arg, OpError> {
    let own = fixed(&e.ty(&x)?)?;
    if own == shape {
        return Ok(x);
    }
    let lead = own.len().saturating_sub(shape.len());
    let behind = shape.len().saturating_sub(own.len());
    let sum: HashSet<usize> = (0..own.len())
        .filter(|&i| i < lead || (own[i] != 1 && shape[i + behind - lead] == 1))
        .collect();
    let mut x = x;
    if !sum.is_empty() {
        let mut axes: Vec<usize> = sum.iter().copied().collect();
        axes.sort_unstable();
        x = e.reduce(OpKind::ReduceSum, &x, &axes, true)?;
    }
    let left: Vec<usize> =
        (lead..own.len()).map(|i| if sum.contains(&i) { 1 } else { own[i] }).collect();
    let aligned = [vec![1; behind], left].concat();
    if fixed(&e.ty(&x)?)? != aligned {
        x = e.reshape(&x, &aligned)?;
    }
    if aligned == shape {
        return Ok(x);
    }
    let reps: Vec<usize> = aligned
        .iter()
        .zip(shape)
        .map(|(&own, &wanted)| if own == 1 { wanted } else { 1 })
        .collect();
    let reps = e.sizes(&reps)?;
    e.op(OpKind::Tile, [("x", x), ("reps", reps)])
}
