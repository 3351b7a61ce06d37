//! Which findings must not be, and which are not told.

use ane_model::{Rule, Severity};

use super::words;
use crate::error::{Result, bail};

/// What denies no severity.
const NONE: &str = "none";

/// Which findings are denied or allowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// The least severity that is denied; `None` if no severity is.
    least: Option<Severity>,
    denied: Vec<&'static str>,
    allowed: Vec<&'static str>,
}

/// Severities, the worst first.
pub(super) const SEVERITIES: [Severity; 3] = [Severity::Error, Severity::Warning, Severity::Info];

/// The words for severities in the argument of what is denied.
pub fn severities() -> [&'static str; 4] {
    let [error, warning, info] = SEVERITIES.map(words::severity);
    [error, warning, info, NONE]
}

impl Policy {
    /// Denies what `deny` says: rules, and everything at least as bad as the mildest severity in it; errors if
    /// it has none. Allows the rules in `allow`.
    ///
    /// # Errors
    /// When a name is of no rule or severity.
    pub fn new<S: AsRef<str>>(deny: &[S], allow: &[S]) -> Result<Policy> {
        let mut policy = Policy { least: None, denied: Vec::new(), allowed: Vec::new() };
        let mut stated = false;
        for name in deny {
            let name = name.as_ref();
            let severity = SEVERITIES.into_iter().find(|&s| words::severity(s) == name);
            if severity.is_none() && name != NONE {
                policy.denied.push(rule(name)?);
                continue;
            }
            stated = true;
            policy.least = match (policy.least, severity) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        if !stated {
            policy.least = Some(Severity::Error);
        }
        for name in allow {
            policy.allowed.push(rule(name.as_ref())?);
        }
        Ok(policy)
    }

    pub(super) fn denies(&self, rule: &Rule, severity: Severity) -> bool {
        self.least.is_some_and(|least| severity >= least) || self.denied.contains(&rule.id)
    }

    /// Whether findings of a rule are not told.
    pub fn allows(&self, rule: &Rule) -> bool {
        self.allowed.contains(&rule.id)
    }
}

fn rule(name: &str) -> Result<&'static str> {
    match ane_model::rules::rules().find(|r| r.id == name) {
        Some(rule) => Ok(rule.id),
        None => bail!("no rule {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mildest_severity_decides_and_rules_add_to_it() {
        let rule = ane_model::rules::rules().next().unwrap();
        let policy = |deny: &[&str], allow: &[&str]| Policy::new(deny, allow).unwrap();
        let denied = |policy: &Policy| {
            [Severity::Info, Severity::Warning, Severity::Error].map(|s| policy.denies(rule, s))
        };
        assert_eq!(denied(&policy(&[], &[])), [false, false, true]);
        assert_eq!(denied(&policy(&["error", "warning"], &[])), [false, true, true]);
        assert_eq!(denied(&policy(&["none"], &[])), [false; 3]);
        assert_eq!(denied(&policy(&["none", rule.id], &[])), [true; 3]);
        assert!(policy(&[], &[rule.id]).allows(rule));
        assert!(Policy::new(&["ane-nonsense"], &[]).is_err());
    }
}
