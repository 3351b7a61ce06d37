//! A drawing of a program: operations from top to bottom with the types of what flows between them, constants folded
//! into their users, nested blocks inside of their operation, functions side by side.

mod family;
mod layout;
mod page;
mod scene;
mod svg;

use mil::package::Package;

use crate::{Error, Result};

/// Most operations that are drawn; more would take browsers too long.
const LARGEST: usize = 20_000;

/// The drawing as an SVG image.
///
/// # Errors
/// When the program has too many operations.
pub fn svg(package: &Package) -> Result<String> {
    Ok(svg::standalone(&sections(package)?))
}

/// The drawing as an HTML page that needs no other file: it moves, zooms, searches, and shows what is known of what
/// is pointed at.
///
/// # Errors
/// When the program has too many operations.
pub fn html(package: &Package, title: &str) -> Result<String> {
    Ok(page::html(&sections(package)?, title))
}

fn sections(package: &Package) -> Result<Vec<scene::Section>> {
    let functions = package.program.functions.values();
    let count: usize = functions
        .map(|f| f.ops.values().filter(|op| !crate::constants::is_constant(op.kind)).count())
        .sum();
    if count > LARGEST {
        let words =
            format!("a drawing takes up to {LARGEST} operations, and the program has {count}");
        return Err(Error::Limit(words));
    }
    Ok(scene::sections(&package.program))
}
