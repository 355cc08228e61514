//! Why a request was not granted.
//!
//! [`AcquireError::Refused`] is the ordinary case: a limit refused, and the error contains when to ask again. The other cases mean
//! that there is no decision: the request was invalid, or the store could not answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Limit, Timestamp, Wait};

use crate::reply::{ItemReading, OrderError, OrderRefusal};
use crate::store::Unavailable;
use crate::store::memory::{HandleRefusal, MemoryHandle, RefusingLimit};

/// Why a request was not granted. Nothing was charged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireError {
    /// A limit refused, or earlier requests wait for the same rows.
    Refused(Refused),
    /// The request is invalid, for example because its limit does not exist.
    Invalid(OrderError),
    /// The store could not answer.
    Unavailable(Unavailable),
}

impl AcquireError {
    /// The refusal, if a limit refused.
    pub fn refused(&self) -> Option<&Refused> {
        match self {
            AcquireError::Refused(refused) => Some(refused),
            AcquireError::Invalid(_) | AcquireError::Unavailable(_) => None,
        }
    }

    /// Whether a limit refused. `false` means that there was no decision.
    pub fn is_refused(&self) -> bool {
        self.refused().is_some()
    }

    /// The id of the limit that refused; empty if there was no decision.
    pub fn limit_id(&self) -> &str {
        self.refused().map_or("", Refused::limit_id)
    }

    /// The name of the item that refused; empty if there was no decision.
    pub fn item(&self) -> &str {
        self.refused().map_or("", Refused::item)
    }

    /// Every item's reading; empty unless the request asked for readings and was refused.
    pub fn readings(&self) -> &[ItemReading] {
        self.refused().map_or(&[], Refused::readings)
    }

    /// How long after the decision the same request would fit. Never too short. `None` if time alone does not help.
    pub fn retry_after(&self) -> Option<Duration> {
        self.refused().and_then(Refused::retry_after)
    }
}

/// A refusal: the item with the longest wait, and when the same request could fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    at: Timestamp,
    wait: Wait,
    limit: Arc<RefusingLimit>,
    item: usize,
    details: Option<Box<RefusedDetails>>,
}

/// What few refusals have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct RefusedDetails {
    /// What the store replied; `None` if the wait queue refused.
    pub(super) by: Option<OrderRefusal>,
    pub(super) is_degraded: bool,
    pub(super) readings: Vec<ItemReading>,
}

impl Refused {
    /// A refusal by this item of the limit, with nothing more known.
    pub(super) fn by_item(at: Timestamp, wait: Wait, limit: Arc<Limit>, item: usize) -> Refused {
        Refused { at, wait, limit: Arc::new(RefusingLimit(limit)), item, details: None }
    }

    /// The refusal of a handle's fast path.
    #[inline]
    pub(super) fn by_handle(handle: &MemoryHandle, refusal: HandleRefusal) -> Refused {
        let HandleRefusal { at, wait, item, .. } = refusal;
        Refused { at, wait, limit: handle.limit_of(refusal), item, details: None }
    }

    /// The same refusal with everything the store replied.
    pub(super) fn with_details(self, details: RefusedDetails) -> Refused {
        Refused { details: Some(Box::new(details)), ..self }
    }

    /// The instant of the decision, by the store's clock.
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// When the same request could fit.
    pub fn wait(&self) -> Wait {
        self.wait
    }

    /// The id of the limit that refused.
    pub fn limit_id(&self) -> &str {
        self.limit.0.id()
    }

    /// The limit that refused.
    pub fn limit(&self) -> &Arc<Limit> {
        &self.limit.0
    }

    /// The name of the item that refused.
    pub fn item(&self) -> &str {
        self.limit.0.items().get(self.item).map_or("", |item| item.name())
    }

    /// The index of the item that refused.
    pub(super) fn item_index(&self) -> usize {
        self.item
    }

    /// Whether the store has no room to count another key. The item and the wait are then an estimate.
    pub fn is_degraded(&self) -> bool {
        self.details.as_ref().is_some_and(|details| details.is_degraded)
    }

    /// How long after [`Refused::at`] the same request would fit. Never too short. `None` if time alone does not help.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.wait {
            Wait::Until(until) => Some(self.limit.0.tick().duration(until.since(self.at))),
            Wait::OnRelease | Wait::Never => None,
        }
    }

    /// What the store replied. `None` if the request would fit but earlier requests wait for the same rows, and for
    /// refusals of requests that ask for no more than a verdict over a memory store.
    pub fn by(&self) -> Option<&OrderRefusal> {
        self.details.as_ref().and_then(|details| details.by.as_ref())
    }

    /// Every item's reading; empty unless the request asked for readings.
    pub fn readings(&self) -> &[ItemReading] {
        self.details.as_ref().map_or(&[], |details| &details.readings)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of limit '{}' refused", self.item(), self.limit_id())?;
        match self.wait {
            Wait::Until(_) => write!(f, "; retry after {:?}", self.retry_after().unwrap_or_default()),
            Wait::OnRelease => write!(f, "; retry when a lease is released"),
            Wait::Never => write!(f, "; it will never fit"),
        }
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcquireError::Refused(refused) => refused.fmt(f),
            AcquireError::Invalid(error) => error.fmt(f),
            AcquireError::Unavailable(unavailable) => unavailable.fmt(f),
        }
    }
}

impl std::error::Error for AcquireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            AcquireError::Refused(_) => None,
            AcquireError::Invalid(error) => Some(error),
            AcquireError::Unavailable(unavailable) => Some(unavailable),
        }
    }
}

impl From<Refused> for AcquireError {
    fn from(refused: Refused) -> AcquireError {
        AcquireError::Refused(refused)
    }
}

impl From<OrderError> for AcquireError {
    fn from(error: OrderError) -> AcquireError {
        AcquireError::Invalid(error)
    }
}

impl From<Unavailable> for AcquireError {
    fn from(unavailable: Unavailable) -> AcquireError {
        AcquireError::Unavailable(unavailable)
    }
}
