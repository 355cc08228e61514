//! The verdict of a load test: failures, and grants above the limit.
//!
//! All grants are counted by the client, in total and per key. A grant above the limit is an over-admission, whatever
//! the server reports. The server's own count must equal the client's, except that requests without a reply may have
//! been charged.

use super::load_plan::LoadQuota;
use super::number::{counted, grouped};
use super::tally::{FailureReasons, LoadTally};
use crate::Failure;

/// Number of reasons in the text.
const SHOWN_REASONS: usize = 5;

/// Errors found in one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LoadFindings {
    /// Grants above the total limit or above the per-key limits, whichever is larger.
    pub(super) over_admissions: u64,
    /// Grants missing from the server's count.
    pub(super) forgotten: u64,
    /// Counts of the server that neither grants nor lost requests explain.
    pub(super) invented: u64,
}

impl LoadFindings {
    fn of(tally: &LoadTally, quota: LoadQuota, server_counted: Option<u64>) -> LoadFindings {
        let above = |granted: &u32| u64::from(*granted).saturating_sub(quota.per_key);
        let of_keys = tally.by_key.iter().map(above).sum();
        let of_all = tally.granted.saturating_sub(quota.total);
        let server_counted = server_counted.unwrap_or(tally.granted);
        LoadFindings {
            over_admissions: of_all.max(of_keys),
            forgotten: tally.granted.saturating_sub(server_counted),
            invented: server_counted.saturating_sub(tally.granted + tally.unanswered),
        }
    }
}

/// Errors found in all runs.
#[derive(Debug, Default)]
pub(super) struct LoadVerdict {
    pub(super) decisions: u64,
    pub(super) failures: u64,
    pub(super) found: LoadFindings,
    /// Runs whose server count could not be read.
    pub(super) uncompared: u64,
    pub(super) reasons: FailureReasons,
}

impl LoadVerdict {
    /// Adds a run, also a warm-up.
    pub(super) fn judge(
        &mut self,
        tally: &LoadTally,
        quota: LoadQuota,
        server_counted: Option<u64>,
    ) -> LoadFindings {
        let found = LoadFindings::of(tally, quota, server_counted);
        self.decisions += tally.decided();
        self.failures += tally.failed;
        self.found.over_admissions += found.over_admissions;
        self.found.forgotten += found.forgotten;
        self.found.invented += found.invented;
        self.uncompared += u64::from(server_counted.is_none());
        self.reasons.merge(&tally.reasons);
        found
    }

    /// Whether there are no errors.
    pub(super) fn is_clean(&self) -> bool {
        self.failures == 0 && self.found == LoadFindings::default() && self.uncompared == 0
    }

    /// The verdict as text lines.
    pub(super) fn text(&self) -> String {
        let failures = counted(self.failures, "failure", "failures");
        let decisions = counted(self.decisions, "decision", "decisions");
        let LoadFindings { over_admissions, forgotten, invented } = self.found;
        let sold = if over_admissions == 0 {
            "no grants above the limit".to_owned()
        } else {
            let above = counted(over_admissions, "grant", "grants");
            format!("{above} ABOVE THE LIMIT")
        };
        let among = if self.failures == 0 { "in" } else { "and" };
        let mut lines = vec![format!("{failures} {among} {decisions}; {sold}.")];
        let reasons = self.reasons.sorted();
        let shown = reasons.iter().take(SHOWN_REASONS);
        lines.extend(shown.map(|(why, count)| format!("  {} x {why}", grouped(*count))));
        if reasons.len() > SHOWN_REASONS {
            lines.push("  and other reasons".to_owned());
        }
        if forgotten > 0 {
            let grants = counted(forgotten, "grant", "grants");
            lines.push(format!("The server's count is missing {grants}."));
        }
        if invented > 0 {
            let extra = counted(invented, "unit", "units");
            lines.push(format!("The server has counted {extra} without a grant."));
        }
        if self.uncompared > 0 {
            lines.push("The server's counts could not be read and were not compared.".to_owned());
        } else if forgotten == 0 && invented == 0 {
            lines.push("The server's counts match the grants.".to_owned());
        }
        lines.join("\n") + "\n"
    }

