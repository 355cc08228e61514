//! The sections `server` and `store`: where the server listens, how long it waits, and where it keeps its counts.
//!
//! Everything may be left out; what then holds is the server's to say. Both are read when the server starts: a door
//! that is open cannot move, and counts cannot change stores, while others walk through.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tidegate_config::Mapping;
use tidegate_config::schema::CustomType;
use tidegate_config::text::parse_address;

use super::store_url::{StoreUrl, parse_store};

/// The most threads a server may be told to have.
pub const MOST_WORKERS: u64 = 1024;
/// The most connections a server may be told to keep open.
pub const MOST_CONNECTIONS: u64 = 10_000_000;
/// The least memory a store can be given.
pub const LEAST_MEMORY: u64 = 1 << 20;

/// Where a door is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Listen {
    /// At this address; port 0 is any that is free.
    At(SocketAddr),
    /// Nowhere: `off`.
    Off,
}

impl Listen {
    /// Reads `127.0.0.1:7700` or `off`.
    fn parse(text: &str) -> Result<Listen, String> {
        if text == "off" {
            return Ok(Listen::Off);
        }
        parse_address(text).map(Listen::At).map_err(|why| format!("{why}; or write off to close the door"))
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
    /// Where HTTP is spoken.
    pub http: Option<Listen>,
    /// Where RESP is spoken.
    pub resp: Option<Listen>,
    /// How many threads serve connections, at most [`MOST_WORKERS`].
    pub workers: Option<u64>,
    /// How many connections may be open at once, at most [`MOST_CONNECTIONS`].
    pub max_connections: Option<u64>,
    /// How long a connection may say nothing between requests.
    pub idle_timeout: Option<Duration>,
    /// How long the head of a request may take to arrive.
    pub header_timeout: Option<Duration>,
    /// How long a whole request may take to arrive.
    pub request_timeout: Option<Duration>,
    /// How long requests that are under way may take to end when the server stops; zero does not wait.
    pub drain: Option<Duration>,
}

/// The section `store`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreSpec {
    /// Which store.
    pub url: Option<StoreUrl>,
    /// The most bytes that rows may take in memory, at least [`LEAST_MEMORY`].
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
