//! The idle HTTP/1 connections to endpoints.
//!
//! Each worker has its own pool of idle sockets. A user of a pooled socket speaks HTTP/1 on it and returns it after a complete
//! response.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::endpoints::UpstreamEndpoint;

/// The maximum number of idle connections per endpoint and worker.
const MAX_KEPT: usize = 256;

/// The idle connections of a worker.
#[derive(Debug, Default)]
pub(crate) struct Http1Pool {
    idle: Mutex<HashMap<u64, Vec<IdleConnection>>>,
}

#[derive(Debug)]
struct IdleConnection {
    stream: TcpStream,
    until: Instant,
}

impl Http1Pool {
    /// Takes the most recently used connection that is still open.
    pub(crate) fn take(&self, endpoint: &UpstreamEndpoint) -> Option<TcpStream> {
        let mut idle = self.idle();
        let kept = idle.get_mut(&endpoint.id())?;
        while let Some(IdleConnection { stream, .. }) = kept.pop() {
            if is_idle_and_open(&stream) {
                return Some(stream);
            }
        }
        None
    }

    /// Returns a connection to the pool.
    pub(crate) fn keep(
        &self,
        endpoint: &UpstreamEndpoint,
        stream: TcpStream,
        now: Instant,
        max_wait: Duration,
    ) {
        let mut idle = self.idle();
        let kept = idle.entry(endpoint.id()).or_default();
        if kept.len() < MAX_KEPT {
            kept.push(IdleConnection { stream, until: now + max_wait });
        }
    }

    /// Closes connections that are unused for too long or closed by the endpoint.
    pub(crate) fn sweep(&self, now: Instant) {
        self.idle().retain(|_, kept| {
            kept.retain(|each| now < each.until && is_idle_and_open(&each.stream));
            !kept.is_empty()
        });
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<u64, Vec<IdleConnection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an idle connection is still open and has no unread bytes.
fn is_idle_and_open(stream: &TcpStream) -> bool {
    let read = stream.try_read(&mut [0; 1]);
    matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}
