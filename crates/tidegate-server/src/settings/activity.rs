//! The section `activity`: how often a user may ask, and how many tasks may run at once.
//!
//! A field that is left out has the default of [`Rules`](tidegate::activity::Rules), which also check the numbers together.

use std::time::Duration;

use tidegate::activity::Rules;
use tidegate::model::{Capacity, SpecError};
use tidegate_config::{DiagnosticSink, FieldPath, Mapping, SourceSpan};

pub(super) use tidegate::activity::ID;

/// The section `activity`, or what overrides some of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ActivitySpec {
    /// How many tasks may run at once.
    pub max_concurrent_tasks: Option<Capacity>,
    /// How many of them may be one user's.
    pub max_concurrent_per_user: Option<Capacity>,
    /// How many requests a user may make in every window.
    pub window_requests: Option<Capacity>,
    /// The length of that window.
    pub window: Option<Duration>,
    /// How long a task that is not renewed keeps its place.
    pub lease_ttl: Option<Duration>,
    /// Whether everything is as the document has it to the letter.
    pub compat: Option<bool>,
}

impl ActivitySpec {
    /// The same, with what is said here put over what is said below.
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

    /// The rules: what is written, and the defaults for the rest.
    pub fn rules(&self) -> Rules {
        let usual = Rules::default();
        Rules {
            max_concurrent_tasks: self.max_concurrent_tasks.unwrap_or(usual.max_concurrent_tasks),
            max_concurrent_per_user: self.max_concurrent_per_user.unwrap_or(usual.max_concurrent_per_user),
            window_requests: self.window_requests.unwrap_or(usual.window_requests),
            window: self.window.unwrap_or(usual.window),
            lease_ttl: self.lease_ttl.unwrap_or(usual.lease_ttl),
            compat: self.compat.unwrap_or(usual.compat),
        }
    }

    /// Reads the section, and reports what does not make sense in it together. `limit` is where a limit of the same id is written.
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
            Rules::FIELDS.iter().map(|field| (*field, section.value_span(field))).collect();
        let is_valid = section.is_valid;
        let spec = ActivitySpec {
            max_concurrent_tasks: section.take_limit("max_concurrent_tasks"),
            max_concurrent_per_user: section.take_limit("max_concurrent_per_user"),
            window_requests: section.take_limit("window_requests"),
            window: section.take_duration("window"),
            lease_ttl: section.take_duration("lease_ttl"),
            compat: section.take_bool("compat"),
        };
        // What could not be read was reported, and would only be blamed again for not fitting the rest; durations are wrong by themselves.
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
