//! Proof tools for Tidegate.
//!
//! [`model`] says what limits mean, by definition and slowly; [`history`] invents what happens to them;
//! [`checker`] looks at what really happened, with many askers at once, and says whether it may have.

pub mod checker;
pub mod civil;
pub mod effort;
pub mod history;
pub mod model;
pub mod suite;
