//! The loop: batches in, parameters moved, losses out.

mod evaluating;
mod saving;

use std::sync::Arc;
use std::time::Instant;

use exec::{Backend, Tensors};
use kernels::Pool;
use passes::grad::{Gradients, LOSS_SCALE};
use tensor::Tensor;

use crate::exchange::Buckets;
use crate::gradient::{Accumulation, norms};
use crate::optimizer::Optimizer;
use crate::parameters::{Master, drop_first_values, masters};
use crate::prepared::Prepared;
use crate::{
    Batch, BatchSource, Checkpoints, Config, End, Exchange, LossScale, Observer, Progress, Result,
    Step, TrainError, metrics, nonfinite,
};

/// Parameters, optimiser and the prepared program of one run.
pub struct Trainer {
    prepared: Prepared,
    gradients: Gradients,
    masters: Vec<Master>,
    optimizer: Optimizer,
    loss_scale: Option<LossScale>,
    config: Config,
    progress: Progress,
    pool: Pool,
    /// What connects this process with the others, if there are any.
    exchange: Option<Arc<dyn Exchange>>,
}

/// What the batches of a step give.
struct Sum {
    /// Mean loss over all targets.
    loss: f64,
    /// Tokens that are not padding.
    tokens: u64,
    /// One a parameter, to be divided by `divisor`.
    gradients: Vec<Tensor>,
    divisor: f64,
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
        let masters = masters(&gradients, first)?;
        drop_first_values(&mut gradients);
        let optimizer = Optimizer::new(config.optimizer, &masters)?;
        let pool = Pool::new(threads);
        let prepared = Prepared::new(backend, &gradients, &masters, &pool)?;
        Ok(Trainer {
            prepared,
            gradients,
            masters,
            optimizer,
            loss_scale: config.loss_scaling.as_ref().map(LossScale::new),
            config,
            progress: Progress::default(),
            pool,
            exchange: None,
        })
    }

    /// Makes this one process of several, which go the same way: every step is on the batches of all, and so are
    /// evaluations; one that is to stop stops all; the first writes checkpoints. Each has its own part of the data
    /// ([`Packing::rank`](crate::data::Packing::rank)).
    #[must_use]
    pub fn with_exchange(self, exchange: Arc<dyn Exchange>) -> Self {
        Trainer { exchange: Some(exchange), ..self }
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
        self.prepared.runnable.fallbacks()
    }

    /// One step on the next batches of `data`.
    ///
    /// # Errors
    /// When the data ends, a run fails, or something is not finite; the parameters are then as before.
    pub fn step(&mut self, data: &mut dyn BatchSource) -> Result<Step> {
        let start = Instant::now();
        let mut batches = Vec::new();
        for _ in 0..self.config.accumulation {
            let batch = data.next_batch()?.filter(|b| b.targets > 0);
            let none = || TrainError::Invalid("the data to train on has no more targets".into());
            batches.push(batch.ok_or_else(none)?);
        }
        let step = self.progress.step + 1;
        let (sum, norm, scale) = loop {
            let scale = self.loss_scale.map(|s| s.scale);
            let sum = self.differentiate(&batches, scale)?;
            if !sum.loss.is_finite() {
                let what = format!("the loss is {}", sum.loss);
                return Err(self.not_finite(step, what, &batches));
            }
            let norms = norms(&self.pool, &sum.gradients)?;
            match norms.iter().position(|n| !n.is_finite()) {
                None => {
                    let divisor = sum.divisor * f64::from(scale.unwrap_or(1.0));
                    let norm = norms.iter().map(|n| n * n).sum::<f64>().sqrt() / divisor;
                    break (sum, norm, scale);
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
                self.prepared.inputs.remove(&master.input);
            }
        }
        let Trainer { optimizer, masters, prepared, pool, .. } = self;
        optimizer.update(pool, masters, &sum.gradients, learning_rate, factor)?;
        masters.iter().try_for_each(|m| m.hand_in(pool, &mut prepared.inputs))?;
        let update_seconds = updating.elapsed().as_secs_f64();
        if let (Some(s), Some(scaling)) = (&mut self.loss_scale, &self.config.loss_scaling) {
            s.succeeded(scaling);
        }
        let Sum { loss, tokens, .. } = sum;
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

    /// Loss and gradients of `batches`, and of those of all other processes.
    fn differentiate(&mut self, batches: &[Batch], scale: Option<f32>) -> Result<Sum> {
        let Trainer { prepared, masters, pool, exchange, .. } = self;
        // A single batch is left as it is.
        let alone = batches.len() == 1 && exchange.is_none();
        let mut accumulation = Accumulation::new(pool, masters);
        let [mut total, mut targets, mut tokens] = [0.0; 3];
        for (i, batch) in batches.iter().enumerate() {
            let weight = if alone { 1.0 } else { batch.targets as f64 };
            if i + 1 == batches.len() {
                accumulation.buckets = exchange.as_deref().map(Buckets::new);
            }
            let take =
                &mut |name: &str, gradient: &Tensor| accumulation.add(name, gradient, weight);
            let loss = prepared.differentiate(batch, scale, take)?;
            total += loss * batch.targets as f64;
            targets += batch.targets as f64;
            tokens += batch.tokens as f64;
        }
        let gradients = accumulation.finish()?;
        let mut sums = [total, targets, tokens];
        self.sum(&mut sums)?;
        let [total, targets, tokens] = sums;
        let divisor = if alone { 1.0 } else { targets };
        Ok(Sum { loss: total / targets, tokens: tokens as u64, gradients, divisor })
    }

    /// Adds up `numbers` over all processes.
    fn sum(&self, numbers: &mut [f64]) -> Result<()> {
        self.exchange.as_ref().map_or(Ok(()), |exchange| exchange.sum(numbers))
    }

    fn is_finite(&self, value: &Tensor) -> bool {
        let values = value.as_slice::<f32>().unwrap_or_default();
        kernels::sum_of_squares(&self.pool, values).is_finite()
    }

    fn lower_scale(&mut self) -> bool {
        match (&mut self.loss_scale, &self.config.loss_scaling) {
            (Some(scale), Some(scaling)) => scale.overflowed(scaling),
            _ => false,
        }
    }

    /// Names the operation too where the interpreter finds it. All processes come here at once; who does not know it
    /// while another does waits to be ended by that one's error.
    fn not_finite(&self, step: u64, mut what: String, batches: &[Batch]) -> TrainError {
        // No operation makes them so, and steps on the interpreter would look for one.
        let broken = self.masters.iter().find(|m| !self.is_finite(&m.value));
        if let Some(Master { name, .. }) = broken {
            what += &format!(", as {name} itself is not finite");
        }
        let mut skipped = false;
        let sought = if broken.is_some() { &[] } else { batches };
        let operation = sought.iter().find_map(|batch| {
            let mut inputs = self.prepared.inputs.clone();
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
        let named = operation.is_some();
        let error = TrainError::NotFinite { step, what, operation };
        let Some(exchange) = &self.exchange else { return error };
        let mut names = [f64::from(u8::from(named))];
        let sum = exchange.sum(&mut names);
        if sum.is_ok() && (named || names[0] == 0.0 && exchange.rank() == 0) {
            return error;
        }
        // Fails when the one that tells has ended.
        exchange.sum(&mut [0.0]).err().unwrap_or(error)
    }

    /// Steps until the schedule ends, with evaluations before the first, on the way and after the last, and with
    /// checkpoints; under early stop also one of each evaluation that was the best so far.
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
        self.check_alike(data)?;
        let checkpoints =
            checkpoints.filter(|_| self.exchange.as_ref().is_none_or(|e| e.rank() == 0));
        // A run without a step leaves nothing to save.
        let mut saved = Some(self.progress.step);
        let mut end = End::Finished;
        let first = self.progress.step == 0 && self.config.evaluate_every.is_some();
        if let Some(held_out) = &mut held_out
            && (first || self.progress.unevaluated)
        {
            if first {
                self.progress.best = None;
            }
            let Some(give_up) = self.judge(*held_out, observer)? else { return Ok(End::Stopped) };
            // The checkpoint there is says that the evaluation is due.
            if let Some(c) = checkpoints.filter(|_| !first || self.is_best()) {
                observer.saved(self.progress.step, &self.save(c, data)?)?;
            }
            if give_up {
                return Ok(End::NoImprovement);
            }
        }
        while self.progress.step < self.config.schedule.total {
            let report = self.step(data)?;
            let mut stops = [f64::from(u8::from(observer.step(&report)?.is_break()))];
            self.sum(&mut stops)?;
            let due = |every: Option<u64>| every.is_some_and(|n| n > 0 && report.step % n == 0);
            let (mut give_up, mut best) = (false, false);
            if let Some(held_out) = &mut held_out
                && (due(self.config.evaluate_every) || report.step == self.config.schedule.total)
            {
                match self.judge(*held_out, observer)? {
                    Some(judged) => (give_up, best) = (judged, self.is_best()),
                    None => stops[0] = 1.0,
                }
            }
            if let Some(c) = checkpoints.filter(|c| best || due(c.every)) {
                observer.saved(report.step, &self.save(c, data)?)?;
                saved = Some(report.step);
            }
            if stops[0] > 0.0 || give_up {
                end = if give_up { End::NoImprovement } else { End::Stopped };
                break;
            }
        }
        if let Some(c) = checkpoints.filter(|_| saved != Some(self.progress.step)) {
            observer.saved(self.progress.step, &self.save(c, data)?)?;
        }
        Ok(end)
    }

    /// Processes that began in different places would add up gradients of different things.
    fn check_alike(&self, data: &dyn BatchSource) -> Result<()> {
        let Some(exchange) = &self.exchange else { return Ok(()) };
        let place = serde_json::to_vec(&(self.progress, data.position()));
        let place = place.map_err(|e| TrainError::Invalid(e.to_string()))?;
        let values = self.masters.iter().map(|m| &m.value);
        let tensors = values.chain(self.optimizer.moments.iter().flatten());
        let digest = tensors.fold(crc32c::crc32c(&place), |digest, tensor| {
            crc32c::crc32c_append(digest, tensor.bytes())
        });
        let mut sum = [f64::from(digest)];
        exchange.sum(&mut sum)?;
        if sum[0] == f64::from(digest) * exchange.ranks() as f64 {
            return Ok(());
        }
        let why = "the processes do not begin alike: their files differ, or their versions of this program";
        Err(TrainError::Invalid(why.to_owned()))
    }
}
