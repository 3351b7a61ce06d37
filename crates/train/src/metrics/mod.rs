//! What a run measured: JSON lines and TensorBoard event files, written and read.

mod jsonl;
pub mod tensorboard;

pub use jsonl::{JsonLines, Line, Record, read};

/// The most memory that this process has had, in bytes; `None` where the system does not tell.
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}
