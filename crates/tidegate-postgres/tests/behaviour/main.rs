//! Tests of the PostgreSQL store.

mod activity;
mod cluster;
mod faults;
mod fleet;
mod load_generator;
mod open_errors;
mod sql;
mod store_suite;
