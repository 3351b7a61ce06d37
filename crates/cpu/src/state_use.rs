//! Which values are a state's memory itself, and whether they still are where they are used.
//!
//! A read of a state makes no copy, and an update of a part that is written back right after happens
//! in place. Both hold as long as nothing writes the state before the last use of the value: where
//! something does, the value is lowered again as a copy.

use std::collections::HashSet;

use mil::{Type, ValueId};
use tensor::DType;

use crate::lower::{Draft, Drafted, Owner, Slot};
use crate::op_cx::Bind;

/// The reads of states in a plan.
pub(crate) struct StateUse {
    /// Values that must be copies.
    copied: HashSet<ValueId>,
    /// Names of the states that are read.
    pub(crate) names: Vec<String>,
    reads: Vec<Read>,
    /// Uses that are no operands of a step: which read, and at which step.
    uses: Vec<(usize, usize)>,
}

/// A value that is a state's memory.
struct Read {
    /// The value that is the state.
    state: ValueId,
    /// Its number in `names`.
    number: usize,
    value: ValueId,
    /// The first step that sees it.
    at: usize,
}

/// The content type of a state of fixed size whose elements take whole bytes.
pub(crate) fn state_type(ty: &Type) -> Bind<(DType, Vec<usize>)> {
    let content = ty.as_state().ok_or("no state")?;
    crate::op_cx::fixed(&content.clone().into())
}

impl StateUse {
    /// No reads yet; those that make values of `copied` are copies.
    pub(crate) fn new(copied: HashSet<ValueId>) -> Self {
        StateUse { copied, names: Vec::new(), reads: Vec::new(), uses: Vec::new() }
    }

    /// The memory of `state`, if `value` may be it from step `at` on.
    pub(crate) fn read(
        &mut self,
        state: ValueId,
        name: String,
        value: ValueId,
        at: usize,
    ) -> Option<Owner> {
        if self.copied.contains(&value) {
            return None;
        }
        let number = self.names.iter().position(|n| *n == name).unwrap_or(self.names.len());
        if number == self.names.len() {
            self.names.push(name);
        }
        self.reads.push(Read { state, number, value, at });
        Some(Owner::State(self.reads.len() - 1))
    }

    /// The memory after step `at` updated in place what `read` is: `value` from then on.
    pub(crate) fn updated(
        &mut self,
        read: usize,
        value: ValueId,
        name: String,
        at: usize,
    ) -> Option<Owner> {
        let owner = self.read(self.reads[read].state, name, value, at + 1)?;
        self.uses.push((read, at));
        Some(owner)
    }

    /// Notes that the value `read` is written to `state` at step `at`; whether it is that state's own.
    pub(crate) fn writes_back(&mut self, read: usize, state: ValueId, at: usize) -> bool {
        let own = self.reads[read].state == state;
        if own {
            self.uses.push((read, at));
        }
        own
    }

    /// The value that is the state of a read.
    pub(crate) fn state_of(&self, read: usize) -> ValueId {
        self.reads[read].state
    }

    /// The number of the state of each read.
    pub(crate) fn of_reads(&self) -> Vec<usize> {
        self.reads.iter().map(|r| r.number).collect()
    }

    /// Values that something overwrites before their last use.
    pub(crate) fn stale(
        &self,
        drafts: &[Draft],
        outputs: &[(ValueId, Option<Slot>)],
    ) -> HashSet<ValueId> {
        let mut stale = HashSet::new();
        // The last step that wrote each state.
        let mut written: Vec<Option<usize>> = vec![None; self.names.len()];
        let mut use_of = |read: &usize, written: &[Option<usize>]| {
            let Read { number, value, at, .. } = self.reads[*read];
            if written[number].is_some_and(|w| w >= at) {
                stale.insert(value);
            }
        };
        let read = |slot: &Slot| match slot.owner {
            Owner::State(read) => Some(read),
            _ => None,
        };
        for (step, draft) in drafts.iter().enumerate() {
            self.uses.iter().filter(|u| u.1 == step).for_each(|(r, _)| use_of(r, &written));
            let (slots, names): (Vec<&Slot>, Vec<&String>) = match draft {
                Draft::Native(Drafted { ins, writes, .. }) => {
                    (ins.iter().collect(), writes.iter().collect())
                }
                Draft::Interpreted(draft) => (
                    draft.uses.iter().map(|(_, slot)| slot).collect(),
                    draft.states.iter().map(|(_, name)| name).collect(),
                ),
                Draft::Unused => continue,
            };
            for name in names {
                if let Some(number) = self.names.iter().position(|n| n == name) {
                    written[number] = Some(step);
                }
            }
            // A step must not read as an operand what it writes.
            slots.into_iter().filter_map(read).for_each(|r| use_of(&r, &written));
        }
        self.uses.iter().filter(|u| u.1 >= drafts.len()).for_each(|(r, _)| use_of(r, &written));
        outputs.iter().flat_map(|(_, s)| s).filter_map(read).for_each(|r| use_of(&r, &written));
        stale
    }
}
