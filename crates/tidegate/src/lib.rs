//! Tidegate, the library.

pub use tidegate_core as core;
