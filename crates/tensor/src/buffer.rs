//! Byte buffers: owned and aligned, or a window of a memory-mapped file.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use bytemuck::{AnyBitPattern, NoUninit, Zeroable};
use half::{bf16, f16};
use memmap2::{Mmap, MmapMut};

use crate::DType;

/// A Rust type that is the memory form of one [`DType`].
pub trait Element:
    AnyBitPattern + NoUninit + PartialEq + fmt::Debug + Send + Sync + 'static
{
    /// The data type whose elements look like `Self` in memory.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident,)*) => { $(impl Element for $ty { const DTYPE: DType = DType::$dtype; })* };
}
elements! {
    f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64,
}

/// One cache line; the unit of allocation, so that every buffer is fit for wide vector loads.
#[derive(Clone, Copy, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A zero-initialised, growable-never, 64-byte-aligned byte buffer.
pub struct AlignedBuf {
    memory: Memory,
    len: usize,
}

enum Memory {
    Lines(Vec<Line>),
    /// Large buffers in huge pages, where the system has them: a product of matrices that walks through
    /// columns else misses the processor's table of pages at every row.
    Pages(MmapMut),
}

/// Buffers from this size on are mapped.
const MAPPED: usize = 1 << 22;

impl AlignedBuf {
    /// `len` zero bytes. Pages are untouched until written, and huge where the buffer is: for what will be
    /// used as a whole.
    ///
    /// # Panics
    /// When there is not so much memory; see [`AlignedBuf::try_zeroed`].
    pub fn zeroed(len: usize) -> Self {
        match Self::pages(len, true) {
            Some(pages) => pages,
            None => {
                let lines = bytemuck::zeroed_vec(len.div_ceil(64));
                AlignedBuf { memory: Memory::Lines(lines), len }
            }
        }
    }

    /// As [`AlignedBuf::zeroed`], `None` when there is not so much memory: for lengths that a file or a
    /// user chose.
    pub fn try_zeroed(len: usize) -> Option<Self> {
        if let Some(pages) = Self::pages(len, true) {
            return Some(pages);
        }
        let lines = bytemuck::try_zeroed_vec(len.div_ceil(64)).ok()?;
        Some(AlignedBuf { memory: Memory::Lines(lines), len })
    }

    /// As [`AlignedBuf::try_zeroed`] in small pages, so that a large cache costs nothing before it is used.
    pub fn try_sparse(len: usize) -> Option<Self> {
        Self::pages(len, false).or_else(|| Self::try_zeroed(len))
    }

    /// A large buffer of its own pages; `None` if it is small or the system refuses.
    fn pages(len: usize, huge: bool) -> Option<Self> {
        let pages = (len >= MAPPED).then(|| MmapMut::map_anon(len).ok())??;
        // A hint: without huge pages the memory is as good, but slower.
        #[cfg(target_os = "linux")]
        let _ = pages.advise(match huge {
            true => memmap2::Advice::HugePage,
            false => memmap2::Advice::NoHugePage,
        });
        #[cfg(not(target_os = "linux"))]
        let _ = huge;
        Some(AlignedBuf { memory: Memory::Pages(pages), len })
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            // SAFETY: `lines` holds at least `len` initialised bytes without padding (`Line` is a plain
            // array), and `u8` has no alignment need.
            Memory::Lines(lines) => unsafe {
                std::slice::from_raw_parts(lines.as_ptr().cast(), self.len)
            },
            Memory::Pages(pages) => &pages[..self.len],
        }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            // SAFETY: as in `deref`; `&mut self` makes the view unique and every byte pattern is valid.
            Memory::Lines(lines) => unsafe {
                std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), self.len)
            },
            Memory::Pages(pages) => &mut pages[..self.len],
        }
    }
}

/// The few bytes of a scalar or a short vector, of which a program has very many: an allocation of
/// this size and alignment is much cheaper than one that is aligned for vectors.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Small([u8; SMALL]);

/// The most bytes that [`Small`] holds.
const SMALL: usize = 32;