    /// An error unless the verdict is clean.
    pub(super) fn result(&self) -> Result<(), Failure> {
        if self.is_clean() {
            return Ok(());
        }
        let LoadFindings { over_admissions, forgotten, invented } = self.found;
        let uncompared = match self.uncompared {
            0 => String::new(),
            some => format!(", {} not compared", counted(some, "count", "counts")),
        };
        Err(Failure::Failed(format!(
            "the verdict is not clean: {}, {}, {}{uncompared}",
            counted(self.failures, "failure", "failures"),
            counted(over_admissions, "over-admission", "over-admissions"),
            counted(forgotten + invented, "difference", "differences"),
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const QUOTA: LoadQuota = LoadQuota { total: 10, per_key: 4 };

    /// A tally with these grants per key.
    fn tally(by_key: &[u32]) -> LoadTally {
        let mut tally = LoadTally::new(by_key.len(), Duration::from_secs(1));
        for (key, granted) in by_key.iter().enumerate() {
            (0..*granted).for_each(|_| tally.grant(key));
        }
        tally.refused = 3;
        tally
    }

    fn result(tally: &LoadTally, server_counted: Option<u64>) -> LoadVerdict {
        let mut verdict = LoadVerdict::default();
        verdict.judge(tally, QUOTA, server_counted);
        verdict
    }

    #[test]
    fn full_limit_is_no_over_admission() {
        let verdict = result(&tally(&[4, 4, 2]), Some(10));
        assert!(verdict.is_clean() && verdict.result().is_ok());
        let expected =
            "0 failures in 13 decisions; no grants above the limit.\nThe server's counts match the grants.\n";
        assert_eq!(verdict.text(), expected);
    }

    #[test]
    fn grant_above_the_total_is_found() {
        let verdict = result(&tally(&[4, 4, 3]), Some(11));
        assert_eq!(verdict.found.over_admissions, 1);
        assert!(verdict.text().contains("1 grant ABOVE THE LIMIT"), "{}", verdict.text());
        assert!(matches!(verdict.result(), Err(Failure::Failed(_))));
    }

    #[test]
    fn grant_above_the_per_key_limit_is_found() {
        let verdict = result(&tally(&[6, 1, 1]), Some(8));
        assert_eq!(verdict.found.over_admissions, 2);
        assert!(!verdict.is_clean());
    }

    #[test]
    fn grant_missing_from_server_count_is_found() {
        let verdict = result(&tally(&[4, 4, 0]), Some(7));
        assert_eq!(verdict.found, LoadFindings { forgotten: 1, ..LoadFindings::default() });
        assert!(verdict.text().contains("count is missing 1 grant"), "{}", verdict.text());
        assert!(!verdict.is_clean());
    }

    #[test]
    fn lost_request_explains_one_extra_unit() {
        let mut lost = tally(&[4, 0, 0]);
        lost.unanswered = 2;
        assert_eq!(result(&lost, Some(6)).found, LoadFindings::default());
        assert_eq!(result(&lost, Some(7)).found.invented, 1);
    }

    #[test]
    fn failures_are_shown_with_their_reasons() {
        let mut failing = tally(&[1]);
        failing.fail("connection reset", 1200);
        failing.fail("no reply within 10ms", 1);
        let verdict = result(&failing, Some(1));
        let expected = "1,201 failures and 4 decisions; no grants above the limit.\n  1,200 x connection reset\n  1 x no reply";
        assert!(verdict.text().starts_with(expected), "{}", verdict.text());
        assert!(!verdict.is_clean());
    }

    #[test]
    fn unreadable_server_count_is_not_clean() {
        let verdict = result(&tally(&[1]), None);
        assert!(!verdict.is_clean() && verdict.text().contains("could not be read"), "{}", verdict.text());
    }

    #[test]
    fn runs_add_up() {
        let mut verdict = LoadVerdict::default();
        verdict.judge(&tally(&[5]), QUOTA, Some(5));
        verdict.judge(&tally(&[4]), QUOTA, Some(4));
        assert_eq!((verdict.decisions, verdict.found.over_admissions), (15, 1));
    }
}
