//! A little-endian cursor whose every failure names the file and the offset.

use std::path::Path;

use crate::{ImportError, Result};

/// Reads forward through `bytes`, the contents of `file`.
pub(crate) struct Reader<'a> {
    pub(crate) file: &'a Path,
    bytes: &'a [u8],
    pos: usize,
}

macro_rules! scalars {
    ($($name:ident)*) => { $(
        pub(crate) fn $name(&mut self, what: &str) -> Result<$name> {
            Ok($name::from_le_bytes(self.array(what)?))
        }
    )* };
}

impl<'a> Reader<'a> {
    pub(crate) fn new(file: &'a Path, bytes: &'a [u8]) -> Self {
        Reader { file, bytes, pos: 0 }
    }

    pub(crate) fn pos(&self) -> usize {
        self.pos
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.pos
    }

    /// The next `len` bytes, which hold `what`.
    pub(crate) fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8]> {
        let left = self.remaining();
        match usize::try_from(len) {
            Ok(len) if len <= left => {
                let taken = &self.bytes[self.pos..self.pos + len];
                self.pos += len;
                Ok(taken)
            }
            _ => {
                Err(self
                    .invalid(format!("file ends inside {what}: {len} bytes needed, {left} left")))
            }
        }
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        Ok(self.take(N as u64, what)?.try_into().expect("take returns as many bytes as asked"))
    }

    scalars! { u8 u16 i8 i16 u32 i32 u64 i64 f32 f64 }

    /// An error at the current offset.
    pub(crate) fn invalid(&self, message: impl Into<String>) -> ImportError {
        ImportError::invalid(self.file, message).at(self.pos)
    }

    pub(crate) fn limit(&self, message: impl Into<String>) -> ImportError {
        ImportError::limit(self.file, message).at(self.pos)
    }
}
