//! The pure functions: chips by brand, status in words, and what is asked of the system.

use std::ffi::{c_char, c_int, c_void};

use super::machine::sysctl;
use crate::real::object::status_in;
use crate::real::system::{chip, machine};

#[test]
fn chips_are_found_in_brands() {
    let cases = [
        ("Apple M1", Some("m1")),
        ("Apple M4 Max", Some("m4-max")),
        ("Apple M3 Ultra", Some("m3-ultra")),
        ("Apple A18 Pro", Some("a18-pro")),
        ("Apple M10", Some("m10")),
        ("Apple M1 (Virtual)", None),
        ("Apple processor", None),
        ("Apple M", None),
        ("Apple ", None),
        ("Intel(R) Core(TM) i9-9980HK CPU @ 2.40GHz", None),
        ("", None),
    ];
    for (brand, expected) in cases {
        assert_eq!(chip(brand).as_deref(), expected, "{brand}");
    }
}

#[test]
fn the_machine_is_asked_for() {
    let machine = machine(sysctl).unwrap();
    assert_eq!(
        (machine.chip.as_str(), machine.os.as_str(), machine.emulated),
        ("m4-max", "26.2", false)
    );
}

#[test]
fn a_machine_that_does_not_answer_is_an_error() {
    unsafe extern "C" fn refuse(
        _: *const c_char,
        _: *mut c_void,
        _: *mut usize,
        _: *mut c_void,
        _: usize,
    ) -> c_int {
        -1
    }
    let error = machine(refuse).unwrap_err().to_string();
    assert_eq!(error, "open: sysctl machdep.cpu.brand_string failed with -1");
}

#[test]
fn the_status_is_found_in_words() {
    let words = "ANEProgramProcessRequestDirect() Failed with status=0x1d : statusType=0x9: Program Inference error";
    assert_eq!(status_in(words), Some(0x1d));
    assert_eq!(status_in("status=0x50004"), Some(0x5_0004));
    for none in ["", "status=", "status=0x", "status=0xzz", "no status"] {
        assert_eq!(status_in(none), None, "{none}");
    }
}
