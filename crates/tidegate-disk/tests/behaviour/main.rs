//! What the durable store does, seen from outside.

mod log;
mod reopening;
mod store;
