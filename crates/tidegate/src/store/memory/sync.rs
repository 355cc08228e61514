//! What threads meet over. Under `--cfg loom` it is loom's, so that a model checker can try every order of events.

#[cfg(not(loom))]
pub(super) use std::sync::{
    Mutex, MutexGuard, OnceLock,
    atomic::{AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub(super) use self::modelled::*;

/// Waits a moment for somebody who holds a cell. They are about to be done, unless the system took the processor from
/// them; after a while it is better to give ours to whoever needs it.
#[cfg(not(loom))]
pub(super) fn pause(turn: &mut u32) {
    *turn += 1;
    if turn.is_multiple_of(TURNS_BEFORE_YIELDING) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// How often a thread looks at a held cell before it lets others run.
#[cfg(not(loom))]
const TURNS_BEFORE_YIELDING: u32 = 64;
