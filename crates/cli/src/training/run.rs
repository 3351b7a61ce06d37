//! A run from its directory to its result.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, fs};

use anyhow::{Context, Error, Result, anyhow, ensure};
use llm::{Batch, Model};
use serde_json::json;
use tensor::Tensor;
use train::metrics::tensorboard::EventFile;
use train::metrics::{JsonLines, Line, Record};
use train::{
    BatchSource, Checkpoint, Checkpoints, End, LossScaling, Observer, Trainer, checkpoint,
};

use super::changes::{Given, check_steps};
use super::corpus::Batches;
use super::engine_log::EngineLog;
use super::lock;
use super::processes::{self, Others, leads};
use super::settings::{Settings, Task};
use super::task::{Trained, fingerprint};
use super::watch::{Cancel, Watch};
use crate::devices::Device;
use crate::interrupt::{self, Heeded};
use crate::{output, progress, scratch};

/// Makes the run `dir` of so many processes whole: `fill` writes into a directory, which then appears under that
/// name.
///
/// # Errors
/// When there is something already, what was made does not fit together, and those of `fill`.
pub(super) fn create(
    dir: &Path,
    processes: usize,
    fill: impl FnOnce(&Path) -> Result<Settings>,
) -> Result<()> {
    let is_there = || anyhow!("{}: is there already; --resume goes on with a run", dir.display());
    if dir.symlink_metadata().is_ok() {
        return Err(is_there());
    }
    let (mut unfinished, mut heeded) = (None, None);
    let made = import::write_directory(dir, |partial| {
        // A signal must not leave half of it behind
        unfinished = Some(scratch::Unfinished::new(partial));
        let whole = || {
            let mut settings = fill(partial)?;
            settings.processes = processes;
            // What cannot run is not to be there.
            let planned = settings.plan(partial, 0)?;
            settings.base = Some(fingerprint(&planned.model)?);
            settings.write(partial)
        };
        whole().map_err(|error| renamed(error, partial, dir))?;
        // and, once it is whole, must not remove it while it gets its name.
        heeded = Some(Heeded::new());
        unfinished = None;
        Ok(())
    });
    let filled = heeded.is_some();
    if let Some(heeded) = heeded {
        heeded.act();
    }
    // Another process was faster.
    if filled && made.is_err() && dir.symlink_metadata().is_ok() {
        return Err(is_there());
    }
    made
}

/// `error` with a path as it would have been: nobody knows the other.
pub(crate) fn renamed(error: Error, unknown: &Path, known: &Path) -> Error {
    let (text, unknown) = (format!("{error:#}"), unknown.display().to_string());
    match text.contains(&unknown) {
        true => anyhow!(text.replace(&unknown, &known.display().to_string())),
        false => error,
    }
}

/// A run that is ready to take steps.
pub(super) struct Ready {
    pub(super) model: Model,
    pub(super) batches: Batches,
    pub(super) trainer: Trainer,
    pub(super) device: Device,
}

/// A run's parts before there is a device.
struct Planned {
    model: Model,
    batches: Batches,
    trained: Trained,
}

impl Settings {
    /// Reads what the run in `dir` is made of.
    ///
    /// # Errors
    /// When model, data and settings do not fit each other, or one cannot be read.
    fn plan(&self, dir: &Path, rank: usize) -> Result<Planned> {
        let recipe = &self.recipe;
        self.compute.check()?;
        let model = Model::load(dir.join(self.task.model()))?;
        let batches = Batches::open(dir, self, model.config().vocab, rank)?;
        let (sequences, tokens) = (recipe.batch, recipe.seq_len);
        let batch = Batch { sequences, tokens, documents: batches.documents };
        let trained = self.task.gradients(&model, batch, recipe, self.compute.is_half())?;
        Ok(Planned { model, batches, trained })
    }

    /// Makes the run in `dir` ready, from its beginning, for this process and the `others`.
    ///
    /// # Errors
    /// When model, data and settings do not fit each other, or one cannot be read.
    pub(super) fn ready(&self, dir: &Path, others: &Others) -> Result<Ready> {
        let rank = others.as_ref().map_or(0, |exchange| exchange.rank());
        let Planned { model, batches, trained } = self.plan(dir, rank)?;
        if let Some(base) = &self.base {
            let found = fingerprint(&model)?;
            let path = model.file().path().display();
            ensure!(
                found == *base,
                "{path}: is not the model that the run was begun with: {found}, not {base}"
            );
        }
        let Trained { mut gradients, first } = trained;
        self.compute.lower(&mut gradients)?;
        let device = self.compute.open()?;
        let half = self.compute.is_half();
        let mut config = self.recipe.config.clone();
        config.loss_scaling = half.then(LossScaling::default);
        let threads = self.compute.threads();
        let parameters = gradients.parameters.iter().map(|p| p.input.clone()).collect();
        let backend = self.compute.backend(&device, parameters);
        let trainer = Trainer::with_first(&*backend, gradients, &first, config, threads)?;
        let trainer = match others {
            Some(exchange) => trainer.with_exchange(exchange.clone()),
            None => trainer,
        };
        let [cut, all] = batches.cut;
        if cut > 0 && leads(others) {
            output::note(&format!(
                "note: {cut} of {all} documents are longer than --seq-len {} and are cut",
                self.recipe.seq_len
            ));
        }
        // On an engine what it does not take is the CPU's, always.
        let says = !half && leads(others);
        for fallback in trainer.fallbacks().iter().filter(|_| says).take(1) {
            output::note(&format!(
                "note: {} operations run on the slow reference interpreter; first {} in {}: {}",
                trainer.fallbacks().len(),
                fallback.kind.name(),
                fallback.function,
                fallback.reason
            ));
        }
        Ok(Ready { model, batches, trainer, device })
    }
}

