//! RESP sessions that are fed with bytes, without a socket.

mod authentication;
mod compact_batches;
mod connection_commands;
mod decisions;
mod described_buckets;
pub(crate) mod fixture;
mod frames;
mod pipelines;
mod refusal_log;
mod replies;
