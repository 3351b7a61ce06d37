//! How to train, as options of a command line and as the table `train` of a TOML file.

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use train::{Config, Decay, EarlyStop, OptimizerConfig, Rule, Schedule};

/// Tokens of a batch, whose places are numbers of 32 bits.
const MAX_TOKENS: usize = i32::MAX as usize;

/// What is said of a run; the rest is the architecture's recipe or a default.
#[derive(Args, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[command(next_help_heading = "Recipe")]
pub(crate) struct Recipe {
    /// Sequences of a batch [default: 8]
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Tokens of a sequence [default: 256, or what the model was made for if that is less]
    #[arg(long, value_name = "N")]
    seq_len: Option<usize>,
    /// Steps of the run [default: 1000]
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Batches whose gradients make one step [default: 1]
    #[arg(long, value_name = "N")]
    accumulation: Option<usize>,
    /// Greatest learning rate [default: 3e-4; of LoRA 2e-4, of --full 2e-5]
    #[arg(long, value_name = "RATE", value_parser = finite)]
    lr: Option<f64>,
    /// Learning rate at the end [default: a tenth of --lr]
    #[arg(long, value_name = "RATE", value_parser = finite)]
    min_lr: Option<f64>,
    /// Steps before the greatest learning rate is reached [default: a twentieth of all]
    #[arg(long, value_name = "N")]
    warmup: Option<u64>,
    /// How the learning rate falls [default: cosine]
    #[arg(long, value_enum)]
    schedule: Option<Shape>,
    /// Rule of updating [default: adamw]
    #[arg(long, value_enum)]
    optimizer: Option<Optimizer>,
    /// AdamW's decay of the first moment, or the momentum of SGD [default: 0.9]
    #[arg(long, value_name = "B", value_parser = finite)]
    beta1: Option<f64>,
    /// AdamW's decay of the second moment [default: 0.95]
    #[arg(long, value_name = "B", value_parser = finite)]
    beta2: Option<f64>,
    /// Decay of matrices [default: 0.1; of fine-tuning 0]
    #[arg(long, value_name = "W", value_parser = finite)]
    weight_decay: Option<f64>,
    /// Greatest norm of the gradient, 0 for any [default: 1]
    #[arg(long, value_name = "NORM", value_parser = finite)]
    clip: Option<f64>,
    /// Of the first values and the order of the data [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Part of the data that is held out where --eval-data names none, 0 for none [default: 0.1]
    #[arg(long, value_name = "PART", value_parser = finite, conflicts_with = "eval_data")]
    held_out: Option<f64>,
    /// Steps between evaluations on held-out data, from before the first step on; 0 for none but the last [default: a
    /// tenth of all]
    #[arg(long, value_name = "N")]
    eval_every: Option<u64>,
    /// Batches of an evaluation [default: all]
    #[arg(long, value_name = "N")]
    eval_batches: Option<usize>,
    /// Evaluations in a row without an improvement that end the run; its result is then that of the best one, whose
    /// checkpoint is kept [default: it does not end early, and the result is that of the last step]
    #[arg(long, value_name = "N")]
    patience: Option<u32>,
    /// Steps between checkpoints, 0 for one at the end alone [default: a tenth of all]
    #[arg(long, value_name = "N")]
    save_every: Option<u64>,
    /// Last checkpoints that are kept [default: 2]
    #[arg(long, value_name = "N")]
    keep: Option<usize>,
    /// Keep the activations between layers alone and compute the others again: less memory, more time
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    recompute: bool,
}

/// A number of an option.
fn finite(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "is no number".to_owned())?;
    number.is_finite().then_some(number).ok_or_else(|| "is not finite".to_owned())
}

#[derive(Clone, Copy, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Shape {
    /// It does not
    Constant,
    /// By equal amounts
    Linear,
    /// Along half a cosine
    Cosine,
}

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Optimizer {
    /// Adam with decoupled weight decay
    Adamw,
    /// Stochastic gradient descent
    Sgd,
}

/// A recipe of which everything is known.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Resolved {
    /// Sequences of a batch.
    pub(crate) batch: usize,
    /// Tokens of a sequence.
    pub(crate) seq_len: usize,
    /// Of first values and of the order of the data.
    pub(crate) seed: u64,
    /// Part of the data that is held out where there is no other to evaluate on.
    pub(crate) held_out: f64,
    /// Steps between checkpoints.
    pub(crate) save_every: Option<u64>,
    /// Checkpoints that are kept.
    pub(crate) keep: usize,
    /// Whether activations are computed again.
    pub(crate) recompute: bool,
    /// The rest.
    pub(crate) config: Config,
}

