//! Runs passes in order, verifies after each, and counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use mil::{OpKind, Program};

use crate::{PASSES, Pass, PassError, Property, Result, rewrite};

/// What one pass did to a program.
#[derive(Clone, PartialEq, Debug)]
pub struct PassStats {
    /// The pass.
    pub pass: &'static str,
    /// Operations of all functions before it.
    pub ops_before: usize,
    /// Operations of all functions after it.
    pub ops_after: usize,
    /// Things it changed.
    pub changes: usize,
    /// How many operations of a kind there are more or fewer after it, where that differs.
    pub kinds: BTreeMap<OpKind, isize>,
    /// Time it took, verification included.
    pub time: Duration,
}

/// `chosen` in this order, each behind those that establish what it requires and none before it does.
pub fn with_requirements(chosen: &[&'static dyn Pass]) -> Vec<&'static dyn Pass> {
    let mut established: BTreeSet<Property> = BTreeSet::new();
    let mut order: Vec<&'static dyn Pass> = Vec::new();
    let mut add = |pass: &'static dyn Pass, established: &mut BTreeSet<Property>| {
        established.retain(|p| !pass.breaks().contains(p));
        established.extend(pass.establishes());
        order.push(pass);
    };
    for &pass in chosen {
        for property in pass.requires() {
            let provider = PASSES.iter().find(|p| p.establishes().contains(property));
            if let Some(&provider) = provider.filter(|_| !established.contains(property)) {
                add(provider, &mut established);
            }
        }
        add(pass, &mut established);
    }
    order
}

/// Runs `passes` over every function of `program`, in order. On an error the program is unspecified.
///
/// # Errors
/// When the program is invalid, a pass fails or breaks it, or a pass's requirements are not met.
pub fn run(program: &mut Program, passes: &[&dyn Pass]) -> Result<Vec<PassStats>> {
    mil::verify(program).map_err(PassError::Input)?;
    let mut established: BTreeSet<Property> = BTreeSet::new();
    passes.iter().map(|pass| run_one(program, *pass, &mut established)).collect()
}

fn run_one(
    program: &mut Program,
    pass: &dyn Pass,
    established: &mut BTreeSet<Property>,
) -> Result<PassStats> {
    if let Some(&property) = pass.requires().iter().find(|p| !established.contains(p)) {
        return Err(PassError::Order { pass: pass.name(), property });
    }
    let (start, before) = (Instant::now(), count_ops(program));
    let names: Vec<String> = program.functions.keys().cloned().collect();
    let mut changes = 0;
    for name in &names {
        let error = |error| PassError::Failed { pass: pass.name(), error };
        let changed = pass.run(program, name).map_err(error)?;
        changes += changed;
        if changed > 0
            && let Some(function) = program.functions.get_mut(name)
        {
            rewrite::compact(function);
        }
    }
    if changes > 0 {
        let error = |error| PassError::Broke { pass: pass.name(), error };
        mil::verify(program).map_err(error)?;
    }
    established.retain(|p| !pass.breaks().contains(p));
    established.extend(pass.establishes());
    let after = count_ops(program);
    let mut kinds: BTreeMap<OpKind, isize> = BTreeMap::new();
    for (counts, sign) in [(&before, -1), (&after, 1)] {
        for (&kind, &n) in counts {
            *kinds.entry(kind).or_default() += sign * n as isize;
        }
    }
    kinds.retain(|_, n| *n != 0);
    Ok(PassStats {
        pass: pass.name(),
        ops_before: before.values().sum(),
        ops_after: after.values().sum(),
        changes,
        kinds,
        time: start.elapsed(),
    })
}

/// Operations of all functions by kind.
fn count_ops(program: &Program) -> BTreeMap<OpKind, usize> {
    let mut counts = BTreeMap::new();
    for function in program.functions.values() {
        rewrite::for_each_block(function, &mut |b| {
            b.ops.iter().for_each(|&id| *counts.entry(function.ops[id].kind).or_default() += 1);
        });
    }
    counts
}
