//! RESP2 and RESP3: any Redis client is a client library.
//!
//! ```text
//!   bytes ──▶ frame ──▶ command ──▶ session ──▶ Order, Order, … ──▶ Store::submit
//!                                      │                               │
//!   bytes ◀── reply ◀── decision ◀─────┴──────────── Replies ◀─────────┘
//! ```
//!
//! Decided: a pipeline is a batch. Consecutive decisions of what was read at once are put to the store as one slice, at one reading of
//! its clock, and everything is answered into one buffer; one write per reply costs more than all the decisions.
//!
//! Decided: this part has no sockets and no runtime. A [`RespSession`] is fed with what was read and says what is to be done next, so that
//! every split of every pipeline can be tried in a test.
//!
//! Refused: believing a length. Every frame has a bound, known before anything is pending_input of it, and what breaks the protocol ends the
//! connection with a reason.

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
