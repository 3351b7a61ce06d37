//! Pads states to sizes that the engine takes. Where a state is read, its old part is sliced out; what is written is
//! padded, or written in place if it was an update in place.

use std::collections::HashMap;

use ane_model::{CheckOptions, Diagnostic};
use mil::{Arg, OpError, OpKind, Program, Result, TensorType, Type, ValueId};

use super::emit::Emit;
use super::{Attempt, InterfaceChange, Part};
use crate::rebuild::{Results, Site, rebuild};

/// A state with its sizes before and after.
struct Grown {
    name: String,
    from: TensorType,
    old: Vec<usize>,
    new: Vec<usize>,
}

impl Grown {
    fn to(&self) -> TensorType {
        TensorType::new(self.from.dtype, self.new.iter().copied())
    }
}

/// Pads the states of the functions that findings are about, in every function that has them: functions that name a
/// state alike share it.
///
/// # Errors
/// When an operation cannot be made.
pub(super) fn apply(
    program: &mut Program,
    findings: &[&Diagnostic],
    options: &CheckOptions<'_>,
) -> Result<Attempt> {
    let mut attempt = Attempt::default();
    let Some(multiple) = &options.chip.coreml.state_multiple else { return Ok(attempt) };
    let mut states: Vec<Grown> = Vec::new();
    for function in findings.iter().filter_map(|d| d.function.as_deref()) {
        for grown in too_small(program, function, multiple.value as usize) {
            if states.iter().all(|s| s.name != grown.name) {
                states.push(grown);
            }
        }
    }
    for state in &states {
        if let Some(why) = obstacle(program, state) {
            for finding in findings {
                attempt.refused.entry(super::place(finding)).or_insert(why.clone());
            }
            continue;
        }
        let names: Vec<String> = program.functions.keys().cloned().collect();
        for name in &names {
            grow(program, name, state, &mut attempt)?;
        }
    }
    Ok(attempt)
}

/// States of which one of the last two axes is no multiple of `multiple`.
fn too_small(program: &Program, function: &str, multiple: usize) -> Vec<Grown> {
    let Some(function) = program.functions.get(function) else { return Vec::new() };
    let grown = function.inputs.iter().filter_map(|&v| {
        let from = function.ty(v).as_state()?.clone();
        let old = from.fixed_shape()?;
        let mut new = old.clone();
        new.iter_mut()
            .rev()
            .take(2)
            .filter(|n| **n != 1)
            .for_each(|n| *n = n.next_multiple_of(multiple));
        let name = function.values[v].name.clone();
        (new != old).then_some(Grown { name, from, old, new })
    });
    grown.collect()
}

/// Why a state cannot grow.
fn obstacle(program: &Program, state: &Grown) -> Option<String> {
    program.functions.iter().find_map(|(name, function)| {
        let v = function.input(&state.name)?;
        if function.ty(v).as_state() != Some(&state.from) {
            return Some(format!("state \"{}\" is of another type in function {name}", state.name));
        }
        let other = function.ops.values().find(|op| {
            let mut uses = false;
            op.for_each_arg_value(|used| uses |= used == v);
            uses && !matches!(op.kind, OpKind::ReadState | OpKind::WriteState)
        })?;
        Some(format!("state \"{}\" is an argument of {}", state.name, other.kind.name()))
    })
}

fn grow(program: &mut Program, name: &str, state: &Grown, attempt: &mut Attempt) -> Result<()> {
    let Some(function) = program.functions.get_mut(name) else { return Ok(()) };
    let Some(v) = function.input(&state.name) else { return Ok(()) };
    function.values[v].ty = Type::State(state.to());
    let mut growth = Growth { state, v, whole: HashMap::new(), assumed: false };
    rebuild(program, name, &mut |site| growth.decide(site))?;
    let to = state.new.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let assumed =
        if growth.assumed { "; computed positions are taken to count from the front" } else { "" };
    let subject = format!("state \"{}\"", state.name);
    attempt.applied.push((name.to_owned(), subject, format!("padded to [{to}]{assumed}")));
    attempt.interface.push(InterfaceChange {
        function: name.to_owned(),
        part: Part::State,
        name: state.name.clone(),
        from: state.from.clone(),
        to: state.to(),
    });
    Ok(())
}

struct Growth<'a> {
    state: &'a Grown,
    v: ValueId,
    /// The padded content of which a value was all there was.
    whole: HashMap<ValueId, ValueId>,
    /// Whether an update in place has positions that are computed along an axis that grew.
    assumed: bool,
}

