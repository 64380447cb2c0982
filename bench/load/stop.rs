//! An interrupt ends a load early, and what was measured until then is its result.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Of the process, as signals are.
static WANTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

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

pub fn is_wanted() -> bool {
    WANTED.load(Ordering::Relaxed)
}
