//! The sections `server` and `store`: where the server listens, how long it waits, and where it keeps its counts.
//!
//! Everything may be left out; what then holds is the server's to say. Both are read when the server starts: a door
//! that is open cannot move, and counts cannot change stores, while others walk through.

use std::net::SocketAddr;
use std::time::Duration;

use super::record::Record;
use crate::text::StoreUrl;

/// The most threads a server may be told to have.
pub const MOST_WORKERS: u64 = 1024;
/// The most connections a server may be told to keep open.
pub const MOST_CONNECTIONS: u64 = 10_000_000;
/// The longest a server may be told to wait for anything.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(86_400);
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
    pub(super) fn read(mut server: Record) -> ServerSpec {
        ServerSpec {
            http: server.listen("http"),
            resp: server.listen("resp"),
            workers: server.count("workers"),
            max_connections: server.count("max_connections"),
            idle_timeout: server.duration("idle_timeout"),
            header_timeout: server.duration("header_timeout"),
            request_timeout: server.duration("request_timeout"),
            drain: server.duration("drain"),
        }
    }
}

impl StoreSpec {
    pub(super) fn read(mut store: Record) -> StoreSpec {
        StoreSpec { url: store.store("url"), memory: store.size("memory") }
    }
}
