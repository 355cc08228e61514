//! Tests of the public interface of the library.

#![expect(
    clippy::duplicate_mod,
    reason = "what a limiter does is compiled once for each store that it is tried over"
)]

mod builder;
mod counting_store;
mod durability;
mod examples;
mod fixture;
mod key_flood;
mod layer;
mod limit_handles;
mod limit_stats;
mod limiter_over_logged;
mod limiter_over_map;
mod limiter_over_memory;
mod limiter_over_remote;
mod map_store;
mod memory_edits;
mod memory_growth;
mod memory_handles;
mod memory_panics;
mod memory_paths;
mod memory_sets;
mod memory_store;
mod remote_limiter;
mod remote_store;
mod stream;
mod stress;
