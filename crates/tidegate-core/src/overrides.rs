//! Overrides of one key: the rule that a row follows now.
//!
//! A row counts all keys together, or one key with its overrides. The rule of an item depends on the key and the time,
//! because an override applies to one key and can end. Only this module resolves overrides.

use std::borrow::Cow;

use crate::amount::Amount;
use crate::law::{Law, Rule, State};
use crate::limit::{Item, Override};
use crate::spec::Per;
use crate::time::Timestamp;
use crate::verdict::{Verdict, Wait};

/// The keys that a row counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowScope<'a> {
    /// All keys together.
    All,
    /// One key.
    Key {
        /// The overrides of the key.
        overrides: &'a [Override],
    },
}

impl<'a> RowScope<'a> {
    /// Which items of the limit belong to this scope.
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

    /// Whether a rule can become stricter as time passes. A promised instant then needs a second check.
    pub fn can_tighten(&self) -> bool {
        matches!(self, RowScope::Key { overrides } if overrides.iter().any(|other| other.until().is_some()))
    }

    /// The rule that item `index` follows at `now`.
    pub fn rule<'r>(&self, index: usize, item: &'r Item, now: Timestamp) -> &'r Rule
    where
        'a: 'r,
    {
        match self.override_for(index) {
            Some(key_override) if key_override.is_active(now) => key_override.rule(),
            _ => item.rule(),
        }
    }

    /// The rule of item `index` at `now`, and the state under that rule.
    ///
    /// The state differs from the stored one only for a bucket whose override has ended: its backlog drains at the item's
    /// own rate since then.
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
            Some(key_override) if key_override.is_active(now) => (key_override.rule(), Cow::Borrowed(state)),
            Some(key_override) => {
                let caught_up = after_override(key_override, item.rule(), state).map(Cow::Owned);
                (item.rule(), caught_up.unwrap_or(Cow::Borrowed(state)))
            }
        }
    }

    /// Updates the state to [`RowScope::effective`] and returns the rule at `now`.
    pub fn catch_up<'r>(&self, index: usize, item: &'r Item, state: &mut State, now: Timestamp) -> &'r Rule
    where
        'a: 'r,
    {
        let (rule, effective) = self.effective(index, item, state, now);
        if let Cow::Owned(effective) = effective {
            *state = effective;
        }
        rule
    }

    /// When the usage of item `index` becomes zero without further charges. Accounts for the end of an override.
    pub fn empty_at(&self, index: usize, item: &Item, state: &State, now: Timestamp) -> Option<Timestamp> {
        let (rule, effective) = self.effective(index, item, state, now);
        let empty_at = rule.empty_at(&effective, now)?;
        match self.override_for(index).and_then(Override::until) {
            Some(until) if now < until && until < empty_at => {
                self.empty_at(index, item, state, until).or(Some(until))
            }
            _ => Some(empty_at),
        }
    }

    /// Whether `cost` more units of item `index` fit at `now`, and if not, when they will. Accounts for the end of an
    /// override, unless the limit ends (`ends_at`) before it.
    pub fn check(
        &self,
        index: usize,
        item: &Item,
        state: &State,
        cost: Amount,
        now: Timestamp,
        ends_at: Option<Timestamp>,
    ) -> Verdict {
        let Some(key_override) = self.override_for(index) else { return item.rule().check(state, cost, now) };
        let (rule, effective) = self.effective(index, item, state, now);
        let verdict = rule.check(&effective, cost, now);
        let Verdict::Denied(wait) = verdict else { return Verdict::Granted };
        match key_override.until().filter(|&until| now < until && ends_at.is_none_or(|end| until < end)) {
            // A wait for a release stays one: a release or an expiry may come before the override ends.
            Some(until) if wait >= Wait::Until(until) && wait != Wait::OnRelease => {
                match self.check(index, item, state, cost, until, ends_at) {
                    Verdict::Granted => Verdict::Denied(Wait::Until(until)),
                    denied => denied,
                }
            }
            _ => verdict,
        }
    }
}

/// The state of a bucket whose override has ended, if it differs from the stored one.
fn after_override(key_override: &Override, rule: &Rule, state: &State) -> Option<State> {
    let ended = key_override.until()?;
    match (&rule.law, state) {
        (Law::TokenBucket(law), State::TokenBucket(bucket)) if law.step() != bucket.step => {
            Some(State::TokenBucket(law.migrate(*bucket, ended)))
        }
        _ => None,
    }
}
