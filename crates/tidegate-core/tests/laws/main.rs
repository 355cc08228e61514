//! The proofs of the core.
//!
//! [`desk`] is the smallest store there can be; everything else asks it, or the laws themselves, questions.

mod budget;
mod calendar;
mod reference_store;
mod row_codec;
mod properties;
mod regressions;
mod timelines;
