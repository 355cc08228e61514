//! Being told to stop in the middle: what was made is removed first. A second signal ends at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::Failure;

/// The exit code of a second signal.
const IMPATIENT: i32 = 1;

/// Whether somebody has said stop.
#[derive(Debug, Clone)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From here on SIGINT and SIGTERM are a wish and not an end.
    pub(super) fn listen() -> Result<Stop, Failure> {
        let asked = Arc::new(AtomicBool::new(false));
        let register = |signal| {
            // In this order: the first signal finds nothing asked, and then asks.
            signal_hook::flag::register_conditional_shutdown(signal, IMPATIENT, Arc::clone(&asked))?;
            signal_hook::flag::register(signal, Arc::clone(&asked))
        };
        for signal in [SIGINT, SIGTERM] {
            register(signal).map_err(|error| Failure::Failed(format!("cannot wait for signals: {error}")))?;
        }
        Ok(Stop(asked))
    }

    /// Whether somebody has.
    pub(super) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
