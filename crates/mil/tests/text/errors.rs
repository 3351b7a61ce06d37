//! Wrong texts: one clear error each, with its place; never a panic.
