//! The loop: batches in, parameters moved, losses out.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use exec::{Backend, Runnable, State, Tensors};
use kernels::Pool;
use passes::grad::{Gradients, LOSS_SCALE};
use tensor::Tensor;

use crate::checkpoint::{self, Checkpoint, Contents};
use crate::gradient::Gradients as Sum;
use crate::optimizer::Optimizer;
use crate::parameters::{Master, drop_first_values, masters};
use crate::{
    Batch, BatchSource, Checkpoints, Config, End, Evaluation, LossScale, Observer, Progress,
    Result, Step, TrainError, metrics, nonfinite,
};

/// Parameters, optimiser and the prepared program of one run.
pub struct Trainer {
    runnable: Box<dyn Runnable>,
    state: State,
    gradients: Gradients,
    /// The function that computes the loss alone, and the name of its output.
    forward: String,
    loss: String,
    masters: Vec<Master>,
    /// The masters as the program takes them.
    inputs: Tensors,
    optimizer: Optimizer,
    loss_scale: Option<LossScale>,
    config: Config,
    progress: Progress,
    pool: Pool,
}

impl Trainer {
    /// A run of `gradients` on `backend` that starts from its program's weights. `threads` are for the
    /// optimiser.
    ///
    /// # Errors
    /// When the configuration is invalid, does not fit the program, or the backend cannot run that.
    pub fn new(
        backend: &dyn Backend,
        gradients: Gradients,
        config: Config,
        threads: usize,
    ) -> Result<Self> {
        Self::with_first(backend, gradients, &Tensors::new(), config, threads)
    }

    /// As [`Trainer::new`]; what is trained and no weight starts from the values `first`, by names of inputs.
    ///
    /// # Errors
    /// As [`Trainer::new`], and when such a value is missing or of another shape.
    pub fn with_first(
        backend: &dyn Backend,
        mut gradients: Gradients,
        first: &Tensors,
        config: Config,
        threads: usize,
    ) -> Result<Self> {
        let invalid = |why: &str| Err(TrainError::Invalid(why.to_owned()));
        config.check()?;
        let function = gradients.program.functions.get(&gradients.function);
        if function.is_some_and(|f| f.input(LOSS_SCALE).is_some()) != config.loss_scaling.is_some()
        {
            return invalid(
                "loss scaling needs gradients with the input of the scale, and only it",
            );
        }
        let (forward, loss) = loss_of(&gradients)?;
        let masters = masters(&gradients, first)?;
        drop_first_values(&mut gradients);
        let optimizer = Optimizer::new(config.optimizer, &masters)?;
        let runnable = backend.prepare(&gradients.program)?;
        let state = runnable.new_state()?;
        let pool = Pool::new(threads);
        let mut inputs = Tensors::new();
        masters.iter().try_for_each(|m| m.hand_in(&pool, &mut inputs))?;
        Ok(Trainer {
            runnable,
            state,
            gradients,
            forward,
            loss,
            masters,
            inputs,
            optimizer,
            loss_scale: config.loss_scaling.as_ref().map(LossScale::new),
            config,
            progress: Progress::default(),
            pool,
        })
    }

    /// How far the run is.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// What the run does.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Names and values of the parameters, in `fp32`.
    pub fn parameters(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.masters.iter().map(|m| (&*m.name, &m.value))
    }

    /// Names of the parameters that weight decay is meant for.
    pub fn decayed(&self) -> impl Iterator<Item = &str> {
        let decays = |m: &&Master| self.config.optimizer.decays(m.value.shape(), m.embedding);
        self.masters.iter().filter(decays).map(|m| &*m.name)
    }

    /// Operations that the backend leaves to the interpreter.
    pub fn fallbacks(&self) -> &[exec::Fallback] {
        self.runnable.fallbacks()
    }