/// Goes on with the run in `dir`, changed as options say that were `given`, to its end, together with the `others`.
///
/// # Errors
/// When there is no run, it is damaged, an option contradicts it, or a step fails; the last checkpoint stays.
pub(super) fn go_on(
    dir: &Path,
    given: Option<&Given<'_>>,
    as_json: bool,
    others: &Others,
) -> Result<ExitCode> {
    // Nothing is written where there is no run; what is read may change as long as another process has it.
    Settings::read(dir)?;
    let _lock = leads(others).then(|| lock::take(dir)).transpose()?;
    let mut settings = Settings::read(dir)?;
    let (began, count) = (settings.processes, processes::count(others));
    ensure!(
        began == count,
        "{}: processes of the run: {began}; started for it: {count}",
        dir.display()
    );
    let changes = given.map_or(Ok(Vec::new()), |given| given.change(&mut settings))?;
    let Ready { model, mut batches, mut trainer, device } =
        progress::spin("preparing", || settings.ready(dir, others))?;
    let checkpoints = Checkpoints {
        dir: dir.join("checkpoints"),
        every: settings.recipe.save_every,
        keep: settings.recipe.keep,
        settings: settings.lasting()?,
    };
    if let Some(checkpoint) = newest(&checkpoints.dir)? {
        checkpoint.check_settings(&checkpoints.settings)?;
        trainer.restore(&checkpoint, &mut batches.train)?;
    } else if given.is_some() && leads(others) {
        output::note("note: there is no checkpoint; the run begins anew");
    }
    let (done, total) = (trainer.progress().step, trainer.config().schedule.total);
    check_steps(done, total)?;
    let heeded = Heeded::new();
    let exhausted = Arc::new(AtomicBool::new(false));
    let over = is_over(&trainer);
    let mut observers: Vec<Box<dyn Observer>> = vec![Box::new(Cancel(heeded.flag()))];
    if leads(others) && !over {
        observers.push(Box::new(lines::<Record>(&dir.join("metrics.jsonl"), done)?));
        observers.push(Box::new(EventFile::create(dir, done)?));
        if let Some(stats) = device.stats() {
            observers.push(Box::new(EngineLog::open(
                &dir.join("engine.jsonl"),
                done,
                stats,
                settings.compute.compiles(),
                exhausted.clone(),
            )?));
        }
    }
    // Only now can the run go on as it is to be.
    if !changes.is_empty() && leads(others) {
        settings.write(dir)?;
        changes.iter().for_each(|change| output::note(&format!("note: {change}")));
    }
    if leads(others) && !over {
        observers.push(Box::new(Watch::new(done, total)));
    }
    let end = if over {
        End::Finished
    } else {
        let held_out = batches.held_out.as_mut().map(|h| h as &mut dyn BatchSource);
        trainer.run(&mut batches.train, held_out, Some(&checkpoints), &mut observers)?
    };
    drop(observers);
    let interrupted = heeded.flag().load(Ordering::Relaxed);
    if end == End::Stopped && exhausted.load(Ordering::Relaxed) && !interrupted {
        // What mpirun started it does not start again.
        ensure!(others.is_none(), "the engine compiles no more for this process; --resume goes on");
        let step = trainer.progress().step;
        output::note(&format!(
            "note: the engine compiles no more for this process; a new one goes on behind step {step}"
        ));
        return again(dir, as_json);
    }
    if leads(others) {
        let result = settings.task.result(dir, &model);
        let (step, weights) = made(&trainer, &checkpoints.dir);
        replace(&settings.task, &model, &weights, &result)?;
        report(&trainer, &device, end, (&result, step), as_json)?;
    }
    Ok(if end == End::Stopped { interrupt::status() } else { ExitCode::SUCCESS })
}

/// Goes on with the run in a new process, which an engine compiles for again.
#[cfg(unix)]
fn again(dir: &Path, as_json: bool) -> Result<ExitCode> {
    use std::os::unix::process::CommandExt;
    let program = env::current_exe().context("cannot start again")?;
    // The command that the run was begun or taken up by.
    let command = env::args_os().nth(1).context("cannot start again")?;
    scratch::remove();
    let mut next = process::Command::new(program);
    next.arg(command).args(["--resume", "--out"]).arg(dir);
    next.args(as_json.then_some("--json"));
    Err(Error::new(next.exec()).context("cannot start again"))
}

