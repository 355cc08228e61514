//! What the durable store does, seen from outside.

mod log;
