//! What the doors do, seen from outside.

mod admission;
mod courtesies;
mod decisions;
mod frames;
mod pipelines;
mod refusals;
mod reloading;
mod replies;
mod rules;
mod stage;
mod throttles;
