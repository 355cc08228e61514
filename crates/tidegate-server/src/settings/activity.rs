//! The section `activity`: requests per user and window, and concurrent tasks.
//!
//! Missing fields have the defaults of [`ActivityRules`](tidegate::activity::ActivityRules), which also validate the combination.

use std::time::Duration;

use tidegate::activity::ActivityRules;
use tidegate::model::{Capacity, SpecError};
use tidegate_config::{DiagnosticSink, FieldPath, Mapping, SourceSpan};

pub(super) use tidegate::activity::ID;

/// The section `activity`, or overrides of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ActivitySpec {
    /// Maximum number of concurrent tasks.
    pub max_concurrent_tasks: Option<Capacity>,
    /// Maximum number of concurrent tasks per user.
    pub max_concurrent_per_user: Option<Capacity>,
    /// Requests per user and window.
    pub window_requests: Option<Capacity>,
    /// Length of the window.
    pub window: Option<Duration>,
    /// Time after which a task without renewal expires.
    pub lease_ttl: Option<Duration>,
    /// Whether to follow the original rules to the letter.
    pub compat: Option<bool>,
}

impl ActivitySpec {
    /// Merges two sections; fields of `self` override those of `below`.
    #[must_use]
    pub fn over(self, below: ActivitySpec) -> ActivitySpec {
        ActivitySpec {
            max_concurrent_tasks: self.max_concurrent_tasks.or(below.max_concurrent_tasks),
            max_concurrent_per_user: self.max_concurrent_per_user.or(below.max_concurrent_per_user),
            window_requests: self.window_requests.or(below.window_requests),
            window: self.window.or(below.window),
            lease_ttl: self.lease_ttl.or(below.lease_ttl),
            compat: self.compat.or(below.compat),
        }
    }

    /// The rules, with defaults for missing fields.
    pub fn rules(&self) -> ActivityRules {
        let usual = ActivityRules::default();
        ActivityRules {
            max_concurrent_tasks: self.max_concurrent_tasks.unwrap_or(usual.max_concurrent_tasks),
            max_concurrent_per_user: self.max_concurrent_per_user.unwrap_or(usual.max_concurrent_per_user),
            window_requests: self.window_requests.unwrap_or(usual.window_requests),
            window: self.window.unwrap_or(usual.window),
            lease_ttl: self.lease_ttl.unwrap_or(usual.lease_ttl),
            compat: self.compat.unwrap_or(usual.compat),
        }
    }

    /// Reads the section and validates the combination. `limit` is the position of a limit with the same id.
    pub(super) fn read(
        sink: &mut DiagnosticSink<'_>,
        mut section: Mapping,
        key: SourceSpan,
        limit: Option<SourceSpan>,
    ) -> ActivitySpec {
        let path = FieldPath::Field(&FieldPath::Top, ID);
        if let Some(limit) = limit {
            let (line, _) = sink.source().line_and_column(limit);
            let message = format!(
                "is the limit '{ID}', and a limit of that id is written on line {line} too; keep one of them"
            );
            sink.error(key, path, message);
        }
        let places: Vec<(&str, Option<SourceSpan>)> =
            ActivityRules::FIELDS.iter().map(|field| (*field, section.value_span(field))).collect();
        let is_valid = section.is_valid;
        let spec = ActivitySpec {
            max_concurrent_tasks: section.take_limit("max_concurrent_tasks"),
            max_concurrent_per_user: section.take_limit("max_concurrent_per_user"),
            window_requests: section.take_limit("window_requests"),
            window: section.take_duration("window"),
            lease_ttl: section.take_duration("lease_ttl"),
            compat: section.take_bool("compat"),
        };
        // Unreadable fields were reported already and must not cause further errors; only durations are validated then.
        let alone =
            ActivitySpec { window: spec.window, lease_ttl: spec.lease_ttl, ..ActivitySpec::default() };
        let flaws = if is_valid { spec } else { alone }.rules().flaws();
        for SpecError { field, message } in flaws {
            let place = places.iter().find(|(name, _)| *name == field).and_then(|(_, place)| *place);
            sink.error(place.unwrap_or(key), FieldPath::Field(&path, &field), message);
        }
        spec
    }
}
