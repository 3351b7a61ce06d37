//! Files that programs are kept in.

pub mod blob;
