//! Case tables, tolerant comparison, tiny models and random programs for tests.

mod dirs;
pub mod seeded;

pub use dirs::{fixtures_dir, shared_dir, workspace_dir};
