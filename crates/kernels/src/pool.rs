//! The thread pool: persistent workers that take small numbered tasks from a shared counter.
//!
//! One word ([`Shared::state`]) says which job is open and how many workers are in it. A worker that
//! comes late finds the job closed and leaves it alone, so the caller only ever waits for workers that
//! hold a task: a core that is taken away delays at most the task that runs on it. Whoever waits
//! spins for some microseconds, then gives its core away between looks, then sleeps.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::Isa;

/// Threads that run the kernels, and the instruction set and precision of the kernels on them.
pub struct Pool {
    isa: Isa,
    precision: Precision,
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the thread whose job is running.
    caller: Mutex<()>,
}

/// To what the operands of products of many rows of matrices are rounded. Sums are in single precision.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Precision {
    /// Not at all.
    #[default]
    Single,
    /// To bfloat16, which processors with dot products of it multiply at twice the rate.
    Bf16,
}

impl Pool {
    /// A pool of `threads` threads, the caller's being one of them, on the best instruction set.
    pub fn new(threads: usize) -> Self {
        Self::with_isa(threads, Isa::detect())
    }

    /// A pool whose kernels use `isa`. Threads that the system refuses to start are done without.
    ///
    /// # Panics
    /// When this processor does not have `isa`.
    pub fn with_isa(threads: usize, isa: Isa) -> Self {
        assert!(Isa::available().contains(&isa), "{isa:?} is not available on this processor");
        let shared = Arc::new(Shared::default());
        let workers = (1..threads.clamp(1, MAX_THREADS))
            .map_while(|i| {
                let shared = Arc::clone(&shared);
                let name = format!("kernels-{i}");
                std::thread::Builder::new().name(name).spawn(move || shared.work()).ok()
            })
            .collect();
        let (precision, caller) = (Precision::Single, Mutex::new(()));
        Pool { isa, precision, shared, workers, caller }
    }

    /// The same pool, whose kernels round the operands of products of many rows as `precision` says.
    pub fn with_precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Threads that work on a task list, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The instruction set of the kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The precision of products of many rows.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Calls `task(i)` once for every `i` below `tasks`, on any of the threads, and returns when all
    /// are done. Calls from within a task, and calls while another thread's job is running, run on
    /// the calling thread alone.
    ///
    /// # Panics
    /// When a task panics, with the payload of the first that did, after all others are done.
    pub fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        let next = AtomicUsize::new(0);
        let panic = Mutex::new(None);
        let job = Job { task: &task, tasks, next: &next, panic: &panic };
        let caller = self.caller.try_lock().ok();
        if self.workers.is_empty() || tasks < 2 || caller.is_none() || INSIDE.get() {
            job.run();
        } else {
            self.shared.open(&job);
            // `Job::run` catches every panic, so the job is always closed before its frame is left.
            job.run();
            self.shared.close();
        }
        drop(caller);
        let payload = lock(&panic).take();
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.next_epoch(0);
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks and has none of its own.
            let _ = worker.join();
        }
    }
}

/// The low half of the state counts workers, so this many fit with room to spare.
const MAX_THREADS: usize = 1 << 16;
/// Set while the job of the current epoch takes workers.
const OPEN: u64 = 1 << 31;
/// The count of workers in the job.
const ACTIVE: u64 = OPEN - 1;
/// A spin hint takes 10 to 150 cycles, so this is some microseconds.
const SPINS: usize = 300;
/// Looks between which the core is offered to others, before sleeping.
const YIELDS: usize = 300;

thread_local! {
    /// Whether this thread is inside a task.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

#[derive(Clone, Copy)]
struct Job<'a> {
    task: &'a (dyn Fn(usize) + Sync),
    tasks: usize,
    next: &'a AtomicUsize,
    panic: &'a Mutex<Option<Box<dyn Any + Send>>>,
}

impl Job<'_> {
    fn run(&self) {
        let outer = INSIDE.replace(true);
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= self.tasks {
                break;
            }
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (self.task)(i))) {
                lock(self.panic).get_or_insert(payload);
            }
        }
        INSIDE.set(outer);
    }
}

