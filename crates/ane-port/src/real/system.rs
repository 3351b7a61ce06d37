//! The machine and what of the public system the port needs.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use exec::port::{Machine, PortResult};
use libloading::os::unix::Library;

use super::library::{failure, symbol};
use super::surface::SurfaceApi;

const IO_SURFACE: &str = "/System/Library/Frameworks/IOSurface.framework/IOSurface";
const CORE_FOUNDATION: &str = "/System/Library/Frameworks/CoreFoundation.framework/CoreFoundation";

/// `sysctlbyname`: name, where to put the value and its size, nothing to set.
pub(super) type SysctlByName =
    unsafe extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;

/// What the port needs besides the framework.
pub(super) struct System {
    pub(super) surfaces: SurfaceApi,
    pub(super) machine: Machine,
}

impl System {
    /// That of this machine.
    pub(super) fn load() -> PortResult<Self> {
        let surfaces = SurfaceApi::load(Path::new(IO_SURFACE), Path::new(CORE_FOUNDATION))?;
        // SAFETY: the function is public and of that type.
        let sysctl: SysctlByName = unsafe { symbol(&Library::this(), c"sysctlbyname")? };
        Ok(System { surfaces, machine: machine(sysctl)? })
    }
}

/// Asks for the chip and the version of the system.
pub(super) fn machine(sysctl: SysctlByName) -> PortResult<Machine> {
    let brand = setting(sysctl, c"machdep.cpu.brand_string")?;
    let os = setting(sysctl, c"kern.osproductversion")?;
    let chip = chip(&brand).ok_or_else(|| {
        failure(format!("the processor {brand:?} is no Apple chip with a Neural Engine"))
    })?;
    Ok(Machine { chip, os, emulated: false })
}

/// A setting that is a text.
fn setting(sysctl: SysctlByName, name: &CStr) -> PortResult<String> {
    let mut buffer = [0_u8; 256];
    let mut size = buffer.len();
    let value = buffer.as_mut_ptr().cast();
    // SAFETY: the buffer has that size, and nothing is set.
    let status = unsafe { sysctl(name.as_ptr(), value, &raw mut size, ptr::null_mut(), 0) };
    if status != 0 {
        return Err(failure(format!("sysctl {} failed with {status}", name.to_string_lossy())));
    }
    let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

/// `Apple M4 Max` is an `m4-max`, `Apple M1 (Virtual)` has no engine.
pub(super) fn chip(brand: &str) -> Option<String> {
    let mut words = brand.strip_prefix("Apple ")?.split_whitespace();
    let number = words.next()?.strip_prefix(['A', 'M'])?;
    let is_chip = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    let is_known = is_chip && words.all(|word| word.bytes().all(|b| b.is_ascii_alphabetic()));
    is_known.then(|| brand["Apple ".len()..].to_ascii_lowercase().replace(' ', "-"))
}
