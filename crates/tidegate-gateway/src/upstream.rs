//! Connections to endpoints: made when they are needed, kept for a while when they are not.
//!
//! Every worker keeps its own, as plain sockets on which nothing is being said; whoever takes one speaks HTTP/1 on it, by which means
//! ever, and brings it back when a response has ended cleanly.

use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::endpoints::Endpoint;
use crate::local_reply::Answer;

/// How many connections to one endpoint a worker keeps while they are not used.
const MOST_KEPT: usize = 256;

/// The connections of a worker that nobody uses.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    idle: Mutex<HashMap<u64, Vec<Idle>>>,
}

#[derive(Debug)]
struct Idle {
    stream: TcpStream,
    until: Instant,
}

impl Pool {
    /// One that nobody uses, and that is still open as far as is known: the one that was used last.
    pub(crate) fn take(&self, endpoint: &Endpoint) -> Option<TcpStream> {
        let mut idle = self.idle();
        let kept = idle.get_mut(&endpoint.id())?;
        while let Some(Idle { stream, .. }) = kept.pop() {
            if is_silent(&stream) {
                return Some(stream);
            }
        }
        None
    }

    /// Keeps one for later.
    pub(crate) fn keep(&self, endpoint: &Endpoint, stream: TcpStream, now: Instant, patience: Duration) {
        let mut idle = self.idle();
        let kept = idle.entry(endpoint.id()).or_default();
        if kept.len() < MOST_KEPT {
            kept.push(Idle { stream, until: now + patience });
        }
    }

    /// Closes those that nobody has used for too long, or that were closed at the other end.
    pub(crate) fn sweep(&self, now: Instant) {
        self.idle().retain(|_, kept| {
            kept.retain(|each| now < each.until && is_silent(&each.stream));
            !kept.is_empty()
        });
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<u64, Vec<Idle>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether nothing has come on a connection that nobody uses, not even its end.
fn is_silent(stream: &TcpStream) -> bool {
    let heard = stream.try_read(&mut [0; 1]);
    matches!(heard, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// What the client is told if no connection could be made, and whether that is the endpoint's fault: if this process or the machine has no
/// more descriptors, it is not.
pub(crate) fn unconnected(error: &io::Error) -> (Answer, bool) {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    match error.raw_os_error() {
        Some(ENFILE | EMFILE) => (Answer::Nobody, false),
        _ if error.kind() == io::ErrorKind::TimedOut => (Answer::Late, true),
        _ => (Answer::Failed, true),
    }
}

/// A new connection.
pub(crate) async fn connect(endpoint: &Endpoint, patience: Duration) -> io::Result<TcpStream> {
    let connected = async {
        match endpoint.host().parse::<IpAddr>() {
            Ok(address) => TcpStream::connect((address, endpoint.port())).await,
            Err(_) => TcpStream::connect((endpoint.host(), endpoint.port())).await,
        }
    };
    let stream = timeout(patience, connected).await.map_err(|_| io::ErrorKind::TimedOut)??;
    // Heads are written whole; waiting for more would only make them late.
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_of_our_own_is_nobody_elses_fault() {
        assert_eq!(unconnected(&io::Error::from_raw_os_error(24)), (Answer::Nobody, false));
        assert_eq!(unconnected(&io::ErrorKind::TimedOut.into()), (Answer::Late, true));
        assert_eq!(unconnected(&io::ErrorKind::ConnectionRefused.into()), (Answer::Failed, true));
    }
}
