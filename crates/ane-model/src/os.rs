//! Versions of the operating systems, comparable across macOS and iOS.

use std::fmt;
use std::str::FromStr;

use mil::Opset;
use serde::{Deserialize, Serialize};

use crate::chip::Platform;

/// An operating system's version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Os {
    /// macOS or iOS.
    pub platform: Platform,
    /// The number behind the name.
    pub major: u16,
}

impl Os {
    /// A version such as `15.0` of a platform's system; `None` if it does not begin with a number.
    pub fn of(platform: Platform, version: &str) -> Option<Self> {
        let major = version.split('.').next()?.trim().parse().ok()?;
        Some(Os { platform, major })
    }

    /// The iOS version of the same year, by which versions of both systems are compared.
    pub fn year(self) -> u16 {
        match self.platform {
            Platform::Mac if self.major <= 15 => self.major + 3,
            _ => self.major,
        }
    }

    /// The latest operation set that it runs; `None` for systems older than programs are.
    pub fn opset(self) -> Option<Opset> {
        Some(match self.year() {
            ..15 => return None,
            15 => Opset::Ios15,
            16 => Opset::Ios16,
            17 => Opset::Ios17,
            18..26 => Opset::Ios18,
            26.. => Opset::Ios26,
        })
    }
}

impl fmt::Display for Os {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.platform {
            Platform::Mac => "macOS",
            Platform::Phone => "iOS",
        };
        write!(f, "{name} {}", self.major)
    }
}

/// Why a text names no system.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("\"{0}\" is no operating system: macos15 or ios18 are")]
pub struct OsError(String);

impl From<Os> for String {
    fn from(os: Os) -> Self {
        os.to_string()
    }
}

impl TryFrom<String> for Os {
    type Error = OsError;

    fn try_from(name: String) -> Result<Self, OsError> {
        name.parse()
    }
}

impl FromStr for Os {
    type Err = OsError;

    fn from_str(s: &str) -> Result<Self, OsError> {
        let error = || OsError(s.to_owned());
        let lower = s.to_ascii_lowercase();
        let (platform, number) = match (lower.strip_prefix("macos"), lower.strip_prefix("ios")) {
            (Some(n), _) => (Platform::Mac, n),
            (_, Some(n)) => (Platform::Phone, n),
            _ => return Err(error()),
        };
        Os::of(platform, number).ok_or_else(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_both_systems() {
        let os = |s: &str| s.parse::<Os>().unwrap();
        assert_eq!(os("macos15.3").year(), os("ios18").year());
        assert_eq!(os("macOS 26").year(), 26);
        assert_eq!(os("macos13").opset(), Some(Opset::Ios16));
        assert_eq!(os("ios27").opset(), Some(Opset::Ios26));
        assert_eq!(os("ios14").opset(), None);
        assert_eq!(Os::of(Platform::Mac, "15.0"), Some(os("macos15")));
        assert!("windows11".parse::<Os>().is_err());
    }
}
