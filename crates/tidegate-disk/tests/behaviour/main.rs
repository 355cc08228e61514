//! What the durable store does, seen from outside.

mod crashes;
mod files;
mod log;
mod reopening;
mod store;
