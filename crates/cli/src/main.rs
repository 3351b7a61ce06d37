//! The `rigel` command.
fn main() {}
