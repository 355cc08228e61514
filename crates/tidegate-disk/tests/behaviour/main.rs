//! What the durable store does, seen from outside.

mod beside;
mod crashes;
mod faults;
mod files;
mod ghosts;
mod golden;
mod growth;
mod log;
mod recovery;
mod reopening;
mod store;
mod storms;
