//! Memory of a run: where each buffer lies in the arena, and the arena cut into what a step reads and writes.

use std::ops::Range;

/// Alignment of buffers in the arena: one cache line.
const ALIGN: usize = 64;

/// A piece of memory that steps write and read.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    /// Bytes.
    pub(crate) len: usize,
    /// The steps from the one that writes it first to the one that reads it last.
    pub(crate) life: Range<usize>,
}

/// Offsets in one arena such that buffers alive at the same step do not overlap, and the arena's
/// size. The largest buffers are placed first, each at the lowest offset that is free throughout its
/// life (greedy by size; Pisarchyk and Lee 2020).
pub(crate) fn place(buffers: &[Buffer]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(buffers[i].len), buffers[i].life.start));
    let mut offsets = vec![0; buffers.len()];
    // Placed buffers by offset.
    let mut placed: Vec<usize> = Vec::new();
    let mut size = 0;
    for i in order {
        let buffer = &buffers[i];
        let mut at = 0;
        for &other in &placed {
            let together = buffers[other].life.start < buffer.life.end
                && buffer.life.start < buffers[other].life.end;
            if !together {
                continue;
            }
            if at + buffer.len <= offsets[other] {
                break;
            }
            at = at.max((offsets[other] + buffers[other].len).next_multiple_of(ALIGN));
        }
        offsets[i] = at;
        size = size.max(at + buffer.len);
        let index = placed.partition_point(|&other| offsets[other] <= at);
        placed.insert(index, i);
    }
    (offsets, size)
}

/// The arena cut into the `ranges` to be written and what lies between them.
pub(crate) struct Cut<'a> {
    written: Vec<&'a mut [u8]>,
    /// Pieces to be read, with their offsets, lowest first.
    rest: Vec<(usize, &'a [u8])>,
}

impl<'a> Cut<'a> {
    /// Cuts `arena`; `ranges` do not overlap, in the order of `sorted`, which puts the lowest first.
    pub(crate) fn new(mut arena: &'a mut [u8], ranges: &[Range<usize>], sorted: &[usize]) -> Self {
        let mut written: Vec<&mut [u8]> = Vec::with_capacity(ranges.len());
        written.resize_with(ranges.len(), Default::default);
        let mut rest = Vec::with_capacity(ranges.len() + 1);
        let mut at = 0;
        for &i in sorted {
            let (gap, tail) = arena.split_at_mut(ranges[i].start - at);
            let (piece, tail) = tail.split_at_mut(ranges[i].len());
            rest.push((at, &*gap));
            written[i] = piece;
            at = ranges[i].end;
            arena = tail;
        }
        rest.push((at, &*arena));
        Cut { written, rest }
    }

    /// The bytes to be read at `range`, none of which are written.
    pub(crate) fn read(&self, range: &Range<usize>) -> &'a [u8] {
        let piece = self.rest.partition_point(|(at, _)| *at <= range.start) - 1;
        let (at, bytes) = self.rest[piece];
        &bytes[range.start - at..range.end - at]
    }

    /// The pieces to be written, in the order of the ranges.
    pub(crate) fn into_written(self) -> Vec<&'a mut [u8]> {
        self.written
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn buffers_alive_together_do_not_overlap(
            sizes in prop::collection::vec((0usize..500, 0usize..20, 1usize..10), 0..40)
        ) {
            let buffers: Vec<Buffer> = sizes
                .iter()
                .map(|&(len, start, life)| Buffer { len, life: start..start + life })
                .collect();
            let (offsets, size) = place(&buffers);
            for (i, a) in buffers.iter().enumerate() {
                prop_assert!(offsets[i] + a.len <= size);
                prop_assert_eq!(offsets[i] % ALIGN, 0);
                for (j, b) in buffers.iter().enumerate().skip(i + 1) {
                    let together = a.life.start < b.life.end && b.life.start < a.life.end;
                    let apart = offsets[i] + a.len <= offsets[j] || offsets[j] + b.len <= offsets[i];
                    prop_assert!(!together || apart || a.len == 0 || b.len == 0);
                }
            }
        }
    }

    #[test]
    fn a_cut_gives_each_byte_once() {
        let mut arena: Vec<u8> = (0..100).collect();
        let cut = Cut::new(&mut arena, &[50..60, 0..10, 20..20], &[1, 2, 0]);
        assert_eq!(cut.read(&(10..12)), [10, 11]);
        assert_eq!(cut.read(&(60..62)), [60, 61]);
        assert_eq!(cut.read(&(21..50)).len(), 29);
        let written = cut.into_written();
        assert_eq!(written.iter().map(|w| w.len()).collect::<Vec<_>>(), [10, 10, 0]);
        assert_eq!((written[0][0], written[1][0]), (50, 0));
    }
}
