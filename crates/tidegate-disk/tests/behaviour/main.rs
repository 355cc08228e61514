//! What the durable store does, seen from outside.

mod crashes;
mod files;
mod log;
mod recovery;
mod reopening;
mod store;
