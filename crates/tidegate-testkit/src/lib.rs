//! Proof tools for Tidegate.
