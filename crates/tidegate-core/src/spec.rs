//! The specification of a limit: typed, and not yet validated.
//!
//! Limits files, the HTTP API and the library all produce these plain structs. [`crate::Limit::new`] validates and
//! compiles them, or returns every [`SpecError`] at once.

use std::fmt;
use std::time::Duration;

use crate::amount::{Amount, Capacity};
use crate::calendar::{Unit, WeekStart, Zone};

/// The default time to live of a lease.
pub const DEFAULT_TTL: Duration = Duration::from_secs(60);

/// The specification of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitSpec {
    /// The id: 1 to 256 bytes of `A-Z a-z 0-9 . _ : / -`.
    pub id: String,
    /// Free text for operators.
    pub description: Option<String>,
    /// The time zone of calendar items.
    pub time_zone: Zone,
    /// The first day of the week.
    pub week_start: WeekStart,
    /// Everything is refused before this time since the epoch.
    pub starts_at: Option<Duration>,
    /// Everything is refused from this time on, and the state is dropped.
    pub ends_at: Option<Duration>,
    /// Whether refusals are enforced.
    pub mode: Mode,
    /// The answer while the store is unavailable.
    pub on_outage: OnOutage,
    /// What a local store syncs to disk before it answers.
    pub durability: Durability,
    /// How nodes share one limit.
    pub fleet: Fleet,
    /// The most keys that the limit may store at once.
    pub max_keys: Option<u64>,
    /// The items, at least one.
    pub items: Vec<ItemSpec>,
    /// Different limits for single keys.
    pub overrides: Vec<OverrideSpec>,
}

impl LimitSpec {
    /// A specification with this id, defaults and no items.
    pub fn named(id: impl Into<String>) -> LimitSpec {
        LimitSpec {
            id: id.into(),
            description: None,
            time_zone: Zone::UTC,
            week_start: WeekStart::default(),
            starts_at: None,
            ends_at: None,
            mode: Mode::default(),
            on_outage: OnOutage::default(),
            durability: Durability::default(),
            fleet: Fleet::default(),
            max_keys: None,
            items: Vec::new(),
            overrides: Vec::new(),
        }
    }

    /// Adds an item.
    pub fn with(mut self, item: ItemSpec) -> LimitSpec {
        self.items.push(item);
        self
    }
}

/// The specification of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemSpec {
    /// The name. The default consists of `per`, the policy and its window.
    pub name: Option<String>,
    /// How spent capacity comes back.
    pub policy: Policy,
    /// Whether all keys share the count or each key has its own.
    pub per: Per,
    /// The limit.
    pub limit: Capacity,
    /// How an ask is charged. The default is [`Charge::Ask`] for concurrency and [`Charge::Count`] otherwise.
    pub charge: Option<Charge>,
}

impl ItemSpec {
    /// An item with at most `limit` units for all keys together.
    pub const fn of(policy: Policy, limit: Amount) -> ItemSpec {
        ItemSpec { name: None, policy, per: Per::All, limit: Capacity::AtMost(limit), charge: None }
    }

    /// The same item, counted for each key separately.
    pub const fn per_key(mut self) -> ItemSpec {
        self.per = Per::Key;
        self
    }

    /// The given name, or `PER/POLICY[-WINDOW]`.
    pub fn effective_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| match self.policy.window() {
            Some(window) => format!("{}/{}-{}", self.per.word(), self.policy.word(), WindowSuffix(window)),
            None => format!("{}/{}", self.per.word(), self.policy.word()),
        })
    }
}

/// Formats a window in seconds, or in milliseconds if it has a fraction.
struct WindowSuffix(Duration);

impl fmt::Display for WindowSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.subsec_nanos() == 0 {
            write!(f, "{}s", self.0.as_secs())
        } else {
            write!(f, "{}ms", self.0.as_millis())
        }
    }
}

