//! SIGINT and SIGTERM: the first one asks an answer that is being generated to end; any other ends the program,
//! without what it has in the temporary folder.

use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::scratch;

/// Exit status of a program that a signal ended is this and the signal's number, as shells have it.
const SIGNALLED: i32 = 128;

/// The last signal.
static SIGNAL: AtomicI32 = AtomicI32::new(SIGINT);

/// The flag of what ends when it is asked to.
static ASKED: Mutex<Option<Arc<AtomicBool>>> = Mutex::new(None);

/// Handles signals from now on.
///
/// # Errors
/// When the system takes no handler.
pub(crate) fn handle() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot handle signals")?;
    let handler = move || {
        for signal in signals.forever() {
            SIGNAL.store(signal, Ordering::Relaxed);
            let first = asked().as_ref().is_some_and(|flag| !flag.swap(true, Ordering::Relaxed));
            if !first {
                end(signal);
            }
        }
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(handler)
        .context("cannot handle signals")?;
    Ok(())
}

/// Exit status after a signal was heeded.
pub(crate) fn status() -> ExitCode {
    let status = SIGNALLED + SIGNAL.load(Ordering::Relaxed);
    u8::try_from(status).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// A flag that the next signal sets instead of ending the program, as long as this lives.
pub(crate) struct Heeded(Arc<AtomicBool>);

impl Heeded {
    pub(crate) fn new() -> Self {
        let flag = Arc::new(AtomicBool::new(false));
        *asked() = Some(flag.clone());
        Heeded(flag)
    }

    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Ends the program if there was a signal.
    pub(crate) fn act(self) {
        let flag = self.flag();
        // From here on another one ends it by itself, so none is lost.
        drop(self);
        if flag.load(Ordering::Relaxed) {
            end(SIGNAL.load(Ordering::Relaxed));
        }
    }
}

/// Does `work`, which writes something whole or not at all: a signal ends the program after it, another one at once.
pub(crate) fn after<T>(work: impl FnOnce() -> T) -> T {
    let heeded = Heeded::new();
    let done = work();
    heeded.act();
    done
}

/// Ends the program for a signal.
fn end(signal: i32) -> ! {
    // Another thread that fails for what is removed beneath it is to say nothing, and not to end first.
    let _held = scratch::remove_last();
    process::exit(SIGNALLED + signal)
}

impl Drop for Heeded {
    fn drop(&mut self) {
        *asked() = None;
    }
}

fn asked() -> MutexGuard<'static, Option<Arc<AtomicBool>>> {
    ASKED.lock().unwrap_or_else(PoisonError::into_inner)
}
