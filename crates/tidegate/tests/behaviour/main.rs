//! What the library does, seen from outside.

mod file;
mod map_store;
mod memory_store;
mod text;
mod threads;
