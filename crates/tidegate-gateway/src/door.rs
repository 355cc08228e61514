//! The door: what is between a socket and HTTP.
//!
//! ```text
//!   socket ──▶ PROXY header? ──▶ counted, or turned away ──▶ TLS? ──▶ HTTP/2? ──▶ second
//!                                                                        └─ no ──▶ relay
//! ```

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::server::TlsStream;

use crate::answers::Answer;
use crate::buffers::Buffer;
use crate::client::{ClientKey, HeaderError, LONGEST_V2, parse_proxy_header};
use crate::guest::Guest;
use crate::limits::Refusal;
use crate::pace::later;
use crate::relay;
use crate::second;
use crate::story::{Asked, Story};
use crate::wire::head::{Head, room};
use crate::worker::{Over, Worker};

/// What every connection of HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The name of HTTP/2 in TLS.
const H2: &[u8] = b"h2";
/// How long somebody who is turned away may take to ask for something.
const HEARING: Duration = Duration::from_secs(2);

/// A client's connection, plain or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Whether there may be something to read; so that nobody needs room for it before.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

impl Stream for TcpStream {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_read_ready(cx).map(|_| ())
    }
}

impl Stream for TlsStream<Begun<TcpStream>> {
    fn poll_readable(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        // What is readable may be less than a record, and what was read may be more.
        Poll::Ready(())
    }
}

/// A stream of which some bytes were read already.
#[derive(Debug)]
pub(crate) struct Begun<S> {
    arrived: Buffer,
    stream: S,
}

