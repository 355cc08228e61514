//! The deadline of a lease while renewals of it are in flight.
//!
//! A local store replies in the order in which it applied the renewals. A remote store may apply them in another order.
//! All renewals in flight at once form a group. When the last of them finishes, the earliest end of the group counts:
//! whichever the store applied last, the lease ends no sooner. Until then the holder uses the earliest of all
//! deadlines.
//!
//! ```text
//!   held until ├──────────────────────────┤ before
//!   sent, 9 s     ├────────────────────────────────────┤
//!   sent, 1 s       ├────┤ the holder's deadline, now and in the end
//! ```

use tidegate_core::Timestamp;

use super::holder_clock::HolderInstant;

/// The end of a lease by the store's clock, and the renewals in flight that may move it.
#[derive(Debug)]
pub(super) struct RenewalDeadline {
    pub(super) expires_at: Timestamp,
    group: Option<RenewalGroup>,
}

/// Renewals that are in flight at the same time.
#[derive(Debug)]
struct RenewalGroup {
    /// The number of renewals in flight.
    in_flight: usize,
    /// The deadline of the holder before the first renewal was sent.
    before: HolderInstant,
    /// The earliest deadline of the renewals that the store may have applied.
    earliest_deadline: Option<HolderInstant>,
    /// The earliest end that a reply named.
    earliest_end: Option<Timestamp>,
}

/// The outcome of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RenewalOutcome {
    /// The store moved the end.
    Moved(Timestamp),
    /// The store changed nothing.
    Refused,
    /// The outcome is unknown.
    Unknown,
}

/// The result of a group whose renewals have all finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupResult {
    /// The new deadline of the holder.
    pub(super) deadline: HolderInstant,
    /// Whether the lease ends sooner by the store's clock than before.
    pub(super) is_sooner: bool,
}

impl RenewalDeadline {
    /// The deadline without renewals in flight.
    pub(super) fn new(expires_at: Timestamp) -> RenewalDeadline {
        RenewalDeadline { expires_at, group: None }
    }

    /// Adds a renewal that is sent while the holder's deadline is `held`.
    pub(super) fn send(&mut self, held: HolderInstant) {
        let group = RenewalGroup { in_flight: 0, before: held, earliest_deadline: None, earliest_end: None };
        self.group.get_or_insert(group).in_flight += 1;
    }

    /// Removes a renewal that would move the holder's deadline to `deadline`. Returns `None` while others are in
    /// flight.
    pub(super) fn finish(&mut self, deadline: HolderInstant, outcome: RenewalOutcome) -> Option<GroupResult> {
        let group = self.group.as_mut()?;
        if outcome != RenewalOutcome::Refused {
            group.earliest_deadline = Some(
                group.earliest_deadline.map_or(deadline, |earliest_deadline| earliest_deadline.min(deadline)),
            );
        }
        if let RenewalOutcome::Moved(to) = outcome {
            group.earliest_end = Some(group.earliest_end.map_or(to, |earliest_end| earliest_end.min(to)));
        }
        group.in_flight -= 1;
        if group.in_flight > 0 {
            return None;
        }
        let RenewalGroup { before, earliest_deadline, earliest_end, .. } = self.group.take()?;
        let earliest_deadline = earliest_deadline.unwrap_or(before);
        let Some(earliest_end) = earliest_end else {
            return Some(GroupResult { deadline: earliest_deadline.min(before), is_sooner: false });
        };
        let is_sooner = earliest_end < self.expires_at;
        self.expires_at = earliest_end;
        Some(GroupResult { deadline: earliest_deadline, is_sooner })
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

    /// A lease that is held for a minute, with `sent` renewals in flight.
    fn with(sent: usize) -> RenewalDeadline {
        let mut renewal_deadline = RenewalDeadline::new(at(60));
        (0..sent).for_each(|_| renewal_deadline.send(uptime(60)));
        renewal_deadline
    }

    #[test]
    fn single_renewal_moves_the_deadline() {
        let mut renewal_deadline = with(1);
        let result = renewal_deadline.finish(uptime(90), RenewalOutcome::Moved(at(90)));
        assert_eq!(result, Some(GroupResult { deadline: uptime(90), is_sooner: false }));
        assert_eq!(renewal_deadline.expires_at, at(90));
        renewal_deadline.send(uptime(90));
        let result = renewal_deadline.finish(uptime(70), RenewalOutcome::Moved(at(70)));
        assert_eq!(result, Some(GroupResult { deadline: uptime(70), is_sooner: true }));
    }

    #[test]
    fn concurrent_renewals_leave_the_earliest_deadline() {
        for (first, second) in [(90, 80), (80, 90)] {
            let mut renewal_deadline = with(2);
            assert_eq!(renewal_deadline.finish(uptime(first), RenewalOutcome::Moved(at(first))), None);
            assert_eq!(renewal_deadline.expires_at, at(60));
            let result = renewal_deadline.finish(uptime(second), RenewalOutcome::Moved(at(second)));
            assert_eq!(result, Some(GroupResult { deadline: uptime(80), is_sooner: false }));
            assert_eq!(renewal_deadline.expires_at, at(80));
        }
    }

    #[test]
    fn renewal_of_unknown_outcome_may_only_shorten() {
        let mut renewal_deadline = with(2);
        assert_eq!(renewal_deadline.finish(uptime(20), RenewalOutcome::Unknown), None);
        let result = renewal_deadline.finish(uptime(90), RenewalOutcome::Moved(at(90)));
        assert_eq!(result, Some(GroupResult { deadline: uptime(20), is_sooner: false }));
        let mut renewal_deadline = with(1);
        let result = renewal_deadline.finish(uptime(90), RenewalOutcome::Unknown);
        assert_eq!(
            result,
            Some(GroupResult { deadline: uptime(60), is_sooner: false }),
            "an unknown outcome does not extend"
        );
    }

    #[test]
    fn refused_renewal_moves_nothing() {
        let mut renewal_deadline = with(1);
        let result = renewal_deadline.finish(uptime(0), RenewalOutcome::Refused);
        assert_eq!(result, Some(GroupResult { deadline: uptime(60), is_sooner: false }));
        assert_eq!(renewal_deadline.expires_at, at(60));
        assert_eq!(
            renewal_deadline.finish(uptime(0), RenewalOutcome::Refused),
            None,
            "nothing was on its way"
        );
    }
}
