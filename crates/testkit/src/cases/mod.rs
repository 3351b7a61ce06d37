//! The table of cases: every operation of a language model, in the forms that programs use.

use crate::Case;

mod llm;
mod plain;

/// All cases.
pub fn cases() -> Vec<Case> {
    let mut cases = plain::cases();
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
    fn single_precision_stays_within_the_tolerance() {
        let backend = InterpreterBackend::new(Arithmetic::F32);
        let failures: Vec<String> =
            cases().iter().filter_map(|case| check_case(&backend, case).err()).collect();
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}
