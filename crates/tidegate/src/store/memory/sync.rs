//! What threads meet over. Under `--cfg tidegate_loom` it is loom's, so that a model checker can try every order of events.
//!
//! The name is our own, because tokio changes under `--cfg loom`.

#[cfg(not(tidegate_loom))]
pub(super) use std::sync::{
    Mutex, MutexGuard, OnceLock, RwLock,
    atomic::{AtomicU64, Ordering, fence},
};

#[cfg(tidegate_loom)]
pub(super) use self::modelled::{AtomicU64, Mutex, MutexGuard, OnceLock, Ordering, RwLock, fence, pause};

/// Waits a moment for somebody who holds a cell. They are about to be done, unless the system took the processor from
/// them; after a while it is better to give ours to whoever needs it.
#[cfg(not(tidegate_loom))]
pub(super) fn pause(turn: &mut u32) {
    *turn += 1;
    if turn.is_multiple_of(TURNS_BEFORE_YIELDING) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// How often a thread looks at a held cell before it lets others run.
#[cfg(not(tidegate_loom))]
const TURNS_BEFORE_YIELDING: u32 = 64;

#[cfg(tidegate_loom)]
pub(super) mod modelled;
