//! The case table on the CPU backend.

use proptest::prelude::*;
use rigel_cpu::CpuBackend;
use testkit::{cases, check_case, random_program, run_case};

#[test]
fn cases_give_what_the_interpreter_gives() {
    let backend = CpuBackend::new(2);
    let failures: Vec<String> =
        cases().iter().filter_map(|case| check_case(&backend, case).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn threads_do_not_change_a_bit() {
    for case in cases() {
        let outputs = [1, 2, 3].map(|threads| {
            let outcome = run_case(&CpuBackend::new(threads), &case).unwrap();
            let tensors = outcome.outputs.into_iter().flatten().chain(outcome.states);
            tensors.map(|(name, t)| (name, t.bytes().to_vec())).collect::<Vec<_>>()
        });
        assert!(outputs[0] == outputs[1] && outputs[0] == outputs[2], "{}", case.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn random_programs_give_what_the_interpreter_gives(random in random_program(12)) {
        prop_assert_eq!(check_case(&CpuBackend::new(2), &random.case()), Ok(()));
    }
}
