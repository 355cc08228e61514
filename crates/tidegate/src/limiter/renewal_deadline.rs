//! Until when a lease is held, while renewals of it are on their way.
//!
//! A store that decides by itself says in which order it heard two renewals: its answers come in that order. Where somebody else
//! decides nobody knows. All who are on their way at once are one *flock*, and when the last of them has landed the nearest end
//! of any of them counts: whichever the store heard last, it ends no sooner. Meanwhile the holder goes by the nearest end of all.
//!
//! ```text
//!   held until ├──────────────────────────┤ before
//!   sent, 9 s     ├────────────────────────────────────┤
//!   sent, 1 s       ├────┤ the holder's deadline, now and in the end
//! ```

use tidegate_core::Timestamp;

use super::holder_clock::HolderInstant;

/// Until when a lease is held by the store's clock, and what is on its way that may move it.
#[derive(Debug)]
pub(super) struct RenewalDeadline {
    pub(super) expires_at: Timestamp,
    flock: Option<Flock>,
}

/// Renewals that were on their way at once.
#[derive(Debug)]
struct Flock {
    /// How many still are.
    flying: usize,
    /// The holder's deadline before the first was sent.
    before: HolderInstant,
    /// The nearest deadline of any that may have been heard.
    nearest: Option<HolderInstant>,
    /// The nearest end that was answered.
    soonest: Option<Timestamp>,
}

/// What became of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Landing {
    /// The store has moved the end.
    Moved(Timestamp),
    /// The store has moved nothing.
    Refused,
    /// Nobody knows.
    Unheard,
}

/// What follows when a whole flock has landed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Landed {
    /// The holder's deadline.
    pub(super) deadline: HolderInstant,
    /// Whether it ends sooner by the store's clock than was known.
    pub(super) is_sooner: bool,
}

impl RenewalDeadline {
    /// It is held until this instant, and nothing is on its way.
    pub(super) fn new(expires_at: Timestamp) -> RenewalDeadline {
        RenewalDeadline { expires_at, flock: None }
    }

    /// A renewal is sent; so far the holder goes by this deadline.
    pub(super) fn send(&mut self, held: HolderInstant) {
        let flock = Flock { flying: 0, before: held, nearest: None, soonest: None };
        self.flock.get_or_insert(flock).flying += 1;
    }

    /// A renewal has landed after which the holder's time would be over at this deadline. `None` while others are on their way.
    pub(super) fn land(&mut self, deadline: HolderInstant, landing: Landing) -> Option<Landed> {
        let flock = self.flock.as_mut()?;
        if landing != Landing::Refused {
            flock.nearest = Some(flock.nearest.map_or(deadline, |nearest| nearest.min(deadline)));
        }
        if let Landing::Moved(to) = landing {
            flock.soonest = Some(flock.soonest.map_or(to, |soonest| soonest.min(to)));
        }
        flock.flying -= 1;
        if flock.flying > 0 {
            return None;
        }
        let Flock { before, nearest, soonest, .. } = self.flock.take()?;
        let nearest = nearest.unwrap_or(before);
        let Some(soonest) = soonest else {
            return Some(Landed { deadline: nearest.min(before), is_sooner: false });
        };
        let is_sooner = soonest < self.expires_at;
        self.expires_at = soonest;
        Some(Landed { deadline: nearest, is_sooner })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn uptime(seconds: u64) -> HolderInstant {
        HolderInstant::of(Duration::from_secs(seconds))
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_ticks(1000 + seconds)
    }

    /// A lease that is held for a minute, with so many renewals on their way.
    fn with(sent: usize) -> RenewalDeadline {
        let mut renewal_deadline = RenewalDeadline::new(at(60));
        (0..sent).for_each(|_| renewal_deadline.send(uptime(60)));
        renewal_deadline
    }

    #[test]
    fn one_alone_counts() {
        let mut renewal_deadline = with(1);
        let landed = renewal_deadline.land(uptime(90), Landing::Moved(at(90)));
        assert_eq!(landed, Some(Landed { deadline: uptime(90), is_sooner: false }));
        assert_eq!(renewal_deadline.expires_at, at(90));
        renewal_deadline.send(uptime(90));
        let landed = renewal_deadline.land(uptime(70), Landing::Moved(at(70)));
        assert_eq!(landed, Some(Landed { deadline: uptime(70), is_sooner: true }));
    }

    #[test]
    fn of_several_the_nearest_counts_when_all_have_landed() {
        for (first, second) in [(90, 80), (80, 90)] {
            let mut renewal_deadline = with(2);
            assert_eq!(renewal_deadline.land(uptime(first), Landing::Moved(at(first))), None);
            assert_eq!(renewal_deadline.expires_at, at(60));
            let landed = renewal_deadline.land(uptime(second), Landing::Moved(at(second)));
            assert_eq!(landed, Some(Landed { deadline: uptime(80), is_sooner: false }));
            assert_eq!(renewal_deadline.expires_at, at(80));
        }
    }

    #[test]
    fn who_was_not_heard_may_have_been() {
        let mut renewal_deadline = with(2);
        assert_eq!(renewal_deadline.land(uptime(20), Landing::Unheard), None);
        let landed = renewal_deadline.land(uptime(90), Landing::Moved(at(90)));
        assert_eq!(landed, Some(Landed { deadline: uptime(20), is_sooner: false }));
        let mut renewal_deadline = with(1);
        let landed = renewal_deadline.land(uptime(90), Landing::Unheard);
        assert_eq!(landed, Some(Landed { deadline: uptime(60), is_sooner: false }), "nobody has said longer");
    }

    #[test]
    fn a_refusal_moves_nothing() {
        let mut renewal_deadline = with(1);
        let landed = renewal_deadline.land(uptime(0), Landing::Refused);
        assert_eq!(landed, Some(Landed { deadline: uptime(60), is_sooner: false }));
        assert_eq!(renewal_deadline.expires_at, at(60));
        assert_eq!(renewal_deadline.land(uptime(0), Landing::Refused), None, "nothing was on its way");
    }
}
