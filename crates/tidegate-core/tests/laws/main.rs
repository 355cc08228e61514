//! Tests of the core.
//!
//! [`reference_store`] is a minimal store on top of the core. The other modules test it, or call the laws directly.

mod budget;
mod calendar;
mod properties;
mod reference_store;
mod regressions;
mod row_codec;
mod timelines;
