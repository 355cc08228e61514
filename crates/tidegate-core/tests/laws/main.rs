//! Tests of the core.
//!
//! [`minimal_store`] is a minimal store on top of the core. The other modules test it, or call the laws directly.

mod budget;
mod calendar;
mod minimal_store;
mod properties;
mod regressions;
mod row_codec;
mod timelines;
