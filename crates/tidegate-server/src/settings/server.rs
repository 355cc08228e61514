//! The sections `server` and `store`: listen addresses, timeouts and the store.
//!
//! All fields are optional; the server has the defaults. Both sections are read at startup only: open sockets
//! cannot move, and counts cannot change stores, while the server runs.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tidegate_config::Mapping;
use tidegate_config::schema::CustomType;
use tidegate_config::text::parse_address;

use super::store_url::{StoreUrl, parse_store};

/// The most worker threads that can be configured.
pub const MAX_WORKER_THREADS: u64 = 1024;
/// The most connections that can be configured.
pub const MAX_OPEN_CONNECTIONS: u64 = 10_000_000;
/// The least memory budget of a store in bytes.
pub const MIN_MEMORY_BYTES: u64 = 1 << 20;

/// A listen address, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Listen {
    /// Listens at this address; port 0 selects a free port.
    At(SocketAddr),
    /// The protocol is disabled: `off`.
    Off,
}

impl Listen {
    /// Reads `127.0.0.1:7700` or `off`.
    fn parse(text: &str) -> Result<Listen, String> {
        if text == "off" {
            return Ok(Listen::Off);
        }
        parse_address(text)
            .map(Listen::At)
            .map_err(|why| format!("{why}; or write off to disable the protocol"))
    }
}

/// An address with its port, or `off`.
pub(super) static LISTEN: CustomType = CustomType {
    check: |text, _plain| Listen::parse(text).map(drop),
    allowed: "an address such as 127.0.0.1:7700, or off",
    json_schema: || {
        json!({
            "type": "string",
            "pattern": "^(off|[0-9]{1,3}(\\.[0-9]{1,3}){3}:[0-9]{1,5}|\\[[0-9A-Fa-f:.]+(%[0-9]+)?\\]:[0-9]{1,5})$",
        })
    },
};

/// The section `server`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerSpec {
    /// HTTP listen address.
    pub http: Option<Listen>,
    /// RESP listen address.
    pub resp: Option<Listen>,
    /// Number of worker threads, at most [`MAX_WORKER_THREADS`].
    pub workers: Option<u64>,
    /// Maximum number of open connections, at most [`MAX_OPEN_CONNECTIONS`].
    pub max_connections: Option<u64>,
    /// How long a connection may be idle between requests.
    pub idle_timeout: Option<Duration>,
    /// How long the head of a request may take to arrive.
    pub header_timeout: Option<Duration>,
    /// How long a whole request may take to arrive.
    pub request_timeout: Option<Duration>,
    /// How long requests in progress may take after the shutdown; zero does not wait.
    pub drain: Option<Duration>,
}

/// The section `store`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreSpec {
    /// The store.
    pub url: Option<StoreUrl>,
    /// Memory budget of rows in bytes, at least [`MIN_MEMORY_BYTES`].
    pub memory: Option<u64>,
}

impl ServerSpec {
    pub(super) fn read(mut server: Mapping) -> ServerSpec {
        let mut listen = |field| server.take_text(field).and_then(|text| Listen::parse(&text).ok());
        ServerSpec {
            http: listen("http"),
            resp: listen("resp"),
            workers: server.take_count("workers"),
            max_connections: server.take_count("max_connections"),
            idle_timeout: server.take_duration("idle_timeout"),
            header_timeout: server.take_duration("header_timeout"),
            request_timeout: server.take_duration("request_timeout"),
            drain: server.take_duration("drain"),
        }
    }
}

impl StoreSpec {
    pub(super) fn read(mut store: Mapping) -> StoreSpec {
        let url = store.take_text("url").and_then(|text| parse_store(&text).ok());
        StoreSpec { url, memory: store.take_size("memory") }
    }
}
