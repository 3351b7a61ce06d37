//! Writes a trainer to a checkpoint, and takes one up from there.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tensor::Tensor;

use super::Trainer;
use crate::agreement::difference;
use crate::checkpoint::{self, Checkpoint, Contents};
use crate::{BatchSource, Checkpoints, Result, TrainError};

/// Fields of the configuration that change no step which was taken.
const MAY_CHANGE: [&str; 4] =
    ["schedule.total", "evaluate_every", "evaluate_batches", "early_stop"];

impl Trainer {
    /// Writes a checkpoint of the run, whose data is at `data`'s position, and returns its path.
    ///
    /// # Errors
    /// When a parameter is not finite or the system refuses; earlier checkpoints stay.
    pub fn save(&self, checkpoints: &Checkpoints, data: &dyn BatchSource) -> Result<PathBuf> {
        let step = self.progress.step;
        let values = self.masters.iter().map(|m| (&*m.name, &m.value));
        for (name, value) in values.clone() {
            if !self.is_finite(value) {
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
    /// When its parameters are not this run's or it was written under another configuration, the number of steps,
    /// evaluations and early stop apart; the run is then unspecified.
    pub fn restore(&mut self, checkpoint: &Checkpoint, data: &mut dyn BatchSource) -> Result<()> {
        let file = |why: String| TrainError::file(&checkpoint.path, why);
        let saved = &checkpoint.saved;
        let json = |config| serde_json::to_value(config).map_err(|e| file(e.to_string()));
        let (then, now) = (json(&saved.config)?, json(&self.config)?);
        if let Some(what) = difference(&then, &now, &MAY_CHANGE) {
            return Err(file(what));
        }
        let kinds = self.config.optimizer.moments();
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
        let inputs = &mut self.prepared.inputs;
        inputs.clear();
        self.masters.iter().try_for_each(|m| m.hand_in(&self.pool, inputs))?;
        data.seek(&saved.position)
    }
}