    /// One step on the next batches of `data`.
    ///
    /// # Errors
    /// When the data ends, a run fails, or something is not finite; the parameters are then as before.
    pub fn step(&mut self, data: &mut dyn BatchSource) -> Result<Step> {
        let start = Instant::now();
        let mut batches = Vec::with_capacity(self.config.accumulation);
        for _ in 0..self.config.accumulation {
            let batch = data.next_batch()?.filter(|b| b.targets > 0);
            let none = || TrainError::Invalid("the data to train on has no more targets".into());
            batches.push(batch.ok_or_else(none)?);
        }
        let step = self.progress.step + 1;
        let (loss, sum, norm, scale) = loop {
            let scale = self.loss_scale.map(|s| s.scale);
            let (loss, sum) = self.differentiate(&batches, scale)?;
            let norms = sum.norms(&self.pool)?;
            match norms.iter().position(|n| !n.is_finite()) {
                None => {
                    let divisor = sum.divisor * f64::from(scale.unwrap_or(1.0));
                    let norm = norms.iter().map(|n| n * n).sum::<f64>().sqrt() / divisor;
                    break (loss, sum, norm, scale);
                }
                // With a lower scale the same batches are taken again: none is lost.
                Some(_) if self.lower_scale() => {}
                Some(i) => {
                    let what = format!("the gradient of {} is not finite", self.masters[i].name);
                    return Err(self.not_finite(step, what, &batches));
                }
            }
        };
        let learning_rate = self.config.schedule.at(self.progress.step);
        let updating = Instant::now();
        // Small numbers in the denominator of the clip factor are PyTorch's.
        let clip = self.config.optimizer.clip.map_or(1.0, |c| (c / (norm + 1e-6)).min(1.0));
        let factor = clip / (sum.divisor * f64::from(scale.unwrap_or(1.0)));
        for master in &self.masters {
            if master.dtype == tensor::DType::F32 {
                // Else the update would find two owners and copy.
                self.inputs.remove(&master.input);
            }
        }
        let Trainer { optimizer, masters, inputs, pool, .. } = self;
        optimizer.update(pool, masters, &sum.sums, learning_rate, factor)?;
        masters.iter().try_for_each(|m| m.hand_in(pool, inputs))?;
        let update_seconds = updating.elapsed().as_secs_f64();
        if let (Some(s), Some(scaling)) = (&mut self.loss_scale, &self.config.loss_scaling) {
            s.succeeded(scaling);
        }
        let tokens: u64 = batches.iter().map(|b| b.tokens as u64).sum();
        self.progress.step = step;
        self.progress.tokens += tokens;
        Ok(Step {
            step,
            loss,
            gradient_norm: norm,
            learning_rate,
            loss_scale: scale,
            tokens,
            total_tokens: self.progress.tokens,
            seconds: start.elapsed().as_secs_f64(),
            update_seconds,
            peak_bytes: metrics::peak_memory(),
        })
    }

    /// The mean loss over all targets of `batches`, and the gradients.
    fn differentiate(&mut self, batches: &[Batch], scale: Option<f32>) -> Result<(f64, Sum)> {
        let (mut total, mut targets, mut sum) = (0.0, 0, Sum::default());
        for batch in batches {
            let function = self.gradients.function.clone();
            let mut outputs = self.run_batch(&function, batch, scale)?;
            let loss = self.loss_in(&outputs)?;
            if !loss.is_finite() {
                let what = format!("the loss is {loss}");
                return Err(self.not_finite(self.progress.step + 1, what, batches));
            }
            total += loss * batch.targets as f64;
            targets += batch.targets;
            let alone = batches.len() == 1;
            sum.add(&self.pool, &self.masters, &mut outputs, batch.targets, alone)?;
        }
        Ok((total / targets as f64, sum))
    }

    /// Runs `function` on a batch, and on the loss scale if one is given.
    fn run_batch(&mut self, function: &str, batch: &Batch, scale: Option<f32>) -> Result<Tensors> {
        let mut given = batch.inputs.clone();
        if let Some(scale) = scale {
            let scale = Tensor::from_slice(&[], &[scale]);
            let scale = scale.map_err(|e| TrainError::Invalid(e.to_string()))?;
            given.insert(LOSS_SCALE.to_owned(), scale);
        }
        let names: Vec<String> = given.keys().cloned().collect();
        if let Some(name) = names.iter().find(|n| self.inputs.contains_key(*n)) {
            let why = format!("a batch gives input {name}, which is a parameter");
            return Err(TrainError::Invalid(why));
        }
        self.inputs.append(&mut given);
        let outputs = self.runnable.run(function, &self.inputs, &mut self.state);
        names.iter().for_each(|name| drop(self.inputs.remove(name)));
        Ok(outputs?)
    }

    fn loss_in(&self, outputs: &Tensors) -> Result<f64> {
        let loss = outputs.get(&self.loss).and_then(crate::parameters::to_f32);
        let loss = loss.and_then(|t| t.as_slice::<f32>().ok()?.first().copied());
        let missing = || TrainError::Invalid(format!("output {} is no float", self.loss));
        Ok(f64::from(loss.ok_or_else(missing)?))
    }

    fn lower_scale(&mut self) -> bool {
        match (&mut self.loss_scale, &self.config.loss_scaling) {
            (Some(scale), Some(scaling)) => scale.overflowed(scaling),
            _ => false,
        }
    }

