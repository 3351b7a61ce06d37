//! Rotary position embedding from given cosine and sine tables.

use crate::Pool;

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
    let _ = pool;
    let row = args.heads * args.dim;
    assert!(row > 0 && x.len().is_multiple_of(row), "input is not [T, heads, dim]");
    let t = x.len() / row;
    if t == 0 {
        return;
    }
    let half = args.cos.len() / t;
    assert!(args.cos.len() == t * half && args.sin.len() == t * half, "tables are not [T, R/2]");
    assert!(2 * half <= args.dim, "more is rotated than a head has");
    for (t, x) in x.chunks_exact_mut(row).enumerate() {
        let (cos, sin) = (&args.cos[t * half..][..half], &args.sin[t * half..][..half]);
        for x in x.chunks_exact_mut(args.dim) {
            for i in 0..half {
                let (a, b) = match args.pairing {
                    Pairing::Adjacent => (2 * i, 2 * i + 1),
                    Pairing::Half => (i, i + half),
                };
                (x[a], x[b]) = (x[a] * cos[i] - x[b] * sin[i], x[b] * cos[i] + x[a] * sin[i]);
            }
        }
    }
}
