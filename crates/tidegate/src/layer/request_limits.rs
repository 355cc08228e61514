//! The limits that a request is counted by.

use std::borrow::Cow;

use tidegate_core::{Amount, Ask};

/// The limits that a request is counted by: none, one, or several that are granted together or not at all.
///
/// ```
/// use tidegate::layer::RequestLimits;
///
/// let free = RequestLimits::none();
/// let one: RequestLimits = ("api", "ada".to_owned()).into();
/// let both = RequestLimits::of("login", "ada").and("addresses", "192.0.2.7");
/// let upload = RequestLimits::of("bytes", "ada").count(4096).and_without_key("uploads");
/// # assert!(free.is_empty() && !one.is_empty());
/// # assert_eq!(both, RequestLimits::of("login", "ada").and("addresses", "192.0.2.7").count(1));
/// # assert_ne!(upload, both);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestLimits {
    list: Vec<OwnedLayerAsk>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct OwnedLayerAsk {
    limit_id: Cow<'static, str>,
    key: Option<Vec<u8>>,
    count: Amount,
}

impl RequestLimits {
    /// Not limited.
    pub fn none() -> RequestLimits {
        RequestLimits::default()
    }

    /// One unit of this limit for this key.
    pub fn of(limit_id: impl Into<Cow<'static, str>>, key: impl Into<Vec<u8>>) -> RequestLimits {
        RequestLimits::none().and(limit_id, key)
    }

    /// One unit of this limit, which counts all keys together.
    pub fn without_key(limit_id: impl Into<Cow<'static, str>>) -> RequestLimits {
        RequestLimits::none().and_without_key(limit_id)
    }

    /// Adds one unit of this limit for this key.
    pub fn and(self, limit_id: impl Into<Cow<'static, str>>, key: impl Into<Vec<u8>>) -> RequestLimits {
        self.plus(limit_id.into(), Some(key.into()))
    }

    /// Adds one unit of this limit, which counts all keys together.
    pub fn and_without_key(self, limit_id: impl Into<Cow<'static, str>>) -> RequestLimits {
        self.plus(limit_id.into(), None)
    }

    /// Sets the number of units of the limit that was added last.
    pub fn count(mut self, count: Amount) -> RequestLimits {
        if let Some(ask) = self.list.last_mut() {
            ask.count = count;
        }
        self
    }

    /// Whether the request is not limited.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn plus(mut self, limit_id: Cow<'static, str>, key: Option<Vec<u8>>) -> RequestLimits {
        self.list.push(OwnedLayerAsk { limit_id, key, count: 1 });
        self
    }

    pub(super) fn asks(&self) -> Vec<Ask<'_>> {
        let asks = self.list.iter();
        asks.map(|ask| Ask { limit_id: &ask.limit_id, key: ask.key.as_deref(), count: ask.count }).collect()
    }
}

impl<L: Into<Cow<'static, str>>, K: Into<Vec<u8>>> From<(L, K)> for RequestLimits {
    fn from((limit_id, key): (L, K)) -> RequestLimits {
        RequestLimits::of(limit_id, key)
    }
}

impl<A: Into<RequestLimits>> From<Option<A>> for RequestLimits {
    fn from(limits: Option<A>) -> RequestLimits {
        limits.map(Into::into).unwrap_or_default()
    }
}
