//! What the library does, seen from outside.

mod file;
mod layer;
mod map_store;
mod stream;
mod text;
mod threads;
