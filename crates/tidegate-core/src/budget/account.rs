//! Accounts: a budget that is kept, from one look at a counter to the next.
//!
//! An account knows two windows. The **tile** is the one of the calendar that began at its hour and begins anew when it ends; what it has left is
//! spread by [`BudgetTerms::outlook`]. The **trail** is the one of the same length that ends now, at any moment ([`TrailingWindow`]). Nobody has to obey
//! the trail, but whoever is judged by it has to.
//!
//! Tiles are a matter of the wall clock and trails of a steady one, so that a clock that is put right neither loses nor gains anything on
//! the trail. A tile that has ended does not come back.

use std::time::Duration;

use super::{BudgetForecast, BudgetTerms, Quota, Rate, TrailingWindow};
use crate::calendar::{ScheduledWindow, WindowSchedule};
use crate::time::{Tick, Timestamp};

/// When something is looked at, by two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetTime {
    /// What the wall clock says, in nanoseconds.
    pub wall: Timestamp,
    /// What a clock says that nobody sets, in nanoseconds since anything.
    pub monotonic: i64,
}

/// What time counts as that nobody looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Unobserved {
    /// As if the average had been used: it neither helps nor hurts.
    #[default]
    Limit,
    /// As the time of the same tile that was looked at.
    Average,
    /// As if nothing had been used.
    Zero,
}

impl Unobserved {
    /// Every policy.
    pub const ALL: [Unobserved; 3] = [Unobserved::Limit, Unobserved::Average, Unobserved::Zero];

    /// The word used in settings.
    pub const fn word(self) -> &'static str {
        match self {
            Unobserved::Limit => "limit",
            Unobserved::Average => "average",
            Unobserved::Zero => "zero",
        }
    }
}

/// A budget that is kept.
#[derive(Debug, Clone)]
pub struct BudgetAccount {
    terms: BudgetTerms,
    tiling: WindowSchedule,
    unobserved: Unobserved,
    /// Whether the trail is obeyed; it is kept in any case.
    guards: bool,
    trail: TrailingWindow,
    tile: ScheduledWindow,
    /// What was seen to be used in this tile, and in how much of its time.
    observed: Quota,
    observed_for: Duration,
    unobserved_for: Duration,
    now: BudgetTime,
}

/// What may be used now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetAdvice {
    /// How the tile stands.
    pub forecast: BudgetForecast,
    /// What the trail allows.
    pub trailing_rate: Rate,
    /// What may be used: the smaller of the two if the trail is obeyed, and never less than the floor.
    pub limit: Rate,
}

impl BudgetAccount {
    /// An account from now on. Steps are this long at most: nobody waits longer before looking again.
    pub fn open(
        terms: BudgetTerms,
        tiling: WindowSchedule,
        unobserved: Unobserved,
        guards: bool,
        step: Duration,
        now: BudgetTime,
    ) -> BudgetAccount {
        let tile = tiling.window(now.wall);
        let average = terms.effective_average();
        let before = if unobserved == Unobserved::Zero { Rate::ZERO } else { average };
        let trail =
            TrailingWindow::new(average, terms.floor, tiling.nominal_length(), step, now.monotonic, before);
        BudgetAccount {
            terms,
            tiling,
            unobserved,
            guards,
            trail,
            tile,
            observed: Quota::ZERO,
            observed_for: Duration::ZERO,
            unobserved_for: between(tile.start, now.wall),
            now,
        }
    }

    /// So much was used since the last moment.
    pub fn observe(&mut self, now: BudgetTime, used: Quota) {
        self.trail.observe(now.monotonic, used);
        let time = between(self.now.wall, now.wall);
        let since = self.enter(now.wall, time);
        let before = time.saturating_sub(since);
        // Of what was used evenly the part of a tile that has ended stays there.
        let gone = if before.is_zero() { Quota::ZERO } else { used.portion(before, time) };
        self.observed = self.observed.plus(used.minus(gone));
        self.observed_for += since;
        self.now = BudgetTime {
            wall: self.now.wall.max(now.wall),
            monotonic: self.now.monotonic.max(now.monotonic),
        };
    }

    /// Nobody looked since the last moment.
    pub fn observe_gap(&mut self, now: BudgetTime) {
        let steady = u64::try_from(now.monotonic.saturating_sub(self.now.monotonic)).unwrap_or(0);
        self.trail.observe(now.monotonic, self.charge(Duration::from_nanos(steady)));
        let time = between(self.now.wall, now.wall);
        let since = self.enter(now.wall, time);
        self.unobserved_for += since;
        self.now = BudgetTime {
            wall: self.now.wall.max(now.wall),
            monotonic: self.now.monotonic.max(now.monotonic),
        };
    }

    /// What may be used until the next look.
    pub fn advice(&mut self) -> BudgetAdvice {
        let outlook = self.terms.forecast(self.tile.length(), self.elapsed(), self.used());
        let trailing = self.trail.max_rate();
        let limit = if self.guards { outlook.safe_rate.min(trailing) } else { outlook.safe_rate };
        BudgetAdvice { forecast: outlook, trailing_rate: trailing, limit: limit.max(self.terms.floor) }
    }

    /// What this tile has used, what was not seen included.
    pub fn used(&self) -> Quota {
        self.observed.plus(self.charge(self.unobserved_for))
    }

    /// What was seen to be used on average in this tile, rounded down.
    pub fn average(&self) -> Rate {
        if self.observed_for.is_zero() { Rate::ZERO } else { self.observed.rate_over(self.observed_for) }
    }

    /// The present tile.
    pub fn window(&self) -> ScheduledWindow {
        self.tile
    }

    /// How much of the present tile has passed.
    pub fn elapsed(&self) -> Duration {
        between(self.tile.start, self.now.wall)
    }

    /// How much of that nobody looked at.
    pub fn unobserved_for(&self) -> Duration {
        self.unobserved_for
    }

    /// What was used in the window that ends now.
    pub fn trailing_used(&self) -> Quota {
        self.trail.used()
    }

    /// What a whole window may use.
    pub fn trailing_total(&self) -> Quota {
        self.terms.total(self.tiling.nominal_length())
    }

    /// The latest moment.
    pub fn now(&self) -> BudgetTime {
        self.now
    }

    /// The terms it is kept by.
    pub fn terms(&self) -> &BudgetTerms {
        &self.terms
    }

    /// Begins the tile of an instant if the present one has ended; how much of the last stretch of time falls into it.
    fn enter(&mut self, wall: Timestamp, time: Duration) -> Duration {
        if wall < self.tile.end {
            return time;
        }
        self.tile = self.tiling.window(wall);
        self.observed = Quota::ZERO;
        self.observed_for = Duration::ZERO;
        self.unobserved_for = Duration::ZERO;
        between(self.tile.start.max(self.now.wall), wall)
    }

    /// What time that nobody looked at counts as.
    fn charge(&self, time: Duration) -> Quota {
        match self.unobserved {
            Unobserved::Zero => Quota::ZERO,
            Unobserved::Average if !self.observed_for.is_zero() => {
                self.observed.scaled(time, self.observed_for)
            }
            Unobserved::Limit | Unobserved::Average => self.terms.effective_average().over(time),
        }
    }
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    Tick::NANOSECOND.duration(to.since(from))
}
