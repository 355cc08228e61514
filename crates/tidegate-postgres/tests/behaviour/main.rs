//! What the store in PostgreSQL does, seen from outside.

mod activity;
mod cluster;
mod sql;
mod store;
