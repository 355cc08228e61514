//! The rules of document 000: how often a user may ask, and how many tasks may run at once.

use std::fmt;
use std::time::Duration;

use tidegate_core::limit::MAX_EXACT_SLIDING;
use tidegate_core::time::format_duration;
use tidegate_core::{Capacity, ItemSpec, Limit, LimitSpec, Per, Policy, Precision, SpecError, Tick};

use super::ID;

/// The longest that a task may keep its place without being renewed.
pub const LONGEST_TTL: Duration = Duration::from_secs(24 * 3600);

/// How often a user may ask, and how many tasks may run at once. As everywhere, a capacity may be anything, something or nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// How many tasks may run at once; `MAX_CONCURRENT_TASKS`.
    pub max_concurrent_tasks: Capacity,
    /// How many of them may be one user's, so that nobody owns all of them. Any number, unless said.
    pub max_concurrent_per_user: Capacity,
    /// How many requests of a user may be admitted in every window; `SLIDE_WINDOW_QUESTION_COUNT`.
    pub window_requests: Capacity,
    /// The length of that window; `SLIDE_WINDOW_TIME`. It is closed: what is exactly this old still counts.
    pub window: Duration,
    /// How long a task keeps its place if nobody renews it.
    pub lease_ttl: Duration,
    /// The document to the letter: the window counts tasks that are running, and setting one active asks for concurrency only.
    pub compat: bool,
}

impl Default for Rules {
    /// The document's: thirty tasks at once, five requests of a user in fifteen seconds. A place is kept for five minutes.
    fn default() -> Rules {
        Rules::DOCUMENT
    }
}

impl Rules {
    /// The document's numbers.
    pub const DOCUMENT: Rules = Rules {
        max_concurrent_tasks: Capacity::AtMost(30),
        max_concurrent_per_user: Capacity::Unlimited,
        window_requests: Capacity::AtMost(5),
        window: Duration::from_secs(15),
        lease_ttl: Duration::from_secs(300),
        compat: false,
    };

    /// The names of its fields, as in a settings file.
    pub const FIELDS: [&'static str; 6] = [
        "max_concurrent_tasks",
        "max_concurrent_per_user",
        "window_requests",
        "window",
        "lease_ttl",
        "compat",
    ];

    /// The limit that keeps these rules: the user's window, the user's tasks, everybody's tasks. The reason of a refusal is the first
    /// that refuses, so the order is the document's.
    pub fn spec(&self) -> LimitSpec {
        let tasks = Policy::Concurrency { ttl: self.lease_ttl };
        let item = |policy, per, limit| ItemSpec { name: None, policy, limit, per, charge: None };
        LimitSpec::named(ID)
            .with(self.window_item())
            .with(item(tasks, Per::Key, self.max_concurrent_per_user))
            .with(item(tasks, Per::All, self.max_concurrent_tasks))
    }

    /// To the letter the window refuses nobody who sets a task active; it is only looked at. It is exact, so that what a task was
    /// charged can be taken out of it when the task ends.
    fn window_item(&self) -> ItemSpec {
        let limit = if self.compat { Capacity::AtMost(MAX_EXACT_SLIDING) } else { self.window_requests };
        let exact = matches!(limit, Capacity::AtMost(limit) if limit <= MAX_EXACT_SLIDING);
        let precision = if exact { Precision::Exact } else { Precision::Bucketed };
        let policy = Policy::Sliding { window: self.window, precision };
        ItemSpec { name: None, policy, limit, per: Per::Key, charge: None }
    }

    /// Everything about them that cannot be meant, by the name of its field.
    pub fn flaws(&self) -> Vec<SpecError> {
        let mut flaws: Vec<SpecError> = Vec::new();
        let found = Limit::new(self.spec(), Tick::NANOSECOND).err().unwrap_or_default();
        for flaw in found {
            let field = field_of(&flaw.field);
            // Both items that hold tasks have the same time to live.
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

    /// What a limit called [`activity`](ID) lacks to keep activities; `None` if nothing. It may have other items beside.
    pub fn misfit(spec: &LimitSpec) -> Option<SpecError> {
        let is_task = |item: &ItemSpec| matches!(item.policy, Policy::Concurrency { .. });
        let has =
            |tasks: bool, per: Per| spec.items.iter().any(|item| is_task(item) == tasks && item.per == per);
        let is_whole = has(false, Per::Key) && has(true, Per::Key) && has(true, Per::All);
        let message = "must count requests (such as policy: sliding, per: key), tasks of a user (policy: concurrency, per: key) and tasks \
                       of everybody (policy: concurrency, per: all), because this is the limit of activities; an item that is not to \
                       refuse anybody has limit: -1";
        (!is_whole).then(|| SpecError::new("items", message))
    }

    /// What is wrong with a time to live that a task cannot be given; `None` if nothing.
    pub(super) fn bad_ttl(&self, ttl: Duration) -> Option<String> {
        if ttl > LONGEST_TTL {
            return Some(format!("must be at most {}; renew the task instead", format_duration(LONGEST_TTL)));
        }
        (self.compat && ttl <= self.window).then(|| self.outlives_the_window())
    }

    /// Why a time to live is not allowed: a task that ends by itself cannot be taken out of the window, so it must have left it.
    fn outlives_the_window(&self) -> String {
        format!("must be longer than the window of {} with compat: true", format_duration(self.window))
    }
}

/// The field that a flaw of the limit is about.
fn field_of(flaw: &str) -> &'static str {
    match flaw {
        "items[0].limit" => "window_requests",
        "items[1].limit" => "max_concurrent_per_user",
        "items[2].limit" => "max_concurrent_tasks",
        "items[1].ttl" | "items[2].ttl" => "lease_ttl",
        _ => "window",
    }
}

/// Rules that cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRules {
    /// All that is wrong with them.
    pub flaws: Vec<SpecError>,
}

impl fmt::Display for BadRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the rules of the activity cannot be used")?;
        self.flaws.iter().try_for_each(|flaw| write!(f, "; {flaw}"))
    }
}

impl std::error::Error for BadRules {}
