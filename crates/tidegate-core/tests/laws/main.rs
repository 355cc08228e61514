//! The proofs of the core.
//!
//! [`desk`] is the smallest store there can be; everything else asks it, or the laws themselves, questions.

mod budget;
mod calendar;
mod desk;
mod golden;
mod properties;
mod regressions;
mod timelines;
