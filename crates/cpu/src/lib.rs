//! The CPU backend: programs over native kernels, with a plan, shared memory and threads.
//!
//! A function is lowered at fixed sizes to a plan: steps bound to kernels by one table (`bind`), linear
//! layers of one input joined, runs of elementwise operations too, views instead of copies, results in
//! place of operands, and everything else in one arena. Constants are used where they lie. What has no
//! kernel is evaluated by the reference interpreter, and reported.

mod bind;
mod chains;
mod execute;
mod kernel;
mod layout;
mod lower;
mod memory;
mod op_cx;
mod ops;
mod plan;
mod runnable;
mod state_use;

use std::sync::Arc;

use exec::{Backend, Fallback, Result, Runnable};
use kernels::Pool;
pub use kernels::Precision;
use mil::Program;

pub use plan::StepTime;
pub use runnable::{CpuRunnable, PlanSize};

/// The CPU, with a number of threads.
pub struct CpuBackend {
    pool: Arc<Pool>,
}

impl CpuBackend {
    /// A backend that computes on `threads` threads, the caller's being one of them.
    pub fn new(threads: usize) -> Self {
        CpuBackend { pool: Arc::new(Pool::new(threads)) }
    }

    /// The same backend with products of matrices of more than a few rows in another precision:
    /// [`Precision::Bf16`] rounds the operands of linear layers, output layers, `matmul`, `einsum`, MIL's
    /// attention, and their gradients. All else stays in single precision: sums and weights, the language
    /// models' own attention, convolutions.
    pub fn with_matmul(self, precision: Precision) -> Self {
        CpuBackend { pool: Arc::new(Pool::new(self.pool.threads()).with_precision(precision)) }
    }

    /// As [`Backend::prepare`], as the type that tells about plans.
    ///
    /// # Errors
    /// When the program is invalid.
    pub fn prepare_plans(&self, program: &Program) -> Result<CpuRunnable> {
        CpuRunnable::new(program, self.pool.clone())
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &str {
        "cpu"
    }

    fn check(&self, program: &Program) -> Vec<Fallback> {
        runnable::fallbacks(program, &mut op_cx::Constants::default())
    }

    fn prepare(&self, program: &Program) -> Result<Box<dyn Runnable>> {
        Ok(Box::new(self.prepare_plans(program)?))
    }
}
