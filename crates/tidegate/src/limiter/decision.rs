//! What a limiter says to a question.
//!
//! A denial is an answer, so it is not an `Err`: `?` passes on what went wrong, never who was refused.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Limit, Tick, Timestamp, Wait};

use super::lease::Lease;
use crate::answer::{Denied, ItemReading, OrderError};
use crate::store::Unavailable;

/// The answer to a question.
#[derive(Debug)]
#[must_use = "what was granted may come with a lease, which is given back when it is dropped"]
pub enum Decision {
    /// All of it.
    Granted(Granted),
    /// None of it, and nothing was charged.
    Denied(Denial),
}

impl Decision {
    /// Whether it was granted.
    pub fn is_granted(&self) -> bool {
        matches!(self, Decision::Granted(_))
    }

    /// The grant, if it is one.
    pub fn granted(self) -> Option<Granted> {
        match self {
            Decision::Granted(granted) => Some(granted),
            Decision::Denied(_) => None,
        }
    }

    /// The denial, if it is one.
    pub fn denied(self) -> Option<Denial> {
        match self {
            Decision::Granted(_) => None,
            Decision::Denied(denial) => Some(denial),
        }
    }
}

/// All that was asked for.
#[derive(Debug)]
pub struct Granted {
    /// The instant it was decided at, by the store's clock.
    pub at: Timestamp,
    /// Limits in shadow mode that would have refused.
    pub shadowed: Vec<Arc<Limit>>,
    /// Whether the store could not really tell and answered by rule.
    pub degraded: bool,
    pub(super) lease: Option<Lease>,
    pub(super) readings: Vec<ItemReading>,
}

impl Granted {
    /// What it holds: something if it was to be settled, or a concurrency item is among what was asked.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// What it holds, to be kept. A lease that is dropped is given back.
    pub fn into_lease(self) -> Option<Lease> {
        self.lease
    }

    /// What the items said about themselves after the decision, if that was wanted.
    pub fn readings(&self) -> &[ItemReading] {
        &self.readings
    }
}

/// Which item refused for the longest, and when asking again could help.
#[derive(Debug, Clone)]
pub struct Denial {
    /// The instant it was decided at, by the store's clock.
    pub at: Timestamp,
    /// When asking again could help.
    pub wait: Wait,
    /// Whether the store could not really tell and answered by rule.
    pub degraded: bool,
    /// What the store said; `None` if it was not the store that refused, but the line of those who wait.
    pub(super) denied: Option<Denied>,
    /// The limit that refused.
    pub(super) limit: Arc<Limit>,
    pub(super) item: usize,
    pub(super) tick: Tick,
    pub(super) readings: Vec<ItemReading>,
}

impl Denial {
    /// The id of the limit that refused.
    pub fn limit_id(&self) -> &str {
        self.limit.id()
    }

    /// The limit that refused.
    pub fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    /// The name of its item that refused.
    pub fn item_name(&self) -> &str {
        self.limit.items().get(self.item).map_or("", |item| item.name())
    }

    /// What the store said; `None` if it would have granted this, but others are waiting for the same.
    pub fn denied(&self) -> Option<&Denied> {
        self.denied.as_ref()
    }

    /// How long after [`Denial::at`] asking again would help: never too short, and `None` if that is not a matter of
    /// time alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.wait {
            Wait::Until(until) => Some(self.tick.duration(until.since(self.at))),
            Wait::OnRelease | Wait::Never => None,
        }
    }

    /// What the items said about themselves, if that was wanted.
    pub fn readings(&self) -> &[ItemReading] {
        &self.readings
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of limit '{}' refused", self.item_name(), self.limit_id())?;
        match self.wait {
            Wait::Until(_) => write!(f, "; it fits in {:?}", self.retry_after().unwrap_or_default()),
            Wait::OnRelease => write!(f, "; it may fit when somebody gives something back"),
            Wait::Never => write!(f, "; it will never fit"),
        }
    }
}

/// Why there is no decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquireError {
    /// The question made no sense.
    Rejected(OrderError),
    /// The store could not answer.
    Unavailable(Unavailable),
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcquireError::Rejected(rejection) => rejection.fmt(f),
            AcquireError::Unavailable(unavailable) => unavailable.fmt(f),
        }
    }
}

impl std::error::Error for AcquireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            AcquireError::Rejected(rejection) => Some(rejection),
            AcquireError::Unavailable(unavailable) => Some(unavailable),
        }
    }
}

impl From<OrderError> for AcquireError {
    fn from(rejection: OrderError) -> AcquireError {
        AcquireError::Rejected(rejection)
    }
}

impl From<Unavailable> for AcquireError {
    fn from(unavailable: Unavailable) -> AcquireError {
        AcquireError::Unavailable(unavailable)
    }
}
