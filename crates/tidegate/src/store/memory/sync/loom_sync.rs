//! Synchronization primitives for the loom models.
//!
//! Loom explores orders of dependent accesses and remembers only the last access of each atomic. If one thread loads an
//! atomic and another loads and stores it, loom 0.7.2 misses the order in which the store precedes the first load. A
//! seqlock is then never caught in a torn read. Here each atomic has two *marks*, one per thread. A load touches the
//! thread's own mark, and a store touches the other thread's mark. The touch is a compare-and-swap that always fails: it
//! orders and changes nothing, but makes the accesses dependent for loom. Therefore a model has two threads.

use std::sync::PoisonError;

pub(in super::super) use loom::sync::atomic::{Ordering, fence};
pub(in super::super) use loom::sync::{Mutex, MutexGuard, RwLock};

use loom::sync::atomic::AtomicU64 as Modelled;

loom::thread_local! {
    static SIDE: std::cell::Cell<usize> = std::cell::Cell::new(0);
}

/// The other thread of a model.
#[cfg(test)]
pub(in super::super) fn beside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> loom::thread::JoinHandle<T> {
    on_large_stack(move || {
        SIDE.with(|side| side.set(1));
        work()
    })
}

/// A thread of a model. An order needs more stack than loom gives.
#[cfg(test)]
pub(in super::super) fn on_large_stack<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> loom::thread::JoinHandle<T> {
    const WORDS: usize = 1 << 15;
    loom::thread::Builder::new().stack_size(WORDS).spawn(work).expect("loom has threads left")
}

/// Yields to the other thread.
pub(in super::super) fn pause(turn: &mut u32) {
    *turn += 1;
    loom::thread::yield_now();
}

/// A modelled word.
#[derive(Debug)]
pub(in super::super) struct AtomicU64 {
    word: Modelled,
    marks: [Modelled; 2],
}

impl AtomicU64 {
    pub(in super::super) fn new(word: u64) -> AtomicU64 {
        AtomicU64 { word: Modelled::new(word), marks: [Modelled::new(0), Modelled::new(0)] }
    }

    fn touch(&self, side: usize) {
        let touched = self.marks[side].compare_exchange(1, 1, Ordering::Relaxed, Ordering::Relaxed);
        assert!(touched.is_err(), "a mark is never set");
    }

    fn reads(&self) {
        self.touch(SIDE.with(std::cell::Cell::get));
    }

    fn writes(&self) {
        self.touch(1 - SIDE.with(std::cell::Cell::get));
    }

    pub(in super::super) fn load(&self, order: Ordering) -> u64 {
        self.reads();
        self.word.load(order)
    }

    pub(in super::super) fn store(&self, word: u64, order: Ordering) {
        self.writes();
        self.word.store(word, order);
    }

    pub(in super::super) fn compare_exchange(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.writes();
        self.word.compare_exchange(old, new, success, failure)
    }

    pub(in super::super) fn fetch_max(&self, word: u64, order: Ordering) -> u64 {
        self.writes();
        self.word.fetch_max(word, order)
    }

    pub(in super::super) fn fetch_add(&self, more: u64, order: Ordering) -> u64 {
        self.writes();
        self.word.fetch_add(more, order)
    }
}

/// A modelled half word.
#[derive(Debug)]
pub(in super::super) struct AtomicU32(AtomicU64);

impl AtomicU32 {
    pub(in super::super) fn new(half: u32) -> AtomicU32 {
        AtomicU32(AtomicU64::new(u64::from(half)))
    }

    pub(in super::super) fn load(&self, order: Ordering) -> u32 {
        u32::try_from(self.0.load(order)).expect("nothing else was stored")
    }

    pub(in super::super) fn store(&self, half: u32, order: Ordering) {
        self.0.store(u64::from(half), order);
    }

    pub(in super::super) fn compare_exchange(
        &self,
        old: u32,
        new: u32,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u32, u32> {
        let half = |word| u32::try_from(word).expect("nothing else was stored");
        self.0.compare_exchange(u64::from(old), u64::from(new), success, failure).map(half).map_err(half)
    }
}

/// The standard one, with its guarantee in loom's terms: a thread that finds the value sees all writes before it.
#[derive(Debug)]
pub(in super::super) struct OnceLock<T> {
    set: AtomicU64,
    setting: Mutex<()>,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    pub(in super::super) fn new() -> OnceLock<T> {
        OnceLock { set: AtomicU64::new(0), setting: Mutex::new(()), value: std::sync::OnceLock::new() }
    }

    /// The value, if it is visible to this thread.
    pub(in super::super) fn get(&self) -> Option<&T> {
        if self.set.load(Ordering::Acquire) == 0 { None } else { self.value.get() }
    }

    /// The value. Creates it if there is none.
    pub(in super::super) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _alone = self.setting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.value.get().is_none() {
            let made = make();
            self.value.get_or_init(|| made);
            self.set.store(1, Ordering::Release);
        }
        self.value.get().expect("it was set")
    }
}
