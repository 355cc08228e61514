//! What the durable store does, seen from outside.

mod crashes;
mod log;
mod reopening;
mod store;
