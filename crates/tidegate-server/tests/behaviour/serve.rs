//! The listener: sockets, threads and time, under load and under attack.
//!
//! Everything happens in this process, over the loopback. Nothing waits for a time to pass: a test waits for an answer, for the end
//! of a connection, or asks somebody else until something is so.

mod activity;
mod bounds;
mod crowds;
mod ending;
mod garbage;
mod logs;
mod reloads;
mod sale;
mod second;
mod slow;
mod smuggling;
mod splits;
mod stage;
