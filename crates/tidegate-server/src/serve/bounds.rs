//! ConnectionBounds: how many, how long, how large. Each has a name, so that it can be found, changed and spoken about.

use std::time::Duration;

/// The longest head of a request: its line and its fields. A longer one is answered with 431.
pub const MAX_HEAD_BYTES: usize = 16 * 1024;

/// The most fields that a head may have.
pub const MAX_HEADER_FIELDS: usize = 64;

/// The longest body that is read together with its head. Longer ones, up to the door's bound, are read by the general way.
pub const MAX_FAST_PATH_BODY: usize = 48 * 1024;

/// How much of a body that nobody wants is read and thrown away, so that whoever sends it hears the answer.
pub const MAX_DISCARDED_BODY: usize = 16 * 1024 * 1024;

/// The most calls that may be open at once on one HTTP/2 connection.
pub const MAX_HTTP2_STREAMS: u32 = 128;

/// The most connections that are told at the same time that there is no room. Others are closed without a word.
pub const MAX_REJECTIONS: usize = 256;

/// How much may be written for a client before it has to take some of it.
pub const MAX_PENDING_OUTPUT: usize = 256 * 1024;

/// How much of what a client says is read while it waits for an answer, so that it can be seen when it leaves.
pub const READ_AHEAD: usize = 16 * 1024;

/// Whoever was answered this many bytes at once lets others have their turn first.
pub const YIELD_AFTER_BYTES: usize = 16 * 1024;

/// How long somebody who is sent away may take to read why.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

pub use tidegate_net::listen::BACKLOG;

/// What may be chosen when a server starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionBounds {
    /// The most connections, over all doors and workers. Caller comes then is told so and sent away.
    pub connections: usize,
    /// A connection on which nothing was said for this long is closed.
    pub idle: Duration,
    /// From the first byte of a request's head to its last; of a RESP frame, the whole of it. Whoever takes longer is cut off.
    pub head: Duration,
    /// From the first byte of a request to the last of its body.
    pub request: Duration,
    /// How long a client may refuse to take what it is answered.
    pub write: Duration,
    /// How long, after the server was told to stop, those may take who are being answered.
    pub drain: Duration,
}

impl ConnectionBounds {
    /// How long a head may take: never longer than the whole request.
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
