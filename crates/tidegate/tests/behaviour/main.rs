//! What the library does, seen from outside.

mod examples;
mod file;
mod flood;
mod layer;
mod leases;
mod map_store;
mod memory_store;
mod stage;
mod storms;
mod stream;
mod text;
mod waiting;
