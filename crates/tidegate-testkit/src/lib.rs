//! Test tools for the whole workspace.
//!
//! | module | provides |
//! |---|---|
//! | [`reference_model`] | the reference model: what limits mean, by definition and slowly |
//! | [`reference_calendar`] | calendar units by definition |
//! | [`history`] | generated histories, and the replay of one against the model |
//! | [`suite`] | the behaviours that every store has, as one test each |
//! | [`stress`] | many threads against one store |
//! | [`checker`] | whether a record of concurrent orders can be explained |
//! | [`remote_stub`] | a store whose replies arrive when a test delivers them |
//! | [`logged_store`] | a store behind a log that is synced when a test says so |
//! | [`compact_adapter`] | a store that is asked through compact requests wherever possible |
//! | [`postgres_cluster`] | a PostgreSQL that is thrown away after the tests |
//! | [`test_scale`] | how much work tests do |
//! | [`skip()`] | tests that this machine cannot run |

pub mod checker;
pub mod compact_adapter;
pub mod history;
pub mod logged_store;
pub mod postgres_cluster;
pub mod reference_calendar;
pub mod reference_model;
pub mod remote_stub;
mod skip;
pub mod stress;
pub mod suite;
pub mod test_scale;

pub use skip::{SKIPPED_TESTS, skip};
