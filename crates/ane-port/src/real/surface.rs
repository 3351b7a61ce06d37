//! Memory shared with the engine: the public IOSurface functions, and a surface with its wrapper.

use std::ffi::{CStr, c_void};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use exec::port::{PortError, PortResult, Verb};
use objc2::encode::{Encoding, RefEncode};
use objc2::rc::autoreleasepool;
use objc2::runtime::AnyObject;
use objc2_foundation::{NSDictionary, NSNumber, NSString};

use super::framework::Framework;
use super::object::Object;
use super::{Counters, library, nil};

/// `struct __IOSurface`, known by its address alone.
#[repr(C)]
pub(super) struct IoSurface {
    opaque: [u8; 0],
}

// SAFETY: `IOSurfaceRef` is a pointer to a structure of that name.
unsafe impl RefEncode for IoSurface {
    const ENCODING_REF: Encoding = Encoding::Pointer(&Encoding::Struct("__IOSurface", &[]));
}

/// What the port needs of IOSurface and CoreFoundation.
#[derive(Clone)]
pub(super) struct SurfaceApi {
    /// `IOSurfaceCreate`
    pub(super) create:
        unsafe extern "C" fn(*const NSDictionary<NSString, NSNumber>) -> *mut IoSurface,
    /// `IOSurfaceLock`, with options and a place for the seed.
    pub(super) lock: unsafe extern "C" fn(*mut IoSurface, u32, *mut u32) -> i32,
    /// `IOSurfaceUnlock`
    pub(super) unlock: unsafe extern "C" fn(*mut IoSurface, u32, *mut u32) -> i32,
    /// `IOSurfaceGetBaseAddress`
    pub(super) base_address: unsafe extern "C" fn(*mut IoSurface) -> *mut c_void,
    /// `IOSurfaceGetAllocSize`
    pub(super) alloc_size: unsafe extern "C" fn(*mut IoSurface) -> usize,
    /// `CFRelease`
    pub(super) release: unsafe extern "C" fn(*const c_void),
    /// What the variables of [`PROPERTIES`] say.
    pub(super) properties: [String; 6],
}

/// A variable, and the value of the property that it names.
type Property = (&'static CStr, fn(usize) -> usize);

/// The variables that hold the names of a surface's properties, and their values for `bytes` of plain memory.
pub(super) const PROPERTIES: [Property; 6] = [
    (c"kIOSurfaceWidth", |bytes| bytes),
    (c"kIOSurfaceHeight", |_| 1),
    (c"kIOSurfaceBytesPerElement", |_| 1),
    (c"kIOSurfaceBytesPerRow", |bytes| bytes),
    (c"kIOSurfaceAllocSize", |bytes| bytes),
    (c"kIOSurfacePixelFormat", |_| 0),
];

impl SurfaceApi {
    /// Finds the functions in the frameworks at these paths.
    pub(super) fn load(io_surface: &Path, core_foundation: &Path) -> PortResult<Self> {
        let surface = library::open(io_surface)?;
        let foundation = library::open(core_foundation)?;
        let mut properties: [String; 6] = Default::default();
        for (property, (name, _)) in properties.iter_mut().zip(PROPERTIES) {
            // SAFETY: it is a variable of type `CFStringRef`, which is an `NSString *`, set when the library is.
            *property = unsafe {
                let variable: *const *const NSString = library::symbol(surface, name)?;
                autoreleasepool(|_| (**variable).to_string())
            };
        }
        // SAFETY: these functions are public and of these types.
        unsafe {
            Ok(SurfaceApi {
                create: library::symbol(surface, c"IOSurfaceCreate")?,
                lock: library::symbol(surface, c"IOSurfaceLock")?,
                unlock: library::symbol(surface, c"IOSurfaceUnlock")?,
                base_address: library::symbol(surface, c"IOSurfaceGetBaseAddress")?,
                alloc_size: library::symbol(surface, c"IOSurfaceGetAllocSize")?,
                release: library::symbol(foundation, c"CFRelease")?,
                properties,
            })
        }
    }
}

/// A surface of the port: `_ANEIOSurfaceObject` with its `IOSurface`.
pub struct Surface(Arc<Memory>);

struct Memory {
    wrapper: Object,
    raw: Raw,
    bytes: usize,
    /// Held alone by who reads or writes the bytes, shared by evaluations that read them.
    gate: RwLock<()>,
    counters: Arc<Counters>,
}

/// A counted reference to an `IOSurface`.
struct Raw {
    surface: NonNull<IoSurface>,
    api: SurfaceApi,
}

// SAFETY: IOSurface's functions may be called from any thread; access to the bytes is kept apart by `Memory::gate`.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: it came from a function that creates, and nobody uses it after this.
        unsafe { (self.api.release)(self.surface.as_ptr().cast()) };
    }
}

impl Surface {
    /// `bytes` zeroed bytes.
    pub(super) fn new(
        framework: &Framework,
        api: &SurfaceApi,
        bytes: usize,
        counters: &Arc<Counters>,
    ) -> PortResult<Self> {
        autoreleasepool(|_| {
            let raw = Raw::new(api, bytes)?;
            let wrap = &framework.wrap;
            // SAFETY: the receiver is the class whose method this is, and the surface lives.
            let wrapper = Object::new(unsafe {
                wrap.send(framework.wrappers.as_ref(), (raw.surface.as_ptr(),))
            });
            let wrapper = wrapper.ok_or_else(|| nil(Verb::Surface, wrap.selector()))?;
            counters.surfaces.fetch_add(1, Ordering::Relaxed);
            counters.surface_bytes.fetch_add(bytes, Ordering::Relaxed);
            let counters = Arc::clone(counters);
            let surface = Surface(Arc::new(Memory {
                wrapper,
                raw,
                bytes,
                gate: RwLock::default(),
                counters,
            }));
            surface.access(&mut |memory| memory.fill(0))?;
            Ok(surface)
        })
    }

