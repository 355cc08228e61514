//! Proof tools for Tidegate.
//!
//! [`model`] says what limits mean, by definition and slowly; [`history`] invents what happens to them;
//! [`storm`] lets many threads loose on a store at once, and [`checker`] looks at what really happened and says whether it
//! may have. [`logged`] puts a log in front of a store, which is written when a test says so; [`elsewhere`] puts a store
//! far away, and lets a test say when its answers arrive. [`bidding`] asks a store in
//! short whenever it can. [`cluster`] is a database that is thrown away after the tests.

pub mod compact_adapter;
pub mod checker;
pub mod reference_calendar;
pub mod postgres_cluster;
pub mod test_scale;
pub mod remote_stub;
pub mod history;
pub mod logged_store;
pub mod model;
pub mod stress;
pub mod suite;
