//! What the durable store does, seen from outside.

mod assumed_usage;
mod concurrent_snapshots;
mod crashes;
mod directories;
mod disk_failures;
mod golden;
mod growth;
mod recovery;
mod restarting_store;
mod store;
mod stress;
mod wal;
