//! The HTTP door as pairs of requests and answers, without a socket.

mod activity;
mod configuration;
mod decisions;
mod distance;
mod document_004;
mod durability;
mod exposition;
mod gate;
mod leases;
mod metrics;
mod openapi;
mod outage;
mod problems;
mod refusals;
mod stage;
mod tokens;
