//! Tests of the write-ahead log: content, errors, and recovery after crashes.

mod backups;
mod crashes;
mod damage;
mod disk_failures;
mod durability_waits;
mod fixtures;
pub(crate) mod golden;
mod open_errors;
mod round_trips;
