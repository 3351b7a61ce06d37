//! Runs passes in order, verifies after each, and counts.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use mil::Program;

use crate::{Pass, PassError, Property, Result, rewrite};

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
    /// Time it took, verification included.
    pub time: Duration,
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
    let (start, ops_before) = (Instant::now(), count_ops(program));
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
    let ops_after = count_ops(program);
    Ok(PassStats { pass: pass.name(), ops_before, ops_after, changes, time: start.elapsed() })
}

fn count_ops(program: &Program) -> usize {
    let mut count = 0;
    for function in program.functions.values() {
        rewrite::for_each_block(function, &mut |b| count += b.ops.len());
    }
    count
}
