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

/// Pauses before the next attempt, each time twice as long. Then the thread that was faster has several turns in a row with
/// its cache lines at hand. A lock is held for some instructions, unless its thread was descheduled: after a while the pause
/// yields the processor.
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

/// The turn after which the pause yields. The one before has 64 spins, some microseconds.
#[cfg(not(tidegate_loom))]
const LONGEST_PAUSE: u32 = 7;

#[cfg(tidegate_loom)]
pub(super) mod loom_sync;
