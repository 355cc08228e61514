//! Status of a user's tasks, and the errors of activities.

use std::fmt;
use std::time::Duration;

use tidegate_core::limit::MAX_KEY_BYTES;
use tidegate_core::{Amount, Capacity, Limit, Per, Policy, SpecError};

use super::{ActivityRules, ID};
use crate::limiter::{AcquireError, Refused};
use crate::reply::{ItemReading, OrderError};
use crate::store::Unavailable;

/// The specified message of a refusal: the system has reached its maximum concurrency.
pub const SYSTEM_IS_FULL: &str = "系统并发已达上限";

/// Whether a user may start a task, and how many run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The specified `is_active`: true means limited, false means that a task may start.
    pub limited: bool,
    /// What limits the user; the window if both do.
    pub reason: Option<Reason>,
    /// How long until the window has room. Exact if only the window is full, else an upper bound, because tasks end at
    /// any time.
    pub retry_after: Option<Duration>,
    /// Number of running tasks of all users.
    pub active: Amount,
    /// Number of running tasks of this user.
    pub user_active: Amount,
}

impl Status {
    /// Status of a user without any counts: only a bound of zero refuses.
    pub(super) fn without_counts(rules: &ActivityRules) -> Status {
        let none = Capacity::AtMost(0);
        let tasks = [rules.max_concurrent_per_user, rules.max_concurrent_tasks].contains(&none);
        let reason = if rules.window_requests == none {
            Some(Reason::UserWindow)
        } else {
            tasks.then_some(Reason::Concurrency)
        };
        Status { limited: reason.is_some(), reason, retry_after: None, active: 0, user_active: 0 }
    }

    /// Whether a task may start: the opposite of limited.
    pub fn can_active(&self) -> bool {
        !self.limited
    }

    /// Whether the user has a running task.
    pub fn has_active(&self) -> bool {
        self.user_active > 0
    }
}

/// What limits a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The user made too many requests in the window.
    UserWindow,
    /// Too many tasks run.
    Concurrency,
}

impl Reason {
    /// The word in replies.
    pub const fn word(self) -> &'static str {
        match self {
            Reason::UserWindow => "user_window",
            Reason::Concurrency => "concurrency",
        }
    }
}

/// A refused task. Nothing was charged.
#[derive(Debug, Clone)]
pub struct ActivityRefusal {
    /// What refused it; the window if both did.
    pub reason: Reason,
    /// Whether the user's tasks or all tasks are too many.
    pub per: Per,
    /// See [`Status::retry_after`].
    pub retry_after: Option<Duration>,
    refused: Refused,
}

impl ActivityRefusal {
    pub(super) fn of(refused: Refused) -> ActivityRefusal {
        let (reason, per) = cause(&refused);
        ActivityRefusal { reason, per, retry_after: retry_after(&refused, reason), refused }
    }

    /// The refusal of the limiter.
    pub fn refused(&self) -> &Refused {
        &self.refused
    }
}

impl fmt::Display for ActivityRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.reason, self.per) {
            (Reason::UserWindow, _) => f.write_str("this user made as many requests as the window allows"),
            (Reason::Concurrency, Per::All) => {
                write!(f, "{SYSTEM_IS_FULL}: as many tasks are running as are allowed")
            }
            (Reason::Concurrency, Per::Key) => {
                write!(f, "{SYSTEM_IS_FULL}: as many tasks of this user are running as are allowed")
            }
        }
    }
}

/// The item that refused; the first one if several did.
fn cause(refused: &Refused) -> (Reason, Per) {
    let in_line = || refused.limit().item_named(refused.item()).map_or(0, |(index, _)| index);
    let (limit, index): (&Limit, usize) = match refused.by() {
        Some(denied) => (&denied.first.0, denied.first.1),
        // Waiting requests take what would have been granted.
        None => (refused.limit(), in_line()),
    };
    match limit.items().get(index) {
        Some(item) if is_window(item.policy()) && item.per() == Per::Key => (Reason::UserWindow, Per::Key),
        Some(item) => (Reason::Concurrency, item.per()),
        None => (Reason::Concurrency, Per::All),
    }
}

pub(super) fn cause_of(refused: &Refused) -> Reason {
    cause(refused).0
}

