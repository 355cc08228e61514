//! Benchmarks that need release binaries or peers: commands, servers, proxies.
//!
//! Library benchmarks are in `benches/` and run with `cargo bench`.

pub(crate) mod commands;
mod figures;
mod load;
mod peers;
pub(crate) mod proxies;
pub(crate) mod servers;

pub(crate) use load::generate;
pub(crate) use servers::{BenchEffort, BenchScope};
