//! Chips as arguments name them.

use ane_model::Chip;

/// The chip called `name`, in capitals or not.
///
/// # Errors
/// When there is none, with the names of all.
pub(crate) fn named(name: &str) -> Result<&'static Chip, String> {
    Chip::find(&name.to_lowercase()).ok_or_else(|| {
        let names: Vec<&str> = Chip::all().iter().map(|c| c.name.as_str()).collect();
        format!("there is no chip \"{name}\"; known are {}", names.join(", "))
    })
}