/// What depends on the kind of the run.
#[derive(Clone, Copy)]
pub(crate) struct Defaults {
    /// Greatest learning rate.
    pub(crate) rate: f64,
    /// Weight decay.
    pub(crate) decay: f64,
    /// Longest sequence of the model.
    pub(crate) max_context: usize,
    /// Whether there is other data to evaluate on.
    pub(crate) eval_data: bool,
}

impl Recipe {
    /// What is said here, and what `other` says of the rest; its warm-up is no longer than suits fewer steps.
    ///
    /// # Errors
    /// Never in practice: both are objects of the same keys.
    pub(crate) fn or(&self, other: &Recipe) -> Result<Recipe> {
        let (mut all, own) = (serde_json::to_value(other)?, serde_json::to_value(self)?);
        if let (Some(all), Some(own)) = (all.as_object_mut(), own.as_object()) {
            let said = own.iter().filter(|(_, value)| !value.is_null());
            all.extend(said.map(|(key, value)| (key.clone(), value.clone())));
        }
        let mut all: Recipe = serde_json::from_value(all)?;
        if let (None, Some(steps)) = (self.warmup, self.steps) {
            all.warmup = all.warmup.map(|warmup| warmup.min(steps / 20));
        }
        // What the other says of AdamW says nothing of another rule.
        if self.optimizer == Some(Optimizer::Sgd) {
            all.beta2 = self.beta2;
        }
        Ok(all)
    }

    /// Changes of `run` what may be another in one that is taken up again.
    ///
    /// # Errors
    /// When a number is out of its range.
    pub(super) fn change(&self, run: &mut Resolved) -> Result<()> {
        self.check_counts()?;
        let or_none = |said: Option<u64>, own| said.map_or(own, |n| Some(n).filter(|&n| n > 0));
        let config = &mut run.config;
        config.schedule.total = self.steps.unwrap_or(config.schedule.total);
        config.evaluate_every = or_none(self.eval_every, config.evaluate_every);
        config.evaluate_batches = self.eval_batches.or(config.evaluate_batches);
        config.early_stop = self.patience.map(early_stop).or(config.early_stop);
        run.save_every = or_none(self.save_every, run.save_every);
        run.keep = self.keep.unwrap_or(run.keep);
        let Schedule { warmup, total, .. } = config.schedule;
        ensure!(warmup <= total, "--warmup is {warmup}, --steps {total}");
        Ok(())
    }

    fn check_counts(&self) -> Result<()> {
        ensure!(self.steps != Some(0), "--steps is 0");
        ensure!(self.eval_batches != Some(0), "--eval-batches is 0");
        ensure!(self.keep != Some(0), "--keep is 0");
        ensure!(self.patience != Some(0), "--patience is 0");
        Ok(())
    }

