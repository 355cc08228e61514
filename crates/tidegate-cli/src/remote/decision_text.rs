//! A decision as text: one line, and a second one for the lease.

use serde::Deserialize;

/// The parts of a decision that are shown.
#[derive(Debug, Deserialize)]
pub(super) struct DecisionReply {
    pub(super) allowed: bool,
    lease: Option<LeaseReply>,
    binding: Option<BindingReply>,
    wait: Option<String>,
    retry_after_ms: Option<u64>,
    degraded: bool,
    readings: Vec<ReadingReply>,
}

#[derive(Debug, Deserialize)]
struct LeaseReply {
    id: String,
    fence: Option<u64>,
    expires_at: String,
}

#[derive(Debug, Deserialize)]
struct BindingReply {
    limit_id: String,
    item: String,
}

#[derive(Debug, Deserialize)]
struct ReadingReply {
    limit_id: String,
    item: String,
    limit: i64,
    used: u64,
    remaining: i64,
}

/// The call that was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DecisionKind {
    Acquire,
    Peek,
}

impl DecisionReply {
    /// The decision as lines of text.
    pub(super) fn text_for(&self, kind: DecisionKind) -> String {
        let would = if kind == DecisionKind::Peek { "would be " } else { "" };
        let decided = if self.allowed {
            format!("allowed{}", self.remaining_text())
        } else {
            format!("refused{}{}", self.binding_text(), self.wait_text())
        };
        let degraded = if self.degraded { " (degraded: the store did not answer)" } else { "" };
        let lease = self.lease.as_ref().map(LeaseReply::line).unwrap_or_default();
        format!("{would}{decided}{degraded}\n{lease}")
    }

    /// The limited item with the least remaining units.
    fn remaining_text(&self) -> String {
        let limited = self.readings.iter().filter(|reading| reading.limit >= 0);
        let Some(ReadingReply { limit_id, item, limit, remaining, .. }) =
            limited.min_by_key(|each| each.remaining)
        else {
            return String::new();
        };
        format!(": {limit_id} {item} has {remaining} of {limit} left")
    }

    /// The binding item.
    fn binding_text(&self) -> String {
        let Some(BindingReply { limit_id, item }) = &self.binding else { return String::new() };
        let is_it = |each: &&ReadingReply| each.limit_id == *limit_id && each.item == *item;
        match self.readings.iter().find(is_it) {
            Some(ReadingReply { used, limit, .. }) => {
                format!(" by {limit_id} {item}, {used} of {limit} used")
            }
            None => format!(" by {limit_id} {item}"),
        }
    }

    fn wait_text(&self) -> String {
        match (self.wait.as_deref(), self.retry_after_ms) {
            (Some("until"), Some(ms)) => format!(": retry in {}", time(ms)),
            (Some("on_release"), _) => ": retry after a release".to_owned(),
            (Some("never"), _) => ": waiting does not help".to_owned(),
            _ => String::new(),
        }
    }
}

impl LeaseReply {
    fn line(&self) -> String {
        let fence = self.fence.map(|fence| format!(", fence {fence}")).unwrap_or_default();
        format!("lease {} until {}{fence}\n", self.id, self.expires_at)
    }
}

/// Milliseconds as text: exact below a minute, otherwise seconds rounded up.
fn time(ms: u64) -> String {
    if ms < 60_000 {
        let fraction = format!("{:03}", ms % 1000);
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() { "" } else { "." };
        return format!("{}{point}{fraction}s", ms / 1000);
    }
    let seconds = ms.div_ceil(1000);
    let parts =
        [(seconds / 86_400, "d"), (seconds / 3600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0);
    parts.map(|(count, unit)| format!("{count}{unit}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(json: &str, kind: DecisionKind) -> String {
        serde_json::from_str::<DecisionReply>(json).expect("a decision").text_for(kind)
    }

    fn refusal(wait: &str, retry: &str) -> String {
        let json = format!(
            r#"{{"allowed":false,"lease":null,"binding":{{"limit_id":"a","item":"key/day"}},"wait":{wait},
            "retry_after_ms":{retry},"degraded":false,"readings":[
            {{"limit_id":"b","item":"key/day","limit":9,"used":1,"remaining":8,"resets_at":null}},
            {{"limit_id":"a","item":"key/day","limit":2,"used":2,"remaining":0,"resets_at":null}}]}}"#
        );
        words(&json, DecisionKind::Acquire)
    }

    #[test]
    fn refusal_names_item_and_wait() {
        assert_eq!(refusal("\"until\"", "9001"), "refused by a key/day, 2 of 2 used: retry in 9.001s\n");
        assert_eq!(
            refusal("\"never\"", "null"),
            "refused by a key/day, 2 of 2 used: waiting does not help\n"
        );
        let released = "refused by a key/day, 2 of 2 used: retry after a release\n";
        assert_eq!(refusal("\"on_release\"", "null"), released);
        assert_eq!(refusal("null", "null"), "refused by a key/day, 2 of 2 used\n");
    }

    #[test]
    fn grant_shows_the_least_remaining_item() {
        let json = r#"{"allowed":true,"lease":{"id":"l1","fence":7,"expires_at":"soon"},"binding":null,"wait":null,
            "retry_after_ms":null,"degraded":true,"readings":[
            {"limit_id":"a","item":"all/total","limit":-1,"used":5,"remaining":-1,"resets_at":null},
            {"limit_id":"a","item":"key/day","limit":2,"used":1,"remaining":1,"resets_at":null},
            {"limit_id":"a","item":"key/week","limit":9,"used":1,"remaining":8,"resets_at":null}]}"#;
        let first = "allowed: a key/day has 1 of 2 left (degraded: the store did not answer)";
        assert_eq!(words(json, DecisionKind::Acquire), format!("{first}\nlease l1 until soon, fence 7\n"));
        assert!(words(json, DecisionKind::Peek).starts_with("would be allowed: "));
        let bare = r#"{"allowed":true,"lease":null,"binding":null,"wait":null,"retry_after_ms":null,"degraded":false,"readings":[]}"#;
        assert_eq!(words(bare, DecisionKind::Acquire), "allowed\n");
    }

    #[test]
    fn time_is_rounded_up() {
        for (ms, text) in [
            (0, "0s"),
            (1, "0.001s"),
            (1500, "1.5s"),
            (59_999, "59.999s"),
            (60_000, "1m"),
            (60_001, "1m 1s"),
            (3_600_000, "1h"),
            (90_061_000, "1d 1h 1m 1s"),
        ] {
            assert_eq!(time(ms), text);
        }
    }
}
