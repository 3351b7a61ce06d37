//! Kernels of the operations, one file a family: binding to sizes, and the call.

use std::sync::Mutex;

use kernels::Pool;

pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod convert;
pub(crate) mod elementwise;
pub(crate) mod head;
pub(crate) mod layout;
pub(crate) mod linear;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod numbers;
pub(crate) mod reduce;
pub(crate) mod row_attention;
pub(crate) mod scaled_attention;
pub(crate) mod states;
mod strided;

/// Below this many elements the threads are not worth waking.
const WORTH_THREADS: usize = 1 << 14;

/// Calls `f` with each chunk of `size` elements of `out` and its number, on the threads of `pool` if
/// there is enough to do.
pub(crate) fn for_each_chunk<T: Send>(
    pool: &Pool,
    out: &mut [T],
    size: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    if size == 0 {
        return;
    }
    if out.len() < WORTH_THREADS || pool.threads() == 1 {
        out.chunks_mut(size).enumerate().for_each(|(i, chunk)| f(i, chunk));
        return;
    }
    let chunks = out.len().div_ceil(size);
    let per_task = chunks.div_ceil(pool.threads() * 4);
    let tasks: Vec<Mutex<&mut [T]>> = out.chunks_mut(per_task * size).map(Mutex::new).collect();
    pool.run(tasks.len(), |task| {
        // Only a panic in `f` poisons, and the pool hands that on.
        let mut part = tasks[task].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (i, chunk) in part.chunks_mut(size).enumerate() {
            f(task * per_task + i, chunk);
        }
    });
}

/// Calls `f` with each chunk of `size` elements of `out` and its number: on the threads of `pool` if
/// there are at least as many chunks, else one after another, each with all threads to itself.
pub(crate) fn for_each_item<T: Send>(
    pool: &Pool,
    out: &mut [T],
    size: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    if size == 0 {
        return;
    }
    if out.len() / size < pool.threads() {
        out.chunks_mut(size).enumerate().for_each(|(i, chunk)| f(i, chunk));
        return;
    }
    let tasks: Vec<Mutex<&mut [T]>> = out.chunks_mut(size).map(Mutex::new).collect();
    pool.run(tasks.len(), |task| {
        // Only a panic in `f` poisons, and the pool hands that on.
        let mut part = tasks[task].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        f(task, &mut part);
    });
}
