//! Behavior tests of the durable store.

mod assumed_usage;
mod builder;
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
