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

/// The shape that `reshape` by `target` gives: 0 keeps a size, one -1 is what remains.
///
/// # Errors
/// When `target` cannot hold the elements of `from`.
pub(super) fn reshaped(from: &[Dim], target: &[i64]) -> Result<Vec<Dim>, OpError> {
    let bad = || {
        let from: Vec<String> = from.iter().map(Dim::to_string).collect();
        OpError::invalid(format!("[{}] cannot be reshaped to {target:?}", from.join(", ")))
    };
    let mut shape = Vec::with_capacity(target.len());
    let mut open = None;
    for (i, &t) in target.iter().enumerate() {
        shape.push(match usize::try_from(t) {
            Ok(0) if target.len() == from.len() => from[i].clone(),
            Ok(n) => Dim::Fixed(n),
            Err(_) if t == -1 && open.is_none() => {
                open = Some(i);
                Dim::Fixed(1)
            }
            Err(_) => return Err(bad()),
        });
    }
    let (have, mut rest) = (Product::of(from), Product::of(&shape));
    // Sizes kept by name cancel; what is left over must be the -1.
    let mut extra = Vec::new();
    for name in have.symbols {
        match rest.symbols.iter().position(|s| *s == name) {
            Some(at) => drop(rest.symbols.swap_remove(at)),
            None => extra.push(name),
        }
    }
    let known = !have.unknown && !rest.unknown && rest.symbols.is_empty();
    match open {
        Some(at) => {
            shape[at] = match extra.pop() {
                None if known && rest.fixed > 0 && have.fixed.is_multiple_of(rest.fixed) => {
                    Dim::Fixed(have.fixed / rest.fixed)
                }
                None if known => return Err(bad()),
                Some(name) if known && extra.is_empty() && have.fixed == rest.fixed => name,
                _ => Dim::Unknown,
            }
        }
        None if known && extra.is_empty() && have.fixed != rest.fixed => return Err(bad()),
        None => {}
    }
    Ok(shape)
}

/// A product of sizes.
struct Product {
    fixed: usize,
    symbols: Vec<Dim>,
    unknown: bool,
}

impl Product {
    fn of(shape: &[Dim]) -> Self {
        let mut product = Product { fixed: 1, symbols: Vec::new(), unknown: false };
        for dim in shape {
            match dim {
                Dim::Fixed(n) => product.fixed = product.fixed.saturating_mul(*n),
                Dim::Symbol(_) => product.symbols.push(dim.clone()),
                Dim::Unknown => product.unknown = true,
            }
        }
        product
    }
}
