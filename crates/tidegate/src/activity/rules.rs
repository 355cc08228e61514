//! The rules of the activity limit: requests per user and window, and concurrent tasks.

use std::fmt;
use std::time::Duration;

use tidegate_core::limit::MAX_EXACT_SLIDING;
use tidegate_core::time::format_duration;
use tidegate_core::{Capacity, ItemSpec, Limit, LimitSpec, Per, Policy, Precision, SpecError, Tick};

use super::ID;

/// Longest time to live of a task without renewal.
pub const LONGEST_TTL: Duration = Duration::from_secs(24 * 3600);

/// Requests per user and window, and concurrent tasks. Each bound may be a number, zero, or unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActivityRules {
    /// Maximum number of concurrent tasks; `MAX_CONCURRENT_TASKS`.
    pub max_concurrent_tasks: Capacity,
    /// Maximum number of concurrent tasks of one user. Unlimited by default.
    pub max_concurrent_per_user: Capacity,
    /// Maximum number of admitted requests of a user per window; `SLIDE_WINDOW_QUESTION_COUNT`.
    pub window_requests: Capacity,
    /// Length of the window; `SLIDE_WINDOW_TIME`. The window is closed: a request of exactly this age still counts.
    pub window: Duration,
    /// Time to live of a task without renewal.
    pub lease_ttl: Duration,
    /// Follows the original specification literally: the window counts running tasks, and starting a task checks only
    /// the task bounds.
    pub compat: bool,
}

impl Default for ActivityRules {
    /// The specified defaults: thirty tasks, and five requests of a user in fifteen seconds. A task lives for five
    /// minutes without renewal.
    fn default() -> ActivityRules {
        ActivityRules::DOCUMENT
    }
}

impl ActivityRules {
    /// The specified defaults.
    pub const DOCUMENT: ActivityRules = ActivityRules {
        max_concurrent_tasks: Capacity::AtMost(30),
        max_concurrent_per_user: Capacity::Unlimited,
        window_requests: Capacity::AtMost(5),
        window: Duration::from_secs(15),
        lease_ttl: Duration::from_secs(300),
        compat: false,
    };

    /// The field names in a settings file.
    pub const FIELDS: [&'static str; 6] = [
        "max_concurrent_tasks",
        "max_concurrent_per_user",
        "window_requests",
        "window",
        "lease_ttl",
        "compat",
    ];

    /// The limit with these rules: the user's window, the user's tasks, all tasks. A refusal names the first item that
    /// refuses, so the order matters.
    pub fn spec(&self) -> LimitSpec {
        let tasks = Policy::Concurrency { ttl: self.lease_ttl };
        let item = |policy, per, limit| ItemSpec { name: None, policy, limit, per, charge: None };
        LimitSpec::named(ID)
            .with(self.window_item())
            .with(item(tasks, Per::Key, self.max_concurrent_per_user))
            .with(item(tasks, Per::All, self.max_concurrent_tasks))
    }

    /// With `compat` the window refuses no task; it is only read. It is exact, so that the charge of a task can be
    /// refunded at its end.
    fn window_item(&self) -> ItemSpec {
        let limit = if self.compat { Capacity::AtMost(MAX_EXACT_SLIDING) } else { self.window_requests };
        let exact = matches!(limit, Capacity::AtMost(limit) if limit <= MAX_EXACT_SLIDING);
        let precision = if exact { Precision::Exact } else { Precision::Bucketed };
        let policy = Policy::Sliding { window: self.window, precision };
        ItemSpec { name: None, policy, limit, per: Per::Key, charge: None }
    }

    /// Every error, by field name.
    pub fn flaws(&self) -> Vec<SpecError> {
        let mut flaws: Vec<SpecError> = Vec::new();
        let found = Limit::new(self.spec(), Tick::NANOSECOND).err().unwrap_or_default();
        for flaw in found {
            let field = field_of(&flaw.field);
            // Both task items have the same time to live, so report it once.
            if flaws.iter().all(|known| known.field != field) {
                flaws.push(SpecError::new(field, flaw.message));
            }
        }
        if !self.compat {
            return flaws;
        }
        if matches!(self.window_requests, Capacity::AtMost(most) if most > MAX_EXACT_SLIDING) {
            let message = format!("must be at most {MAX_EXACT_SLIDING} with compat: true, or -1");
            flaws.push(SpecError::new("window_requests", message));
        }
        if self.lease_ttl <= self.window {
            flaws.push(SpecError::new("lease_ttl", self.outlives_the_window()));
        }
        flaws
    }

    /// Why an existing limit called [`activity`](ID) cannot count activities; `None` if it can. It may have other items
    /// too.
    pub fn misfit(spec: &LimitSpec) -> Option<SpecError> {
        let is_task = |item: &ItemSpec| matches!(item.policy, Policy::Concurrency { .. });
        let has =
            |tasks: bool, per: Per| spec.items.iter().any(|item| is_task(item) == tasks && item.per == per);
        let is_whole = has(false, Per::Key) && has(true, Per::Key) && has(true, Per::All);
        let message = "must count requests (such as policy: sliding, per: key), tasks of a user (policy: concurrency, per: key) and tasks \
                       of all users (policy: concurrency, per: all), because this is the limit of activities; an item that refuses \
                       nothing has limit: -1";
        (!is_whole).then(|| SpecError::new("items", message))
    }

    /// Why a task cannot have this time to live; `None` if it can.
    pub(super) fn bad_ttl(&self, ttl: Duration) -> Option<String> {
        if ttl > LONGEST_TTL {
            return Some(format!("must be at most {}; renew the task instead", format_duration(LONGEST_TTL)));
        }
        (self.compat && ttl <= self.window).then(|| self.outlives_the_window())
    }

    /// Why a time to live is too short: the charge of an expired task cannot be refunded, so it must have left the
    /// window by then.
    fn outlives_the_window(&self) -> String {
        format!("must be longer than the window of {} with compat: true", format_duration(self.window))
    }
}

/// The field that an error of the limit belongs to.
fn field_of(flaw: &str) -> &'static str {
    match flaw {
        "items[0].limit" => "window_requests",
        "items[1].limit" => "max_concurrent_per_user",
        "items[2].limit" => "max_concurrent_tasks",
        "items[1].ttl" | "items[2].ttl" => "lease_ttl",
        _ => "window",
    }
}

/// Invalid rules.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActivityRulesError {
    /// Every error.
    pub flaws: Vec<SpecError>,
}

impl fmt::Display for ActivityRulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the rules of the activity cannot be used")?;
        self.flaws.iter().try_for_each(|flaw| write!(f, "; {flaw}"))
    }
}

impl std::error::Error for ActivityRulesError {}
