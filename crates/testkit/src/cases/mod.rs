//! The table of cases: every operation of a language model, in the forms that programs use.

use crate::Case;

mod llm;
mod networks;
mod plain;

/// All cases.
pub fn cases() -> Vec<Case> {
    let mut cases = plain::cases();
    cases.extend(networks::cases());
    cases.extend(llm::cases());
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InterpreterBackend, check_case};
    use mil::eval::Arithmetic;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = cases().into_iter().map(|c| c.name).collect();
        names.sort();
        assert!(names.windows(2).all(|w| w[0] != w[1]));
    }

    #[test]
    fn every_operation_of_the_dialect_has_one() {
        let cases = cases();
        let used = |kind| {
            let functions = cases.iter().flat_map(|c| c.program.functions.values());
            functions.flat_map(|f| f.ops.values()).any(|op| op.kind == kind)
        };
        for &kind in mil::ops::OPS.iter().filter(|k| k.name().starts_with("llm.")) {
            assert!(used(kind), "{}", kind.name());
        }
    }

    #[test]
    fn single_precision_stays_within_the_tolerance() {
        let backend = InterpreterBackend::new(Arithmetic::F32);
        let failures: Vec<String> =
            cases().iter().filter_map(|case| check_case(&backend, case).err()).collect();
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}
