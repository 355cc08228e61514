//! The proofs of the core.
//!
//! [`desk`] is the smallest store there can be; everything else asks it, or the laws themselves, questions.

mod budget;
mod calendar;
mod properties;
mod reference_store;
mod regressions;
mod row_codec;
mod timelines;
