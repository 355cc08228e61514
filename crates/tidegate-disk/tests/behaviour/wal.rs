//! The log: what it keeps, what it refuses, and what is left of it after a crash.

mod backups;
mod crashes;
mod damage;
mod disk_failures;
mod durability_waits;
mod fixtures;
pub(crate) mod golden;
mod open_errors;
mod round_trips;