/// How long until the window has room. If tasks are in the way too, the wait of the limit is unknown, but the window
/// says when it would be empty.
pub(super) fn retry_after(refused: &Refused, reason: Reason) -> Option<Duration> {
    match reason {
        Reason::Concurrency => None,
        Reason::UserWindow => refused.retry_after().or_else(|| {
            let window = Gauge::Window.of(refused.readings())?;
            let empty_at = window.reading.resets_at?;
            Some(refused.limit().tick().duration(empty_at.since(refused.at())))
        }),
    }
}

/// One of the three counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gauge {
    Window,
    Tasks(Per),
}

impl Gauge {
    /// Its reading, if it is among these.
    pub(super) fn of(self, readings: &[ItemReading]) -> Option<&ItemReading> {
        readings.iter().find(|each| {
            let item = each.limit.items().get(each.item);
            item.is_some_and(|item| match self {
                Gauge::Window => is_window(item.policy()) && item.per() == Per::Key,
                Gauge::Tasks(per) => !is_window(item.policy()) && item.per() == per,
            })
        })
    }

    /// Units in use.
    pub(super) fn used(self, readings: &[ItemReading]) -> Amount {
        self.of(readings).map_or(0, |found| found.reading.used)
    }
}

/// Whether it counts requests rather than tasks.
fn is_window(policy: &Policy) -> bool {
    !matches!(policy, Policy::Concurrency { .. })
}

/// Why there is no status, or why no task was started.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ActivityError {
    /// The window or the tasks are full. The `ActivityError` of the specification is the latter.
    Refused(Box<ActivityRefusal>),
    /// The user name is invalid.
    BadUser(BadUser),
    /// The time to live is not allowed, and why.
    BadTtl(String),
    /// The existing limit cannot count activities, and why.
    Misfit(SpecError),
    /// The limit rejected the order.
    Rejected(OrderError),
    /// The store could not answer.
    Unavailable(Unavailable),
}

impl ActivityError {
    /// The refusal, if it is one.
    pub fn refusal(&self) -> Option<&ActivityRefusal> {
        match self {
            ActivityError::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

impl fmt::Display for ActivityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ActivityError::Refused(refusal) => refusal.fmt(f),
            ActivityError::BadUser(why) => why.fmt(f),
            ActivityError::BadTtl(why) => write!(f, "the time to live {why}"),
            ActivityError::Misfit(SpecError { field, message }) => {
                write!(f, "the {field} of the limit '{ID}' {message}")
            }
            ActivityError::Rejected(why) => why.fmt(f),
            ActivityError::Unavailable(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for ActivityError {}

impl From<BadUser> for ActivityError {
    fn from(why: BadUser) -> ActivityError {
        ActivityError::BadUser(why)
    }
}

impl From<OrderError> for ActivityError {
    fn from(why: OrderError) -> ActivityError {
        ActivityError::Rejected(why)
    }
}

impl From<Unavailable> for ActivityError {
    fn from(why: Unavailable) -> ActivityError {
        ActivityError::Unavailable(why)
    }
}

impl From<AcquireError> for ActivityError {
    fn from(why: AcquireError) -> ActivityError {
        match why {
            AcquireError::Refused(refused) => ActivityError::Refused(Box::new(ActivityRefusal::of(refused))),
            AcquireError::Invalid(why) => why.into(),
            AcquireError::Unavailable(why) => why.into(),
        }
    }
}

/// Why a user name is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadUser {
    /// It is empty.
    Empty,
    /// It is longer than a key may be.
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It contains U+0000, which databases do not store.
    HasNul,
}

impl BadUser {
    /// Checks a user name.
    pub(super) fn check(user: &str) -> Result<(), BadUser> {
        match user.len() {
            0 => Err(BadUser::Empty),
            bytes if bytes > MAX_KEY_BYTES => Err(BadUser::TooLong { bytes }),
            _ if user.contains('\0') => Err(BadUser::HasNul),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for BadUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadUser::Empty => write!(f, "the user is empty; 1 to {MAX_KEY_BYTES} bytes are allowed"),
            BadUser::TooLong { bytes } => {
                write!(f, "the user has {bytes} bytes; 1 to {MAX_KEY_BYTES} are allowed")
            }
            BadUser::HasNul => f.write_str("the user must not contain U+0000"),
        }
    }
}

impl std::error::Error for BadUser {}
