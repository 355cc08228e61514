//! A row: the state of one limit for all keys together, or for one key.
//!
//! A limit has one row for its `per: all` items and one row for each key for its `per: key` items. The states of a row are
//! in the order of the items, for the version of the limit that wrote the row.

use std::ops::{Deref, DerefMut};

use crate::amount::Amount;
use crate::law::State;
use crate::law::sliding_window::SlidingLog;
use crate::lease::LeaseTerm;
use crate::limit::{Item, Limit, LimitPhase, Override};
use crate::overrides::RowScope;
use crate::spec::Per;
use crate::time::Timestamp;

/// The approximate overhead of one heap allocation, in bytes.
const ALLOCATION_OVERHEAD: usize = 16;

/// The states of the items with one `per`, in the order of the items.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Row {
    pub(crate) states: States,
    /// The number of open holds that can still refund this row. A row with holds is not evicted.
    pub(crate) holds: u32,
}

/// The states of a row. Most rows have one state and store it inline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum States {
    One(State),
    Many(Box<[State]>),
}

impl Default for States {
    fn default() -> States {
        States::Many(Box::default())
    }
}

impl FromIterator<State> for States {
    fn from_iter<I: IntoIterator<Item = State>>(states: I) -> States {
        let mut states = states.into_iter();
        let (Some(first), second) = (states.next(), states.next()) else { return States::default() };
        let Some(second) = second else { return States::One(first) };
        // Reserves the full capacity: shrinking the vector would fragment the heap.
        let mut all: Vec<State> = Vec::with_capacity(states.size_hint().1.unwrap_or_default() + 2);
        all.extend([first, second]);
        all.extend(states);
        States::Many(all.into())
    }
}

impl Deref for States {
    type Target = [State];

    fn deref(&self) -> &[State] {
        match self {
            States::One(state) => std::slice::from_ref(state),
            States::Many(states) => states,
        }
    }
}

impl DerefMut for States {
    fn deref_mut(&mut self) -> &mut [State] {
        match self {
            States::One(state) => std::slice::from_mut(state),
            States::Many(states) => states,
        }
    }
}

impl Row {
    /// A row that was never charged.
    pub fn blank(limit: &Limit, per: Per) -> Row {
        Row { states: items(limit, per).map(|item| State::blank(&item.rule().law)).collect(), holds: 0 }
    }

    /// A row with one state.
    pub fn of(state: State) -> Row {
        Row { states: States::One(state), holds: 0 }
    }

    /// A row with these states, in the order of its items.
    pub fn from_states(states: impl IntoIterator<Item = State>) -> Row {
        Row { states: states.into_iter().collect(), holds: 0 }
    }

    /// The states, in the order of the items.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// The number of open holds.
    pub fn open_holds(&self) -> u32 {
        self.holds
    }

    /// The state of a row that has one item and no open holds.
    pub fn single_state(&self) -> Option<&State> {
        match &self.states {
            States::One(state) if self.holds == 0 => Some(state),
            _ => None,
        }
    }

    /// The log of a row with one sliding item.
    #[inline]
    pub fn sliding_log(&self) -> Option<&SlidingLog> {
        match &self.states {
            States::One(State::SlidingWindow(log)) => Some(log),
            _ => None,
        }
    }

    /// The log of a row with one sliding item, mutable. The caller has checked the charge.
    #[inline]
    pub fn sliding_log_mut(&mut self) -> Option<&mut SlidingLog> {
        match &mut self.states {
            States::One(State::SlidingWindow(log)) => Some(log),
            _ => None,
        }
    }

    /// Replaces the log of a row with one sliding item and reuses its allocation.
    pub fn replace_entries(
        &mut self,
        spent: impl Iterator<Item = (Timestamp, Amount)>,
        last_time: Timestamp,
    ) {
        if let Some(log) = self.sliding_log_mut() {
            log.replace_entries(spent, last_time);
        }
    }