    /// The recipe with its defaults.
    ///
    /// # Errors
    /// When a number is out of its range.
    pub(crate) fn resolve(&self, defaults: Defaults) -> Result<Resolved> {
        let total = self.steps.unwrap_or(1000);
        let peak = self.lr.unwrap_or(defaults.rate);
        let min_lr = self.min_lr.unwrap_or(peak / 10.0);
        let held_out = self.held_out.unwrap_or(0.1);
        let accumulation = self.accumulation.unwrap_or(1);
        self.check_counts()?;
        let batch = self.batch.unwrap_or(8);
        let seq_len = self.seq_len.unwrap_or(defaults.max_context.min(256));
        ensure!(batch > 0, "--batch is 0");
        ensure!(seq_len > 0, "--seq-len is 0");
        ensure!(
            batch.checked_mul(seq_len).is_some_and(|tokens| tokens <= MAX_TOKENS),
            "--batch is {batch}, --seq-len {seq_len}; a batch has at most {MAX_TOKENS} tokens"
        );
        ensure!(accumulation > 0, "--accumulation is 0");
        ensure!(peak > 0.0 && peak.is_finite(), "--lr is {peak}");
        ensure!((0.0..=peak).contains(&min_lr), "--min-lr is {min_lr}, --lr {peak}");
        ensure!((0.0..1.0).contains(&held_out), "--held-out is {held_out}, not from 0 up to 1");
        let warmup = self.warmup.unwrap_or(total / 20);
        ensure!(warmup <= total, "--warmup is {warmup}, --steps {total}");
        let beta = |name: &str, said: Option<f64>, default: f64| {
            let beta = said.unwrap_or(default);
            ensure!((0.0..1.0).contains(&beta), "--{name} is {beta}, not from 0 up to 1");
            Ok(beta)
        };
        let rule = self.optimizer.unwrap_or(Optimizer::Adamw);
        let adamw = rule == Optimizer::Adamw;
        ensure!(adamw || self.beta2.is_none(), "--beta2 is of AdamW, and --optimizer is sgd");
        let (beta1, beta2) = (beta("beta1", self.beta1, 0.9)?, beta("beta2", self.beta2, 0.95)?);
        let at_least_0 = |name: &str, number: f64| {
            ensure!(number >= 0.0 && number.is_finite(), "--{name} is {number}");
            Ok(number)
        };
        let clip = at_least_0("clip", self.clip.unwrap_or(1.0))?;
        let weight_decay = at_least_0("weight-decay", self.weight_decay.unwrap_or(defaults.decay))?;
        let tenth = Some((total / 10).max(1));
        let or_none = |said: Option<u64>| said.or(tenth).filter(|&n| n > 0);
        let rule = match rule {
            Optimizer::Adamw => Rule::Adamw { beta1, beta2, epsilon: 1e-8 },
            Optimizer::Sgd => Rule::Sgd { momentum: beta1, nesterov: false },
        };
        let optimizer = OptimizerConfig {
            rule,
            weight_decay,
            clip: Some(clip).filter(|&c| c != 0.0),
            ..OptimizerConfig::default()
        };
        let decay = match self.schedule.unwrap_or(Shape::Cosine) {
            Shape::Constant => Decay::Constant,
            Shape::Linear => Decay::Linear,
            Shape::Cosine => Decay::Cosine,
        };
        let resolved = Resolved {
            batch,
            seq_len,
            seed: self.seed.unwrap_or(1),
            held_out,
            save_every: or_none(self.save_every),
            keep: self.keep.unwrap_or(2),
            recompute: self.recompute,
            config: Config {
                optimizer,
                schedule: Schedule { peak, warmup, total, floor: min_lr / peak, decay },
                accumulation,
                loss_scaling: None,
                evaluate_every: or_none(self.eval_every),
                evaluate_batches: self.eval_batches,
                early_stop: self.patience.map(early_stop),
            },
        };
        resolved.check_patience(defaults.eval_data)?;
        Ok(resolved)
    }
}

impl Resolved {
    /// Makes sure that there are evaluations to count, `eval_data` being whether there is other data for them.
    ///
    /// # Errors
    /// When there are none.
    pub(super) fn check_patience(&self, eval_data: bool) -> Result<()> {
        let stops = self.config.early_stop.is_some();
        let evaluates = self.config.evaluate_every.is_some();
        ensure!(!stops || evaluates, "--patience counts evaluations, and --eval-every is 0");
        let held_out = eval_data || self.held_out > 0.0;
        ensure!(!stops || held_out, "--patience counts evaluations, and --held-out is 0");
        Ok(())
    }
}

fn early_stop(patience: u32) -> EarlyStop {
    EarlyStop { patience, min_improvement: 0.0 }
}

/// All that was said of a run or was its default, so that it can be compared with what is said.
impl From<&Resolved> for Recipe {
    fn from(run: &Resolved) -> Self {
        let Config { optimizer, schedule, accumulation, .. } = &run.config;
        let (rule, beta1, beta2) = match optimizer.rule {
            Rule::Adamw { beta1, beta2, .. } => (Optimizer::Adamw, beta1, Some(beta2)),
            Rule::Sgd { momentum, .. } => (Optimizer::Sgd, momentum, None),
        };
        let shape = match schedule.decay {
            Decay::Constant => Shape::Constant,
            Decay::Linear => Shape::Linear,
            Decay::Cosine => Shape::Cosine,
        };
        Recipe {
            batch: Some(run.batch),
            seq_len: Some(run.seq_len),
            steps: Some(schedule.total),
            accumulation: Some(*accumulation),
            lr: Some(schedule.peak),
            min_lr: Some(schedule.peak * schedule.floor),
            warmup: Some(schedule.warmup),
            schedule: Some(shape),
            optimizer: Some(rule),
            beta1: Some(beta1),
            beta2,
            weight_decay: Some(optimizer.weight_decay),
            clip: Some(optimizer.clip.unwrap_or(0.0)),
            seed: Some(run.seed),
            held_out: Some(run.held_out),
            eval_every: Some(run.config.evaluate_every.unwrap_or(0)),
            eval_batches: run.config.evaluate_batches,
            patience: run.config.early_stop.map(|s| s.patience),
            save_every: Some(run.save_every.unwrap_or(0)),
            keep: Some(run.keep),
            recompute: run.recompute,
        }
    }
}
