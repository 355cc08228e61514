//! Being told to stop in the middle: what was made is removed first. A second signal ends at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::Failure;

/// The exit code of a second signal.
const SECOND_SIGNAL_CODE: i32 = 1;

/// Whether somebody has said stop.
#[derive(Debug, Clone)]
pub(super) struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// From here on SIGINT and SIGTERM are a wish and not an end.
    pub(super) fn listen() -> Result<StopSignal, Failure> {
        let requested = Arc::new(AtomicBool::new(false));
        let register = |signal| {
            // In this order: the first signal finds nothing asked, and then asks.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                SECOND_SIGNAL_CODE,
                Arc::clone(&requested),
            )?;
            signal_hook::flag::register(signal, Arc::clone(&requested))
        };
        for signal in [SIGINT, SIGTERM] {
            register(signal).map_err(|error| Failure::Failed(format!("cannot wait for signals: {error}")))?;
        }
        Ok(StopSignal(requested))
    }

    /// Whether somebody has.
    pub(super) fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
