//! The queues: who waits for which rows, in which order.
//!
//! Whoever waits draws a ticket and stands in the queue of every row they ask. They are *first* when nobody with a lower
//! ticket stands in any of these queues; only then do they put their order to the store, and they do that themselves. The
//! queues decide nothing and grant nothing: they call somebody who may now be served, and that is all. Tickets are drawn
//! from one roll, so the lowest of all is always first everywhere, and no two can block each other.
//!
//! ```text
//!   row of all keys   ─▶  7   9  12          9 waits behind 7 for what all keys share,
//!   row of ada        ─▶  7                  12 behind 9,
//!   row of bob        ─▶  9   12             and both are bob's
//! ```
//!
//! There is one exception to standing still. Whom the row of their own key keeps waiting cannot use what all keys
//! share, and one key could otherwise stop a whole limit by being patient. They *step aside* in the queues of rows that
//! all keys share, and keep their ticket: as soon as their own row is called they stand in their old place again.
//! Nobody starves by that: in the row of their key nobody passes them, so once it lets them through it stays so.
//!
//! Where somebody else decides, a ticket is drawn when the first order is sent, and used if the answer is that it has to wait: who was
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

use super::pulse::HolderInstant;

/// A row, as far as queues need to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RowId(u64);

/// What kind of row somebody stands at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// What a limit counts for all keys together.
    All,
    /// What it counts for one key.
    Key,
    /// The room a limit with a bound has for new keys. Only those stand here whom it has refused.
    Room,
}

/// A row that somebody asks for, and by which of their asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) row: RowId,
    pub(super) kind: Kind,
    pub(super) ask: usize,
}

/// A place in all queues: lower is earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ticket(u64);

/// Why somebody is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Call {
    /// They may be served.
    Look,
    /// A limit they ask was edited: their rows may be others now.
    EditOutcome,
}

/// What somebody finds when they look up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    /// Whether they were called since they last looked.
    pub(super) call: Option<Call>,
    /// Whether nobody stands before them.
    pub(super) standing: Standing,
}

/// Whether somebody stands before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nobody.
    First,
    /// Somebody.
    Behind,
}

/// How many may wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) in_all: usize,
    pub(super) per_row: usize,
}

/// All who wait at one limiter.
#[derive(Debug)]
pub(super) struct Queues {
    bounds: Bounds,
    hasher: RandomState,
    /// How many wait; those who will not wait look at this and at nothing else while it is zero.
    total: AtomicUsize,
    by_limit: RwLock<HashMap<Box<str>, Arc<AtomicUsize>>>,
    hall: Mutex<Hall>,
}

/// Everything behind the lock.
#[derive(Debug, Default)]
struct Hall {
    last_ticket: u64,
    waiters: HashMap<Ticket, Waiter>,
    queues: HashMap<RowId, Queue>,
    /// The holds that are open at a row in this process, and until when: settling one may give something back.
    holds: HashMap<RowId, HashMap<LeaseId, HolderInstant>>,
    /// Those who are to be woken once the lock is free.
    awake: Vec<Waker>,
}

/// Those who ask for one row.
#[derive(Debug, Default)]
struct Queue {
    /// How many do, those who have stepped aside included.
    members: usize,
    standing: BTreeSet<Ticket>,
}

#[derive(Debug)]
struct Waiter {
    spots: Vec<Spot>,
    limits: Vec<Box<str>>,
    waker: Option<Waker>,
    call: Option<Call>,
    /// What kind of row refused them when they last asked, if they were not called since.
    held_up_by: Option<Kind>,
}