/// How spent capacity comes back, as limits files name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Never.
    Total,
    /// At the end of a calendar unit.
    Calendar(Unit),
    /// At the end of a window that starts with the first charge.
    Interval {
        /// Its length.
        window: Duration,
    },
    /// Each unit one window after it was spent.
    Sliding {
        /// Its length.
        window: Duration,
        /// The precision of the log.
        precision: Precision,
    },
    /// Continuously, `limit` per window.
    Bucket {
        /// The time in which `limit` units come back.
        window: Duration,
        /// The most units in use at once. The default is the limit.
        burst: Option<Amount>,
    },
    /// When the lease is released or expires.
    Concurrency {
        /// The default lease TTL.
        ttl: Duration,
    },
}

impl Policy {
    /// The word used in limits files.
    pub const fn word(&self) -> &'static str {
        match self {
            Policy::Total => "total",
            Policy::Calendar(unit) => unit.word(),
            Policy::Interval { .. } => "interval",
            Policy::Sliding { .. } => "sliding",
            Policy::Bucket { .. } => "bucket",
            Policy::Concurrency { .. } => "concurrency",
        }
    }

    /// The window length, if the policy has one.
    pub const fn window(&self) -> Option<Duration> {
        match *self {
            Policy::Interval { window } | Policy::Sliding { window, .. } | Policy::Bucket { window, .. } => {
                Some(window)
            }
            Policy::Total | Policy::Calendar(_) | Policy::Concurrency { .. } => None,
        }
    }
}

/// A different limit for one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverrideSpec {
    /// The key.
    pub key: Vec<u8>,
    /// The name of a `per: key` item.
    pub item: String,
    /// The limit of this key.
    pub limit: Capacity,
    /// The end, as time since the epoch. Without it the override has no end.
    pub until: Option<Duration>,
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $name {
            /// Every value, in the order that messages list them.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The word used in limits files.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }
    };
}

words! {
    /// Whether all keys share a count or each key has its own.
    Per {
        /// All keys share one count.
        #[default]
        All = "all",
        /// Each key has its own count.
        Key = "key",
    }
}

words! {
    /// How an ask is charged to an item.
    Charge {
        /// The count of the ask.
        #[default]
        Count = "count",
        /// One unit for each ask with a count above zero.
        Ask = "ask",
    }
}

words! {
    /// The precision of a sliding window.
    Precision {
        /// To the tick.
        #[default]
        Exact = "exact",
        /// 64 sub-windows. Usage is rounded up, so the limit is never exceeded.
        Bucketed = "bucketed",
    }
}

words! {
    /// Whether refusals are enforced.
    Mode {
        /// Refusals are enforced.
        #[default]
        Enforce = "enforce",
        /// Orders that would be refused are granted, not charged, and counted in metrics.
        Shadow = "shadow",
        /// The limit is ignored.
        Off = "off",
    }
}

words! {
    /// The answer while the store is unavailable.
    OnOutage {
        /// Refuse.
        #[default]
        Deny = "deny",
        /// Grant.
        Admit = "admit",
    }
}

words! {
    /// What a local store syncs to disk, so that a crash never loses usage.
    Durability {
        /// An upper bound of the usage, synced before usage exceeds the previous bound.
        #[default]
        Ceiling = "ceiling",
        /// Every charge, synced before its answer is sent.
        Sync = "sync",
        /// Nothing. A crash loses the usage.
        Volatile = "volatile",
    }
}

words! {
    /// How the nodes of a fleet share a limit.
    Fleet {
        /// Every decision uses the shared store.
        #[default]
        Exact = "exact",
        /// Each node decides from a slice that it charged in advance.
        Sliced = "sliced",
    }
}

/// An error in a specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecError {
    /// The field, as a path inside the limit: `items[2].burst`.
    pub field: String,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl SpecError {
    /// An error in this field.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> SpecError {
        SpecError { field: field.into(), message: message.into() }
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}
