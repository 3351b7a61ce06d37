//! An output slice that several tasks write to, each its own elements.

use std::marker::PhantomData;
use std::ops::Range;

use crate::Pool;

/// A mutable slice that may be written from several tasks.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through the unsafe methods, whose callers promise not to overlap.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Shared { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The elements `range`.
    ///
    /// # Safety
    /// No other task reads or writes one of them while the result lives.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "the caller promises exclusive ranges")]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "range leaves the slice");
        // SAFETY: in bounds by the assertion; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// Elements of cheap work that are worth a task: some microseconds.
const CHUNK: usize = 1 << 13;

/// Calls `work` with ranges that together are `0..len`, on the threads of `pool`.
pub(crate) fn chunks(pool: &Pool, len: usize, work: impl Fn(Range<usize>) + Sync) {
    pool.run(len.div_ceil(CHUNK), |i| work(i * CHUNK..len.min((i + 1) * CHUNK)));
}

/// Calls `work` with ranges of rows of `dim` elements that together are all rows of `len` elements.
pub(crate) fn row_chunks(pool: &Pool, len: usize, dim: usize, work: impl Fn(Range<usize>) + Sync) {
    let step = (CHUNK / dim).max(1);
    let rows = len / dim;
    pool.run(rows.div_ceil(step), |i| work(i * step..rows.min((i + 1) * step)));
}
