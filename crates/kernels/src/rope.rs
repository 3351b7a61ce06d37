//! Rotary position embedding from given cosine and sine tables.

use crate::Pool;
use crate::arch::{Kernel, Simd};
use crate::share::{Shared, row_chunks};

/// Which elements of a head form the pairs that are rotated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pairing {
    /// `(2i, 2i + 1)`.
    Adjacent,
    /// `(i, i + R/2)`, `R` being the number of rotated elements.
    Half,
}

/// Shape and angles of a rotation.
#[derive(Clone, Copy, Debug)]
pub struct Rope<'a> {
    /// The pairs.
    pub pairing: Pairing,
    /// Heads of a position.
    pub heads: usize,
    /// Elements of a head; those from `2 * cos.len() / T` on are left as they are.
    pub dim: usize,
    /// Cosines `[T, R/2]`.
    pub cos: &'a [f32],
    /// Sines `[T, R/2]`.
    pub sin: &'a [f32],
}

/// Rotates `x[T, heads, dim]` into `out`.
///
/// # Panics
/// When a slice does not have the length its shape says.
pub fn rope(pool: &Pool, args: &Rope<'_>, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "lengths differ");
    out.copy_from_slice(x);
    rope_in_place(pool, args, out);
}

/// Rotates `x[T, heads, dim]` in place.
///
/// # Panics
/// When a slice does not have the length its shape says.
pub fn rope_in_place(pool: &Pool, args: &Rope<'_>, x: &mut [f32]) {
    let row = args.heads * args.dim;
    assert!(row > 0 && x.len().is_multiple_of(row), "input is not [T, heads, dim]");
    let t = x.len() / row;
    if t == 0 {
        return;
    }
    let half = args.cos.len() / t;
    assert!(args.cos.len() == t * half && args.sin.len() == t * half, "tables are not [T, R/2]");
    assert!(2 * half <= args.dim, "more is rotated than a head has");
    let x = Shared::new(x);
    row_chunks(pool, x.len(), row, |range| {
        for t in range {
            // SAFETY: a position belongs to one task.
            let x = unsafe { x.slice(t * row..(t + 1) * row) };
            let (cos, sin) = (&args.cos[t * half..][..half], &args.sin[t * half..][..half]);
            pool.isa().run(Rotate { pairing: args.pairing, dim: args.dim, cos, sin, x });
        }
    });
}

/// One position; the compiler turns the loops into vector instructions.
struct Rotate<'a> {
    pairing: Pairing,
    dim: usize,
    cos: &'a [f32],
    sin: &'a [f32],
    x: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let half = self.cos.len();
        let angles = || self.cos.iter().zip(self.sin);
        for x in self.x.chunks_exact_mut(self.dim) {
            match self.pairing {
                Pairing::Adjacent => {
                    for ([a, b], (cos, sin)) in x.as_chunks_mut().0.iter_mut().zip(angles()) {
                        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                    }
                }
                Pairing::Half => {
                    let (a, b) = x.split_at_mut(half);
                    for ((a, b), (cos, sin)) in a.iter_mut().zip(b).zip(angles()) {
                        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                    }
                }
            }
        }
    }
}
