//! Case tables, tolerant comparison, tiny models and random programs for tests.

mod case;
mod cases;
mod close;
mod dirs;
mod interpreter;
mod random;
pub mod seeded;
mod weights;

pub use case::{Case, CaseBuilder, Outcome, Step, case, check_case, run_case};
pub use cases::cases;
pub use close::{
    Element, Mismatch, Tolerance, assert_close, assert_close_f32, compare, compare_values,
};
pub use dirs::{fixtures_dir, shared_dir, workspace_dir};
pub use interpreter::InterpreterBackend;
pub use random::{RandomProgram, random_program};
pub use weights::seeded_tensor;
