//! What the durable store does, seen from outside.

mod files;
mod log;
