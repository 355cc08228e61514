//! The wait queues: the waiters of each row, in order of arrival.
//!
//! A waiter has an id and stands in the queue of every row of its asks. It is *first* if no waiter with a lower id
//! stands in any of these queues. Only then does it send its own order to the store. The queues decide and grant
//! nothing; they wake waiters. Ids come from one counter, so the lowest id is first everywhere and waiters cannot
//! deadlock.
//! ```text
//!   row of all keys   ─▶  7   9  12          9 waits behind 7 for what all keys share,
//!   row of ada        ─▶  7                  12 behind 9,
//!   row of bob        ─▶  9   12             and both are bob's
//! ```
//!
//! There is one exception. A waiter blocked on the row of its own key cannot use what all keys share, and one key could
//! otherwise stop a whole limit. Such a waiter leaves the queues of the shared rows and keeps its id. When its own row
//! is called, it returns to its old position. It does not starve: no waiter passes it in the row of its key.
//!
//! Over a remote store the id is taken when the first order is sent. A waiter that asked sooner therefore comes first,
//! even if its reply arrives later.
//!
//! Each waiter sends its own order, so it must be polled or dropped. A waiter that is never polled keeps its position,
//! and the waiters behind it wait until their deadlines.
//!
//! One lock guards the queues. No store call and no wake happens under it. A row is identified by a keyed 64-bit hash:
//! on a collision two rows share one queue, which delays waiters and has no other effect.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::Waker;

use hashbrown::HashMap;
use tidegate_core::{Ask, LeaseId, Limit, Mode, Per};

use super::holder_clock::HolderInstant;

/// The identity of a row in the wait queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RowId(u64);

/// The kind of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum RowKind {
    /// The row that all keys of a limit share.
    All,
    /// The row of one key.
    Key,
    /// The room for new keys of a limit with `max_keys`. Only waiters that it refused stand here.
    Capacity,
}

/// A row of a request, and the index of the ask that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueuePosition {
    pub(super) row: RowId,
    pub(super) kind: RowKind,
    pub(super) ask: usize,
}

/// The position of a waiter in all queues: lower is earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct WaiterId(u64);

/// The reason of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Call {
    /// The waiter may be served.
    Ask,
    /// A limit of the waiter was edited: its rows may have changed.
    LimitEdited,
}

/// The result of [`WaitQueues::take_turn`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    /// The call since the last turn, if there was one.
    pub(super) call: Option<Call>,
    /// Whether another waiter comes first.
    pub(super) standing: QueueStanding,
}

/// Whether another waiter comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueueStanding {
    /// No other waiter comes first.
    First,
    /// Another waiter comes first.
    Behind,
}

/// The bounds of the wait queues.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitBounds {
    pub(super) in_all: usize,
    pub(super) per_row: usize,
}

/// The waiters of one limiter.
#[derive(Debug)]
pub(super) struct WaitQueues {
    bounds: WaitBounds,
    hasher: RandomState,
    /// The number of waiters. While it is zero, requests that do not wait read nothing else.
    total: AtomicUsize,
    by_limit: RwLock<HashMap<Box<str>, Arc<AtomicUsize>>>,
    state: Mutex<QueueState>,
}

/// The state behind the lock.
#[derive(Debug, Default)]
struct QueueState {
    last_id: u64,
    waiters: HashMap<WaiterId, Waiter>,
    queues: HashMap<RowId, RowQueue>,
    /// The open holds of this process at each row, and their deadlines: settling one may give units back.
    holds: HashMap<RowId, HashMap<LeaseId, HolderInstant>>,
    /// The wakers to call after the lock is released.
    to_wake: Vec<Waker>,
}

/// The waiters of one row.
#[derive(Debug, Default)]
struct RowQueue {
    /// The number of waiters, including those that left the row for now.
    members: usize,
    standing: BTreeSet<WaiterId>,
}

#[derive(Debug)]
struct Waiter {
    positions: Vec<QueuePosition>,
    limits: Vec<Box<str>>,
    waker: Option<Waker>,
    call: Option<Call>,
    /// The kind of row that refused the last order, unless the waiter was called since.
    blocked_by: Option<RowKind>,
}

impl WaitQueues {
    pub(super) fn new(bounds: WaitBounds) -> WaitQueues {
        WaitQueues {
            bounds,
            hasher: RandomState::new(),
            total: AtomicUsize::new(0),
            by_limit: RwLock::default(),
            state: Mutex::default(),
        }
    }

