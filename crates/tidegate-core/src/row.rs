//! A row: what one limit remembers about all keys together, or about one key.
//!
//! One row per (limit, key) holds the states of all that limit's `per: key` items, and one row per limit those
//! of its `per: all` items; document 004 calls it `CurrentData`. A row is aligned with the items of the version of
//! the limit that wrote it.

use std::ops::{Deref, DerefMut};

use crate::amount::Amount;
use crate::law::State;
use crate::law::sliding_window::SlidingLog;
use crate::lease::LeaseTerm;
use crate::limit::{Item, Limit, LimitPhase, Override};
use crate::row_scope::RowScope;
use crate::spec::Per;
use crate::time::Timestamp;

/// What an allocator takes for a block of memory beside the block itself, about.
const A_BLOCK: usize = 16;

/// The states of one limit's items of one `per`, in the order of the items.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Row {
    pub(crate) states: States,
    /// How many open holds may still refund something here. Such a row is not forgotten.
    pub(crate) holds: u32,
}

/// The states of a row. Most rows have one, and it lies in the row itself.
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
        // Room for as many as there can be: a list that is cut to size leaves scraps that nobody can use.
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

    /// A row of one item.
    pub fn of(state: State) -> Row {
        Row { states: States::One(state), holds: 0 }
    }

    /// The state of a row that remembers one item, and nothing else.
    pub fn single_state(&self) -> Option<&State> {
        match &self.states {
            States::One(state) if self.holds == 0 => Some(state),
            _ => None,
        }
    }

    /// What a row of one sliding item has spent.
    #[inline]
    pub fn sliding_log(&self) -> Option<&SlidingLog> {
        match &self.states {
            States::One(State::SlidingWindow(runs)) => Some(runs),
            _ => None,
        }
    }

    /// The same, for whoever has judged and charges.
    #[inline]
    pub fn sliding_log_mut(&mut self) -> Option<&mut SlidingLog> {
        match &mut self.states {
            States::One(State::SlidingWindow(runs)) => Some(runs),
            _ => None,
        }
    }

    /// Makes a row of one sliding item remember this instead, the last of it charged at `last_time`, where it was remembered before.
    pub fn replace_entries(
        &mut self,
        spent: impl Iterator<Item = (Timestamp, Amount)>,
        last_time: Timestamp,
    ) {
        if let Some(runs) = self.sliding_log_mut() {
            runs.replace_entries(spent, last_time);
        }
    }

    /// The latest instant at which something was charged here, as far as the laws keep it.
    #[inline]
    pub fn last_charge_time(&self) -> Timestamp {
        let latest = |state: &State| match state {
            State::LifetimeTotal(tally) => tally.last_time,
            State::FixedWindow(count) => count.last_time,
            State::SlidingWindow(runs) => runs.last_charge().unwrap_or_default(),
            State::TokenBucket(_) | State::Concurrency(_) => Timestamp::EPOCH,
        };
        match &self.states {
            States::One(state) => latest(state),
            States::Many(states) => states.iter().map(latest).max().unwrap_or_default(),
        }
    }

    /// What is remembered about an item.
    pub fn state(&self, item: &Item) -> &State {
        &self.states[item.state_index()]
    }

    /// Looks at the memory of the states, for whoever wants to have looked before it matters. The answer means nothing.
    pub fn touch_states(&self) -> u64 {
        let look = |state: &State| match state {
            State::SlidingWindow(runs) => runs.last_charge().map_or(0, Timestamp::ticks),
            State::FixedWindow(count) => count.count,
            State::TokenBucket(arrival) => arrival.tat.ticks(),
            State::LifetimeTotal(tally) => tally.used,
            State::Concurrency(holders) => holders.iter().len() as u64,
        };
        self.states.iter().map(look).fold(0, |all, each| all ^ each)
    }

    /// The same for the memory that states point to.
    pub fn touch_entries(&self) -> u64 {
        let look = |state: &State| match state {
            State::SlidingWindow(runs) => runs.iter().next().map_or(0, |(at, _)| at.ticks()),
            _ => 0,
        };
        self.states.iter().map(look).fold(0, |all, each| all ^ each)
    }

    /// Whether forgetting this row would be invisible from `now` on.
    pub fn is_evictable(&self, limit: &Limit, seat: RowScope<'_>, now: Timestamp) -> bool {
        if limit.phase(now) == LimitPhase::After {
            return true;
        }
        self.holds == 0
            && limit.items().iter().enumerate().filter(|(_, item)| item.per() == seat.per()).all(
                |(index, item)| {
                    let (rule, state) = seat.effective(index, item, self.state(item), now);
                    rule.is_evictable(&state, now)
                },
            )
    }

    /// When this row becomes fresh if nobody asks; `None` if time alone will not do it.
    pub fn evictable_at(&self, limit: &Limit, seat: RowScope<'_>, now: Timestamp) -> Option<Timestamp> {
        let mut latest = (self.holds == 0).then_some(now);
        for (index, item) in limit.items().iter().enumerate().filter(|(_, item)| item.per() == seat.per()) {
            let (rule, state) = seat.effective(index, item, self.state(item), now);
            let empties = match &*state {
                state if rule.is_evictable(state, now) => Some(now),
                State::Concurrency(holders) => holders.last_expiry(),
                _ => seat.empty_at(index, item, self.state(item), now),
            };
            latest = latest.max(empties).filter(|_| latest.is_some() && empties.is_some());
        }
        match (latest, limit.ends_at()) {
            (Some(latest), Some(end)) => Some(latest.min(end)),
            (latest, end) => latest.or(end),
        }
    }

    /// Notes that a hold was opened on this row.
    pub fn add_hold(&mut self) {
        self.holds = self.holds.saturating_add(1);
    }

    /// Notes that a hold was settled, released or lapsed.
    pub fn remove_hold(&mut self) {
        self.holds = self.holds.saturating_sub(1);
    }

    /// Notes that a lease holds this much of the item at `index` of its limit: it was written down, and the row was not.
    pub fn restore_lease(&mut self, limit: &Limit, index: usize, tenure: LeaseTerm, amount: Amount) {
        let state = limit.items().get(index).and_then(|item| self.states.get_mut(item.state_index()));
        if let Some(State::Concurrency(holders)) = state {
            holders.insert(tenure, amount);
        }
    }

    /// Removes a lease's units; whether there were any that had not lapsed.
    pub fn release(&mut self, tenure: &LeaseTerm, now: Timestamp) -> bool {
        let mut released = false;
        for state in self.states.iter_mut() {
            if let State::Concurrency(holders) = state {
                released |= holders.remove(tenure).is_some() && now < tenure.expires_at;
            }
        }
        released
    }

    /// Moves the end of a lease that has not lapsed.
    pub fn renew(&mut self, tenure: &LeaseTerm, expires_at: Timestamp, now: Timestamp) {
        if tenure.expires_at <= now {
            return;
        }
        for state in self.states.iter_mut() {
            if let State::Concurrency(holders) = state
                && let Some(amount) = holders.remove(tenure)
            {
                holders.insert(LeaseTerm { expires_at, ..*tenure }, amount);
            }
        }
    }

    /// Zeroes everything that is counted. Leases go on: a reset gives nothing back that somebody holds.
    pub fn reset(&mut self, limit: &Limit, per: Per) {
        for item in items(limit, per) {
            let state = &mut self.states[item.state_index()];
            if !matches!(state, State::Concurrency(_)) {
                *state = State::blank(&item.rule().law);
            }
        }
    }

    /// The same use under the next version of the limit, as of the instant of the edit. Items that are gone take
    /// their state with them; new ones begin at zero.
    pub fn migrate(
        &self,
        former: (&Limit, RowScope<'_>),
        next: (&Limit, RowScope<'_>),
        at: Timestamp,
    ) -> Row {
        let ((former, old_seat), (next, new_seat)) = (former, next);
        let mut row = Row::blank(next, new_seat.per());
        row.holds = self.holds;
        if former.phase(at) == LimitPhase::After {
            return row;
        }
        for (new_index, item) in
            next.items().iter().enumerate().filter(|(_, item)| item.per() == new_seat.per())
        {
            let Some((old_index, old)) = former.item_named(item.name()) else { continue };
            if old.per() != item.per() {
                continue;
            }
            let (old_rule, state) = old_seat.effective(old_index, old, self.state(old), at);
            let new_rule = new_seat.rule(new_index, item, at);
            row.states[item.state_index()] = new_rule.migrate(old_rule, state.into_owned(), at);
        }
        row
    }

    /// How many bytes this row takes in memory, about.
    #[inline]
    pub fn memory_bytes(&self) -> usize {
        let more = |state: &State| match state {
            State::SlidingWindow(runs) => runs.len() * 16 + A_BLOCK,
            State::Concurrency(holders) => holders.iter().len() * 48,
            _ => 0,
        };
        let beside = match &self.states {
            States::One(state) => more(state),
            States::Many(states) => {
                size_of_val::<[State]>(states) + A_BLOCK + states.iter().map(more).sum::<usize>()
            }
        };
        size_of::<Row>() + beside
    }

    /// The leases that hold something here and have not lapsed, first to lapse first.
    pub fn live_leases(&self, now: Timestamp) -> Vec<LeaseTerm> {
        let mut holders: Vec<LeaseTerm> = Vec::new();
        for state in self.states.iter() {
            if let State::Concurrency(entries) = state {
                holders.extend(
                    entries.iter().map(|(tenure, _)| tenure).filter(|tenure| now < tenure.expires_at),
                );
            }
        }
        holders.sort_unstable_by_key(|tenure| (tenure.expires_at, tenure.lease));
        holders.dedup();
        holders
    }

    /// Units of every item that live leases hold in this row.
    pub fn held_units(&self, now: Timestamp) -> Amount {
        let held = |state: &State| match state {
            State::Concurrency(holders) => crate::law::concurrency::used(holders, now),
            _ => 0,
        };
        self.states.iter().map(held).fold(0, Amount::saturating_add)
    }

    /// Whether somebody holds something here that they could give back.
    #[inline]
    pub fn is_held(&self, now: Timestamp) -> bool {
        self.holds > 0
            || (!matches!(self.states, States::One(State::SlidingWindow(_))) && self.held_units(now) > 0)
    }
}

fn items(limit: &Limit, per: Per) -> impl Iterator<Item = &Item> {
    limit.items().iter().filter(move |item| item.per() == per)
}

/// The overrides of a key, as a seat.
impl<'a> From<&'a [Override]> for RowScope<'a> {
    fn from(overrides: &'a [Override]) -> RowScope<'a> {
        RowScope::Key { overrides }
    }
}
