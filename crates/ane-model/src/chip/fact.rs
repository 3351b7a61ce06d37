//! A value of a chip file with its unit, its source and how far it can be trusted.

use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// How far a value can be trusted.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub enum Status {
    /// The source measured it on this chip.
    Measured,
    /// Computed from what a source measured.
    Derived,
    /// The source says so and shows no measurement.
    Claimed,
    /// Sources contradict each other; the others' values are in [`Fact::claims`].
    Disputed,
    /// Nothing is known of this chip; the value is that of the named one.
    Assumed(String),
}

impl TryFrom<String> for Status {
    type Error = String;

    fn try_from(s: String) -> Result<Self, String> {
        Ok(match s.as_str() {
            "measured" => Status::Measured,
            "derived" => Status::Derived,
            "claimed" => Status::Claimed,
            "disputed" => Status::Disputed,
            other => match other.strip_prefix("assumed from ") {
                Some(chip) if !chip.is_empty() => Status::Assumed(chip.to_owned()),
                _ => return Err(format!("\"{other}\" is no status")),
            },
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Measured => f.write_str("measured"),
            Status::Derived => f.write_str("derived"),
            Status::Claimed => f.write_str("claimed"),
            Status::Disputed => f.write_str("disputed"),
            Status::Assumed(chip) => write!(f, "assumed from {chip}"),
        }
    }
}

/// What a value counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub enum Unit {
    /// Elements along an axis.
    #[serde(rename = "elements")]
    Elements,
    /// Bytes.
    #[serde(rename = "B")]
    Bytes,
    /// Things.
    #[serde(rename = "count")]
    Count,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
    /// 10^12 operations a second; a multiply-add is two.
    #[serde(rename = "TFLOP/s")]
    TeraOps,
    /// 10^9 operations a second; a multiply-add is two.
    #[serde(rename = "GFLOP/s")]
    GigaOps,
    /// 10^9 bytes a second.
    #[serde(rename = "GB/s")]
    GigabytesPerSecond,
    /// 10^9 cycles a second.
    #[serde(rename = "GHz")]
    Gigahertz,
    /// Absolute value, or absolute error.
    #[serde(rename = "abs")]
    Absolute,
    /// Units in the last place of fp16.
    #[serde(rename = "ulp")]
    Ulp,
    /// One of the named alternatives.
    #[serde(rename = "choice")]
    Choice,
}

impl Unit {
    /// The unit as it is written behind a number.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Elements => "elements",
            Unit::Bytes => "B",
            Unit::Count => "",
            Unit::Milliseconds => "ms",
            Unit::TeraOps => "TFLOP/s",
            Unit::GigaOps => "GFLOP/s",
            Unit::GigabytesPerSecond => "GB/s",
            Unit::Gigahertz => "GHz",
            Unit::Absolute => "",
            Unit::Ulp => "ulp",
            Unit::Choice => "",
        }
    }
}

/// A value of a chip file.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, bound = "T: DeserializeOwned")]
pub struct Fact<T> {
    /// The value that is acted on.
    pub value: T,
    /// Its unit.
    pub unit: Unit,
    /// Who says so, and where.
    pub source: String,
    /// How far to trust it.
    pub status: Status,
    /// What others say instead.
    #[serde(default = "Vec::new")]
    pub claims: Vec<Claim<T>>,
}

/// A value that contradicts a [`Fact`]'s.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, bound = "T: DeserializeOwned")]
pub struct Claim<T> {
    /// The value.
    pub value: T,
    /// Who says so, and where.
    pub source: String,
}

/// How a number stands to a limit on which sources may disagree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No source objects.
    Within,
    /// Some sources allow it, some do not.
    Disputed,
    /// Beyond what any source allows.
    Exceeded,
}

impl<T> Fact<T> {
    /// Whether another source says something else.
    pub fn is_disputed(&self) -> bool {
        !self.claims.is_empty()
    }

    /// The same fact with another value: how an emulated machine is told to behave.
    #[must_use]
    pub fn with(mut self, value: T) -> Self {
        self.value = value;
        self
    }
}

impl Fact<u64> {
    /// How `n` stands to this upper limit and to what others claim it to be.
    pub fn verdict(&self, n: u64) -> Verdict {
        let limits = || self.claims.iter().map(|c| c.value).chain([self.value]);
        if limits().all(|limit| n <= limit) {
            Verdict::Within
        } else if limits().all(|limit| n > limit) {
            Verdict::Exceeded
        } else {
            Verdict::Disputed
        }
    }
}

/// `16384 elements (measured: ane-guide, chapter 4)`.
impl<T: fmt::Display> fmt::Display for Fact<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = if self.unit.name().is_empty() { "" } else { " " };
        write!(f, "{}{space}{} ({}: {})", self.value, self.unit.name(), self.status, self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_with_and_without_contradiction() {
        let claim = Claim { value: 65536, source: "b".into() };
        let mut fact = Fact {
            value: 16384,
            unit: Unit::Elements,
            source: "a".into(),
            status: Status::Measured,
            claims: vec![],
        };
        assert_eq!(fact.verdict(16384), Verdict::Within);
        assert_eq!(fact.verdict(16385), Verdict::Exceeded);
        fact.claims.push(claim);
        assert_eq!(fact.verdict(16385), Verdict::Disputed);
        assert_eq!(fact.verdict(65537), Verdict::Exceeded);
        assert_eq!(fact.to_string(), "16384 elements (measured: a)");
    }
}