    /// Names the operation too where the interpreter finds it.
    fn not_finite(&self, step: u64, mut what: String, batches: &[Batch]) -> TrainError {
        let mut skipped = false;
        let operation = batches.iter().find_map(|batch| {
            let mut inputs = self.inputs.clone();
            inputs.extend(batch.inputs.clone());
            if let Some(scale) = self.loss_scale {
                inputs.insert(LOSS_SCALE.to_owned(), Tensor::from_slice(&[], &[scale.scale]).ok()?);
            }
            let (program, function) = (&self.gradients.program, &self.gradients.function);
            if nonfinite::is_too_large(program, &inputs) {
                skipped = true;
                return None;
            }
            nonfinite::origin(program, function, &inputs, self.loss_scale.is_some())
        });
        if skipped {
            what +=
                " (by which operation was not sought: the model is too large for the interpreter)";
        }
        TrainError::NotFinite { step, what, operation }
    }

    /// The mean loss over one pass of `data`, or its first batches if the configuration bounds them;
    /// `data` stands then where it stood.
    ///
    /// # Errors
    /// When there are no targets or no end, a run fails, or the loss is not finite.
    pub fn evaluate(&mut self, data: &mut dyn BatchSource) -> Result<Evaluation> {
        let start = Instant::now();
        if self.config.evaluate_batches.is_none() && data.is_endless() {
            let why = "the held-out data has no end, and the configuration no bound of its batches";
            return Err(TrainError::Invalid(why.to_owned()));
        }
        let position = data.position();
        let (mut total, mut targets) = (0.0, 0);
        let forward = self.forward.clone();
        for _ in 0..self.config.evaluate_batches.unwrap_or(usize::MAX) {
            let Some(batch) = data.next_batch()? else { break };
            if batch.targets == 0 {
                continue; // A mean over none is not a number.
            }
            let outputs = self.run_batch(&forward, &batch, None)?;
            let loss = self.loss_in(&outputs)?;
            if !loss.is_finite() {
                let what = format!("the held-out loss is {loss}");
                return Err(self.not_finite(self.progress.step, what, &[batch]));
            }
            total += loss * batch.targets as f64;
            targets += batch.targets as u64;
        }
        data.seek(&position)?;
        if targets == 0 {
            return Err(TrainError::Invalid("the held-out data has no targets".to_owned()));
        }
        let loss = total / targets as f64;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Evaluation { step: self.progress.step, loss, targets, seconds })
    }

    /// Steps until the schedule ends, with evaluations and checkpoints on the way.
    ///
    /// # Errors
    /// Those of [`Trainer::step`], [`Trainer::evaluate`], [`Trainer::save`] and of the observer.
    pub fn run(
        &mut self,
        data: &mut dyn BatchSource,
        mut held_out: Option<&mut dyn BatchSource>,
        checkpoints: Option<&Checkpoints>,
        observer: &mut dyn Observer,
    ) -> Result<End> {
        // A run without a step leaves nothing to save.
        let mut saved = Some(self.progress.step);
        let mut end = End::Finished;
        while self.progress.step < self.config.schedule.total {
            let report = self.step(data)?;
            let flow = observer.step(&report)?;
            let due = |every: Option<u64>| every.is_some_and(|n| n > 0 && report.step % n == 0);
            let mut give_up = false;
            if let Some(held_out) = &mut held_out
                && (due(self.config.evaluate_every) || report.step == self.config.schedule.total)
            {
                let evaluation = self.evaluate(*held_out)?;
                observer.evaluated(&evaluation)?;
                give_up = self.judge(&evaluation);
            }
            if let Some(c) = checkpoints.filter(|c| due(c.every)) {
                observer.saved(report.step, &self.save(c, data)?)?;
                saved = Some(report.step);
            }
            if flow.is_break() || give_up {
                end = if give_up { End::NoImprovement } else { End::Stopped };
                break;
            }
        }
        if let Some(c) = checkpoints.filter(|_| saved != Some(self.progress.step)) {
            observer.saved(self.progress.step, &self.save(c, data)?)?;
        }
        Ok(end)
    }

    /// Takes note of an evaluation; whether it is time to give up.
    fn judge(&mut self, evaluation: &Evaluation) -> bool {
        let stop = self.config.early_stop;
        let least = stop.map_or(0.0, |s| s.min_improvement);
        let progress = &mut self.progress;
        if progress.best.is_none_or(|(_, best)| evaluation.loss < best - least) {
            progress.best = Some((evaluation.step, evaluation.loss));
            progress.stale = 0;
        } else {
            progress.stale += 1;
        }
        stop.is_some_and(|s| progress.stale > s.patience)
    }

    /// Writes a checkpoint of the run, whose data is at `data`'s position, and returns its path.
    ///
    /// # Errors
    /// When a parameter is not finite or the system refuses; earlier checkpoints stay.
    pub fn save(&self, checkpoints: &Checkpoints, data: &dyn BatchSource) -> Result<PathBuf> {
        let step = self.progress.step;
        let values = self.masters.iter().map(|m| (&*m.name, &m.value));
        for (name, value) in values.clone() {
            let values = value.as_slice::<f32>().unwrap_or_default();
            if !kernels::sum_of_squares(&self.pool, values).is_finite() {
                let what = format!("{name} is not finite; it is not saved");
                return Err(TrainError::NotFinite { step, what, operation: None });
            }
        }
        let kinds = self.config.optimizer.moments().iter().zip(&self.optimizer.moments);
        let names = self.masters.iter().map(|m| &*m.name);
        let moments: Vec<(String, &Tensor)> = kinds
            .flat_map(|(kind, all)| {
                names.clone().zip(all).map(move |(name, t)| (format!("{kind}.{name}"), t))
            })
            .collect();
        let moments = moments.iter().map(|(name, t)| (name.as_str(), *t)).collect();
        let contents = Contents { weights: values.collect(), moments };
        let state = checkpoint::Saved {
            format: checkpoint::FORMAT,
            progress: self.progress,
            config: self.config.clone(),
            updates: self.optimizer.updates,
            loss_scale: self.loss_scale,
            position: data.position(),
            settings: checkpoints.settings.clone(),
        };
        checkpoint::save(&checkpoints.dir, checkpoints.keep, &state, &contents)
    }

    /// Goes on from `checkpoint`, and sets `data` to where it was.
    ///
    /// # Errors
    /// When its parameters or its optimiser are not this run's; the run is then unspecified.
    pub fn restore(&mut self, checkpoint: &Checkpoint, data: &mut dyn BatchSource) -> Result<()> {
        let file = |why: String| TrainError::file(&checkpoint.path, why);
        let saved = &checkpoint.saved;
        let kinds = self.config.optimizer.moments();
        if saved.config.optimizer.moments() != kinds {
            return Err(file("is of another optimiser".to_owned()));
        }
        let mut expected = self.masters.len();
        let find = |from: &BTreeMap<String, Tensor>, name: &str, like: &Tensor| {
            let found = from.get(name);
            let fits = |t: &&Tensor| t.shape() == like.shape() && t.dtype() == like.dtype();
            found.filter(fits).cloned().ok_or_else(|| {
                let has = found
                    .map_or("nothing".to_owned(), |t| format!("{} {:?}", t.dtype(), t.shape()));
                file(format!("{name}: there is {has}, the run has {:?}", like.shape()))
            })
        };
        for master in &mut self.masters {
            master.value = find(&checkpoint.weights, &master.name, &master.value)?;
        }
        for (kind, all) in kinds.iter().zip(&mut self.optimizer.moments) {
            for (master, moment) in self.masters.iter().zip(all) {
                *moment = find(&checkpoint.moments, &format!("{kind}.{}", master.name), moment)?;
                expected += 1;
            }
        }
        let there = checkpoint.weights.len() + checkpoint.moments.len();
        if there != expected {
            let why = format!("holds {there} tensors, the run has {expected}");
            return Err(file(why));
        }
        self.optimizer.updates = saved.updates;
        if self.config.loss_scaling.is_some() && saved.loss_scale.is_some() {
            self.loss_scale = saved.loss_scale;
        }
        self.progress = saved.progress;
        self.inputs.clear();
        self.masters.iter().try_for_each(|m| m.hand_in(&self.pool, &mut self.inputs))?;
        data.seek(&saved.position)
    }
}

/// The function that computes the loss alone and the name of the loss.
fn loss_of(gradients: &Gradients) -> Result<(String, String)> {
    let functions = &gradients.program.functions;
    let invalid = |why: &str| TrainError::Invalid(why.to_owned());
    let outputs = |name: &str| {
        let function = functions.get(name)?;
        let outputs = function.body.outputs.iter();
        Some(outputs.map(|&v| function.values[v].name.clone()).collect::<Vec<_>>())
    };
    let all = outputs(&gradients.function).ok_or_else(|| invalid("there are no gradients"))?;
    let loss = all.into_iter().find(|o| !gradients.parameters.iter().any(|p| p.gradient == *o));
    let loss = loss.ok_or_else(|| invalid("the gradients come without the loss"))?;
    let mut others = functions.keys().filter(|name| **name != gradients.function);
    let forward = others.find(|name| outputs(name).is_some_and(|o| o.contains(&loss)));
    let forward = forward.ok_or_else(|| invalid("no function computes the loss alone"))?;
    Ok((forward.clone(), loss))
}