impl Growth<'_> {
    fn decide(&mut self, site: &mut Site<'_, '_>) -> Result<Option<Results>, OpError> {
        let op = &site.function.ops[site.id];
        let own = op.arg("input") == Some(&Arg::Value(self.v));
        match op.kind {
            OpKind::ReadState if own => {
                let e = Emit::at(site);
                let name = e.named("padded");
                let content = e.b.op(OpKind::ReadState).arg("input", self.v).name(name).result()?;
                self.old_part(site, content).map(Some)
            }
            OpKind::SliceUpdate => {
                let padded = match op.arg("x") {
                    Some(Arg::Value(x)) => self.whole.get(x).copied(),
                    _ => None,
                };
                let Some(padded) = padded else { return Ok(None) };
                let Some(added) = self.updates(site) else { return Ok(None) };
                let updated = update(site, padded, &added)?;
                self.old_part(site, updated).map(Some)
            }
            OpKind::WriteState if own => {
                let data = op.arg("data").ok_or_else(|| OpError::invalid("no data"))?;
                let known = match data {
                    Arg::Value(v) => self.whole.get(v).copied(),
                    _ => None,
                };
                let mut e = Emit::new(site.b, &self.state.name);
                let data = match known {
                    Some(padded) => padded,
                    None => {
                        let added = self.state.new.iter().zip(&self.state.old).map(|(n, o)| n - o);
                        e.pad(
                            data.clone(),
                            self.state.from.dtype,
                            &added.collect::<Vec<_>>(),
                            "padded",
                        )?
                    }
                };
                e.b.op(OpKind::WriteState).arg("input", self.v).arg("data", data).results()?;
                Ok(Some(Vec::new()))
            }
            _ => Ok(None),
        }
    }

    /// What there was of `padded`, which stands for the site's result.
    fn old_part(&mut self, site: &mut Site<'_, '_>, padded: ValueId) -> Result<Results, OpError> {
        self.whole.insert(site.function.ops[site.id].outputs[0], padded);
        let mut e = Emit::at(site);
        let part = e.slice(padded, &vec![0; self.state.old.len()], &self.state.old, "part")?;
        Ok(vec![Some(part)])
    }

    /// By how much the update of a `slice_update` must grow along each of its axes to be the same update of the
    /// padded content; `None` if that cannot be.
    fn updates(&mut self, site: &Site<'_, '_>) -> Option<Vec<usize>> {
        let view = site.view();
        let rank = self.state.old.len();
        let flags = |name| Some(view.bools(name).ok()?.unwrap_or_else(|| vec![false; rank]));
        let (begin_mask, end_mask) = (flags("begin_mask")?, flags("end_mask")?);
        let squeeze = flags("squeeze_mask")?;
        let stride = view.ints("stride").ok()?.unwrap_or_else(|| vec![1; rank]);
        let numbers = |name| view.literal(name).map(|_| view.ints(name).ok().flatten());
        let (begin, end) = (numbers("begin"), numbers("end"));
        let (mut added, mut assumed) = (Vec::new(), false);
        for axis in 0..rank {
            let (old, new) = (self.state.old[axis], self.state.new[axis]);
            let masked = (begin_mask[axis], end_mask[axis] && !squeeze[axis]);
            let mut extra = 0;
            if new > old {
                // From the front, as far as the old end at most: the same place in the padded content.
                let mut same = |at: &Option<Option<Vec<i64>>>, masked: bool, most: usize| match at {
                    _ if masked => true,
                    None => {
                        assumed = true;
                        true
                    }
                    Some(at) => at.as_ref().is_some_and(|at| (0..=most as i64).contains(&at[axis])),
                };
                let end_matters = !masked.1 && !squeeze[axis];
                if stride[axis] != 1
                    || !same(&begin, masked.0, old)
                    || !same(&end, !end_matters, old)
                {
                    return None;
                }
                extra = if masked.1 { new - old } else { 0 };
            }
            if !squeeze[axis] {
                added.push(extra);
            }
        }
        self.assumed |= assumed;
        Some(added)
    }
}

/// The site's `slice_update`, of `padded` and with the update padded by `added`.
fn update(site: &mut Site<'_, '_>, padded: ValueId, added: &[usize]) -> Result<ValueId, OpError> {
    let view = site.view();
    let (update, dtype) = (view.required("update")?.clone(), view.tensor("update")?.dtype);
    let mut e = Emit::at(site);
    let update = if added.iter().all(|&n| n == 0) {
        update
    } else {
        e.pad(update, dtype, added, "update_padded")?.into()
    };
    let op = super::emit::again(site, &["x", "update"], "in_place");
    Ok(op.arg("x", padded).arg("update", update).result()?)
}
