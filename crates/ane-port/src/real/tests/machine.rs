//! A machine for the tests: surfaces in plain memory, settings of the system.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use exec::port::Machine;
use objc2_foundation::{NSDictionary, NSNumber, NSString};

use crate::real::surface::{IoSurface, PROPERTIES, SurfaceApi};
use crate::real::system::System;

/// What an `IoSurface` points to here.
struct FakeSurface {
    references: AtomicUsize,
    is_locked: AtomicBool,
    /// A box, whose uses the port's locks keep apart.
    bytes: *mut [u8],
}

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Surfaces not yet freed.
pub(super) fn live_surfaces() -> usize {
    LIVE.load(Ordering::SeqCst)
}

/// The system that the tests run on.
pub(super) fn system() -> System {
    let machine = Machine { chip: "m4".to_owned(), os: "26.2".to_owned(), emulated: false };
    System { surfaces: surfaces(), machine }
}

pub(super) fn surfaces() -> SurfaceApi {
    let properties =
        PROPERTIES.map(|(name, _)| name.to_string_lossy().trim_start_matches('k').to_owned());
    SurfaceApi { create, lock, unlock, base_address, alloc_size, release, properties }
}

fn of<'a>(surface: *mut IoSurface) -> &'a FakeSurface {
    // SAFETY: surfaces come from `create`, and who calls holds a reference.
    unsafe { &*surface.cast::<FakeSurface>() }
}

/// Makes a surface of properties as the engine wants them, and none of others.
unsafe extern "C" fn create(properties: *const NSDictionary<NSString, NSNumber>) -> *mut IoSurface {
    // SAFETY: the caller's dictionary lives.
    let properties = unsafe { &*properties };
    let value = |name: &str| {
        properties.objectForKey(&NSString::from_str(name)).map(|value| value.as_usize())
    };
    let bytes = value("IOSurfaceAllocSize").unwrap_or(0);
    let plain = properties.count() == 6
        && bytes > 0
        && value("IOSurfaceWidth") == Some(bytes)
        && value("IOSurfaceBytesPerRow") == Some(bytes)
        && value("IOSurfaceHeight") == Some(1)
        && value("IOSurfaceBytesPerElement") == Some(1)
        && value("IOSurfacePixelFormat") == Some(0);
    if !plain {
        return std::ptr::null_mut();
    }
    LIVE.fetch_add(1, Ordering::SeqCst);
    // Not zeroed, because the port promises to do that.
    let surface = FakeSurface {
        references: AtomicUsize::new(1),
        is_locked: AtomicBool::new(false),
        bytes: Box::into_raw(vec![0xaa; bytes].into_boxed_slice()),
    };
    Box::into_raw(Box::new(surface)).cast()
}

unsafe extern "C" fn lock(surface: *mut IoSurface, _options: u32, _seed: *mut u32) -> i32 {
    i32::from(of(surface).is_locked.swap(true, Ordering::SeqCst))
}

unsafe extern "C" fn unlock(surface: *mut IoSurface, _options: u32, _seed: *mut u32) -> i32 {
    i32::from(!of(surface).is_locked.swap(false, Ordering::SeqCst))
}

/// Null while nobody has locked it.
unsafe extern "C" fn base_address(surface: *mut IoSurface) -> *mut c_void {
    let surface = of(surface);
    let locked = surface.is_locked.load(Ordering::SeqCst);
    if locked { surface.bytes.cast() } else { std::ptr::null_mut() }
}

unsafe extern "C" fn alloc_size(surface: *mut IoSurface) -> usize {
    of(surface).bytes.len()
}

unsafe extern "C" fn release(surface: *const c_void) {
    give_up(surface.cast_mut().cast());
}

/// A reference more, as a wrapper takes it.
pub(super) fn take(surface: *mut IoSurface) {
    of(surface).references.fetch_add(1, Ordering::SeqCst);
}

/// A reference less.
pub(super) fn give_up(surface: *mut IoSurface) {
    if of(surface).references.fetch_sub(1, Ordering::SeqCst) == 1 {
        // SAFETY: that was the last reference to the boxes of `create`.
        unsafe {
            drop(Box::from_raw(of(surface).bytes));
            drop(Box::from_raw(surface.cast::<FakeSurface>()));
        }
        LIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What the engine sees: the bytes, whoever has locked them.
pub(super) fn memory<'a>(surface: *mut IoSurface) -> &'a mut [u8] {
    // SAFETY: the box lives as long as the surface, and the port's locks keep uses apart.
    unsafe { &mut *of(surface).bytes }
}

/// Settings of an M4 Max.
pub(super) unsafe extern "C" fn sysctl(
    name: *const c_char,
    value: *mut c_void,
    size: *mut usize,
    _new: *mut c_void,
    _new_size: usize,
) -> c_int {
    // SAFETY: the name is a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let text: &[u8] = match name.to_bytes() {
        b"machdep.cpu.brand_string" => b"Apple M4 Max\0",
        b"kern.osproductversion" => b"26.2\0",
        _ => return -1,
    };
    // SAFETY: the caller gives a buffer and its size.
    unsafe {
        if *size < text.len() {
            return -1;
        }
        std::ptr::copy_nonoverlapping(text.as_ptr(), value.cast::<u8>(), text.len());
        *size = text.len();
    }
    0
}
