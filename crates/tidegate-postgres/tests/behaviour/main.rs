//! What the store in PostgreSQL does, seen from outside.

mod activity;
mod cluster;
mod faults;
mod fleet;
mod load;
mod open_errors;
mod sql;
mod store;
