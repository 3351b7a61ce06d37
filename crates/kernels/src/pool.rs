//! The thread pool.

use crate::Isa;

/// Threads that run the kernels, and the instruction set the kernels use on them.
pub struct Pool {
    threads: usize,
    isa: Isa,
}

impl Pool {
    /// A pool of `threads` threads, the caller's being one of them, on the best instruction set.
    pub fn new(threads: usize) -> Self {
        Self::with_isa(threads, Isa::detect())
    }

    /// A pool whose kernels use `isa`.
    ///
    /// # Panics
    /// When this processor does not have `isa`.
    pub fn with_isa(threads: usize, isa: Isa) -> Self {
        assert!(Isa::available().contains(&isa), "{isa:?} is not available on this processor");
        Pool { threads: threads.max(1), isa }
    }

    /// Threads that work on a task list, the caller's included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The instruction set of the kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Calls `task(i)` once for every `i` below `tasks`, on any of the threads, and returns when all
    /// are done. Calls from within a task run on the calling thread alone.
    ///
    /// # Panics
    /// When a task panics, with its payload, after all others are done.
    pub fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        for i in 0..tasks {
            task(i);
        }
    }
}
