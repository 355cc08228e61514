//! Tidegate, the library: decide who may do how much, how fast, how many at once.
//!
//! A [`store::Store`] decides [`Order`]s against the limits of its [`catalog::Catalog`], at the time of its
//! [`clock::Clock`]. What limits mean is the business of [`tidegate_core`]; this crate gives them a place to live. Programs
//! ask a [`Limiter`]:
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{Decision, ExpectedVersion, ItemSpec, LimitSpec, Limiter, Policy, Precision};
//!
//! // Five logins in any fifteen seconds, for each user.
//! let sliding = Policy::Sliding { window: Duration::from_secs(15), precision: Precision::Exact };
//! let login = LimitSpec::named("login").with(ItemSpec::of(sliding, 5).per_key());
//!
//! let limiter = Limiter::in_memory();
//! limiter.store().put(login, ExpectedVersion::Absent)?;
//!
//! for _ in 0..5 {
//!     assert!(limiter.ask("login", "ada").try_acquire()?.is_granted());
//! }
//! let Decision::Denied(denial) = limiter.ask("login", "ada").try_acquire()? else { panic!("five are enough") };
//! assert!(denial.retry_after().is_some_and(|wait| wait <= Duration::from_secs(15)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Below it are the stores, which doors and batches use. There are two: [`MemoryStore`], which threads share, and [`MapStore`], the
//! plain one that it is compared with.
//!
//! ```
//! use tidegate::{Replies, Ask, Catalog, Detail, ExpectedVersion, ItemSpec, LimitSpec, ManualClock, Memory, MemoryStore};
//! use tidegate::{Order, Policy, Store, Timestamp};
//!
//! let store = MemoryStore::new(ManualClock::at(Timestamp::EPOCH), Memory::default());
//! store.put(LimitSpec::named("login").with(ItemSpec::of(Policy::Total, 5).per_key()), ExpectedVersion::Absent)?;
//!
//! let asks = [Ask::one("login", Some(b"ada"))];
//! let answers = store.submit(&[Order::acquire(&asks); 6], Replies::new(Detail::Verdicts)).now();
//! let granted = answers.iter().flatten().filter(|answer| answer.is_granted()).count();
//! assert_eq!(granted, 5);
//! # Ok::<(), tidegate::catalog::PutError>(())
//! ```
//!
//! [`Gate`] and [`Gates`] here are handles on the limits of a memory store; [`stream::Gate`] is another thing, the rules for a stream
//! of messages with a store of their own.

pub mod activity;
pub mod answer;
pub mod catalog;
pub mod clock;
pub mod file;
pub mod layer;
pub mod limiter;
pub mod store;
pub mod stream;
pub mod text;

pub use tidegate_core::budget;

pub use answer::{Answer, Denied, Detail, Grant, ItemReading, OrderError, Outcome, Replies};
pub use catalog::{Catalog, Edit, EditOutcome, ExpectedVersion, RemovalMode};
pub use clock::{Clock, ManualClock, SystemClock};
pub use limiter::{
    Acquire, AcquireError, Decision, Denial, Granted, Lease, LimitOverview, Limiter, Question, Renewal,
};
pub use store::{
    Actual, Gate, Gates, ItemCount, LimitStats, LimitStore, MapStore, Memory, MemoryStore, Settlement, Store,
    StoreReply, StoreSize,
};
pub use tidegate_core::limit::MAX_KEY_BYTES;
pub use tidegate_core::order::{MAX_ASKS, MAX_WAIT};
pub use tidegate_core::{
    Amount, Ask, Capacity, Charge, Durability, Fleet, Hold, Intent, ItemSpec, LeaseId, LeaseTerm, Limit,
    LimitSpec, Mode, OnOutage, Order, OverrideSpec, Per, Policy, Precision, Reading, Span, SpecError, Tick,
    Timestamp, Unit, Verdict, Wait, WeekStart, Zone,
};

/// The guide's examples, so that they are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/library.md")]
struct Guide;

/// Those of the page about activities.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/activity.md")]
struct Activities;

/// The README's.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
