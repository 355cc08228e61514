//! Statistics of `tidegate pipe`.

use serde::Serialize;
use tidegate::model::Span;
use tidegate::stream::{MessageCounts, MessageDecision, mean_us};

/// The outcome of a line; `None` for an error.
pub(super) type LineDecision = Option<MessageDecision>;

/// Counts by outcome.
#[derive(Debug, Default)]
pub(super) struct PipeStats {
    decided: MessageCounts,
    errors: u64,
    spent: Span,
    /// Refusals and errors at the last progress message.
    reported: u64,
}

impl PipeStats {
    pub(super) fn count(&mut self, decision: LineDecision) {
        match decision {
            Some(decision) => self.decided.count(decision),
            None => self.errors += 1,
        }
    }

    /// Number of errors.
    pub(super) fn errors(&self) -> u64 {
        self.errors
    }

    /// Number of messages.
    pub(super) fn processed(&self) -> u64 {
        self.decided.processed() + self.errors
    }

    /// Adds processing time, without waiting for input.
    pub(super) fn spent(&mut self, span: Span) {
        self.spent = self.spent.plus(span);
    }

    /// A progress message when refusals and errors have doubled. It has counts only, no content of messages.
    pub(super) fn progress_message(&mut self) -> Option<String> {
        let (refused, errors) = (self.decided.dropped(), self.errors);
        if refused + errors == 0 || refused + errors < 2 * self.reported {
            return None;
        }
        self.reported = refused + errors;
        let MessageCounts { dropped_global: global, dropped_user: user, .. } = self.decided;
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

/// The JSON form of the statistics.
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