impl Queues {
    pub(super) fn new(bounds: Bounds) -> Queues {
        Queues {
            bounds,
            hasher: RandomState::new(),
            total: AtomicUsize::new(0),
            by_limit: RwLock::default(),
            hall: Mutex::default(),
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
    pub(super) fn row(&self, limit_id: &str, kind: Kind, key: Option<&[u8]>) -> RowId {
        RowId(self.hasher.hash_one((kind, limit_id, key)))
    }

    /// The rows that one ask may have taken something from.
    pub(super) fn rows_of(&self, ask: &Ask<'_>) -> impl Iterator<Item = RowId> {
        [(Kind::All, None), (Kind::Key, ask.key), (Kind::Room, None)]
            .map(|(kind, key)| self.row(ask.limit_id, kind, key))
            .into_iter()
    }

    /// Where somebody with this ask stands. A limit that refuses nothing has no queues.
    pub(super) fn spots(&self, index: usize, ask: &Ask<'_>, limit: &Limit, spots: &mut Vec<Spot>) {
        if limit.mode() != Mode::Enforce {
            return;
        }
        let mut stand = |kind: Kind, key: Option<&[u8]>| {
            let spot = Spot { row: self.row(ask.limit_id, kind, key), kind, ask: index };
            if spots.iter().all(|other| other.row != spot.row) {
                spots.push(spot);
            }
        };
        if limit.items().iter().any(|item| item.per() == Per::All) {
            stand(Kind::All, None);
        }
        if limit.needs_key() && ask.key.is_some() {
            stand(Kind::Key, ask.key);
            if limit.spec().max_keys.is_some() {
                stand(Kind::Room, None);
            }
        }
    }

    /// The first of these spots at which somebody else stands, before whoever has this ticket.
    pub(super) fn contested(&self, spots: &[Spot], before: Option<Ticket>) -> Option<Spot> {
        self.within(|hall| spots.iter().copied().find(|spot| hall.is_contested(*spot, before)))
    }

    /// Draws a ticket, for whoever may have to join when they were answered.
    pub(super) fn draw(&self) -> Ticket {
        self.within(Hall::draw)
    }

    /// Joins the queues of these rows, in the place of the ticket or of one that is drawn now; `None` if one of them is full. Whoever joins
    /// is called at once.
    pub(super) fn join(
        &self,
        ticket: Option<Ticket>,
        spots: Vec<Spot>,
        mut limits: Vec<Box<str>>,
    ) -> Option<Ticket> {
        limits.sort_unstable();
        limits.dedup();
        self.within(|hall| {
            let members = |spot: &Spot| hall.queues.get(&spot.row).map_or(0, |queue| queue.members);
            if hall.waiters.len() >= self.bounds.in_all
                || spots.iter().any(|spot| members(spot) >= self.bounds.per_row)
            {
                return None;
            }
            let ticket = ticket.unwrap_or_else(|| hall.draw());
            self.count(&limits, |count| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            self.total.fetch_add(1, Ordering::Relaxed);
            let waiter =
                Waiter { spots: Vec::new(), limits, waker: None, call: Some(Call::Look), held_up_by: None };
            hall.waiters.insert(ticket, waiter);
            hall.occupy(ticket, spots);
            // Pairs with the one in `stir`: either they see us waiting, or we see what they gave back.
            fence(Ordering::SeqCst);
            Some(ticket)
        })
    }

    /// Looks up: was I called, and am I first? `timer` is a call by the clock. The waker is for the next call.
    pub(super) fn attend(&self, ticket: Ticket, timer: Option<Call>, waker: &Waker) -> Turn {
        self.within(|hall| {
            let Some(waiter) = hall.waiters.get_mut(&ticket) else {
                return Turn { call: None, standing: Standing::Behind };
            };
            let call = waiter.call.take().max(timer);
            match &mut waiter.waker {
                Some(known) => known.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
            if call.is_some() {
                waiter.held_up_by = None;
                hall.take_stand(ticket);
            }
            Turn { call, standing: hall.standing(ticket) }
        })
    }

    /// Whether there was a call that nobody has heard; if not, the waker is for the next one.
    pub(super) fn is_called(&self, ticket: Ticket, waker: &Waker) -> bool {
        self.within(|hall| {
            let Some(waiter) = hall.waiters.get_mut(&ticket) else { return false };
            waiter.waker = Some(waker.clone());
            waiter.call.is_some()
        })
    }

    /// Stands at other rows from now on, in the place that the ticket gives.
    pub(super) fn move_to(&self, ticket: Ticket, spots: Vec<Spot>) -> Standing {
        self.within(|hall| {
            hall.vacate(ticket);
            hall.occupy(ticket, spots);
            hall.standing(ticket)
        })
    }

    /// Notes what kind of row refused whoever has this ticket. Those of their own key step aside for others.
    pub(super) fn held_up(&self, ticket: Ticket, by: Kind) {
        self.within(|hall| {
            // Who was called meanwhile is about to look again, and stands.
            if let Some(waiter) = hall.waiters.get_mut(&ticket).filter(|waiter| waiter.call.is_none()) {
                waiter.held_up_by = Some(by);
                hall.take_stand(ticket);
            }
        });
    }

    /// Leaves all queues.
    pub(super) fn leave(&self, ticket: Ticket) {
        self.within(|hall| {
            hall.vacate(ticket);
            if let Some(waiter) = hall.waiters.remove(&ticket) {
                self.total.fetch_sub(1, Ordering::Relaxed);
                self.count(&waiter.limits, |count| {
                    count.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
    }

    /// Something was given back at these rows.
    pub(super) fn stir(&self, rows: impl IntoIterator<Item = RowId>) {
        fence(Ordering::SeqCst);
        if !self.is_quiet() {
            self.within(|hall| rows.into_iter().for_each(|row| hall.call_first(row)));
        }
    }

    /// Something was given back, nobody knows where.
    pub(super) fn stir_all(&self) {
        fence(Ordering::SeqCst);
        if !self.is_quiet() {
            self.within(|hall| {
                let rows: Vec<RowId> = hall.queues.keys().copied().collect();
                for row in rows {
                    hall.call_first(row);
                }
            });
        }
    }

    /// Something happened to a limit as a whole.
    pub(super) fn stir_limit(&self, limit_id: &str, call: Call) {
        fence(Ordering::SeqCst);
        if !self.is_quiet() {
            self.within(|hall| {
                let mut called: Vec<Ticket> = hall.waiters_of(limit_id).collect();
                called.sort_unstable();
                for ticket in called {
                    hall.call(ticket, call);
                }
            });
        }
    }

    /// A hold was opened at these rows, and can be settled until then.
    pub(super) fn open_hold(&self, rows: &[RowId], id: LeaseId, until: HolderInstant) {
        self.within(|hall| {
            for row in rows {
                hall.holds.entry(*row).or_default().insert(id, until);
            }
        });
    }

    /// A hold at these rows can be settled until another moment, unless it was closed.
    pub(super) fn move_hold(&self, rows: &[RowId], id: LeaseId, until: HolderInstant) {
        self.within(|hall| {
            for row in rows {
                if let Some(known) = hall.holds.get_mut(row).and_then(|holds| holds.get_mut(&id)) {
                    *known = until;
                }
            }
        });
    }

    /// A hold at these rows will not be settled here any more.
    pub(super) fn close_hold(&self, rows: &[RowId], id: LeaseId) {
        self.within(|hall| {
            for row in rows {
                if let Some(holds) = hall.holds.get_mut(row) {
                    holds.remove(&id);
                    if holds.is_empty() {
                        hall.holds.remove(row);
                    }
                }
            }
        });
    }

    /// Until when a hold at one of these spots can be settled, which could help; `None` if none is open. Holds that nobody closed when their
    /// time was over are forgotten.
    pub(super) fn settled_until(&self, spots: &[Spot], now: HolderInstant) -> Option<HolderInstant> {
        self.within(|hall| {
            let rows = spots.iter().filter_map(|spot| {
                let holds = hall.holds.get_mut(&spot.row)?;
                holds.retain(|_, until| *until > now);
                let last = holds.values().max().copied();
                if last.is_none() {
                    hall.holds.remove(&spot.row);
                }
                last
            });
            rows.max()
        })
    }

    /// Does this under the lock, and then wakes those who were called.
    fn within<T>(&self, act: impl FnOnce(&mut Hall) -> T) -> T {
        let mut hall = self.hall.lock().unwrap_or_else(PoisonError::into_inner);
        let done = act(&mut hall);
        let awake = std::mem::take(&mut hall.awake);
        drop(hall);
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

impl Hall {
    fn draw(&mut self) -> Ticket {
        self.last_ticket += 1;
        Ticket(self.last_ticket)
    }

    fn is_contested(&self, spot: Spot, before: Option<Ticket>) -> bool {
        let first = self.queues.get(&spot.row).and_then(|queue| queue.standing.first());
        spot.kind != Kind::Room && first.is_some_and(|first| before.is_none_or(|ticket| *first < ticket))
    }

    /// Whether nobody stands before whoever has this ticket.
    fn standing(&self, ticket: Ticket) -> Standing {
        let behind = |waiter: &Waiter| waiter.spots.iter().any(|spot| self.is_contested(*spot, Some(ticket)));
        if self.waiters.get(&ticket).is_none_or(behind) { Standing::Behind } else { Standing::First }
    }

    /// Enters the queues of these rows.
    fn occupy(&mut self, ticket: Ticket, spots: Vec<Spot>) {
        for spot in &spots {
            let queue = self.queues.entry(spot.row).or_default();
            queue.members += 1;
            if spot.kind == Kind::Key {
                queue.standing.insert(ticket);
            }
        }
        if let Some(waiter) = self.waiters.get_mut(&ticket) {
            waiter.spots = spots;
        }
        self.take_stand(ticket);
    }

    /// Leaves every queue; whoever stood behind moves up.
    fn vacate(&mut self, ticket: Ticket) {
        let Some(waiter) = self.waiters.get_mut(&ticket) else { return };
        for spot in std::mem::take(&mut waiter.spots) {
            self.step_out(spot.row, ticket);
            if let Some(queue) = self.queues.get_mut(&spot.row) {
                queue.members -= 1;
                if queue.members == 0 {
                    self.queues.remove(&spot.row);
                }
            }
        }
    }

    /// Stands where they have to stand now, and steps aside where they need not.
    fn take_stand(&mut self, ticket: Ticket) {
        let Some(waiter) = self.waiters.get(&ticket) else { return };
        let held_up_by = waiter.held_up_by;
        let spots = waiter.spots.clone();
        let mut keys = spots.iter().filter(|spot| spot.kind == Kind::Key);
        let shares = held_up_by.is_none_or(|kind| kind == Kind::All)
            && keys.all(|spot| !self.is_contested(*spot, Some(ticket)));
        for spot in spots {
            let stands = match (spot.kind, held_up_by) {
                // Who is called to see whether there is room goes on standing there until they have seen.
                (Kind::Key, _) | (Kind::Room, None) => continue,
                (Kind::All, _) => shares,
                (Kind::Room, Some(by)) => by == Kind::Room,
            };
            if !stands {
                self.step_out(spot.row, ticket);
            } else if let Some(queue) = self.queues.get_mut(&spot.row) {
                queue.standing.insert(ticket);
            }
        }
    }

    /// No longer stands at a row; if they were first there, the next is called.
    fn step_out(&mut self, row: RowId, ticket: Ticket) {
        let Some(queue) = self.queues.get_mut(&row) else { return };
        let was_first = queue.standing.first() == Some(&ticket);
        if queue.standing.remove(&ticket) && was_first {
            self.call_first(row);
        }
    }

    /// Calls whoever is first at a row.
    fn call_first(&mut self, row: RowId) {
        if let Some(&first) = self.queues.get(&row).and_then(|queue| queue.standing.first()) {
            self.call(first, Call::Look);
        }
    }

    fn call(&mut self, ticket: Ticket, call: Call) {
        let Some(waiter) = self.waiters.get_mut(&ticket) else { return };
        waiter.call = waiter.call.max(Some(call));
        waiter.held_up_by = None;
        let waker = waiter.waker.take();
        self.awake.extend(waker);
        self.take_stand(ticket);
    }

    fn waiters_of(&self, limit_id: &str) -> impl Iterator<Item = Ticket> {
        let asks_for = |waiter: &Waiter| waiter.limits.iter().any(|id| **id == *limit_id);
        self.waiters.iter().filter(move |(_, waiter)| asks_for(waiter)).map(|(ticket, _)| *ticket)
    }
}
