//! The log: what it keeps, what it refuses, and what is left of it after a crash.

mod round_trips;
mod stage;
