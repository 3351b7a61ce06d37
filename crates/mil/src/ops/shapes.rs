//! Shape arithmetic that definitions share: broadcasting, axes, products of symbolic sizes.

use crate::{Dim, OpError};

/// The shape two shapes broadcast to, by the numpy rule.
///
/// # Errors
/// When they do not broadcast.
pub fn broadcast(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, OpError> {
    let rank = a.len().max(b.len());
    let at = |s: &[Dim], i: usize| {
        (i + s.len()).checked_sub(rank).map_or(Dim::Fixed(1), |j| s[j].clone())
    };
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Ok(x),
            (Dim::Fixed(1), d) | (d, Dim::Fixed(1)) => Ok(d),
            (Dim::Fixed(x), Dim::Fixed(y)) => Err(OpError::invalid(format!(
                "shapes do not broadcast: {x} against {y} at axis {i}"
            ))),
            // A fixed size other than 1 decides over an unknown one, which must be equal or 1.
            (Dim::Fixed(n), _) | (_, Dim::Fixed(n)) => Ok(Dim::Fixed(n)),
            _ => Ok(Dim::Unknown),
        })
        .collect()
}
