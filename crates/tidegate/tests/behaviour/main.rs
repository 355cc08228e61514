//! What the library does, seen from outside.

#![expect(
    clippy::duplicate_mod,
    reason = "what a limiter does is compiled once for each store that it is tried over"
)]

mod counting;
mod distance;
mod durability;
mod elsewhere_store;
mod examples;
mod flood;
mod layer;
mod limiter_over_elsewhere;
mod limiter_over_logged;
mod limiter_over_map;
mod limiter_over_memory;
mod map_store;
mod memory_handles;
mod memory_many;
mod memory_sets;
mod memory_store;
mod observing;
mod stage;
mod storms;
mod stream;
