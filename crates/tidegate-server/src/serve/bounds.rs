//! Bounds on the number, size and duration of connections and requests.

use std::time::Duration;

/// The longest request head: request line and header fields. A longer one is answered with 431.
pub const MAX_HEAD_BYTES: usize = 16 * 1024;

/// The most header fields of a request.
pub const MAX_HEADER_FIELDS: usize = 64;

/// The longest body that the fast path reads. Longer ones, up to the API's bound, go through hyper.
pub const MAX_FAST_PATH_BODY: usize = 48 * 1024;

/// How much of an unwanted body is read and discarded so that the client reads the response instead of seeing a reset.
pub const MAX_DISCARDED_BODY: usize = 16 * 1024 * 1024;

/// The most concurrent streams of an HTTP/2 connection.
pub const MAX_HTTP2_STREAMS: u32 = 128;

/// The most connections that are rejected with a message at the same time. Others are closed without one.
pub const MAX_REJECTIONS: usize = 256;

/// How much output is buffered for a client before reading stops.
pub const MAX_PENDING_OUTPUT: usize = 256 * 1024;

/// How much input is read while a request waits, so that a disconnect is noticed.
pub const READ_AHEAD: usize = 16 * 1024;

/// A connection that was served this many bytes in one turn yields to the others.
pub const YIELD_AFTER_BYTES: usize = 16 * 1024;

/// How long a closing connection waits for the client to read the last reply.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

pub use tidegate_net::listen::BACKLOG;

/// Bounds that can be configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionBounds {
    /// The most connections over all protocols and workers. Further clients get an error and are disconnected.
    pub connections: usize,
    /// A connection without input for this long is closed.
    pub idle: Duration,
    /// From the first to the last byte of a request head, or of a whole RESP frame.
    pub head: Duration,
    /// From the first byte of a request to the last byte of its body.
    pub request: Duration,
    /// How long a client may not accept output.
    pub write: Duration,
    /// How long requests in progress may take after the shutdown was triggered.
    pub drain: Duration,
}

impl ConnectionBounds {
    /// Time allowed for a head, at most that for the whole request.
    pub fn head(&self) -> Duration {
        self.head.min(self.request)
    }
}

impl Default for ConnectionBounds {
    fn default() -> ConnectionBounds {
        ConnectionBounds {
            connections: 32_768,
            idle: Duration::from_secs(600),
            head: Duration::from_secs(10),
            request: Duration::from_secs(30),
            write: Duration::from_secs(10),
            drain: Duration::from_secs(10),
        }
    }
}
