//! The queues: who waits for which rows, in which order.
//!
//! Whoever waits draws a id and stands in the queue of every row they ask. They are *first* when nobody with a lower
//! id stands in any of these queues; only then do they put their order to the store, and they do that themselves. The
//! queues decide nothing and grant nothing: they call somebody who may now be served, and that is all. Tickets are drawn
//! from one roll, so the lowest of all is always first everywhere, and no two can block each other.
//!
//! ```text
//!   row of all keys   ─▶  7   9  12          9 waits behind 7 for what all keys share,
//!   row of ada        ─▶  7                  12 behind 9,
//!   row of bob        ─▶  9   12             and both are bob's
//! ```
//!
//! There is one exception to standing still. WakeTarget the row of their own key keeps waiting cannot use what all keys
//! share, and one key could otherwise stop a whole limit by being patient. They *step aside* in the queues of rows that
//! all keys share, and keep their id: as soon as their own row is called they stand in their old place again.
//! Nobody starves by that: in the row of their key nobody passes them, so once it lets them through it stays so.
//!
//! Where somebody else decides, a id is drawn when the first order is sent, and used if the answer is that it has to wait: who was
//! answered sooner does not come before who asked sooner.
//!
//! Because everybody asks for themselves, a waiter must be polled or dropped. One that is kept and never polled keeps
//! its place, and those behind it wait out their patience.
//!
//! Everything is behind one lock, under which no store is asked and nobody is woken. Rows are known by a keyed hash of
//! 64 bits: if two should ever share one, two strangers wait in one queue, and nothing worse.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::Waker;

use hashbrown::HashMap;
use tidegate_core::{Ask, LeaseId, Limit, Mode, Per};

use super::holder_clock::HolderInstant;

/// A row, as far as queues need to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RowId(u64);

/// What kind of row somebody stands at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum RowKind {
    /// What a limit counts for all keys together.
    All,
    /// What it counts for one key.
    Key,
    /// The room a limit with a bound has for new keys. Only those stand here whom it has refused.
    Capacity,
}

/// A row that somebody asks for, and by which of their asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueuePosition {
    pub(super) row: RowId,
    pub(super) kind: RowKind,
    pub(super) ask: usize,
}

/// A place in all queues: lower is earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct WaiterId(u64);

/// Why somebody is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Call {
    /// They may be served.
    Ask,
    /// A limit they ask was edited: their rows may be others now.
    LimitEdited,
}

/// What somebody finds when they look up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    /// Whether they were called since they last looked.
    pub(super) call: Option<Call>,
    /// Whether nobody stands before them.
    pub(super) standing: QueueStanding,
}

/// Whether somebody stands before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueueStanding {
    /// Nobody.
    First,
    /// Somebody.
    Behind,
}

/// How many may wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitBounds {
    pub(super) in_all: usize,
    pub(super) per_row: usize,
}

/// All who wait at one limiter.
#[derive(Debug)]
pub(super) struct WaitQueues {
    bounds: WaitBounds,
    hasher: RandomState,
    /// How many wait; those who will not wait look at this and at nothing else while it is zero.
    total: AtomicUsize,
    by_limit: RwLock<HashMap<Box<str>, Arc<AtomicUsize>>>,
    state: Mutex<QueueState>,
}

/// Everything behind the lock.
#[derive(Debug, Default)]
struct QueueState {
    last_id: u64,
    waiters: HashMap<WaiterId, Waiter>,
    queues: HashMap<RowId, RowQueue>,
    /// The holds that are open at a row in this process, and until when: settling one may give something back.
    holds: HashMap<RowId, HashMap<LeaseId, HolderInstant>>,
    /// Those who are to be woken once the lock is free.
    awake: Vec<Waker>,
}

/// Those who ask for one row.
#[derive(Debug, Default)]
struct RowQueue {
    /// How many do, those who have stepped aside included.
    members: usize,
    standing: BTreeSet<WaiterId>,
}

#[derive(Debug)]
struct Waiter {
    positions: Vec<QueuePosition>,
    limits: Vec<Box<str>>,
    waker: Option<Waker>,
    call: Option<Call>,
    /// What kind of row refused them when they last asked, if they were not called since.
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

