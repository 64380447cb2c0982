//! An interrupt ends a load early, and what was measured until then is its result.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

/// Of the process, as signals are.
static WANTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Why something that runs was not gone on with.
pub const INTERRUPTED: &str = "interrupted";
/// Why a run has no result.
pub const TOO_EARLY: &str = "stopped before anything was measured";

/// From here on SIGINT and SIGTERM end the load that runs and all later ones; a second signal ends the process.
///
/// # Errors
/// If the signals cannot be caught.
pub fn on_signals() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag down.
        flag::register_conditional_default(signal, Arc::clone(&WANTED))?;
        flag::register(signal, Arc::clone(&WANTED))?;
    }
    Ok(())
}

/// As [`on_signals`], but a second signal first does what `clean_up` does: then the process ends with 128 and its number.
///
/// # Errors
/// If the signals cannot be caught.
pub fn on_signals_after(clean_up: fn()) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if WANTED.swap(true, Ordering::Relaxed) {
                clean_up();
                std::process::exit(128 + signal);
            }
        }
    });
    Ok(())
}

/// Sleeps so long, or until a signal comes.
pub fn sleep(long: Duration) {
    const LOOK: Duration = Duration::from_millis(50);
    let until = Instant::now() + long;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|_| !is_wanted()) {
        thread::sleep(left.min(LOOK));
    }
}

pub fn is_wanted() -> bool {
    WANTED.load(Ordering::Relaxed)
}