#[derive(Clone)]
enum Owner {
    Small(Arc<Small>),
    Buf(Arc<AlignedBuf>),
    Map(Arc<Mmap>),
}

/// Immutable bytes that are cheap to clone and to cut: owned memory or a window of a mapped file.
#[derive(Clone)]
pub struct Bytes {
    owner: Owner,
    range: Range<usize>,
}

impl Bytes {
    /// Takes over an owned buffer.
    pub fn from_buf(buf: AlignedBuf) -> Self {
        let range = 0..buf.len;
        Bytes { owner: Owner::Buf(Arc::new(buf)), range }
    }

    /// Copies `bytes` into a buffer that is aligned for every element type, and to 64 bytes if there
    /// are more than 32.
    pub fn copy_from(bytes: &[u8]) -> Self {
        if bytes.len() <= SMALL {
            let mut small = Small([0; SMALL]);
            small.0[..bytes.len()].copy_from_slice(bytes);
            return Bytes { owner: Owner::Small(Arc::new(small)), range: 0..bytes.len() };
        }
        let mut buf = AlignedBuf::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        Bytes::from_buf(buf)
    }

    /// Maps a whole file into memory, without reading it. The file must not be changed while the
    /// bytes are in use.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn map(file: &File) -> io::Result<Self> {
        // SAFETY: the map is read-only and private to this process. Nobody can keep another process
        // from truncating the file meanwhile; as for every memory-mapping reader, that is
        // documented as forbidden to the user.
        let map = unsafe { Mmap::map(file) }?;
        let range = 0..map.len();
        Ok(Bytes { owner: Owner::Map(Arc::new(map)), range })
    }

    /// The whole buffer, if nothing else holds it; else the bytes again.
    ///
    /// # Errors
    /// As said.
    pub fn into_buf(self) -> Result<AlignedBuf, Self> {
        let range = self.range.clone();
        match self.owner {
            Owner::Buf(buf) if range == (0..buf.len) => {
                Arc::try_unwrap(buf).map_err(|buf| Bytes { owner: Owner::Buf(buf), range })
            }
            owner => Err(Bytes { owner, range }),
        }
    }

    /// The window `range` of these bytes; `None` if it does not lie inside.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.range.len() {
            return None;
        }
        let start = self.range.start + range.start;
        Some(Bytes { owner: self.owner.clone(), range: start..start + range.len() })
    }

    /// The bytes, to change. They are copied first if anything else refers to their memory or it is a file's,
    /// so that other holders keep what they saw.
    pub fn make_mut(&mut self) -> &mut [u8] {
        let own = match &mut self.owner {
            Owner::Small(small) => Arc::get_mut(small).is_some(),
            Owner::Buf(buf) => Arc::get_mut(buf).is_some(),
            Owner::Map(_) => false,
        };
        if !own {
            *self = Bytes::copy_from(self);
        }
        let range = self.range.clone();
        let bytes: Option<&mut [u8]> = match &mut self.owner {
            Owner::Small(small) => Arc::get_mut(small).map(|small| &mut small.0[range]),
            Owner::Buf(buf) => Arc::get_mut(buf).map(|buf| &mut buf[range]),
            Owner::Map(_) => None,
        };
        match bytes {
            Some(bytes) => bytes,
            None => unreachable!("what was copied has one owner"),
        }
    }

    /// Whether the bytes are a window of a mapped file.
    pub fn is_mapped(&self) -> bool {
        matches!(self.owner, Owner::Map(_))
    }

    /// Whether two values are the same window of the same memory (no bytes are compared).
    pub fn same_memory(&self, other: &Bytes) -> bool {
        std::ptr::eq(&**self, &**other)
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.owner {
            Owner::Small(small) => &small.0[self.range.clone()],
            Owner::Buf(buf) => &buf[self.range.clone()],
            Owner::Map(map) => &map[self.range.clone()],
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_mapped() { "mapped" } else { "owned" };
        write!(f, "Bytes({kind}, {} B)", self.range.len())
    }
}
