//! What the library does, seen from outside.

mod file;
mod leases;
mod map_store;
mod memory_store;
mod stage;
mod text;
mod threads;
mod waiting;