/// What the caller and the workers share.
#[derive(Default)]
struct Shared {
    /// Epoch in the high half, then [`OPEN`], then the workers in the job.
    state: AtomicU64,
    job: UnsafeCell<Option<Job<'static>>>,
    stop: AtomicBool,
    /// Threads that sleep or are about to.
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

// SAFETY: all fields but `job` are `Sync`. `job` is written by the thread that holds `Pool::caller`
// while no job is open and no worker active, and read by workers counted as active.
unsafe impl Sync for Shared {}
// SAFETY: as above; a `Job` only holds references to `Sync` values.
unsafe impl Send for Shared {}

impl Shared {
    /// Offers `job` to the workers. The caller must keep it alive until [`Shared::close`] returned.
    fn open(&self, job: &Job<'_>) {
        // SAFETY: only the lifetime changes; `close` waits for every worker that saw the job.
        let job = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(*job) };
        // SAFETY: no job is open and no worker active, and the caller's lock is held.
        unsafe { *self.job.get() = Some(job) };
        self.next_epoch(OPEN);
    }

    /// Closes the job and waits for the workers in it.
    fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::SeqCst);
        self.wait(|state| state & ACTIVE == 0);
    }

    /// Starts an epoch; no worker is active.
    fn next_epoch(&self, open: u64) {
        let epoch = (self.state.load(Ordering::SeqCst) >> 32).wrapping_add(1);
        self.state.store(epoch << 32 | open, Ordering::SeqCst);
        self.wake_sleepers();
    }

    /// A worker's life.
    fn work(&self) {
        let mut seen = 0;
        loop {
            let mut state = self.wait(|state| state >> 32 != seen);
            seen = state >> 32;
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            while state & OPEN != 0 && state >> 32 == seen {
                let joined = self.state.compare_exchange(
                    state,
                    state + 1,
                    Ordering::SeqCst,
                    Ordering::SeqCst,
                );
                match joined {
                    Ok(_) => {
                        // SAFETY: counted as active in an open job, so the caller is in `close` or
                        // before it and `job` is not written.
                        if let Some(job) = unsafe { *self.job.get() } {
                            job.run();
                        }
                        if self.state.fetch_sub(1, Ordering::SeqCst) & (OPEN | ACTIVE) == 1 {
                            self.wake_sleepers();
                        }
                        break;
                    }
                    Err(now) => state = now,
                }
            }
        }
    }

    /// Waits for a state that is `ready` and returns it.
    fn wait(&self, ready: impl Fn(u64) -> bool) -> u64 {
        for look in 0..SPINS + YIELDS {
            let state = self.state.load(Ordering::SeqCst);
            if ready(state) {
                return state;
            }
            if look < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        let mut guard = lock(&self.sleep);
        // Announced before the last look: whoever changes the state later sees the sleeper, and
        // cannot notify before this thread waits, as it needs the lock for that.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let state = loop {
            let state = self.state.load(Ordering::SeqCst);
            if ready(state) {
                break state;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
        state
    }

    fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = lock(&self.sleep);
            self.wake.notify_all();
        }
    }
}

/// No data behind these locks can be left half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn counts(pool: &Pool, tasks: usize) -> Vec<usize> {
        let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
        pool.run(tasks, |i| {
            counts[i].fetch_add(1, Ordering::Relaxed);
        });
        counts.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_task_runs_once_also_with_more_threads_than_cores() {
        for threads in [0, 1, 2, 3, 17] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads.max(1));
            for tasks in [0, 1, 2, 5, 100] {
                for _ in 0..50 {
                    assert_eq!(counts(&pool, tasks), vec![1; tasks]);
                }
            }
        }
    }

    #[test]
    fn workers_wake_from_sleep() {
        let pool = Pool::new(3);
        for _ in 0..3 {
            assert_eq!(counts(&pool, 20), vec![1; 20]);
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    #[test]
    fn workers_take_part() {
        let pool = Pool::new(2);
        let main = std::thread::current().id();
        let others = AtomicUsize::new(0);
        pool.run(40, |_| {
            std::thread::sleep(Duration::from_millis(2));
            if std::thread::current().id() != main {
                others.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert!(others.into_inner() > 0);
    }

    #[test]
    fn a_job_inside_a_task_runs_on_the_same_thread() {
        let pool = Pool::new(3);
        pool.run(8, |_| {
            let here = std::thread::current().id();
            pool.run(8, |_| assert_eq!(std::thread::current().id(), here));
        });
    }

    #[test]
    fn a_panic_comes_out_after_all_other_tasks() {
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            let done = AtomicUsize::new(0);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(50, |i| {
                    assert!(i != 7, "seven");
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }));
            assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"seven"));
            assert_eq!(done.load(Ordering::Relaxed), 49);
            assert_eq!(counts(&pool, 9), vec![1; 9], "usable afterwards");
        }
    }

    #[test]
    fn threads_may_share_a_pool() {
        let pool = Pool::new(3);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| assert_eq!(counts(&pool, 10), vec![1; 10])));
            }
        });
    }
}