    /// Whether there are no waiters.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.total.load(Ordering::Relaxed) == 0
    }

    /// The number of waiters.
    pub(super) fn len(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// The number of waiters for a limit.
    pub(super) fn len_of(&self, limit_id: &str) -> usize {
        let counts = self.by_limit.read().unwrap_or_else(PoisonError::into_inner);
        counts.get(limit_id).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// The row of a limit, of this kind, for this key.
    pub(super) fn row(&self, limit_id: &str, kind: RowKind, key: Option<&[u8]>) -> RowId {
        RowId(self.hasher.hash_one((kind, limit_id, key)))
    }

    /// The rows that one ask may have taken units from.
    pub(super) fn rows_of(&self, ask: &Ask<'_>) -> impl Iterator<Item = RowId> {
        [(RowKind::All, None), (RowKind::Key, ask.key), (RowKind::Capacity, None)]
            .map(|(kind, key)| self.row(ask.limit_id, kind, key))
            .into_iter()
    }

    /// Adds the queue positions of one ask. A limit that is not enforced has no queues.
    pub(super) fn positions(
        &self,
        index: usize,
        ask: &Ask<'_>,
        limit: &Limit,
        positions: &mut Vec<QueuePosition>,
    ) {
        if limit.mode() != Mode::Enforce {
            return;
        }
        let mut add = |kind: RowKind, key: Option<&[u8]>| {
            let position = QueuePosition { row: self.row(ask.limit_id, kind, key), kind, ask: index };
            if positions.iter().all(|other| other.row != position.row) {
                positions.push(position);
            }
        };
        if limit.items().iter().any(|item| item.per() == Per::All) {
            add(RowKind::All, None);
        }
        if limit.needs_key() && ask.key.is_some() {
            add(RowKind::Key, ask.key);
            if limit.spec().max_keys.is_some() {
                add(RowKind::Capacity, None);
            }
        }
    }

    /// The first of these positions at which another waiter stands, with an id before `before`.
    pub(super) fn contested(
        &self,
        positions: &[QueuePosition],
        before: Option<WaiterId>,
    ) -> Option<QueuePosition> {
        self.with_state(|state| {
            positions.iter().copied().find(|position| state.is_contested(*position, before))
        })
    }

    /// Takes the next id, for a waiter that may join after its first reply.
    pub(super) fn next_id(&self) -> WaiterId {
        self.with_state(QueueState::next_id)
    }

    /// Joins the queues of these rows, with this id or the next one. Returns `None` if a queue is full. A new waiter is
    /// called at once.
    pub(super) fn join(
        &self,
        id: Option<WaiterId>,
        positions: Vec<QueuePosition>,
        mut limits: Vec<Box<str>>,
    ) -> Option<WaiterId> {
        limits.sort_unstable();
        limits.dedup();
        self.with_state(|state| {
            let members =
                |position: &QueuePosition| state.queues.get(&position.row).map_or(0, |queue| queue.members);
            if state.waiters.len() >= self.bounds.in_all
                || positions.iter().any(|position| members(position) >= self.bounds.per_row)
            {
                return None;
            }
            let id = id.unwrap_or_else(|| state.next_id());
            self.count(&limits, |count| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            self.total.fetch_add(1, Ordering::Relaxed);
            let waiter = Waiter {
                positions: Vec::new(),
                limits,
                waker: None,
                call: Some(Call::Ask),
                blocked_by: None,
            };
            state.waiters.insert(id, waiter);
            state.enter_rows(id, positions);
            // Pairs with the fence in `wake_rows`: either it sees this waiter, or this waiter sees what was given back.
            fence(Ordering::SeqCst);
            Some(id)
        })
    }

    /// Takes the call of a waiter and returns its standing. `timer` is a call by its timer. The waker is for the next
    /// call.
    pub(super) fn take_turn(&self, id: WaiterId, timer: Option<Call>, waker: &Waker) -> Turn {
        self.with_state(|state| {
            let Some(waiter) = state.waiters.get_mut(&id) else {
                return Turn { call: None, standing: QueueStanding::Behind };
            };
            let call = waiter.call.take().max(timer);
            match &mut waiter.waker {
                Some(known) => known.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
            if call.is_some() {
                waiter.blocked_by = None;
                state.update_standing(id);
            }
            Turn { call, standing: state.standing(id) }
        })
    }

    /// Whether there is a call that was not taken; if not, the waker is for the next one.
    pub(super) fn is_called(&self, id: WaiterId, waker: &Waker) -> bool {
        self.with_state(|state| {
            let Some(waiter) = state.waiters.get_mut(&id) else { return false };
            waiter.waker = Some(waker.clone());
            waiter.call.is_some()
        })
    }

    /// Moves a waiter to other rows; it keeps its id.
    pub(super) fn move_to(&self, id: WaiterId, positions: Vec<QueuePosition>) -> QueueStanding {
        self.with_state(|state| {
            state.leave_rows(id);
            state.enter_rows(id, positions);
            state.standing(id)
        })
    }

    /// Records the kind of row that refused a waiter. A waiter blocked on its own key leaves the shared rows.
    pub(super) fn set_blocked_by(&self, id: WaiterId, by: RowKind) {
        self.with_state(|state| {
            // A waiter that was called meanwhile asks again and keeps its standing.
            if let Some(waiter) = state.waiters.get_mut(&id).filter(|waiter| waiter.call.is_none()) {
                waiter.blocked_by = Some(by);
                state.update_standing(id);
            }
        });
    }

    /// Removes a waiter from all queues.
    pub(super) fn leave(&self, id: WaiterId) {
        self.with_state(|state| {
            state.leave_rows(id);
            if let Some(waiter) = state.waiters.remove(&id) {
                self.total.fetch_sub(1, Ordering::Relaxed);
                self.count(&waiter.limits, |count| {
                    count.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
    }

    /// Calls the first waiters of these rows, because units were given back.
    pub(super) fn wake_rows(&self, rows: impl IntoIterator<Item = RowId>) {
        fence(Ordering::SeqCst);
        if !self.is_empty() {
            self.with_state(|state| rows.into_iter().for_each(|row| state.call_first(row)));
        }
    }

    /// Calls the first waiters of all rows, because units were given back at unknown rows.
    pub(super) fn wake_all(&self) {
        fence(Ordering::SeqCst);
        if !self.is_empty() {
            self.with_state(|state| {
                let rows: Vec<RowId> = state.queues.keys().copied().collect();
                for row in rows {
                    state.call_first(row);
                }
            });
        }
    }

    /// Calls all waiters of a limit.
    pub(super) fn wake_limit(&self, limit_id: &str, call: Call) {
        fence(Ordering::SeqCst);
        if !self.is_empty() {
            self.with_state(|state| {
                let mut called: Vec<WaiterId> = state.waiters_of(limit_id).collect();
                called.sort_unstable();
                for id in called {
                    state.call(id, call);
                }
            });
        }
    }

    /// Records an open hold at these rows and its deadline.
    pub(super) fn open_hold(&self, rows: &[RowId], id: LeaseId, until: HolderInstant) {
        self.with_state(|state| {
            for row in rows {
                state.holds.entry(*row).or_default().insert(id, until);
            }
        });
    }

    /// Moves the deadline of a hold, unless it was closed.
    pub(super) fn move_hold(&self, rows: &[RowId], id: LeaseId, until: HolderInstant) {
        self.with_state(|state| {
            for row in rows {
                if let Some(known) = state.holds.get_mut(row).and_then(|holds| holds.get_mut(&id)) {
                    *known = until;
                }
            }
        });
    }

    /// Removes a hold that is not settled here any more.
    pub(super) fn close_hold(&self, rows: &[RowId], id: LeaseId) {
        self.with_state(|state| {
            for row in rows {
                if let Some(holds) = state.holds.get_mut(row) {
                    holds.remove(&id);
                    if holds.is_empty() {
                        state.holds.remove(row);
                    }
                }
            }
        });
    }

    /// The latest deadline of the open holds at these positions; `None` if there are none. Expired holds are removed.
    pub(super) fn settleable_until(
        &self,
        positions: &[QueuePosition],
        now: HolderInstant,
    ) -> Option<HolderInstant> {
        self.with_state(|state| {
            let rows = positions.iter().filter_map(|position| {
                let holds = state.holds.get_mut(&position.row)?;
                holds.retain(|_, until| *until > now);
                let last = holds.values().max().copied();
                if last.is_none() {
                    state.holds.remove(&position.row);
                }
                last
            });
            rows.max()
        })
    }

    /// Runs `act` under the lock, then wakes the called waiters.
    fn with_state<T>(&self, act: impl FnOnce(&mut QueueState) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let done = act(&mut state);
        let to_wake = std::mem::take(&mut state.to_wake);
        drop(state);
        to_wake.into_iter().for_each(Waker::wake);
        done
    }

    /// Changes the count of every limit. Limits without waiters are removed.
    fn count(&self, limits: &[Box<str>], change: impl Fn(&AtomicUsize)) {
        for id in limits {
            let known = self.by_limit.read().unwrap_or_else(PoisonError::into_inner).get(id).map(Arc::clone);
            if let Some(count) = known {
                change(&count);
                continue;
            }
            let mut counts = self.by_limit.write().unwrap_or_else(PoisonError::into_inner);
            counts.retain(|_, count| count.load(Ordering::Relaxed) > 0);
            change(counts.entry(id.clone()).or_default());
        }
    }
}

impl QueueState {
    fn next_id(&mut self) -> WaiterId {
        self.last_id += 1;
        WaiterId(self.last_id)
    }

    fn is_contested(&self, position: QueuePosition, before: Option<WaiterId>) -> bool {
        let first = self.queues.get(&position.row).and_then(|queue| queue.standing.first());
        position.kind != RowKind::Capacity && first.is_some_and(|first| before.is_none_or(|id| *first < id))
    }

    /// Whether another waiter comes before this one.
    fn standing(&self, id: WaiterId) -> QueueStanding {
        let behind =
            |waiter: &Waiter| waiter.positions.iter().any(|position| self.is_contested(*position, Some(id)));
        if self.waiters.get(&id).is_none_or(behind) { QueueStanding::Behind } else { QueueStanding::First }
    }

    /// Enters the queues of these rows.
    fn enter_rows(&mut self, id: WaiterId, positions: Vec<QueuePosition>) {
        for position in &positions {
            let queue = self.queues.entry(position.row).or_default();
            queue.members += 1;
            if position.kind == RowKind::Key {
                queue.standing.insert(id);
            }
        }
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.positions = positions;
        }
        self.update_standing(id);
    }

    /// Leaves all queues; the next waiters move up.
    fn leave_rows(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        for position in std::mem::take(&mut waiter.positions) {
            self.leave_row(position.row, id);
            if let Some(queue) = self.queues.get_mut(&position.row) {
                queue.members -= 1;
                if queue.members == 0 {
                    self.queues.remove(&position.row);
                }
            }
        }
    }

    /// Updates the rows at which a waiter stands.
    fn update_standing(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        let blocked_by = waiter.blocked_by;
        let positions = waiter.positions.clone();
        let mut keys = positions.iter().filter(|position| position.kind == RowKind::Key);
        let stands_at_shared = blocked_by.is_none_or(|kind| kind == RowKind::All)
            && keys.all(|position| !self.is_contested(*position, Some(id)));
        for position in positions {
            let is_standing = match (position.kind, blocked_by) {
                // A waiter that is called to check for room keeps its position until it has checked.
                (RowKind::Key, _) | (RowKind::Capacity, None) => continue,
                (RowKind::All, _) => stands_at_shared,
                (RowKind::Capacity, Some(by)) => by == RowKind::Capacity,
            };
            if !is_standing {
                self.leave_row(position.row, id);
            } else if let Some(queue) = self.queues.get_mut(&position.row) {
                queue.standing.insert(id);
            }
        }
    }

    /// Leaves the standing of a row. If the waiter was first, the next one is called.
    fn leave_row(&mut self, row: RowId, id: WaiterId) {
        let Some(queue) = self.queues.get_mut(&row) else { return };
        let was_first = queue.standing.first() == Some(&id);
        if queue.standing.remove(&id) && was_first {
            self.call_first(row);
        }
    }

    /// Calls the first waiter of a row.
    fn call_first(&mut self, row: RowId) {
        if let Some(&first) = self.queues.get(&row).and_then(|queue| queue.standing.first()) {
            self.call(first, Call::Ask);
        }
    }

    fn call(&mut self, id: WaiterId, call: Call) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        waiter.call = waiter.call.max(Some(call));
        waiter.blocked_by = None;
        let waker = waiter.waker.take();
        self.to_wake.extend(waker);
        self.update_standing(id);
    }

    fn waiters_of(&self, limit_id: &str) -> impl Iterator<Item = WaiterId> {
        let asks_for = |waiter: &Waiter| waiter.limits.iter().any(|id| **id == *limit_id);
        self.waiters.iter().filter(move |(_, waiter)| asks_for(waiter)).map(|(id, _)| *id)
    }
}
