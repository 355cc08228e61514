//! A store in PostgreSQL that several servers share. Every server decides on the same rows.
//!
//! ```text
//!   submit ──▶ JobQueue ──compatible jobs──▶ DecisionTransaction ──▶ replies
//!                                              │    ▲
//!                                 locked rows  ▼    │ changes
//!                                            WorkingSet (the in-memory store)
//! ```
//!
//! * The database stores and locks rows; it does not decide. A transaction loads rows under their locks, the core decides on
//!   them, and the changes are written once. So policies, leases and edits mean the same as in memory, and no algorithm exists
//!   twice.
//! * Time is the database's clock, read when all locks are held. Server clocks may differ.
//! * Usage is not computed by `SELECT count(*)` over a log. That costs time in proportion to the count, and two concurrent
//!   counts would both find room.
//!
//! Files, in reading order:
//!
//! | file | contents |
//! |---|---|
//! | `url.rs`, `tls.rs`, `connections.rs` | store URLs, encryption, the connection pool and its errors |
//! | `schema.rs`, `schema/` | the tables and their migrations |
//! | `database_clock.rs` | the time |
//! | `limit_snapshot.rs`, `limit_editor.rs`, `change_listener.rs` | the limits, their edits, and how servers learn of them |
//! | `job.rs`, `row_names.rs`, `job_queue.rs` | jobs, the rows they need, and which jobs share a transaction |
//! | `transaction.rs`, `transaction/`, `read_only.rs` | a deciding transaction, and reads without locks |
//! | `expiry.rs` | removal of expired data |
//! | `engine.rs`, `shared_state.rs`, `store.rs` | the store's thread, its shared state, and the store interface |

mod change_listener;
mod connections;
mod database_clock;
mod engine;
mod expiry;
mod job;
mod job_queue;
mod limit_editor;
mod limit_snapshot;
mod read_only;
mod row_names;
mod schema;
mod shared_state;
mod store;
mod tls;
mod transaction;
mod url;

pub use database_clock::TimeSource;
pub use schema::{PostgresOpenError, VERSION};
pub use store::PostgresStore;
pub use url::{
    DEFAULT_POOL_SIZE, DEFAULT_SCHEMA, InvalidUrl, MAX_POOL_SIZE, MAX_SCHEMA_NAME_BYTES, PostgresOptions,
};
