//! Repository chores, run as `cargo xtask NAME`.

mod graph;
mod tidy;

use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy::run(),
        _ => {
            eprintln!("usage: cargo xtask tidy");
            Ok(ExitCode::from(2))
        }
    }
}
