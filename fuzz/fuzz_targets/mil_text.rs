//! MIL text: what is read prints, and reads again as the same text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mil::text::{parse, print};

mod zeros;
use zeros::Zeros;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(parsed) = parse(text, &Zeros) else { return };
    let _ = mil::verify(&parsed.program);
    let Ok(printed) = print(&parsed.program, parsed.dialect) else { return };
    let again = parse(&printed, &Zeros).expect("a printed program can be read");
    assert_eq!(print(&again.program, again.dialect).expect("it was printed before"), printed);
});
