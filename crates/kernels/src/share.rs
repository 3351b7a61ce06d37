//! An output slice that several tasks write to, each its own elements.

use std::marker::PhantomData;
use std::ops::Range;

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
