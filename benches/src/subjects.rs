//! The subjects that are ours.

pub mod tidegate;
