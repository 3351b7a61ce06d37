//! What the tests of this crate share: deterministic bytes, and where the shared files are.

use std::path::PathBuf;

/// `len` bytes that look random and are the same every time (an xorshift generator).
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// The folder `shared` beside the repository.
pub(crate) fn shared() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared")
}
