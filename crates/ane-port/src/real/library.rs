//! Libraries of the system and what is in them, by name.

use std::ffi::CStr;
use std::path::Path;

use exec::port::{PortError, PortResult, Verb};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

pub(super) fn failure(message: String) -> PortError {
    PortError { verb: Verb::Open, status: None, message, reason: None }
}

/// Opens a library for as long as the process lives, since classes cannot be taken out of the runtime again.
pub(super) fn open(path: &Path) -> PortResult<&'static Library> {
    // SAFETY: what a library of the system runs when it is loaded is the system's own business.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|e| failure(format!("no such framework: {}: {e}", path.display())))?;
    Ok(Box::leak(Box::new(library)))
}

/// The function, or the address of the variable, of that name.
///
/// # Safety
/// It is a `T`.
pub(super) unsafe fn symbol<T: Copy>(library: &Library, name: &CStr) -> PortResult<T> {
    // SAFETY: the caller's word.
    let found = unsafe { library.get::<T>(name.to_bytes_with_nul()) };
    found
        .map(|symbol| *symbol)
        .map_err(|e| failure(format!("{} is missing: {e}", name.to_string_lossy())))
}
