//! SIGINT and SIGTERM during a load test. The first asks for an orderly end, in which test limits are deleted. The
//! second exits at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::Failure;

/// Exit code after a second signal.
const SECOND_SIGNAL_CODE: i32 = 1;

/// Whether a signal has arrived.
#[derive(Debug, Clone)]
pub(super) struct BenchStopSignal(Arc<AtomicBool>);

impl BenchStopSignal {
    /// Installs the signal handlers.
    pub(super) fn listen() -> Result<BenchStopSignal, Failure> {
        let requested = Arc::new(AtomicBool::new(false));
        let register = |signal| {
            // Order matters: on the first signal the flag is still false, so it is set and the process goes on.
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
        Ok(BenchStopSignal(requested))
    }

    /// Whether a stop was requested.
    pub(super) fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
