//! The HTTP API as pairs of requests and responses, without a socket.

mod acquire;
mod activity;
mod durability;
mod fixture;
mod forward_auth;
mod frequency_limits;
mod leases;
mod limits;
mod metrics;
mod metrics_parser;
mod openapi;
mod outage;
mod problems;
mod refusal_log;
mod remote_store;
mod tokens;