    /// Whether nobody waits at all.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.total.load(Ordering::Relaxed) == 0
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// How many wait for a limit.
    pub(super) fn len_of(&self, limit_id: &str) -> usize {
        let counts = self.by_limit.read().unwrap_or_else(PoisonError::into_inner);
        counts.get(limit_id).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// The row of a limit, of this kind, for this key.
    pub(super) fn row(&self, limit_id: &str, kind: RowKind, key: Option<&[u8]>) -> RowId {
        RowId(self.hasher.hash_one((kind, limit_id, key)))
    }

    /// The rows that one ask may have taken something from.
    pub(super) fn rows_of(&self, ask: &Ask<'_>) -> impl Iterator<Item = RowId> {
        [(RowKind::All, None), (RowKind::Key, ask.key), (RowKind::Capacity, None)]
            .map(|(kind, key)| self.row(ask.limit_id, kind, key))
            .into_iter()
    }

    /// Where somebody with this ask stands. A limit that refuses nothing has no queues.
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
        let mut stand = |kind: RowKind, key: Option<&[u8]>| {
            let position = QueuePosition { row: self.row(ask.limit_id, kind, key), kind, ask: index };
            if positions.iter().all(|other| other.row != position.row) {
                positions.push(position);
            }
        };
        if limit.items().iter().any(|item| item.per() == Per::All) {
            stand(RowKind::All, None);
        }
        if limit.needs_key() && ask.key.is_some() {
            stand(RowKind::Key, ask.key);
            if limit.spec().max_keys.is_some() {
                stand(RowKind::Capacity, None);
            }
        }
    }

    /// The first of these positions at which somebody else stands, before whoever has this id.
    pub(super) fn contested(
        &self,
        positions: &[QueuePosition],
        before: Option<WaiterId>,
    ) -> Option<QueuePosition> {
        self.within(|state| positions.iter().copied().find(|position| state.is_contested(*position, before)))
    }

    /// Draws a id, for whoever may have to join when they were answered.
    pub(super) fn draw(&self) -> WaiterId {
        self.within(QueueState::draw)
    }

    /// Joins the queues of these rows, in the place of the id or of one that is drawn now; `None` if one of them is full. Whoever joins
    /// is called at once.
    pub(super) fn join(
        &self,
        id: Option<WaiterId>,
        positions: Vec<QueuePosition>,
        mut limits: Vec<Box<str>>,
    ) -> Option<WaiterId> {
        limits.sort_unstable();
        limits.dedup();
        self.within(|state| {
            let members =
                |position: &QueuePosition| state.queues.get(&position.row).map_or(0, |queue| queue.members);
            if state.waiters.len() >= self.bounds.in_all
                || positions.iter().any(|position| members(position) >= self.bounds.per_row)
            {
                return None;
            }
            let id = id.unwrap_or_else(|| state.draw());
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
            state.occupy(id, positions);
            // Pairs with the one in `wake_rows`: either they see us waiting, or we see what they gave back.
            fence(Ordering::SeqCst);
            Some(id)
        })
    }

