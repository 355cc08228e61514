//! What the library does, seen from outside.

mod file;
mod map_store;
mod storms;
mod text;