    /// The time of the latest charge, as far as the laws store it.
    #[inline]
    pub fn last_charge_time(&self) -> Timestamp {
        let latest = |state: &State| match state {
            State::LifetimeTotal(total) => total.last_time,
            State::FixedWindow(count) => count.last_time,
            State::SlidingWindow(log) => log.last_charge().unwrap_or_default(),
            State::TokenBucket(_) | State::Concurrency(_) => Timestamp::EPOCH,
        };
        match &self.states {
            States::One(state) => latest(state),
            States::Many(states) => states.iter().map(latest).max().unwrap_or_default(),
        }
    }

    /// The state of an item.
    pub fn state(&self, item: &Item) -> &State {
        &self.states[item.state_index()]
    }

    /// Reads the states to load them into the cache before they are needed. The result is meaningless.
    pub fn touch_states(&self) -> u64 {
        let look = |state: &State| match state {
            State::SlidingWindow(log) => log.last_charge().map_or(0, Timestamp::ticks),
            State::FixedWindow(count) => count.count,
            State::TokenBucket(bucket) => bucket.tat.ticks(),
            State::LifetimeTotal(total) => total.used,
            State::Concurrency(holders) => holders.iter().len() as u64,
        };
        self.states.iter().map(look).fold(0, |all, each| all ^ each)
    }

    /// Reads the heap memory of the states to load it into the cache.
    pub fn touch_entries(&self) -> u64 {
        let look = |state: &State| match state {
            State::SlidingWindow(log) => log.iter().next().map_or(0, |(at, _)| at.ticks()),
            _ => 0,
        };
        self.states.iter().map(look).fold(0, |all, each| all ^ each)
    }

    /// Whether dropping this row changes no decision from `now` on.
    pub fn is_evictable(&self, limit: &Limit, scope: RowScope<'_>, now: Timestamp) -> bool {
        if limit.phase(now) == LimitPhase::After {
            return true;
        }
        self.holds == 0
            && limit.items().iter().enumerate().filter(|(_, item)| item.per() == scope.per()).all(
                |(index, item)| {
                    let (rule, state) = scope.effective(index, item, self.state(item), now);
                    rule.is_evictable(&state, now)
                },
            )
    }

    /// When this row becomes evictable without further charges. `None` if time alone does not suffice.
    pub fn evictable_at(&self, limit: &Limit, scope: RowScope<'_>, now: Timestamp) -> Option<Timestamp> {
        let mut latest = (self.holds == 0).then_some(now);
        for (index, item) in limit.items().iter().enumerate().filter(|(_, item)| item.per() == scope.per()) {
            let (rule, state) = scope.effective(index, item, self.state(item), now);
            let empties = match &*state {
                state if rule.is_evictable(state, now) => Some(now),
                State::Concurrency(holders) => holders.last_expiry(),
                _ => scope.empty_at(index, item, self.state(item), now),
            };
            latest = latest.max(empties).filter(|_| latest.is_some() && empties.is_some());
        }
        match (latest, limit.ends_at()) {
            (Some(latest), Some(end)) => Some(latest.min(end)),
            (latest, end) => latest.or(end),
        }
    }

    /// Counts a hold that was opened on this row.
    pub fn add_hold(&mut self) {
        self.holds = self.holds.saturating_add(1);
    }

    /// Counts a hold that was settled, released or expired.
    pub fn remove_hold(&mut self) {
        self.holds = self.holds.saturating_sub(1);
    }

    /// Restores the units of a lease that was stored separately from the row.
    pub fn restore_lease(&mut self, limit: &Limit, index: usize, term: LeaseTerm, amount: Amount) {
        let state = limit.items().get(index).and_then(|item| self.states.get_mut(item.state_index()));
        if let Some(State::Concurrency(holders)) = state {
            holders.insert(term, amount);
        }
    }

    /// Removes the units of a lease. Returns whether it had units and was not expired.
    pub fn release(&mut self, term: &LeaseTerm, now: Timestamp) -> bool {
        let mut released = false;
        for state in self.states.iter_mut() {
            if let State::Concurrency(holders) = state {
                released |= holders.remove(term).is_some() && now < term.expires_at;
            }
        }
        released
    }

