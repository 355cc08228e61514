//! What is said about a user's activity, and why there is none.

use std::fmt;
use std::time::Duration;

use tidegate_core::limit::MAX_KEY_BYTES;
use tidegate_core::{Amount, Capacity, Limit, Per, Policy, SpecError};

use super::{ID, Rules};
use crate::limiter::{AcquireError, Refused};
use crate::reply::{ItemReading, OrderError};
use crate::store::Unavailable;

/// What the document says to somebody for whom there is no place.
pub const SYSTEM_IS_FULL: &str = "系统并发已达上限";

/// Whether a user may begin something, and how much is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// The document's `is_active`: true means limited, false that a task may begin.
    pub limited: bool,
    /// By what; the window if by both.
    pub reason: Option<Reason>,
    /// How long until the window has room: exactly if nothing else is in the way, else at most. Nobody knows when a task ends.
    pub retry_after: Option<Duration>,
    /// How many tasks run, of all users.
    pub active: Amount,
    /// How many of them are this user's.
    pub user_active: Amount,
}

impl Status {
    /// How a user stands where nothing was ever counted: only a limit of nothing refuses.
    pub(super) fn of_nobody(rules: &Rules) -> Status {
        let none = Capacity::AtMost(0);
        let tasks = [rules.max_concurrent_per_user, rules.max_concurrent_tasks].contains(&none);
        let reason = if rules.window_requests == none {
            Some(Reason::UserWindow)
        } else {
            tasks.then_some(Reason::Concurrency)
        };
        Status { limited: reason.is_some(), reason, retry_after: None, active: 0, user_active: 0 }
    }

    /// Whether a task may begin: the opposite of limited.
    pub fn can_active(&self) -> bool {
        !self.limited
    }

    /// Whether the user has a task that runs.
    pub fn has_active(&self) -> bool {
        self.user_active > 0
    }
}

/// What limits a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The user made enough requests in the window.
    UserWindow,
    /// Enough tasks run.
    Concurrency,
}

impl Reason {
    /// The word that programs look at.
    pub const fn word(self) -> &'static str {
        match self {
            Reason::UserWindow => "user_window",
            Reason::Concurrency => "concurrency",
        }
    }
}

/// A task was not set active, and nothing was changed.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// By what; the window if by both.
    pub reason: Reason,
    /// Whose tasks are too many, if it is that: the user's own or everybody's.
    pub per: Per,
    /// As in [`Status::retry_after`].
    pub retry_after: Option<Duration>,
    refused: Refused,
}

impl Refusal {
    pub(super) fn of(refused: Refused) -> Refusal {
        let (reason, per) = cause(&refused);
        Refusal { reason, per, retry_after: retry_after(&refused, reason), refused }
    }

    /// All that the limit says about it.
    pub fn refused(&self) -> &Refused {
        &self.refused
    }
}

impl fmt::Display for Refusal {
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

/// Which of the items refused, if several did the first that is written.
fn cause(refused: &Refused) -> (Reason, Per) {
    let in_line = || refused.limit().item_named(refused.item()).map_or(0, |(index, _)| index);
    let (limit, index): (&Limit, usize) = match refused.by() {
        Some(denied) => (&denied.first.0, denied.first.1),
        // Others wait for what would have been granted.
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

/// How long until the window has room. Where tasks are in the way as well, the limit cannot say when it fits; but the window says when
/// it would be empty.
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

/// One of the three things that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gauge {
    Window,
    Tasks(Per),
}

impl Gauge {
    /// What it says, if it is among these.
    pub(super) fn of(self, readings: &[ItemReading]) -> Option<&ItemReading> {
        readings.iter().find(|each| {
            let item = each.limit.items().get(each.item);
            item.is_some_and(|item| match self {
                Gauge::Window => is_window(item.policy()) && item.per() == Per::Key,
                Gauge::Tasks(per) => !is_window(item.policy()) && item.per() == per,
            })
        })
    }

    /// How much of it is in use.
    pub(super) fn used(self, readings: &[ItemReading]) -> Amount {
        self.of(readings).map_or(0, |found| found.reading.used)
    }
}

/// Whether it counts requests, and not tasks.
fn is_window(policy: &Policy) -> bool {
    !matches!(policy, Policy::Concurrency { .. })
}

/// Why there is nothing to say about a user, or no task of theirs was set active.
#[derive(Debug, Clone)]
pub enum ActivityError {
    /// The window or the number of tasks is full; the document's `ActivityError` is the latter.
    Refused(Box<Refusal>),
    /// Nobody can be called that.
    BadUser(BadUser),
    /// A time to live that cannot be had: what is wrong with it.
    BadTtl(String),
    /// The limit that is there cannot keep activities: what it lacks.
    Misfit(SpecError),
    /// The limit does not know what to do with the question.
    Rejected(OrderError),
    /// The store could not answer.
    Unavailable(Unavailable),
}

impl ActivityError {
    /// The refusal, if it is one.
    pub fn refusal(&self) -> Option<&Refusal> {
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
            AcquireError::Refused(refused) => ActivityError::Refused(Box::new(Refusal::of(refused))),
            AcquireError::Invalid(why) => why.into(),
            AcquireError::Unavailable(why) => why.into(),
        }
    }
}

/// Why nobody can be called that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadUser {
    /// It has no letters.
    Empty,
    /// It is longer than a key may be.
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// It contains U+0000, which databases do not take.
    HasNul,
}

impl BadUser {
    /// Whether somebody can be called this.
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
