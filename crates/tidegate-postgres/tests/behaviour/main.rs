//! Tests of the PostgreSQL store.

mod activity;
mod cluster;
mod faults;
mod fleet;
mod load;
mod open_errors;
mod sql;
mod store;
