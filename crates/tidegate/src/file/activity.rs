//! The section `activity`: document 000's numbers, as far as somebody wrote them.
//!
//! What is left out is left to [`Rules`](crate::activity::Rules), which also judges the numbers together.

use std::time::Duration;

use tidegate_core::{Capacity, SpecError};

use super::diagnostic::Report;
use super::record::{Path, Record};
use super::source::Place;
use crate::activity::Rules;

pub(super) use crate::activity::ID;

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

    /// Reads the section, and reports what does not make sense in it together. `limit` is where a limit of the same id is written.
    pub(super) fn read(
        report: &mut Report<'_>,
        mut section: Record,
        key: Place,
        limit: Option<Place>,
    ) -> ActivitySpec {
        let path = Path::Field(&Path::Top, ID);
        if let Some(limit) = limit {
            let (line, _) = report.source().line_and_column(limit);
            let message = format!(
                "is the limit '{ID}', and a limit of that id is written on line {line} too; keep one of them"
            );
            report.error(key, path, message);
        }
        let places: Vec<(&str, Option<Place>)> =
            Rules::FIELDS.iter().map(|field| (*field, section.value_place(field))).collect();
        let sound = section.sound;
        let spec = ActivitySpec {
            max_concurrent_tasks: section.limit("max_concurrent_tasks"),
            max_concurrent_per_user: section.limit("max_concurrent_per_user"),
            window_requests: section.limit("window_requests"),
            window: section.duration("window"),
            lease_ttl: section.duration("lease_ttl"),
            compat: section.truth("compat"),
        };
        // What could not be read was reported, and would only be blamed again for not fitting the rest; durations are wrong by themselves.
        let alone =
            ActivitySpec { window: spec.window, lease_ttl: spec.lease_ttl, ..ActivitySpec::default() };
        let flaws = Rules::of(if sound { &spec } else { &alone }).flaws();
        for SpecError { field, message } in flaws {
            let place = places.iter().find(|(name, _)| *name == field).and_then(|(_, place)| *place);
            report.error(place.unwrap_or(key), Path::Field(&path, &field), message);
        }
        spec
    }
}
