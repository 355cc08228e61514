//! What the CPU governor does, seen from outside.

mod enforcer;
mod guardian;
mod meter;
mod stage;