#[cfg(not(unix))]
fn again(_: &Path, _: bool) -> Result<ExitCode> {
    anyhow::bail!("this process can compile no more; --resume goes on")
}

/// Whether the schedule or the held-out loss has ended the run that `trainer` took up.
fn is_over(trainer: &Trainer) -> bool {
    let (progress, config) = (trainer.progress(), trainer.config());
    let gave_up = config.early_stop.is_some_and(|s| s.is_due(progress));
    !progress.unevaluated && (progress.step >= config.schedule.total || gave_up)
}

/// What goes on with the lines in `path` behind step `done`. What of them is not taken over is said.
///
/// # Errors
/// As for [`JsonLines::open`].
pub(super) fn lines<L: Line>(path: &Path, done: u64) -> train::Result<JsonLines<L>> {
    let lines = JsonLines::open(path, done)?;
    if let Some(aside) = lines.set_aside() {
        let (path, aside) = (path.display(), aside.display());
        let why = if lines.damaged() { "a damaged line" } else { "steps that are taken anew" };
        output::note(&format!("note: {path}: has {why}; as it was it is now {aside}"));
    }
    Ok(lines)
}

/// What the run has made and after which step: the last values or, under early stop, those of the best evaluation.
fn made(trainer: &Trainer, checkpoints: &Path) -> (u64, BTreeMap<String, Tensor>) {
    let last = trainer.progress().step;
    let best = trainer.config().early_stop.and(trainer.progress().best).map(|(step, _)| step);
    if let Some(step) = best.filter(|&step| step != last) {
        let why = match checkpoint::of_step(checkpoints, step) {
            Ok(Some(found)) => return (step, found.weights),
            Ok(None) => String::new(),
            Err(error) => format!(" that is whole ({error})"),
        };
        output::note(&format!(
            "note: there is no checkpoint{why} of the best evaluation, at step {step}; the result is the last"
        ));
    }
    let values = trainer.parameters().map(|(name, value)| (name.to_owned(), value.clone()));
    (last, values.collect())
}

/// The newest checkpoint that is whole. One that is damaged is passed over, and said.
fn newest(dir: &Path) -> Result<Option<Checkpoint>> {
    let mut last = None;
    for (_, path) in checkpoint::list(dir)?.into_iter().rev() {
        match Checkpoint::read(&path) {
            Ok(checkpoint) => return Ok(Some(checkpoint)),
            Err(error) => {
                output::note(&format!("note: {error}; the one before is taken"));
                last = Some(error);
            }
        }
    }
    match last {
        Some(error) => Err(error).context("no checkpoint is whole"),
        None => Ok(None),
    }
}

/// Writes the result anew: the one that is there is removed once the new one is whole.
fn replace(
    task: &Task,
    model: &Model,
    weights: &BTreeMap<String, Tensor>,
    result: &Path,
) -> Result<()> {
    let name = result.file_name().unwrap_or_default().to_string_lossy();
    let fresh = result.with_file_name(format!(".new-{name}"));
    remove(&fresh)?;
    progress::spin("writing", || task.write(model, weights, &fresh))?;
    remove(result)?;
    fs::rename(&fresh, result).with_context(|| format!("{}: cannot write", result.display()))
}

/// Removes what is at `path`, if there is something.
///
/// # Errors
/// When it cannot be removed.
pub(super) fn remove(path: &Path) -> Result<()> {
    let removed = match path.symlink_metadata() {
        Err(_) => return Ok(()),
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    removed.with_context(|| format!("{}: cannot remove", path.display()))
}

fn report(
    trainer: &Trainer,
    device: &Device,
    end: End,
    (result, step): (&Path, u64),
    as_json: bool,
) -> Result<()> {
    let progress = trainer.progress();
    let why = match end {
        End::Finished => "finished",
        End::Stopped => "interrupted",
        End::NoImprovement => "no improvement",
    };
    if as_json {
        let best = progress.best.map(|(step, loss)| json!({ "step": step, "loss": loss }));
        return output::json(&json!({
            "end": why,
            "step": progress.step,
            "tokens": progress.tokens,
            "best": best,
            "result": result,
            "result_step": step,
            "engine": device.report(),
        }));
    }
    let best =
        progress.best.map(|(step, loss)| format!("; least held-out loss {loss:.4} at {step}"));
    let at = if step == progress.step { "" } else { ", which is the result" };
    output::line(&format!("{why} at step {}{}{at}", progress.step, best.unwrap_or_default()))?;
    output::line(&result.display().to_string())?;
    if let (End::Stopped, Some(dir)) = (end, result.parent()) {
        output::note(&format!("note: --resume --out {} goes on", dir.display()));
    }
    device.summary().map_or(Ok(()), |summary| output::line(&summary))
}
