//! Opening the framework: the path, the classes, the methods, the machine.

use std::ffi::CStr;
use std::path::Path;

use objc2::runtime::AnyClass;

use super::life::{alone, port};
use super::{fakes, machine};
use crate::real::AnePort;
use crate::real::surface::SurfaceApi;

/// Class, method with its sign, and signature without offsets, as public class dumps have them.
/// `BOOL` is `B` on Apple's processors and `C` here.
const METHODS: [(&CStr, &CStr, &CStr); 9] = [
    (c"_ANEInMemoryModelDescriptor", c"+modelWithMILText:weights:optionsPlist:", c"@@:@@@"),
    (c"_ANEInMemoryModel", c"+inMemoryModelWithDescriptor:", c"@@:@"),
    (c"_ANEInMemoryModel", c"-hexStringIdentifier", c"@@:"),
    (c"_ANEInMemoryModel", c"-compileWithQoS:options:error:", c"B@:I@^@"),
    (c"_ANEInMemoryModel", c"-loadWithQoS:options:error:", c"B@:I@^@"),
    (c"_ANEIOSurfaceObject", c"+objectWithIOSurface:", c"@@:^{__IOSurface=}"),
    (
        c"_ANERequest",
        c"+requestWithInputs:inputIndices:outputs:outputIndices:weightsBuffer:perfStats:procedureIndex:",
        c"@@:@@@@@@@",
    ),
    (c"_ANEInMemoryModel", c"-evaluateWithQoS:options:request:error:", c"B@:I@@^@"),
    (c"_ANEInMemoryModel", c"-unloadWithQoS:error:", c"B@:I^@"),
];

fn open(path: &str) -> Result<(), String> {
    AnePort::with(Path::new(path), machine::system()).map(drop).map_err(|e| e.to_string())
}

fn here(types: &CStr) -> String {
    types.to_str().unwrap().replacen('B', "C", 1)
}

#[test]
fn the_fakes_have_the_signatures_of_the_class_dumps() {
    let _alone = alone();
    let classes = fakes::register();
    for (class, method, types) in METHODS {
        let class = classes.iter().find(|c| c.name() == class).unwrap();
        let (sign, selector) = method.to_str().unwrap().split_at(1);
        let holder: &AnyClass = if sign == "+" { class.metaclass() } else { class };
        let selector = objc2::runtime::Sel::register(&std::ffi::CString::new(selector).unwrap());
        let found = holder.instance_method(selector).unwrap();
        // SAFETY: the method lives for ever, and its encoding is a C string.
        let found = unsafe { CStr::from_ptr(objc2::ffi::method_getTypeEncoding(found)) };
        let found: String =
            found.to_str().unwrap().chars().filter(|c| !c.is_ascii_digit()).collect();
        assert_eq!(found, here(types), "{method:?}");
    }
}

#[test]
fn the_framework_opens() {
    let _alone = alone();
    assert_eq!(exec::port::Port::machine(&port()), &machine::system().machine);
}

#[test]
fn a_path_that_leads_nowhere_is_named() {
    let error = open("/nowhere/AppleNeuralEngine").unwrap_err();
    assert!(error.starts_with("open: no such framework: /nowhere/AppleNeuralEngine: "), "{error}");
}

#[test]
fn this_system_has_no_such_framework() {
    let error = AnePort::open().map(drop).unwrap_err().to_string();
    assert!(
        error.starts_with("open: no such framework: /System/Library/Frameworks/IOSurface"),
        "{error}"
    );
}

#[test]
fn each_class_that_is_missing_is_named() {
    let _alone = alone();
    fakes::register();
    for (class, _, _) in METHODS {
        let hidden = mini_objc::hide_class(class);
        let class = class.to_str().unwrap();
        let expected = format!("open: class {class} is missing in libm.so.6 of macOS 26.2");
        assert_eq!(open("libm.so.6"), Err(expected));
        drop(hidden);
        assert_eq!(open("libm.so.6"), Ok(()));
    }
}

#[test]
fn each_method_that_is_missing_is_named_with_its_type() {
    let _alone = alone();
    fakes::register();
    for (class, method, types) in METHODS {
        let _gone = mini_objc::change_method(class, method, None);
        let (sign, name) = method.to_str().unwrap().split_at(1);
        let class = class.to_str().unwrap();
        let expected = format!(
            "open: {sign}[{class} {name}] of macOS 26.2 is missing; expected it with type {}",
            here(types)
        );
        assert_eq!(open("libm.so.6"), Err(expected));
    }
}

#[test]
fn each_method_of_another_signature_is_named_with_both() {
    let _alone = alone();
    fakes::register();
    for (class, method, types) in METHODS {
        // A number where there was an object or a yes.
        let other = format!("q{}", &types.to_str().unwrap()[1..]);
        let other_c = std::ffi::CString::new(other.clone()).unwrap();
        let _changed = mini_objc::change_method(class, method, Some(&other_c));
        let (sign, name) = method.to_str().unwrap().split_at(1);
        let class = class.to_str().unwrap();
        let start = format!(
            "open: {sign}[{class} {name}] of macOS 26.2 has another type: expected {}, found {other} (",
            here(types)
        );
        let error = open("libm.so.6").unwrap_err();
        assert!(error.starts_with(&start), "{error}\n{start}");
    }
}

#[test]
fn offsets_and_qualifiers_make_no_difference() {
    let _alone = alone();
    fakes::register();
    let types = here(c"B36@0:8I16@20o^@28");
    let types = std::ffi::CString::new(types).unwrap();
    let _same = mini_objc::change_method(
        c"_ANEInMemoryModel",
        c"-loadWithQoS:options:error:",
        Some(&types),
    );
    assert_eq!(open("libm.so.6"), Ok(()));
}

#[test]
fn a_library_without_the_functions_is_named() {
    let path = Path::new("libm.so.6");
    let error = SurfaceApi::load(path, path).map(drop).unwrap_err().to_string();
    assert!(error.starts_with("open: kIOSurfaceWidth is missing: "), "{error}");
}
