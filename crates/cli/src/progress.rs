//! Progress of downloads and loads, on standard error while it is a terminal.

use std::sync::Mutex;
use std::time::Duration;

use analysis::units::size;
use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// Shows downloads: a bar on a terminal, one line each elsewhere.
#[derive(Default)]
pub(crate) struct Downloads {
    bar: Mutex<Option<ProgressBar>>,
}

impl hub::Progress for Downloads {
    fn begin(&self, what: &str, total: Option<u64>) {
        let bar = ProgressBar::no_length();
        if let Some(total) = total {
            bar.set_length(total);
        }
        bar.set_style(style(if total.is_some() {
            "{msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}"
        } else {
            "{spinner} fetching {msg} {elapsed}"
        }));
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(100));
        if bar.is_hidden() {
            let total = total.map(|t| format!(" ({})", size(t))).unwrap_or_default();
            output::note(&format!("fetching {what}{total}"));
        }
        self.set(Some(bar));
    }

    fn advance(&self, bytes: u64) {
        if let Ok(bar) = self.bar.lock()
            && let Some(bar) = &*bar
        {
            bar.inc(bytes);
        }
    }

    fn end(&self) {
        self.set(None);
    }
}

impl Downloads {
    /// Puts `bar` in the place of the one before, which is cleared.
    fn set(&self, bar: Option<ProgressBar>) {
        if let Ok(mut place) = self.bar.lock()
            && let Some(old) = std::mem::replace(&mut *place, bar)
        {
            old.finish_and_clear();
        }
    }
}

/// Runs `work` while a spinner says `what`.
pub(crate) fn spin<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let bar = ProgressBar::new_spinner().with_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(100));
    let result = work();
    bar.finish_and_clear();
    result
}

/// A bar over `total` steps named `what`.
pub(crate) fn steps(what: &str, total: usize) -> ProgressBar {
    let bar = ProgressBar::new(total as u64).with_message(what.to_owned());
    bar.set_style(style("{msg} {wide_bar} {pos}/{len} {eta}"));
    bar
}

/// A line for a training run of `total` steps.
pub(crate) fn training(total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    bar.set_style(style("{pos}/{len} {wide_bar} {msg}  {eta}"));
    bar
}

/// A style by its template; the plain one should the library refuse it.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
