//! A limit as somebody wrote it: typed, but not yet known to make sense.
//!
//! Every door reads its own format into these plain structs; [`crate::Limit::new`] then checks them as a whole
//! and compiles them for a store's tick, or answers with every [`SpecError`] at once.

use std::fmt;
use std::time::Duration;

use crate::amount::{Amount, Capacity};
use crate::calendar::{Unit, WeekStart, Zone};

/// The default time to live of a lease.
pub const DEFAULT_TTL: Duration = Duration::from_secs(60);

/// A limit as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitSpec {
    /// Names the activity: 1 to 256 bytes of `A-Z a-z 0-9 . _ : / -`.
    pub id: String,
    /// For people.
    pub description: Option<String>,
    /// Where the calendar items live.
    pub time_zone: Zone,
    /// The first day of the week.
    pub week_start: WeekStart,
    /// Everything is refused before this instant, given as time since the epoch.
    pub starts_at: Option<Duration>,
    /// Everything is refused from this instant on, and the state is dropped.
    pub ends_at: Option<Duration>,
    /// Whether refusals are real.
    pub mode: Mode,
    /// What to answer when the store cannot.
    pub on_outage: OnOutage,
    /// How a local store keeps its state safe.
    pub durability: Durability,
    /// How nodes share one limit.
    pub fleet: Fleet,
    /// The most keys the limit may remember at once.
    pub max_keys: Option<u64>,
    /// What is limited; at least one.
    pub items: Vec<ItemSpec>,
    /// Exceptions for single keys.
    pub overrides: Vec<OverrideSpec>,
}

impl LimitSpec {
    /// A limit of this name with nothing but defaults.
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

    /// The same limit with one item more.
    pub fn with(mut self, item: ItemSpec) -> LimitSpec {
        self.items.push(item);
        self
    }
}

/// One thing that is limited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemSpec {
    /// The item's identity; by default made from `per`, the policy and its window.
    pub name: Option<String>,
    /// How spent capacity comes back.
    pub policy: Policy,
    /// Whose spending is counted together.
    pub per: Per,
    /// How much there is.
    pub limit: Capacity,
    /// What an ask costs; by default 1 for concurrency, its count for the rest.
    pub charge: Option<Charge>,
}

impl ItemSpec {
    /// At most `limit` by this policy, all keys together.
    pub const fn of(policy: Policy, limit: Amount) -> ItemSpec {
        ItemSpec { name: None, policy, per: Per::All, limit: Capacity::AtMost(limit), charge: None }
    }

    /// The same, for each key alone.
    pub const fn per_key(mut self) -> ItemSpec {
        self.per = Per::Key;
        self
    }

    /// The name it goes by: the one given, or `PER/POLICY[-WINDOW]`.
    pub fn effective_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| match self.policy.window() {
            Some(window) => format!("{}/{}-{}", self.per.word(), self.policy.word(), Window(window)),
            None => format!("{}/{}", self.per.word(), self.policy.word()),
        })
    }
}

/// Writes a window in whole seconds if it has them, else in milliseconds.
struct Window(Duration);

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.subsec_nanos() == 0 {
            write!(f, "{}s", self.0.as_secs())
        } else {
            write!(f, "{}ms", self.0.as_millis())
        }
    }
}

/// How spent capacity comes back, as people say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Never.
    Total,
    /// At the end of a calendar unit.
    Calendar(Unit),
    /// At the end of a window that the first hit opens.
    Interval {
        /// Its length.
        window: Duration,
    },
    /// Each unit one window after it was spent.
    Sliding {
        /// Its length.
        window: Duration,
        /// How finely spending is remembered.
        precision: Precision,
    },
    /// Continuously, `limit` per window.
    Bucket {
        /// The time in which `limit` units come back.
        window: Duration,
        /// How much may be spent at once; by default the limit.
        burst: Option<Amount>,
    },
    /// When it is released, or its lease lapses.
    Concurrency {
        /// How long a lease lasts.
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

    /// The window, where the policy has one of its own.
    pub const fn window(&self) -> Option<Duration> {
        match *self {
            Policy::Interval { window } | Policy::Sliding { window, .. } | Policy::Bucket { window, .. } => {
                Some(window)
            }
            Policy::Total | Policy::Calendar(_) | Policy::Concurrency { .. } => None,
        }
    }
}

/// An exception for one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverrideSpec {
    /// The key.
    pub key: Vec<u8>,
    /// The name of a `per: key` item.
    pub item: String,
    /// What it has instead.
    pub limit: Capacity,
    /// Until when, as time since the epoch; forever if absent.
    pub until: Option<Duration>,
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $name {
            /// Every choice, in the order to list them.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The word used in limits files.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }
    };
}

words! {
    /// Whose spending is counted together.
    Per {
        /// All keys.
        #[default]
        All = "all",
        /// Each key alone.
        Key = "key",
    }
}

words! {
    /// What an ask costs an item.
    Charge {
        /// Its count.
        #[default]
        Count = "count",
        /// One, however large its count.
        Ask = "ask",
    }
}

words! {
    /// How finely a sliding window remembers spending.
    Precision {
        /// To the tick.
        #[default]
        Exact = "exact",
        /// In 64 sub-windows; never more than the limit.
        Bucketed = "bucketed",
    }
}

words! {
    /// Whether refusals are real.
    Mode {
        /// They are.
        #[default]
        Enforce = "enforce",
        /// What would be refused is granted, not charged, and counted.
        Shadow = "shadow",
        /// The limit is not asked at all.
        Off = "off",
    }
}

words! {
    /// What to answer when the store cannot.
    OnOutage {
        /// Refuse.
        #[default]
        Deny = "deny",
        /// Grant.
        Admit = "admit",
    }
}

words! {
    /// How a local store keeps a limit's state safe from a crash.
    Durability {
        /// A bound above the use is on disk before it is passed.
        #[default]
        Ceiling = "ceiling",
        /// Every charge is on disk before it is answered.
        Sync = "sync",
        /// Nothing is.
        Volatile = "volatile",
    }
}

words! {
    /// How the nodes of a fleet share a limit.
    Fleet {
        /// Every decision is made in the shared store.
        #[default]
        Exact = "exact",
        /// Nodes decide from slices charged ahead.
        Sliced = "sliced",
    }
}

/// Something that cannot be meant: where, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecError {
    /// The field, as a path inside the limit: `items[2].burst`.
    pub field: String,
    /// What is wrong with it and what is allowed.
    pub message: String,
}

impl SpecError {
    /// A flaw of this field.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> SpecError {
        SpecError { field: field.into(), message: message.into() }
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}
