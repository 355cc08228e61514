//! What the doors do, seen from outside.

mod admission;
mod courtesies;
mod decisions;
mod frames;
mod pipelines;
mod refusals;
mod replies;
mod stage;
mod throttles;
