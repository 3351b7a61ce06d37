//! A program's whole life through a port, with data, and what must be true when it is over.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use exec::port::{MODEL_FILE, Port, Qos, Usage, Verb};

use super::{fakes, machine};
use crate::real::AnePort;
use crate::self_test;

/// A program that does nothing.
const EMPTY: &str = r#"program(1.3)
[buildInfo = dict<string, string>({{"coremlc-component-MIL", "3500.14.1"}})]
{
    func main<ios18>() {
    } -> ();
}
"#;

/// One test at a time, because objects are counted for the process.
pub(super) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The port over the fakes.
pub(super) fn port() -> AnePort {
    fakes::register();
    AnePort::with(Path::new("libm.so.6"), machine::system()).map_err(|e| e.to_string()).unwrap()
}

/// What is held outside the port: objects alive, objects that no pool will free, loaded programs, surfaces.
type Held = (usize, usize, usize, usize);

fn held() -> Held {
    let programs = fakes::loaded_programs();
    (mini_objc::live_objects(), mini_objc::unpooled(), programs, machine::live_surfaces())
}

/// Runs a life; says what was wrong, be it a panic, an error, a wrong number, or something left behind.
pub(super) fn check(port: &impl Port) -> Result<(), String> {
    let before = held();
    let outcome = catch_unwind(AssertUnwindSafe(|| self_test(port)));
    outcome
        .map_err(|panic| {
            panic.downcast_ref::<String>().map_or("a panic", String::as_str).to_owned()
        })?
        .map_err(|e| e.to_string())?;
    let after = held();
    if after == before {
        return Ok(());
    }
    Err(format!("(objects, unpooled, programs, surfaces) were {before:?}, are {after:?}"))
}

#[test]
fn a_program_lives_and_leaves_nothing_behind() {
    let _alone = alone();
    let port = port();
    for round in 1..=3 {
        assert_eq!(check(&port), Ok(()));
        assert_eq!(port.usage(), Usage { compilations: round, ..Usage::default() });
    }
}

#[test]
fn what_is_held_is_counted() {
    let _alone = alone();
    let port = port();
    let model = port.model(EMPTY.as_bytes(), &[]).unwrap();
    let surfaces = [port.surface(100).unwrap(), port.surface(28).unwrap()];
    let usage = port.usage();
    assert_eq!((usage.models, usage.surfaces, usage.surface_bytes), (1, 2, 128));
    // A request keeps its surfaces.
    let request = port.request(&[&surfaces[0]], &[&surfaces[0]]).unwrap();
    drop((model, surfaces));
    assert_eq!((port.usage().models, port.usage().surface_bytes), (0, 100));
    drop(request);
    assert_eq!(port.usage(), Usage::default());
}

#[test]
fn errors_are_told_in_the_frameworks_words() {
    let _alone = alone();
    let port = port();
    let model = port.model(EMPTY.as_bytes(), &[]).unwrap();
    assert!(port.directory(&model).ends_with(port.identifier(&model)));
    let error = port.compile(&model, Qos::default()).unwrap_err();
    assert_eq!((error.verb, error.status), (Verb::Compile, Some(2)));
    assert!(error.message.contains("model.mil: No such file"), "{error}");
    assert!(error.message.ends_with("(com.apple.appleneuralengine 2)"), "{error}");
    let error = port.load(&model, Qos::default()).unwrap_err();
    assert_eq!(error.to_string(), "load: not compiled (com.apple.appleneuralengine 3)");
    let error = port.unload(&model, Qos::default()).unwrap_err();
    assert_eq!(error.to_string(), "unload: not loaded (com.apple.appleneuralengine 4)");
    assert_eq!(port.usage().loaded, 0);
    let error = port.surface(0).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "surface: IOSurfaceCreate returned nothing for 0 bytes");
}

#[test]
fn surfaces_of_unequal_size_are_refused_with_the_engines_status() {
    let _alone = alone();
    let port = port();
    let model = port.model(EMPTY.as_bytes(), &[]).unwrap();
    let directory = port.directory(&model);
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join(MODEL_FILE), EMPTY).unwrap();
    port.compile(&model, Qos::default()).unwrap();
    port.load(&model, Qos::default()).unwrap();
    let (small, large) = (port.surface(64).unwrap(), port.surface(128).unwrap());
    let request = port.request(&[&small, &large], &[]).unwrap();
    let error = port.evaluate(&model, &request, Qos::default()).unwrap_err();
    assert_eq!((error.verb, error.status), (Verb::Evaluate, Some(0x1d)));
    port.unload(&model, Qos::default()).unwrap();
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_panic_while_the_bytes_are_shown_unlocks_them() {
    let _alone = alone();
    let port = port();
    let surface = port.surface(16).unwrap();
    let shown =
        catch_unwind(AssertUnwindSafe(|| port.access(&surface, &mut |_| panic!("in the middle"))));
    assert!(shown.is_err());
    port.access(&surface, &mut |bytes| bytes[0] = 1).unwrap();
}

#[test]
fn threads_share_a_port() {
    let _alone = alone();
    let port = port();
    let surface = port.surface(8).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    port.access(&surface, &mut |bytes| bytes[0] = bytes[0].wrapping_add(1))
                        .unwrap();
                    drop(port.surface(8).unwrap());
                }
            });
        }
    });
    let mut count = 0;
    port.access(&surface, &mut |bytes| count = bytes[0]).unwrap();
    assert_eq!(count, 144, "400 in a byte");
    assert_eq!(port.usage().surfaces, 1);
}
