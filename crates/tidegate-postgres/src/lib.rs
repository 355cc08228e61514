//! The store for fleets: states in PostgreSQL, decided by every server that shares it.
//!
//! ```text
//!   submit ──▶ JobQueue ──jobs that may go together──▶ DecisionTransaction (one transaction) ──▶ told
//!                                                     │    ▲
//!                                        locked rows  ▼    │ what changed
//!                                                   Excerpt: the plain store
//! ```
//!
//! Decided: the database keeps and locks, and does not decide. Rows are brought here under their locks, the core says what becomes of
//! them, and they are written once. So every policy, lease and edit means the same as in memory, and no algorithm is written twice.
//!
//! Decided: time is the database's, read when the locks are held. Servers may have any clock.
//!
//! Refused: counting rows of a log with `SELECT count(*)`. It costs as much as there is to count, and two who count at the same time both find
//! room.
//!
//! In the order to read it:
//!
//! | file | answers |
//! |---|---|
//! | `url.rs`, `tls.rs`, `connecting.rs` | where the database is, whom to trust, what it means when it fails |
//! | `schema.rs`, `schema/` | the tables |
//! | `time.rs` | what time it is |
//! | `limits.rs`, `editing.rs`, `listening.rs` | which limits there are, how they change, how servers hear of it |
//! | `job.rs`, `rows.rs`, `queue.rs` | what is asked, which rows that is about, what goes together |
//! | `transaction.rs`, `transaction/`, `looking.rs` | one transaction; one look |
//! | `sweeping.rs` | what is cleared away |
//! | `engine.rs`, `shared_state.rs`, `store.rs` | the thread, what it shares, the contract |

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
pub use schema::{OpenError, VERSION};
pub use store::PostgresStore;
pub use url::{
    DEFAULT_POOL_SIZE, DEFAULT_SCHEMA, InvalidUrl, MAX_POOL_SIZE, MAX_SCHEMA_NAME_BYTES, PostgresOptions,
};