    /// Changes the expiry of a lease that has not expired.
    pub fn renew(&mut self, term: &LeaseTerm, expires_at: Timestamp, now: Timestamp) {
        if term.expires_at <= now {
            return;
        }
        for state in self.states.iter_mut() {
            if let State::Concurrency(holders) = state
                && let Some(amount) = holders.remove(term)
            {
                holders.insert(LeaseTerm { expires_at, ..*term }, amount);
            }
        }
    }

    /// Sets all counts to zero. Leases continue: a reset does not release held units.
    pub fn reset(&mut self, limit: &Limit, per: Per) {
        for item in items(limit, per) {
            let state = &mut self.states[item.state_index()];
            if !matches!(state, State::Concurrency(_)) {
                *state = State::blank(&item.rule().law);
            }
        }
    }

    /// Carries usage to the next version of the limit at the time of the edit. Removed items lose their state, and new items
    /// start at zero.
    pub fn migrate(
        &self,
        previous: (&Limit, RowScope<'_>),
        next: (&Limit, RowScope<'_>),
        at: Timestamp,
    ) -> Row {
        let ((previous, previous_scope), (next, next_scope)) = (previous, next);
        let mut row = Row::blank(next, next_scope.per());
        row.holds = self.holds;
        if previous.phase(at) == LimitPhase::After {
            return row;
        }
        for (new_index, item) in
            next.items().iter().enumerate().filter(|(_, item)| item.per() == next_scope.per())
        {
            let Some((old_index, old)) = previous.item_named(item.name()) else { continue };
            if old.per() != item.per() {
                continue;
            }
            let (old_rule, state) = previous_scope.effective(old_index, old, self.state(old), at);
            let new_rule = next_scope.rule(new_index, item, at);
            row.states[item.state_index()] = new_rule.migrate(old_rule, state.into_owned(), at);
        }
        row
    }

    /// The approximate memory of this row, in bytes.
    #[inline]
    pub fn memory_bytes(&self) -> usize {
        let more = |state: &State| match state {
            State::SlidingWindow(log) => log.len() * 16 + ALLOCATION_OVERHEAD,
            State::Concurrency(holders) => holders.iter().len() * 48,
            _ => 0,
        };
        let beside = match &self.states {
            States::One(state) => more(state),
            States::Many(states) => {
                size_of_val::<[State]>(states) + ALLOCATION_OVERHEAD + states.iter().map(more).sum::<usize>()
            }
        };
        size_of::<Row>() + beside
    }

    /// The leases that hold units at `now`, in order of expiry.
    pub fn live_leases(&self, now: Timestamp) -> Vec<LeaseTerm> {
        let mut holders: Vec<LeaseTerm> = Vec::new();
        for state in self.states.iter() {
            if let State::Concurrency(entries) = state {
                holders.extend(entries.iter().map(|(term, _)| term).filter(|term| now < term.expires_at));
            }
        }
        holders.sort_unstable_by_key(|term| (term.expires_at, term.lease));
        holders.dedup();
        holders
    }

    /// The units that live leases hold in all items of this row.
    pub fn held_units(&self, now: Timestamp) -> Amount {
        let held = |state: &State| match state {
            State::Concurrency(holders) => crate::law::concurrency::used(holders, now),
            _ => 0,
        };
        self.states.iter().map(held).fold(0, Amount::saturating_add)
    }

    /// Whether this row has units that a release or settlement can give back.
    #[inline]
    pub fn is_held(&self, now: Timestamp) -> bool {
        self.holds > 0
            || (!matches!(self.states, States::One(State::SlidingWindow(_))) && self.held_units(now) > 0)
    }
}

fn items(limit: &Limit, per: Per) -> impl Iterator<Item = &Item> {
    limit.items().iter().filter(move |item| item.per() == per)
}

/// The scope of a key with these overrides.
impl<'a> From<&'a [Override]> for RowScope<'a> {
    fn from(overrides: &'a [Override]) -> RowScope<'a> {
        RowScope::Key { overrides }
    }
}