impl<S> Begun<S> {
    pub(crate) const fn new(arrived: Buffer, stream: S) -> Begun<S> {
        Begun { arrived, stream }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let begun = self.get_mut();
        if begun.arrived.is_empty() {
            return Pin::new(&mut begun.stream).poll_read(cx, into);
        }
        let length = begun.arrived.filled().len().min(into.remaining());
        into.put_slice(&begun.arrived.filled()[..length]);
        begun.arrived.settle(length);
        begun.arrived.rest();
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Serves a connection from its beginning to its end. What a connection in plain text does not need is kept apart, so that it takes no room.
pub(crate) async fn attend(mut stream: TcpStream, address: SocketAddr, worker: &Arc<Worker>) -> Over {
    let site = worker.site();
    let mut peer = address.ip().to_canonical();
    let mut arrived = Buffer::default();
    if site.has_proxy_header(peer) {
        let announced = announced(&mut stream, &mut arrived);
        match timeout(site.spec.server.header_timeout, announced).await {
            Ok(Some(source)) => peer = source.unwrap_or(peer),
            Ok(None) => return Over::Protocol,
            Err(_) => return Over::SlowHead,
        }
    }
    // Who speaks for many is not one client, and who has a name has not said it yet.
    let key = ClientKey::of_address(peer);
    let is_known = !site.clients.trusts(peer) && site.spec.server.client_header.is_none();
    let client = is_known.then_some(key.as_bytes());
    let counted = worker.house.limits.accept(client);
    let Some(acceptor) = site.tls.clone() else {
        return match counted {
            Ok(connection) => {
                let guest = Guest::new(Arc::clone(worker), peer, false, connection);
                drop(site);
                plain(stream, arrived, guest).await
            }
            Err(refusal) => Box::pin(turn_away(stream, arrived, peer, worker, refusal, false)).await,
        };
    };
    let shaken = timeout(site.spec.server.header_timeout, acceptor.accept(Begun::new(arrived, stream)));
    let stream = match shaken.await {
        Ok(Ok(stream)) => stream,
        Ok(Err(_)) => return Over::Protocol,
        Err(_) => return Over::SlowHead,
    };
    drop(site);
    let is_second = stream.get_ref().1.alpn_protocol() == Some(H2);
    match counted {
        Err(refusal) => {
            Box::pin(turn_away(stream, Buffer::default(), peer, worker, refusal, is_second)).await
        }
        Ok(connection) => {
            let guest = Guest::new(Arc::clone(worker), peer, true, connection);
            if is_second {
                Box::pin(second::serve(stream, Buffer::default(), guest)).await
            } else {
                Box::pin(relay::serve(stream, Buffer::default(), guest)).await
            }
        }
    }
}

/// A connection in plain text: what it begins with says which HTTP it is.
async fn plain(stream: TcpStream, arrived: Buffer, guest: Guest) -> Over {
    let mut stream = stream;
    let mut arrived = arrived;
    match sniffed(&mut stream, &mut arrived, &guest).await {
        Ok(true) => Box::pin(second::serve(stream, arrived, guest)).await,
        Ok(false) => relay::serve(stream, arrived, guest).await,
        Err(over) => over,
    }
}

/// Whether a connection begins as HTTP/2 does. Who says nothing yet is given the time of somebody who is idle.
async fn sniffed(stream: &mut TcpStream, arrived: &mut Buffer, guest: &Guest) -> Result<bool, Over> {
    let (idle, header) = {
        let site = guest.worker.site();
        (site.spec.server.idle_timeout, site.spec.server.header_timeout)
    };
    // However many pieces it comes in, it must be whole in time.
    let mut whole: Option<Instant> = None;
    loop {
        let heard = arrived.filled();
        let length = heard.len().min(PREFACE.len());
        if heard[..length] != PREFACE[..length] {
            return Ok(false);
        }
        if length == PREFACE.len() {
            return Ok(true);
        }
        let now = guest.worker.now();
        let due = if arrived.is_empty() {
            later(now, idle)
        } else {
            *whole.get_or_insert_with(|| later(now, header))
        };
        let more = async {
            std::future::poll_fn(|cx| stream.poll_readable(cx)).await;
            std::future::poll_fn(|cx| arrived.poll_fill(Pin::new(&mut *stream), cx)).await
        };
        let ending = async {
            guest.worker.house.ending.triggered().await;
            // A request may be on its way; its response will say that it is the last.
            tokio::time::sleep(relay::LAST_CHANCE).await;
        };
        let filled = tokio::select! {
            biased;
            filled = timeout_at(due, more) => filled,
            () = ending => return Err(Over::Ending),
        };
        match filled {
            Ok(Ok(0) | Err(_)) => return Err(Over::Left),
            Ok(Ok(_)) => {}
            Err(_) if arrived.is_empty() => return Err(Over::Idle),
            Err(_) => return Err(Over::SlowHead),
        }
    }
}

/// Whom the PROXY header names: `Some(None)` if the proxy speaks for itself, `None` if there is no such header.
async fn announced(stream: &mut TcpStream, arrived: &mut Buffer) -> Option<Option<IpAddr>> {
    loop {
        match parse_proxy_header(arrived.filled()) {
            Ok(header) => {
                arrived.settle(header.length);
                return Some(header.source.map(|source| source.ip().to_canonical()));
            }
            Err(HeaderError::Incomplete) if arrived.filled().len() < LONGEST_V2 => {}
            Err(_) => return None,
        }
        let filled = std::future::poll_fn(|cx| arrived.poll_fill(Pin::new(&mut *stream), cx)).await;
        if !matches!(filled, Ok(length) if length > 0) {
            return None;
        }
    }
}

/// Tells a client for whom there is no room that this is so, when it has asked for something.
async fn turn_away<S: Stream>(
    mut stream: S,
    mut arrived: Buffer,
    peer: IpAddr,
    worker: &Arc<Worker>,
    refusal: Refusal,
    is_second: bool,
) -> Over {
    worker.numbers.refused_connection();
    worker.numbers.asked(ClientKey::of_address(peer).as_bytes(), true);
    let Some(_seat) = worker.house.turn_away() else { return Over::Refused };
    let answer = Answer::Refused(refusal);
    let started = worker.now();
    let told = async {
        loop {
            if is_second || arrived.filled().starts_with(PREFACE) {
                second::turn_away(Begun::new(arrived, stream), answer).await;
                Story::new(peer, "HTTP/2.0", started).answered(worker, &Asked::default(), answer);
                return;
            }
            let mut room = room();
            let heard = Head::read(arrived.filled(), &mut room);
            let may_be_second = PREFACE.starts_with(arrived.filled());
            if !matches!(heard, Ok(None)) && !may_be_second || arrived.is_full() {
                let head = heard.ok().flatten();
                let asked = head.as_ref().map_or_else(Asked::default, Asked::of_head);
                Story::new(peer, "HTTP/1.1", started).answered(worker, &asked, answer);
                let mut out = Vec::new();
                answer.write(asked.method == "HEAD", true, &mut out);
                if stream.write_all(&out).await.is_ok() {
                    relay::part(stream).await;
                }
                return;
            }
            let mut piece = [0; 4096];
            match stream.read(&mut piece).await {
                Ok(length) if length > 0 => {
                    let so_far = [arrived.filled(), &piece[..length]].concat();
                    arrived = Buffer::of(&so_far);
                }
                _ => return,
            }
        }
    };
    let _in_time = timeout(HEARING, told).await;
    Over::Refused
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an idle connection takes is mostly this, its sockets' buffers aside.
    #[test]
    fn a_connection_is_small() {
        fn size<A, F: Future<Output = Over>>(_: impl FnOnce(A) -> F) -> usize {
            size_of::<F>()
        }
        let plain = size(|(stream, arrived, guest)| plain(stream, arrived, guest));
        assert!(plain < 6 * 1024, "{plain}");
    }
}