    /// What requests take.
    pub(super) fn wrapper(&self) -> &AnyObject {
        &self.0.wrapper
    }

    /// Shows the bytes between lock and unlock.
    pub(super) fn access(&self, access: &mut dyn FnMut(&mut [u8])) -> PortResult<()> {
        let _alone = self.0.gate.write().unwrap_or_else(PoisonError::into_inner);
        let mut locked = Locked::new(&self.0.raw)?;
        access(locked.bytes(self.0.bytes)?);
        locked.unlock()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.counters.surfaces.fetch_sub(1, Ordering::Relaxed);
        self.counters.surface_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Raw {
    fn new(api: &SurfaceApi, bytes: usize) -> PortResult<Self> {
        let keys: Vec<_> = api.properties.iter().map(|name| NSString::from_str(name)).collect();
        let values: Vec<_> =
            PROPERTIES.iter().map(|(_, value)| NSNumber::new_usize(value(bytes))).collect();
        let keys: Vec<&NSString> = keys.iter().map(|key| &**key).collect();
        let values: Vec<&NSNumber> = values.iter().map(|value| &**value).collect();
        let properties = NSDictionary::from_slices(&keys, &values);
        // SAFETY: the dictionary is a `CFDictionaryRef` too, and lives.
        let surface = NonNull::new(unsafe { (api.create)(&raw const *properties) });
        let surface = surface.ok_or_else(|| PortError {
            verb: Verb::Surface,
            status: None,
            message: format!("IOSurfaceCreate returned nothing for {bytes} bytes"),
            reason: None,
        })?;
        Ok(Raw { surface, api: api.clone() })
    }
}

/// A surface that the processor may read and write.
struct Locked<'a> {
    raw: &'a Raw,
    done: bool,
}

impl<'a> Locked<'a> {
    fn new(raw: &'a Raw) -> PortResult<Self> {
        // SAFETY: the surface lives, and no seed is asked for.
        let status = unsafe { (raw.api.lock)(raw.surface.as_ptr(), 0, ptr::null_mut()) };
        outcome("IOSurfaceLock", status)?;
        Ok(Locked { raw, done: false })
    }

    fn bytes(&mut self, count: usize) -> PortResult<&mut [u8]> {
        let (raw, api) = (self.raw.surface.as_ptr(), &self.raw.api);
        // SAFETY: the surface lives.
        let (base, size) = unsafe { ((api.base_address)(raw), (api.alloc_size)(raw)) };
        if base.is_null() || size < count {
            let message = format!("a surface of {count} bytes has {size} at {base:p}");
            return Err(PortError { verb: Verb::Access, status: None, message, reason: None });
        }
        // SAFETY: there are that many bytes as long as the surface is locked; who is here is alone.
        Ok(unsafe { std::slice::from_raw_parts_mut(base.cast(), count) })
    }

    fn unlock(mut self) -> PortResult<()> {
        self.done = true;
        outcome("IOSurfaceUnlock", self.give_back())
    }

    fn give_back(&self) -> i32 {
        // SAFETY: the surface lives and is locked.
        unsafe { (self.raw.api.unlock)(self.raw.surface.as_ptr(), 0, ptr::null_mut()) }
    }
}

impl Drop for Locked<'_> {
    /// Where the caller's code panicked or the bytes were not there.
    fn drop(&mut self) {
        if !self.done {
            self.give_back();
        }
    }
}

fn outcome(function: &str, status: i32) -> PortResult<()> {
    if status == 0 {
        return Ok(());
    }
    let message = format!("{function} failed with {status:#x}");
    Err(PortError { verb: Verb::Access, status: Some(status.into()), message, reason: None })
}

/// What an evaluation does to a surface.
pub(super) struct Claim {
    memory: Arc<Memory>,
    writes: bool,
}

/// A claim while the evaluation runs.
pub(super) enum Held<'a> {
    Shared { _guard: RwLockReadGuard<'a, ()> },
    Alone { _guard: RwLockWriteGuard<'a, ()> },
}

impl Claim {
    /// One claim for each surface, in an order that all requests share, so that they do not wait in a circle.
    pub(super) fn all(inputs: &[&Surface], outputs: &[&Surface]) -> Vec<Self> {
        let claim =
            |writes| move |surface: &&Surface| Claim { memory: Arc::clone(&surface.0), writes };
        let mut claims: Vec<Claim> =
            outputs.iter().map(claim(true)).chain(inputs.iter().map(claim(false))).collect();
        // Outputs come first and the sort is stable, so the first of equals is the one that writes.
        claims.sort_by_key(|claim| Arc::as_ptr(&claim.memory).addr());
        claims.dedup_by(|later, kept| Arc::ptr_eq(&later.memory, &kept.memory));
        claims
    }

    pub(super) fn hold(&self) -> Held<'_> {
        let gate = &self.memory.gate;
        if self.writes {
            Held::Alone { _guard: gate.write().unwrap_or_else(PoisonError::into_inner) }
        } else {
            Held::Shared { _guard: gate.read().unwrap_or_else(PoisonError::into_inner) }
        }
    }
}
