//! A package's model: the verifier, interfaces and text of what is read; the text reads again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mil::ErrorKind;
use mil::package::Package;

mod zeros;
use zeros::Zeros;

fuzz_target!(|data: &[u8]| {
    let Ok(mut package) = Package::from_model(data, &Zeros) else { return };
    let _ = mil::verify(&package.program);
    for name in package.program.functions.keys() {
        let _ = package.interface(name);
    }
    if let Ok(text) = package.text() {
        // Texts have limits of their own.
        let again = mil::text::parse(&text, &Zeros);
        assert!(again.as_ref().err().is_none_or(|e| e.kind == ErrorKind::Limit), "{again:?}");
    }
    let _ = package.set_program(package.program.clone());
});
