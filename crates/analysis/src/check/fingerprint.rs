//! What names a finding from one run to the next.

use std::collections::HashMap;

use ane_model::Diagnostic;
use sha2::{Digest, Sha256};

/// Bytes of the digest that are kept.
const KEPT: usize = 8;

/// The name of a finding, in hexadecimal: of its rule, function and operation and of its message without numbers.
/// `ordinals` counts those that agree in all that, so that a second one is another finding.
pub(super) fn of(diagnostic: &Diagnostic, ordinals: &mut HashMap<String, usize>) -> String {
    let or_none = |part: &Option<String>| part.clone().unwrap_or_default();
    let key = [
        diagnostic.rule.id.to_owned(),
        or_none(&diagnostic.function),
        or_none(&diagnostic.name),
        without_numbers(&diagnostic.message),
    ]
    .join("\0");
    let digest = |key: &str, ordinal: usize| Sha256::digest(format!("{key}\0{ordinal}"));
    let ordinal = ordinals.entry(key.clone()).or_default();
    let digest = digest(&key, *ordinal);
    *ordinal += 1;
    digest.iter().take(KEPT).map(|byte| format!("{byte:02x}")).collect()
}

/// `message` with each run of digits as one mark.
fn without_numbers(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    for c in message.chars() {
        match c {
            '0'..='9' if out.ends_with('#') => {}
            '0'..='9' => out.push('#'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_do_not_count_and_repetitions_do() {
        let diagnostic = |message: &str| Diagnostic {
            rule: ane_model::rules::rules().next().unwrap(),
            severity: ane_model::Severity::Info,
            function: Some("main".to_owned()),
            op: None,
            index: None,
            name: None,
            span: None,
            message: message.to_owned(),
        };
        let name = |message| of(&diagnostic(message), &mut HashMap::new());
        assert_eq!(name("17 rows of 4.5"), name("1024 rows of 0.25"));
        assert_ne!(name("17 rows"), name("17 columns"));
        let mut ordinals = HashMap::new();
        let first = of(&diagnostic("a"), &mut ordinals);
        assert_ne!(first, of(&diagnostic("a"), &mut ordinals));
        assert_eq!(first.len(), 2 * KEPT);
    }
}
