//! A seat at a limit: all keys together, or one key with its exceptions.
//!
//! Which rule an item follows depends on who asks and when: an override applies to one key and may end. This is
//! the only place that knows, so nothing else has to ask.

use std::borrow::Cow;

use crate::amount::Amount;
use crate::law::{Law, Rule, State};
use crate::limit::{Item, Override};
use crate::spec::Per;
use crate::time::Timestamp;
use crate::verdict::{Verdict, Wait};

/// Who is asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowScope<'a> {
    /// All keys together.
    All,
    /// One key.
    Key {
        /// What is different for it.
        overrides: &'a [Override],
    },
}

impl<'a> RowScope<'a> {
    /// Which items this seat is asked by.
    pub const fn per(&self) -> Per {
        match self {
            RowScope::All => Per::All,
            RowScope::Key { .. } => Per::Key,
        }
    }

    fn override_for(&self, index: usize) -> Option<&'a Override> {
        match self {
            RowScope::All => None,
            RowScope::Key { overrides } => overrides.iter().find(|other| other.item() == index),
        }
    }

    /// Whether something becomes stricter here by itself as time passes, so that a wait must be looked at twice.
    pub fn can_tighten(&self) -> bool {
        matches!(self, RowScope::Key { overrides } if overrides.iter().any(|other| other.until().is_some()))
    }

    /// The rule that item `index` follows at `now`.
    pub fn rule<'r>(&self, index: usize, item: &'r Item, now: Timestamp) -> &'r Rule
    where
        'a: 'r,
    {
        match self.override_for(index) {
            Some(exception) if exception.is_active(now) => exception.rule(),
            _ => item.rule(),
        }
    }

    /// The rule that item `index` follows at `now`, and the state as that rule sees it. They differ from what is
    /// stored only for a bucket whose override has ended: its backlog has been coming back at the item's own
    /// rate since then.
    pub fn effective<'r, 's>(
        &self,
        index: usize,
        item: &'r Item,
        state: &'s State,
        now: Timestamp,
    ) -> (&'r Rule, Cow<'s, State>)
    where
        'a: 'r,
    {
        match self.override_for(index) {
            None => (item.rule(), Cow::Borrowed(state)),
            Some(exception) if exception.is_active(now) => (exception.rule(), Cow::Borrowed(state)),
            Some(exception) => {
                let caught_up = since_end(exception, item.rule(), state).map(Cow::Owned);
                (item.rule(), caught_up.unwrap_or(Cow::Borrowed(state)))
            }
        }
    }

    /// Makes the state what [`RowScope::regard`] sees, and returns the rule it follows now.
    pub fn catch_up<'r>(&self, index: usize, item: &'r Item, state: &mut State, now: Timestamp) -> &'r Rule
    where
        'a: 'r,
    {
        let (rule, seen) = self.effective(index, item, state, now);
        if let Cow::Owned(seen) = seen {
            *state = seen;
        }
        rule
    }

    /// When item `index` has nothing in use any more if nobody asks, the end of an override included.
    pub fn empty_at(&self, index: usize, item: &Item, state: &State, now: Timestamp) -> Option<Timestamp> {
        let (rule, seen) = self.effective(index, item, state, now);
        let empties = rule.empty_at(&seen, now)?;
        match self.override_for(index).and_then(Override::until) {
            Some(until) if now < until && until < empties => {
                self.empty_at(index, item, state, until).or(Some(until))
            }
            _ => Some(empties),
        }
    }

    /// Whether `cost` more of item `index` fits at `now`, and if not, when it will, the end of an override
    /// included, unless the limit is over by then.
    pub fn check(
        &self,
        index: usize,
        item: &Item,
        state: &State,
        cost: Amount,
        now: Timestamp,
        over: Option<Timestamp>,
    ) -> Verdict {
        let Some(exception) = self.override_for(index) else { return item.rule().check(state, cost, now) };
        let (rule, seen) = self.effective(index, item, state, now);
        let verdict = rule.check(&seen, cost, now);
        let Verdict::Denied(wait) = verdict else { return Verdict::Granted };
        match exception.until().filter(|&until| now < until && over.is_none_or(|over| until < over)) {
            // Who waits for a holder is not made to wait for the override: a release or a lapse may come first.
            Some(until) if wait >= Wait::Until(until) && wait != Wait::OnRelease => {
                match self.check(index, item, state, cost, until, over) {
                    Verdict::Granted => Verdict::Denied(Wait::Until(until)),
                    denied => denied,
                }
            }
            _ => verdict,
        }
    }
}

/// A bucket's state since its override ended, if that is not what is stored.
fn since_end(exception: &Override, rule: &Rule, state: &State) -> Option<State> {
    let ended = exception.until()?;
    match (&rule.law, state) {
        (Law::TokenBucket(law), State::TokenBucket(arrival)) if law.step() != arrival.step => {
            Some(State::TokenBucket(law.migrate(*arrival, ended)))
        }
        _ => None,
    }
}