    /// Looks up: was I called, and am I first? `timer` is a call by the clock. The waker is for the next call.
    pub(super) fn take_turn(&self, id: WaiterId, timer: Option<Call>, waker: &Waker) -> Turn {
        self.within(|state| {
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
                state.take_stand(id);
            }
            Turn { call, standing: state.standing(id) }
        })
    }

    /// Whether there was a call that nobody has heard; if not, the waker is for the next one.
    pub(super) fn is_called(&self, id: WaiterId, waker: &Waker) -> bool {
        self.within(|state| {
            let Some(waiter) = state.waiters.get_mut(&id) else { return false };
            waiter.waker = Some(waker.clone());
            waiter.call.is_some()
        })
    }

    /// Stands at other rows from now on, in the place that the id gives.
    pub(super) fn move_to(&self, id: WaiterId, positions: Vec<QueuePosition>) -> QueueStanding {
        self.within(|state| {
            state.vacate(id);
            state.occupy(id, positions);
            state.standing(id)
        })
    }

    /// Notes what kind of row refused whoever has this id. Those of their own key step aside for others.
    pub(super) fn set_blocked_by(&self, id: WaiterId, by: RowKind) {
        self.within(|state| {
            // Who was called meanwhile is about to look again, and stands.
            if let Some(waiter) = state.waiters.get_mut(&id).filter(|waiter| waiter.call.is_none()) {
                waiter.blocked_by = Some(by);
                state.take_stand(id);
            }
        });
    }

    /// Leaves all queues.
    pub(super) fn leave(&self, id: WaiterId) {
        self.within(|state| {
            state.vacate(id);
            if let Some(waiter) = state.waiters.remove(&id) {
                self.total.fetch_sub(1, Ordering::Relaxed);
                self.count(&waiter.limits, |count| {
                    count.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
    }

    /// Something was given back at these rows.
    pub(super) fn wake_rows(&self, rows: impl IntoIterator<Item = RowId>) {
        fence(Ordering::SeqCst);
        if !self.is_quiet() {
            self.within(|state| rows.into_iter().for_each(|row| state.call_first(row)));
        }
    }

    /// Something was given back, nobody knows where.
    pub(super) fn wake_all(&self) {
        fence(Ordering::SeqCst);
        if !self.is_quiet() {
            self.within(|state| {
                let rows: Vec<RowId> = state.queues.keys().copied().collect();
                for row in rows {
                    state.call_first(row);
                }
            });
        }
    }

    /// Something happened to a limit as a whole.
    pub(super) fn wake_limit(&self, limit_id: &str, call: Call) {
        fence(Ordering::SeqCst);
        if !self.is_quiet() {
            self.within(|state| {
                let mut called: Vec<WaiterId> = state.waiters_of(limit_id).collect();
                called.sort_unstable();
                for id in called {
                    state.call(id, call);
                }
            });
        }
    }

    /// A hold was opened at these rows, and can be settled until then.
    pub(super) fn open_hold(&self, rows: &[RowId], id: LeaseId, until: HolderInstant) {
        self.within(|state| {
            for row in rows {
                state.holds.entry(*row).or_default().insert(id, until);
            }
        });
    }

    /// A hold at these rows can be settled until another moment, unless it was closed.
    pub(super) fn move_hold(&self, rows: &[RowId], id: LeaseId, until: HolderInstant) {
        self.within(|state| {
            for row in rows {
                if let Some(known) = state.holds.get_mut(row).and_then(|holds| holds.get_mut(&id)) {
                    *known = until;
                }
            }
        });
    }

    /// A hold at these rows will not be settled here any more.
    pub(super) fn close_hold(&self, rows: &[RowId], id: LeaseId) {
        self.within(|state| {
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

    /// Until when a hold at one of these positions can be settled, which could help; `None` if none is open. Holds that nobody closed when their
    /// time was over are forgotten.
    pub(super) fn settleable_until(
        &self,
        positions: &[QueuePosition],
        now: HolderInstant,
    ) -> Option<HolderInstant> {
        self.within(|state| {
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

    /// Does this under the lock, and then wakes those who were called.
    fn within<T>(&self, act: impl FnOnce(&mut QueueState) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let done = act(&mut state);
        let awake = std::mem::take(&mut state.awake);
        drop(state);
        awake.into_iter().for_each(Waker::wake);
        done
    }

    /// Changes the count of every limit; those that nobody waits for are forgotten.
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
    fn draw(&mut self) -> WaiterId {
        self.last_id += 1;
        WaiterId(self.last_id)
    }

    fn is_contested(&self, position: QueuePosition, before: Option<WaiterId>) -> bool {
        let first = self.queues.get(&position.row).and_then(|queue| queue.standing.first());
        position.kind != RowKind::Capacity && first.is_some_and(|first| before.is_none_or(|id| *first < id))
    }

    /// Whether nobody stands before whoever has this id.
    fn standing(&self, id: WaiterId) -> QueueStanding {
        let behind =
            |waiter: &Waiter| waiter.positions.iter().any(|position| self.is_contested(*position, Some(id)));
        if self.waiters.get(&id).is_none_or(behind) { QueueStanding::Behind } else { QueueStanding::First }
    }

    /// Enters the queues of these rows.
    fn occupy(&mut self, id: WaiterId, positions: Vec<QueuePosition>) {
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
        self.take_stand(id);
    }

    /// Leaves every queue; whoever stood behind moves up.
    fn vacate(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        for position in std::mem::take(&mut waiter.positions) {
            self.step_out(position.row, id);
            if let Some(queue) = self.queues.get_mut(&position.row) {
                queue.members -= 1;
                if queue.members == 0 {
                    self.queues.remove(&position.row);
                }
            }
        }
    }

    /// Stands where they have to stand now, and steps aside where they need not.
    fn take_stand(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        let blocked_by = waiter.blocked_by;
        let positions = waiter.positions.clone();
        let mut keys = positions.iter().filter(|position| position.kind == RowKind::Key);
        let shares = blocked_by.is_none_or(|kind| kind == RowKind::All)
            && keys.all(|position| !self.is_contested(*position, Some(id)));
        for position in positions {
            let stands = match (position.kind, blocked_by) {
                // Who is called to see whether there is room goes on standing there until they have seen.
                (RowKind::Key, _) | (RowKind::Capacity, None) => continue,
                (RowKind::All, _) => shares,
                (RowKind::Capacity, Some(by)) => by == RowKind::Capacity,
            };
            if !stands {
                self.step_out(position.row, id);
            } else if let Some(queue) = self.queues.get_mut(&position.row) {
                queue.standing.insert(id);
            }
        }
    }

    /// No longer stands at a row; if they were first there, the next is called.
    fn step_out(&mut self, row: RowId, id: WaiterId) {
        let Some(queue) = self.queues.get_mut(&row) else { return };
        let was_first = queue.standing.first() == Some(&id);
        if queue.standing.remove(&id) && was_first {
            self.call_first(row);
        }
    }

    /// Calls whoever is first at a row.
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
        self.awake.extend(waker);
        self.take_stand(id);
    }

    fn waiters_of(&self, limit_id: &str) -> impl Iterator<Item = WaiterId> {
        let asks_for = |waiter: &Waiter| waiter.limits.iter().any(|id| **id == *limit_id);
        self.waiters.iter().filter(move |(_, waiter)| asks_for(waiter)).map(|(id, _)| *id)
    }
}
