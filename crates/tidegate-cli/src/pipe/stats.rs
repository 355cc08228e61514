//! What became of the messages, counted.

use serde::Serialize;
use tidegate::model::Span;
use tidegate::stream::{Counts, Fate, mean_us};

/// What becomes of a line: nothing, if it could not be judged.
pub(super) type LineFate = Option<Fate>;

/// Counts by fate.
#[derive(Debug, Default)]
pub(super) struct PipeStats {
    decided: Counts,
    errors: u64,
    spent: Span,
    /// How many refusals and errors had been told of.
    reported: u64,
}

impl PipeStats {
    pub(super) fn count(&mut self, fate: LineFate) {
        match fate {
            Some(fate) => self.decided.count(fate),
            None => self.errors += 1,
        }
    }

    /// How many messages could not be judged so far.
    pub(super) fn errors(&self) -> u64 {
        self.errors
    }

    /// How many messages there were so far.
    pub(super) fn processed(&self) -> u64 {
        self.decided.processed() + self.errors
    }

    /// Adds time spent on messages; waiting for them is not among it.
    pub(super) fn spent(&mut self, span: Span) {
        self.spent = self.spent.plus(span);
    }

    /// A sentence when the refusals and errors have doubled since the last one: a flood of refusals is not answered
    /// with a flood of words. It holds counts and nothing that a message said.
    pub(super) fn progress_message(&mut self) -> Option<String> {
        let (refused, errors) = (self.decided.dropped(), self.errors);
        if refused + errors == 0 || refused + errors < 2 * self.reported {
            return None;
        }
        self.reported = refused + errors;
        let Counts { dropped_global: global, dropped_user: user, .. } = self.decided;
        Some(format!(
            "pipe: refused {refused} so far, {global} by global and {user} by user; {errors} errors"
        ))
    }

    /// The statistics as one JSON object.
    pub(super) fn report(&self, current_global: u64, active_users: usize) -> String {
        let processed = self.processed();
        let report = PipeStatsJson {
            processed,
            passed: self.decided.passed,
            dropped: self.decided.dropped(),
            dropped_global: self.decided.dropped_global,
            dropped_user: self.decided.dropped_user,
            errors: self.errors,
            current_global,
            active_users,
            mean_us: mean_us(self.spent, processed),
        };
        serde_json::to_string(&report).unwrap_or_default()
    }
}

/// The wire form of the statistics.
#[derive(Serialize)]
struct PipeStatsJson {
    processed: u64,
    passed: u64,
    dropped: u64,
    dropped_global: u64,
    dropped_user: u64,
    errors: u64,
    current_global: u64,
    active_users: usize,
    mean_us: f64,
}
