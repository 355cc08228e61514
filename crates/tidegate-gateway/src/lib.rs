//! The gateway: a reverse proxy that decides, for every connection and every request, who may do how much.
//!
//! ```text
//!   socket ──▶ door ──▶ relay (HTTP/1) ──┐
//!                 └───▶ second (HTTP/2) ─┴─▶ guest: site ▶ way ▶ limits ──▶ 429, or on to an endpoint and back
//!   gateway.yaml ─▶ GatewaySpec ─▶ Gateway::reload ─▶ a new site, and edits of limits that keep what is counted
//! ```
//!
//! What decides is pure: [`routes`] finds the most specific route, [`client`] finds out who asks, [`cascade`] says whose rule holds for
//! a client, [`limits`] asks all levels together, [`wire`] reads and writes HTTP/1, [`endpoints`] says who is next. The rest has sockets.

pub mod access;
mod answers;
mod buffers;
pub mod cascade;
pub mod client;
mod door;
pub mod endpoints;
mod gateway;
mod guest;
pub mod hot;
pub mod limits;
pub mod logbook;
pub mod manage;
pub mod numbers;
mod pace;
mod probing;
mod relay;
pub mod reload;
pub mod routes;
mod second;
pub mod settings;
mod site;
mod story;
mod tls;
mod upstream;
pub mod wire;
mod worker;

pub use cascade::{Applied, Scope, cascade};
pub use client::{ClientKey, Clients};
pub use gateway::{Gateway, GatewayError, Means};
pub use limits::{Connection, Counted, Kind, Level, Plan, RateLimitManager, Refusal, Reloaded};
pub use logbook::Logbook;
pub use routes::Routes;
pub use tls::{TlsError, check_certificate};
