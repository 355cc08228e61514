//! RESP2 and RESP3: any Redis client is a client library.
//!
//! ```text
//!   bytes ──▶ frame ──▶ command ──▶ session ──▶ Order, Order, … ──▶ Store::submit
//!                                      │                               │
//!   bytes ◀── reply ◀── decision ◀─────┴──────────── Replies ◀─────────┘
//! ```
//!
//! A pipeline is a batch. Consecutive decisions in one read go to the store as one slice, at one reading of its clock, and all replies
//! go into one buffer. One write per reply would cost more than all the decisions.
//!
//! This module has no sockets and no runtime. A [`RespSession`] is fed with input and returns what to do next, so that tests can split
//! pipelines at every byte.
//!
//! Lengths in frames are not trusted: every frame has a bound that is checked before anything is buffered, and a protocol error ends
//! the connection with a reason.

mod batch;
pub mod command;
pub mod decision_reply;
pub mod deferred_reply;
pub mod described_buckets;
pub mod frame;
mod frame_prefix;
mod grant_template;
pub mod reply;
pub mod resp_service;
pub mod session;

pub use crate::tokens::Authenticator;
pub use deferred_reply::DeferredReply;
pub use resp_service::RespService;
pub use session::{FeedNext, FeedOutcome, PendingStoreCall, RespSession, SessionCounts, StoreCallResult};
