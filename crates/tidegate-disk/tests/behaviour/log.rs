//! The log: what it keeps, what it refuses, and what is left of it after a crash.

mod backups;
mod crashes;
mod damage;
mod failures;
pub(crate) mod golden;
mod refusals;
mod round_trips;
mod stage;
mod waiting;
