//! Rate limits, quotas, concurrency leases and budgets, decided exactly in your process.
//!
//! Three concepts lead to the first decision. A [`Limiter`] has limits, a [`LimitHandle`] decides on one of them, and a
//! [`Permit`] is the proof of a grant:
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{bucket, day, sliding, Limiter};
//!
//! # fn serve(_permit: tidegate::Permit) {}
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::builder()
//!     .limit("login", sliding(5, Duration::from_secs(15)).per_key())
//!     .limit("api", [bucket(100, Duration::from_secs(1)).burst(200).per_key(), day(10_000).time_zone("Asia/Shanghai")])
//!     .build()?;
//! let login = limiter.limit("login")?;                  // a handle: resolved once, cheap to clone, the fast path
//! match login.try_acquire("ada") {
//!     Ok(permit) => serve(permit),                       // owns the lease, if the limit has one
//!     Err(refused) => println!("{} in {:?}", refused.item(), refused.retry_after()),
//! }
//! login.of("ada").within(Duration::from_secs(5)).await?;
//! limiter.all([login.of("ada"), limiter.limit("api")?.of("key-1")]).try_acquire()?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`rule`]: the policies and settings of limits, as in a limits file.
//! - [`limiter`]: requests, leases, waiting in line.
//! - [`layer`]: the tower middleware.
//! - [`stream`]: limits on streams of messages.
//! - [`model`]: the settings of limits, such as [`WeekStart`](model::WeekStart).
//! - [`store`], [`catalog`], [`reply`], [`journal`]: the contract of stores, for those that build on it.
//!
//! The core, [`tidegate_core`], has the arithmetic. A store applies it to rows. A limiter adds leases that are owned and
//! a queue; it decides nothing itself.

pub mod activity;
pub mod catalog;
pub mod clock;
pub mod journal;
#[cfg(feature = "tower")]
pub mod layer;
pub mod limiter;
pub mod model;
mod order_reply;
pub mod reply;
pub mod rule;
pub mod store;
mod store_reply;
#[cfg(feature = "stream")]
pub mod stream;

#[cfg(feature = "config")]
pub use tidegate_config as config;
pub use tidegate_core::budget;

pub use limiter::{
    AcquireError, BuildError, Lease, LimitHandle, Limiter, LimiterBuilder, Permit, Refused, Request,
};
pub use rule::{
    LimitRules, Rule, bucket, concurrency, day, hour, interval, minute, month, rules, second, sliding, total,
    week, year,
};
pub use tidegate_core::Timestamp;

/// The Rust examples of the documents, run as doc tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../../../docs/getting-started.md")]
    struct GettingStarted;

    #[doc = include_str!("../../../docs/reference/library.md")]
    struct LibraryReference;

    #[doc = include_str!("../../../docs/how-to/protect-an-axum-service.md")]
    struct AxumGuide;

    #[doc = include_str!("../../../docs/how-to/daily-quotas-for-api-keys.md")]
    struct QuotaGuide;

    #[doc = include_str!("../../../docs/how-to/llm-token-budgets.md")]
    struct BudgetGuide;
}
