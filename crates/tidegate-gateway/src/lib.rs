//! The gateway: a reverse proxy that enforces rate and connection limits at four levels.
//!
//! ```text
//!   socket ──▶ handshake ──▶ http1 ──┐
//!                    └─────▶ http2 ──┴─▶ ClientConnection: route ▶ limits ──▶ 429, or an endpoint and back
//!   gateway.yaml ─▶ GatewaySpec ─▶ Gateway::reload ─▶ new ConfigSnapshot, and limit edits that keep all counts
//! ```
//!
//! The decision logic is pure: [`route_table`] finds the most specific route, [`client_key`] names the client,
//! [`cascade`] selects the client's rule, [`limits`] decides all levels together, [`wire`] parses and writes HTTP/1,
//! and [`endpoints`] picks an endpoint. The other modules own sockets and tasks.

pub mod access_log;
mod buffers;
pub mod cascade;
mod client_connection;
pub mod client_key;
mod config_snapshot;
mod deadline;
pub mod endpoints;
mod gateway;
mod handshake;
mod health_probe;
pub mod hottest_clients;
mod http1;
mod http1_pool;
mod http2;
pub mod limits;
mod local_reply;
pub mod management_api;
pub mod metrics;
pub mod proxy_header;
pub mod reload;
mod request_log;
pub mod route_table;
pub mod settings;
mod tls;
mod upstream_connect;
pub mod wire;
mod worker;

pub use access_log::AccessLogWriter;
pub use cascade::{EffectiveLimit, Scope, cascade};
pub use client_key::ClientKey;
pub use gateway::{Gateway, GatewayError, GatewayOptions};
pub use limits::{
    ConnectionCounter, ConnectionPermit, LimitLevel, LimitPlan, LimitRefusal, RateLimitManager, RefusalKind,
    ReloadSummary,
};
pub use route_table::RouteTable;
pub use tls::{TlsError, check_certificate};
