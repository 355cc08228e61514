//! What the store in PostgreSQL does, seen from outside.

mod cluster;
mod sql;
mod store;
