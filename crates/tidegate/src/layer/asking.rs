//! The limits that a request is counted by.

use std::borrow::Cow;

use tidegate_core::{Amount, Ask};

/// The limits that a request is counted by: none, one, or several that are granted together or not at all.
///
/// ```
/// use tidegate::layer::Asking;
///
/// let free = Asking::nothing();
/// let one: Asking = ("api", "ada".to_owned()).into();
/// let both = Asking::of("login", "ada").and("addresses", "192.0.2.7");
/// let upload = Asking::of("bytes", "ada").count(4096).and_all("uploads");
/// # assert!(free.is_nothing() && !one.is_nothing());
/// # assert_eq!(both, Asking::of("login", "ada").and("addresses", "192.0.2.7").count(1));
/// # assert_ne!(upload, both);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asking {
    list: Vec<OwnedLayerAsk>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct OwnedLayerAsk {
    limit_id: Cow<'static, str>,
    key: Option<Vec<u8>>,
    count: Amount,
}

impl Asking {
    /// Not limited.
    pub fn nothing() -> Asking {
        Asking::default()
    }

    /// One unit of this limit for this key.
    pub fn of(limit_id: impl Into<Cow<'static, str>>, key: impl Into<Vec<u8>>) -> Asking {
        Asking::nothing().and(limit_id, key)
    }

    /// One unit of this limit, which counts all keys together.
    pub fn of_all(limit_id: impl Into<Cow<'static, str>>) -> Asking {
        Asking::nothing().and_all(limit_id)
    }

    /// Adds one unit of this limit for this key.
    pub fn and(self, limit_id: impl Into<Cow<'static, str>>, key: impl Into<Vec<u8>>) -> Asking {
        self.plus(limit_id.into(), Some(key.into()))
    }

    /// Adds one unit of this limit, which counts all keys together.
    pub fn and_all(self, limit_id: impl Into<Cow<'static, str>>) -> Asking {
        self.plus(limit_id.into(), None)
    }

    /// Sets the number of units of the limit that was added last.
    pub fn count(mut self, count: Amount) -> Asking {
        if let Some(ask) = self.list.last_mut() {
            ask.count = count;
        }
        self
    }

    /// Whether the request is not limited.
    pub fn is_nothing(&self) -> bool {
        self.list.is_empty()
    }

    fn plus(mut self, limit_id: Cow<'static, str>, key: Option<Vec<u8>>) -> Asking {
        self.list.push(OwnedLayerAsk { limit_id, key, count: 1 });
        self
    }

    pub(super) fn asks(&self) -> Vec<Ask<'_>> {
        let asks = self.list.iter();
        asks.map(|ask| Ask { limit_id: &ask.limit_id, key: ask.key.as_deref(), count: ask.count }).collect()
    }
}

impl<L: Into<Cow<'static, str>>, K: Into<Vec<u8>>> From<(L, K)> for Asking {
    fn from((limit_id, key): (L, K)) -> Asking {
        Asking::of(limit_id, key)
    }
}

impl<A: Into<Asking>> From<Option<A>> for Asking {
    fn from(asking: Option<A>) -> Asking {
        asking.map(Into::into).unwrap_or_default()
    }
}
