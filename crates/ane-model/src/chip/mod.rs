//! Chips: what is known of each Neural Engine, with source and status, from the files in `chips/`.

mod fact;
mod sections;
mod switches;

use std::sync::LazyLock;

use serde::Deserialize;
use toml::{Table, Value};

pub use fact::{Claim, Fact, Status, Unit, Verdict};
pub use sections::{
    ByOp, CoreMl, DTypes, Formats, Identity, Io, Limits, Memory, Numerics, Rates, Runtime, Switches,
};
pub use switches::{
    Acceptance, Accumulator, BindingOrder, Effect, Platform, Reload, SlotUnit, SurfaceUnit,
    WeightPath,
};

/// What is known of one chip's engine. A field that is `None` is unknown: nothing may be concluded
/// from it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chip {
    /// The name that a user types, such as `m4-pro`.
    pub name: String,
    /// The name that a user reads.
    pub title: String,
    /// What machine it is in.
    pub platform: Platform,
    /// The chip whose values stand where this one's are unknown; they have the status `assumed`.
    pub inherits: Option<String>,
    /// Sections that are not taken from `inherits`.
    #[serde(default)]
    pub without: Vec<String>,
    /// What it is.
    #[serde(default)]
    pub identity: Identity,
    /// Sizes beyond which a program is refused.
    #[serde(default)]
    pub limits: Limits,
    /// Inputs and outputs.
    #[serde(default)]
    pub io: Io,
    /// What one process can hold.
    #[serde(default)]
    pub runtime: Runtime,
    /// Memories.
    #[serde(default)]
    pub memory: Memory,
    /// Speeds.
    #[serde(default)]
    pub rates: Rates,
    /// Core ML's own numbers.
    #[serde(default)]
    pub coreml: CoreMl,
    /// The engine's arithmetic.
    #[serde(default)]
    pub numerics: Numerics,
    /// Largest errors of activation functions, by operation.
    #[serde(default)]
    pub table_errors: ByOp,
    /// Core ML's estimated rates on the engine, of operations that do not follow the common ones.
    #[serde(default)]
    pub estimates_ane: ByOp,
    /// The same on the CPU.
    #[serde(default)]
    pub estimates_cpu: ByOp,
    /// What becomes of compressed weights.
    #[serde(default)]
    pub formats: Formats,
    /// Behaviours on which sources disagree.
    #[serde(default)]
    pub switches: Switches,
}

/// Why a chip file cannot be used.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ChipError {
    /// It is not TOML, or a value lacks its unit, source or status, or has an unknown name.
    #[error("{name}: {message}")]
    Invalid {
        /// The chip, or `chip file` when its name cannot be read.
        name: String,
        /// What is wrong, with line and column where known.
        message: String,
    },
    /// It inherits from a chip that there is none of.
    #[error("{name}: it inherits from \"{parent}\", which is no known chip")]
    NoParent {
        /// The chip.
        name: String,
        /// Whom it inherits from.
        parent: String,
    },
}

/// Lists the chip files; a file must come after the one it inherits from.
macro_rules! chip_files {
    ($($name:literal,)*) => {
        const FILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../chips/", $name, ".toml"))),)*];
    };
}

chip_files! {
    "m1", "m1-pro", "m1-max", "m1-ultra", "m2", "m2-max", "m2-ultra", "m3", "m3-max", "m3-ultra",
    "m4", "m4-pro", "m4-max", "m5", "m5-pro", "m5-max", "m6",
    "a13", "a14", "a15", "a16", "a17-pro", "a18", "a19-pro",
}

struct Known {
    tables: Vec<(String, Table)>,
    chips: Vec<Chip>,
}

static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    let mut known = Known { tables: Vec::new(), chips: Vec::new() };
    for (file, text) in FILES {
        let (table, chip) = read(text, &known.tables)
            .unwrap_or_else(|e| panic!("an embedded chip file is wrong: {file}: {e}"));
        known.tables.push((chip.name.clone(), table));
        known.chips.push(chip);
    }
    known
});

impl Chip {
    /// Every chip that there is a file of.
    pub fn all() -> &'static [Chip] {
        &KNOWN.chips
    }

    /// The chip called `name`, such as `m4-pro`.
    pub fn find(name: &str) -> Option<&'static Chip> {
        Chip::all().iter().find(|c| c.name == name)
    }

    /// The same chip, sure of itself: contradicting claims are dropped, so that every rule decides by
    /// the values alone. What an emulated machine is made of; [`Fact::with`] turns its switches.
    #[must_use]
    pub fn settled(&self) -> Chip {
        let mut chip = self.clone();
        chip.identity.settle();
        chip.limits.settle();
        chip.io.settle();
        chip.runtime.settle();
        chip.memory.settle();
        chip.rates.settle();
        chip.coreml.settle();
        chip.numerics.settle();
        chip.formats.settle();
        chip.switches.settle();
        let tables = [&mut chip.table_errors, &mut chip.estimates_ane, &mut chip.estimates_cpu];
        for fact in tables.into_iter().flat_map(|table| table.values_mut()) {
            fact.claims.clear();
        }
        chip
    }

    /// Reads a chip file, such as a measuring program writes. It may inherit from a known chip.
    ///
    /// # Errors
    /// When it is not TOML, when a value lacks unit, source or status, when a name is unknown.
    pub fn from_toml(text: &str) -> Result<Chip, ChipError> {
        read(text, &KNOWN.tables).map(|(_, chip)| chip)
    }
}

/// A file's table with what it inherits, and the chip it describes.
fn read(text: &str, known: &[(String, Table)]) -> Result<(Table, Chip), ChipError> {
    let invalid = |name: &str, message: String| ChipError::Invalid { name: name.into(), message };
    let mut table: Table = toml::from_str(text).map_err(|e| invalid("chip file", e.to_string()))?;
    let name = table.get("name").and_then(Value::as_str).unwrap_or("chip file").to_owned();
    // Values are checked before they are merged, so that an error has its place in the file.
    let own: Chip = toml::from_str(text).map_err(|e| invalid(&name, e.to_string()))?;
    if let Some(parent) = &own.inherits {
        let (_, inherited) = known
            .iter()
            .find(|(n, _)| n == parent)
            .ok_or_else(|| ChipError::NoParent { name: name.clone(), parent: parent.clone() })?;
        inherit(&mut table, inherited, parent, &own.without);
    }
    let chip: Chip =
        table.clone().try_into().map_err(|e: toml::de::Error| invalid(&name, e.to_string()))?;
    Ok((table, chip))
}

/// Adds the values of `parent` that `table` does not have, as assumptions.
fn inherit(table: &mut Table, inherited: &Table, parent: &str, without: &[String]) {
    for (section, values) in inherited {
        let Value::Table(values) = values else { continue };
        if without.contains(section) {
            continue;
        }
        let own = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
        let Value::Table(own) = own else { continue };
        for (field, value) in values {
            own.entry(field).or_insert_with(|| assumed(value, parent));
        }
    }
}

fn assumed(value: &Value, parent: &str) -> Value {
    let mut value = value.clone();
    if let Value::Table(fact) = &mut value
        && let Some(Value::String(status)) = fact.get_mut("status")
        && !status.starts_with("assumed")
    {
        *status = format!("assumed from {parent}");
    }
    value
}
