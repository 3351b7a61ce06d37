//! What options may change of a run that is taken up again, and what contradicts it.

use anyhow::{Result, bail, ensure};
use serde::Serialize;
use serde_json::{Map, Value};

use super::corpus::DataArgs;
use super::device::ComputeArgs;
use super::recipe::Recipe;
use super::settings::Settings;

/// What changes no step that was taken, and not what the next one computes but, with the number of steps, how fast
/// it learns.
const CHANGEABLE: [&str; 7] =
    ["steps", "eval-every", "eval-batches", "patience", "save-every", "keep", "threads"];

/// Options beside those that say where a run is.
pub(crate) struct Given<'a> {
    /// Whether the command is the one that makes its model.
    pub(crate) makes_model: bool,
    /// Its data.
    pub(crate) data: &'a DataArgs,
    /// How it is trained.
    pub(crate) recipe: &'a Recipe,
    /// What it computes on.
    pub(crate) compute: &'a ComputeArgs,
}

impl Given<'_> {
    /// Changes `settings` as these options say, and says what has become another.
    ///
    /// # Errors
    /// When an option is what the run was begun without, or has another value of, and would change its steps.
    pub(super) fn change(&self, settings: &mut Settings) -> Result<Vec<String>> {
        let began = settings.task.is_new();
        if began != self.makes_model {
            let command = if began { "train" } else { "finetune" };
            bail!("the run was begun by `rigel {command}`, which goes on with it");
        }
        let given =
            options(&[value(&self.data.absolute())?, value(self.recipe)?, value(self.compute)?]);
        let recipe = Recipe::from(&settings.recipe);
        let own = options(&[
            value(&settings.given)?,
            value(&recipe)?,
            value(&settings.compute.explicit())?,
        ]);
        let (mut changes, mut wrong) = (Vec::new(), Vec::new());
        for (name, new) in &given {
            let old = own.get(name);
            if old.is_some_and(|old| train::same(old, new)) {
                continue;
            }
            let was = old.map_or_else(|| "nothing".to_owned(), shown);
            match CHANGEABLE.contains(&name.as_str()) {
                true => changes.push(format!("--{name} is {}, was {was}", shown(new))),
                false => wrong.push(format!("--{name} is {}, in the run {was}", shown(new))),
            }
        }
        if !wrong.is_empty() {
            bail!("{}; what a run was begun with stays so", wrong.join("; "));
        }
        self.recipe.change(&mut settings.recipe)?;
        settings.recipe.check_patience(!settings.eval_data.is_empty())?;
        settings.compute.change(self.compute);
        Ok(changes)
    }
}

fn value(of: &impl Serialize) -> Result<Value> {
    Ok(serde_json::to_value(of)?)
}

/// Options by their names on the command line, those apart that say nothing.
fn options(parts: &[Value]) -> Map<String, Value> {
    let says = |v: &Value| !v.is_null() && v.as_array().is_none_or(|items| !items.is_empty());
    let all = parts.iter().filter_map(Value::as_object).flatten();
    all.filter(|(_, v)| says(v)).map(|(key, v)| (key.replace('_', "-"), v.clone())).collect()
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// Makes sure that there is something between `done` steps and the end.
///
/// # Errors
/// When a run is past the steps that it is now to have.
pub(super) fn check_steps(done: u64, total: u64) -> Result<()> {
    ensure!(done <= total, "--steps is {total}, and {done} are done");
    Ok(())
}
