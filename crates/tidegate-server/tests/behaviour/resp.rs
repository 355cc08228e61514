//! The RESP door as sessions that are fed and say something, without a socket.

mod admission;
mod bids;
mod connection_commands;
mod decisions;
mod frames;
mod pipelines;
mod refusals;
mod replies;
pub(crate) mod stage;
mod throttles;
