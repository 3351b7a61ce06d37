//! Training: data, optimisers, schedules, checkpoints, the loop, metrics and their curves.
//!
//! A [`Trainer`] owns the parameters of a differentiated program ([`passes::grad::Gradients`]) and runs it on any
//! [`exec::Backend`]: it takes batches from a [`BatchSource`] (usually a [`data::Loader`]), updates the parameters
//! in place, evaluates, writes checkpoints and tells an [`Observer`] what happens. It knows neither a model nor
//! a device; what of them it needs (names of inputs, a tokenizer, a chat template) is handed in.
//!
//! Several processes can train one model, each on its part of every batch, connected by an [`Exchange`].
//!
//! A run is a function of its configuration, data and initial parameters, to the bit: nothing depends on
//! time or the number of threads, and a checkpoint holds all that the rest of the run depends on.

mod agreement;
mod batch;
pub mod checkpoint;
mod config;
pub mod data;
mod error;
mod exchange;
mod gradient;
mod loss_scale;
pub mod metrics;
#[cfg(feature = "mpi")]
mod mpi;
mod nonfinite;
mod observer;
pub mod optimizer;
mod parameters;
pub mod plot;
mod prepared;
mod schedule;
mod trainer;

pub use agreement::{fingerprint, same};
pub use batch::{Batch, BatchSource};
pub use checkpoint::Checkpoint;
pub use config::{Checkpoints, Config, EarlyStop, End, Progress};
pub use error::{Result, TrainError};
pub use exchange::Exchange;
pub use loss_scale::{LossScale, LossScaling};
#[cfg(feature = "mpi")]
pub use mpi::Mpi;
pub use observer::{Evaluation, Observer, Silent, Step};
pub use optimizer::{OptimizerConfig, Rule};
pub use schedule::{Decay, Schedule};
pub use trainer::Trainer;
