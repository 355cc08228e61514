//! The durable store of Tidegate.
//!
//! The crate has three layers. Each layer uses only the one below it:
//!
//! ```text
//!   store       what records mean: ceilings, leases, limits, recovery of rows
//!   wal         a write-ahead log of opaque bytes: group commit, snapshots, torn tails and damage
//!   directory   one directory of files, and the only access to the disk
//! ```
//!
//! The log does not interpret records, and the store does not open files. All access to the disk goes through
//! [`Directory`]. A test can therefore fail any call, and can open every state in which a crash may leave the
//! files.
//!
//! `docs/reference/file-formats.md` describes the bytes.

mod builder_ext;
pub mod ceilings;
pub mod directory;
mod limit_records;
pub mod record;
mod recovery;
mod store;
pub mod wal;

pub use builder_ext::DiskExt;
pub use directory::Directory;
pub use recovery::RecoveryReport;
pub use store::{DiskOptions, DiskStore, Maintenance, SNAPSHOT_AFTER, StopError};
pub use wal::WriteAheadLog;
