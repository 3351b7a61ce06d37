//! What a run would take: parameters, memory and time, from a few steps of it.

use std::path::Path;

use analysis::units::{size, thousands};
use anyhow::Result;
use serde_json::json;
use train::metrics::peak_memory;

use super::run::Ready;
use super::settings::Settings;
use crate::{output, progress};

/// Steps that are measured, after one that is not.
const STEPS: usize = 3;

/// Takes some steps of the run in `dir`, which nothing is written to, and says what the whole would take.
///
/// # Errors
/// As for the run itself.
pub(crate) fn dry_run(dir: &Path, as_json: bool) -> Result<()> {
    let mut settings = Settings::read(dir)?;
    let whole = settings.recipe.config.clone();
    // Two batches tell what many take: their sum exists beside the gradients of the next.
    let measured = whole.accumulation.min(2);
    settings.recipe.config.accumulation = measured;
    settings.recipe.config.evaluate_batches = Some(1);
    let Ready { model, mut batches, mut trainer, .. } =
        progress::spin("preparing", || settings.ready(dir, &None))?;
    let (step_s, evaluation_s) = progress::spin("measuring", || {
        let mut seconds = Vec::new();
        for _ in 0..=STEPS {
            let step = trainer.step(&mut batches.train)?;
            let gradient = step.seconds - step.update_seconds;
            let batches = whole.accumulation as f64 / measured as f64;
            seconds.push(gradient * batches + step.update_seconds);
        }
        seconds.remove(0);
        seconds.sort_by(f64::total_cmp);
        let evaluation = batches.held_out.as_mut().map(|h| trainer.evaluate(h)).transpose()?;
        anyhow::Ok((seconds[STEPS / 2], evaluation.map(|e| e.seconds)))
    })?;
    let recipe = &settings.recipe;
    let batch = (recipe.batch * recipe.seq_len) as u64;
    let steps = whole.schedule.total;
    let evaluations = whole.evaluate_every.map_or(1, |every| steps.div_ceil(every));
    let batches_each = batches.held_out.as_ref().map_or(0, |h| h.batches() as u64);
    let batches_each = whole.evaluate_batches.map_or(batches_each, |n| batches_each.min(n as u64));
    let total_s = step_s * steps as f64
        + evaluation_s.map_or(0.0, |s| s * evaluations as f64 * batches_each as f64);
    let sizes = trainer.parameters().map(|(_, t)| t.shape().iter().product::<usize>() as u64);
    let trained: u64 = sizes.sum();
    let masters = 4 * trained;
    let moments = masters * whole.optimizer.moments().len() as u64;
    let peak = peak_memory();
    let rest = peak.map(|p| p.saturating_sub(2 * masters + moments));
    let tokens = batch.saturating_mul(whole.accumulation as u64);
    let all = tokens.saturating_mul(steps);
    if as_json {
        return output::json(&json!({
            "parameters": model.config().parameters,
            "trained": trained,
            "memory": {
                "masters": masters,
                "gradients": masters,
                "moments": moments,
                "measured_peak": peak,
            },
            "tokens": { "data": batches.tokens[0], "step": tokens, "run": all },
            "steps": steps,
            "measured": { "steps": STEPS, "step_s": step_s, "evaluation_batch_s": evaluation_s },
            "predicted_s": total_s,
        }));
    }
    let measured = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), size);
    let lines = [
        format!(
            "parameters  {}, {} of them trained",
            thousands(model.config().parameters),
            thousands(trained)
        ),
        format!(
            "memory      masters {}, gradients {}, moments {}, activations and all else {}; measured peak {}",
            size(masters),
            size(masters),
            size(moments),
            measured(rest),
            measured(peak)
        ),
        format!(
            "tokens      {} in the data; {} in {} steps of {}, {:.1} times the data",
            thousands(batches.tokens[0] as u64),
            thousands(all),
            thousands(steps),
            thousands(tokens),
            all as f64 / batches.tokens[0] as f64
        ),
        format!(
            "time        {:.3} s a step, {:.0} tokens/s, measured over {STEPS} steps on this machine; the run would \
             take {}, evaluations included",
            step_s,
            tokens as f64 / step_s,
            duration(total_s)
        ),
    ];
    output::line(&lines.join("\n"))
}

/// A time for people.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}
