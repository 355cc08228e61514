//! Tidegate, the library: decide who may do how much, how fast, how many at once.
//!
//! A [`store::Store`] decides [`Order`]s against the limits of its [`catalog::Catalog`], at the time of its
//! [`clock::Clock`]. What limits mean is the business of [`tidegate_core`]; this crate gives them a place to live. Programs
//! ask a [`Limiter`]:
//!
//! ```
//! use std::time::Duration;
//! use tidegate::Limiter;
//! use tidegate::catalog::ExpectedVersion;
//! use tidegate::model::{ItemSpec, LimitSpec, Policy, Precision};
//!
//! // Five logins in any fifteen seconds, for each user.
//! let sliding = Policy::Sliding { window: Duration::from_secs(15), precision: Precision::Exact };
//! let login = LimitSpec::named("login").with(ItemSpec::of(sliding, 5).per_key());
//!
//! let limiter = Limiter::in_memory();
//! limiter.store().put(login, ExpectedVersion::Absent)?;
//!
//! for _ in 0..5 {
//!     assert!(limiter.ask("login", "ada").try_acquire().is_ok());
//! }
//! let refused = limiter.ask("login", "ada").try_acquire().expect_err("five are enough");
//! assert!(refused.retry_after().is_some_and(|wait| wait <= Duration::from_secs(15)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Below it are the stores, which doors and batches use. There are two: [`MemoryStore`], which threads share, and [`MapStore`], the
//! plain one that it is compared with.
//!
//! ```
//! use tidegate::catalog::{Catalog, ExpectedVersion};
//! use tidegate::clock::ManualClock;
//! use tidegate::model::{Ask, ItemSpec, LimitSpec};
//! use tidegate::reply::{Replies, Detail};
//! use tidegate::store::{Memory, MemoryStore};
//! use tidegate::model::{Order, Policy, Timestamp};
//! use tidegate::store::Store;
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

pub mod activity;
pub mod catalog;
pub mod clock;
#[cfg(feature = "tower")]
pub mod layer;
pub mod limiter;
pub mod model;
pub mod reply;
pub mod store;
#[cfg(feature = "stream")]
pub mod stream;

#[cfg(feature = "config")]
pub use tidegate_config as config;
pub use tidegate_core::budget;

pub use limiter::{AcquireError, Lease, Limiter, LimiterBuilder, Permit, Refused, Request};
pub use tidegate_core::{Durability, Mode, OnOutage, Timestamp, WeekStart};

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
