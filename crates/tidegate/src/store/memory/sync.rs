//! Synchronization primitives: std's, or loom's under `--cfg tidegate_loom`.
//!
//! The cfg has its own name because tokio changes under `--cfg loom`.

#[cfg(not(tidegate_loom))]
pub(super) use std::sync::{
    Mutex, MutexGuard, OnceLock, RwLock,
    atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(tidegate_loom)]
pub(super) use self::loom_sync::{
    AtomicU32, AtomicU64, Mutex, MutexGuard, OnceLock, Ordering, RwLock, fence, pause,
};

/// Waits a moment for somebody who holds a cell, or was faster. Each time for twice as long: those who get on then do so several times
/// in a row, with everything they need near, where all would otherwise be busy taking it from each other. Whoever holds something is
/// about to be done, unless the system took the processor from them; after a while it is better to give ours to whoever needs it.
#[cfg(not(tidegate_loom))]
pub(super) fn pause(turn: &mut u32) {
    *turn += 1;
    if *turn > LONGEST_PAUSE {
        std::thread::yield_now();
        return;
    }
    for _ in 0..1 << (*turn - 1) {
        std::hint::spin_loop();
    }
}

/// The turn after which others are let run. The pause before is of 64 moments, some microseconds.
#[cfg(not(tidegate_loom))]
const LONGEST_PAUSE: u32 = 7;

#[cfg(tidegate_loom)]
pub(super) mod loom_sync;
