//! The durable store of Tidegate.
//!
//! Three layers, each of which knows only the one below:
//!
//! ```text
//!   store   what records mean: ceilings, leases, limits, recovery of rows
//!   log     opaque bytes in order, durable when it says so; snapshots; what is torn and what is damaged
//!   files   a directory, and nothing else that touches the disk
//! ```
//!
//! The log does not know a single record, and the store does not know a single file. Everything that reaches the disk goes through
//! [`Directory`], so that a test can fail any call of it and look at every state in which a crash might have left the directory.
//!
//! The bytes are drawn in `docs/formats.md`.

pub mod ceilings;
pub mod directory;
mod limit_records;
pub mod record;
mod recovery;
mod store;
pub mod wal;

pub use directory::Directory;
pub use recovery::RecoveryReport;
pub use store::{DiskOptions, DiskStore, Maintenance, SNAPSHOT_AFTER, StopError};
pub use wal::WriteAheadLog;
