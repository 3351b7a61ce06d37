//! What a rule sees: the operation, the derivatives by its results, and where to put those by its
//! arguments.

use mil::{Arg, Emit, OpError, OpId, OpView, TensorType, ValueId};

use super::tape::{Tape, fixed};

/// An operation whose gradients are emitted.
pub(super) struct Site<'s, 'a, 'w> {
    pub(super) tape: &'s mut Tape<'a, 'w>,
    /// The operation as it stands in the forward computation.
    pub(super) op: OpView<'a>,
    pub(super) id: OpId,
    /// The derivative of the loss by each result; `None` where it does not depend on it.
    pub(super) grads: Vec<Option<Arg>>,
}

/// Result of a rule.
pub(super) type Done = Result<(), OpError>;

impl<'a, 'w> Site<'_, 'a, 'w> {
    /// Adds operations.
    pub(super) fn e(&mut self) -> Emit<'_, 'w> {
        self.tape.emit()
    }

    /// The derivative by the operation's single result.
    pub(super) fn grad(&self) -> Result<Arg, OpError> {
        let grad = self.grads.first().cloned().flatten();
        grad.ok_or_else(|| OpError::invalid("the loss does not depend on the first result"))
    }

    /// Whether the derivative by argument `name` is of use.
    pub(super) fn wants(&self, name: &str) -> bool {
        matches!(self.op.arg(name), Some(Arg::Value(v)) if self.tape.wants(*v))
    }

    /// The value of argument `name`.
    pub(super) fn arg(&mut self, name: &str) -> Result<Arg, OpError> {
        let arg = self.op.required(name)?;
        self.tape.arg(arg)
    }

    /// The value of argument `name`, if given.
    pub(super) fn opt_arg(&mut self, name: &str) -> Result<Option<Arg>, OpError> {
        self.op.arg(name).map(|arg| self.tape.arg(arg)).transpose()
    }

    /// Those of the arguments `names` that are given, to pass on to another operation.
    pub(super) fn pass(
        &mut self,
        names: &[&'static str],
    ) -> Result<Vec<(&'static str, Arg)>, OpError> {
        let mut args = Vec::new();
        for &name in names {
            args.extend(self.opt_arg(name)?.map(|arg| (name, arg)));
        }
        Ok(args)
    }

    /// The items of the variadic argument `name` as they stand in the forward computation.
    pub(super) fn items(&self, name: &str) -> Result<&'a [Arg], OpError> {
        Ok(match self.op.required(name)? {
            Arg::List(items) => items,
            single => std::slice::from_ref(single),
        })
    }

    /// The operation's result `i` in the forward computation.
    pub(super) fn output(&self, i: usize) -> Option<ValueId> {
        self.tape.function.ops[self.id].outputs.get(i).copied()
    }

    /// The value of result `i`.
    pub(super) fn result(&mut self, i: usize) -> Result<Arg, OpError> {
        let v = self.output(i).ok_or_else(|| OpError::invalid("a result is missing"))?;
        self.tape.arg(&Arg::Value(v))
    }

    /// The type of argument `name`.
    pub(super) fn ty(&self, name: &str) -> Result<&'a TensorType, OpError> {
        self.op.tensor(name)
    }

    /// The sizes of argument `name`.
    pub(super) fn shape(&self, name: &str) -> Result<Vec<usize>, OpError> {
        fixed(self.ty(name)?)
    }

    /// The constant axis `name`, of a tensor of `rank` axes.
    pub(super) fn axis(&self, name: &str, default: i64, rank: usize) -> Result<usize, OpError> {
        self.op.axis(self.op.int(name)?.unwrap_or(default), rank)
    }

    /// Adds `grad`, up to broadcasting, to the derivative by argument `name`.
    pub(super) fn give(&mut self, name: &str, grad: Arg) -> Done {
        match self.op.required(name)? {
            Arg::Value(v) => self.tape.give(*v, grad),
            Arg::Literal(_) | Arg::List(_) => Ok(()),
        }
    }

    /// As [`Site::give`], for an item of a variadic argument.
    pub(super) fn give_item(&mut self, item: &Arg, grad: Arg) -> Done {
        match item {
            Arg::Value(v) => self.tape.give(*v, grad),
            Arg::Literal(_) | Arg::List(_) => Ok(()),
        }
    }

    /// Whether the derivative by an item of a variadic argument is of use.
    pub(super) fn wants_item(&self, item: &Arg) -> bool {
        matches!(item, Arg::Value(v) if self.tape.wants(*v))
    }
}
