//! Takes each finding of a rule to the rewriting that answers it.

use std::collections::{BTreeMap, BTreeSet};

use ane_model::{CheckOptions, Diagnostic, Fix};
use mil::{OpError, OpId, Program, Result, ValueId};

use super::{
    Attempt, Part, conv_bias, decompose, epsilon, named_constants, pack_weights, pad_state, root,
    silu, split_reduction, uniform_surfaces,
};
use crate::rebuild::{Site, rebuild};

/// What became of one operation.
pub(super) enum Rewritten {
    /// What stands for its results, and how it is written now.
    Done(Vec<ValueId>, String),
    /// Why it stays.
    Kept(String),
}

type Rewrite = fn(&mut Site<'_, '_>, &CheckOptions<'_>) -> Result<Rewritten, OpError>;

/// Does `kind` for `findings`, which are all of one rule.
///
/// # Errors
/// When an operation cannot be made.
pub(super) fn apply(
    program: &mut Program,
    kind: Fix,
    findings: &[&Diagnostic],
    options: &CheckOptions<'_>,
) -> Result<Attempt> {
    let rewrite: Rewrite = match kind {
        Fix::Dialect | Fix::Gelu | Fix::Attention | Fix::Einsum => decompose::rewrite,
        Fix::Silu => silu::rewrite,
        Fix::Rsqrt | Fix::Root => root::rewrite,
        Fix::ConvBias => conv_bias::rewrite,
        Fix::SplitReduction => split_reduction::rewrite,
        Fix::PadState => return pad_state::apply(program, findings, options),
        Fix::PackWeights => return pack_weights::apply(program, options),
        Fix::UniformInputs => return uniform_surfaces::apply(program, findings, Part::Input),
        Fix::UniformOutputs => return uniform_surfaces::apply(program, findings, Part::Output),
        Fix::Epsilon => return Ok(epsilon::apply(program, &by_function(findings))),
        Fix::NamedConstants => return Ok(named_constants::apply(program, &by_function(findings))),
    };
    let mut attempt = Attempt::default();
    for (name, ops) in by_function(findings) {
        rebuild(program, &name, &mut |site| {
            if !ops.contains(&site.id) {
                return Ok(None);
            }
            let described = site.function.describe(site.id);
            match rewrite(site, options)? {
                Rewritten::Done(results, what) => {
                    attempt.applied.push((name.clone(), described, what));
                    Ok(Some(results.into_iter().map(Some).collect()))
                }
                Rewritten::Kept(why) => {
                    attempt.refused.insert((Some(name.clone()), Some(described)), why);
                    Ok(None)
                }
            }
        })?;
    }
    Ok(attempt)
}

/// The operations that findings are about, by function.
fn by_function(findings: &[&Diagnostic]) -> BTreeMap<String, BTreeSet<OpId>> {
    let mut ops: BTreeMap<String, BTreeSet<OpId>> = BTreeMap::new();
    for finding in findings {
        if let (Some(function), Some(op)) = (&finding.function, finding.op) {
            ops.entry(function.clone()).or_default().insert(op);
        }
    }
    ops
}
