//! Ctrl-C: a first one asks the generation to end, a second one ends the program.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

/// Exit status of an interrupted program, as shells expect: 128 + SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// A flag that Ctrl-C sets. To be called once.
///
/// # Errors
/// When the system takes no handler.
pub(crate) fn flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let handled = flag.clone();
    ctrlc::set_handler(move || {
        if handled.swap(true, Ordering::Relaxed) {
            process::exit(INTERRUPTED.into());
        }
    })
    .context("cannot handle Ctrl-C")?;
    Ok(flag)
}
