//! Replaces operations whose gradient is that of simpler ones, where the loss depends on them.

use mil::{Program, ValueId};

use super::activity::Activity;
use super::rules::{Rule, rule};
use super::{function_of, loss_of};
use crate::rebuild::{Site, rebuild};

/// Rewrites function `name` until the rules of all operations between `inputs` and `loss` emit gradients.
pub(super) fn expand(
    program: &mut Program,
    name: &str,
    inputs: &[String],
    loss: &str,
) -> mil::Result<()> {
    loop {
        let function = function_of(program, name)?;
        let sources: Vec<ValueId> = inputs.iter().filter_map(|i| function.input(i)).collect();
        let loss = loss_of(function, loss)?;
        let activity = Activity::new(program, name, function, sources, loss)?;
        let changed = rebuild(program, name, &mut |site: &mut Site<'_, '_>| {
            if !activity.of_op(site.function, site.id) {
                return Ok(None);
            }
            let view = site.view();
            let results = match rule(view.kind) {
                Rule::Expand(expand) => {
                    let name = &site.function.values[site.function.ops[site.id].outputs[0]].name;
                    vec![expand(&view, site.b, name)?]
                }
                Rule::Decompose => view.kind.def().decompose(&view, site.b)?,
                Rule::Emit(_) | Rule::Zero | Rule::Unsupported => return Ok(None),
            };
            Ok(Some(results.into_iter().map(Some).collect()))
        })?;
        if changed == 0 {
            return Ok(());
        }
    }
}
