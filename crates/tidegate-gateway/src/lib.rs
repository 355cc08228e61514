//! The gateway: which route a request takes, who its client is, and what both may do.
//!
//! ```text
//!   connection ──▶ client ─────────────┐
//!   request ─────▶ routes ──▶ plan ────┴──▶ limits ──▶ one order over all levels ──▶ go on, or 429
//!   gateway.yaml ─▶ GatewaySpec ─▶ reload ─▶ edits that keep what is counted
//! ```
//!
//! [`routes`] finds the most specific route, [`client`] finds out who asks, [`cascade`] says whose rule holds for a client, and
//! [`limits`] asks all levels together. Nothing here has a socket.

pub mod access;
pub mod cascade;
pub mod client;
pub mod endpoints;
pub mod hot;
pub mod limits;
pub mod routes;

pub use cascade::{Applied, Scope, cascade};
pub use client::{ClientKey, Clients};
pub use limits::{Connection, Counted, Kind, Level, Plan, RateLimitManager, Refusal, Reloaded};
pub use routes::Routes;
