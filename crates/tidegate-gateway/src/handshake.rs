//! The start of a connection, before HTTP.
//!
//! ```text
//!   socket ──▶ PROXY header? ──▶ connection limits ──▶ TLS? ──▶ HTTP/2? ──▶ http2
//!                                     └─ 429                      └─ no ──▶ http1
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

use crate::buffers::ReadBuffer;
use crate::client_connection::ClientConnection;
use crate::client_key::ClientKey;
use crate::deadline::deadline_after;
use crate::http1;
use crate::http2;
use crate::limits::LimitRefusal;
use crate::local_reply::LocalReply;
use crate::proxy_header::{MAX_V2_BYTES, ProxyHeaderError, parse_proxy_header};
use crate::request_log::{RequestRecord, RequestSummary};
use crate::wire::request_head::{Http1RequestHead, header_storage};
use crate::worker::{ClientConnectionEnd, GatewayWorker};

/// The HTTP/2 connection preface.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The ALPN name of HTTP/2.
const ALPN_HTTP2: &[u8] = b"h2";
/// How long a rejected connection may take to send a request.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// A client's stream, plaintext or TLS.
pub(crate) trait ClientStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Ready when the stream may be readable. Lets an idle connection wait without a buffer.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

impl ClientStream for TcpStream {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_read_ready(cx).map(|_| ())
    }
}

impl ClientStream for TlsStream<PrefixedStream<TcpStream>> {
    fn poll_readable(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        // The socket may be readable without a complete TLS record, and decrypted bytes may be waiting
        // without it.
        Poll::Ready(())
    }
}

/// A stream that replays bytes already read.
#[derive(Debug)]
pub(crate) struct PrefixedStream<S> {
    arrived: ReadBuffer,
    stream: S,
}

impl<S> PrefixedStream<S> {
    pub(crate) const fn new(arrived: ReadBuffer, stream: S) -> PrefixedStream<S> {
        PrefixedStream { arrived, stream }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PrefixedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let prefixed = self.get_mut();
        if prefixed.arrived.is_empty() {
            return Pin::new(&mut prefixed.stream).poll_read(cx, buffer);
        }
        let length = prefixed.arrived.filled().len().min(buffer.remaining());
        buffer.put_slice(&prefixed.arrived.filled()[..length]);
        prefixed.arrived.consume(length);
        prefixed.arrived.release_if_empty();
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PrefixedStream<S> {
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

/// Serves a connection from accept to close. The TLS path is boxed so that plaintext connections stay small.
pub(crate) async fn serve_connection(
    mut stream: TcpStream,
    address: SocketAddr,
    worker: &Arc<GatewayWorker>,
) -> ClientConnectionEnd {
    let config = worker.config();
    let mut peer = address.ip().to_canonical();
    let mut arrived = ReadBuffer::default();
    if config.expects_proxy_header(peer) {
        let header = read_proxy_header(&mut stream, &mut arrived);
        match timeout(config.spec.server.header_timeout, header).await {
            Ok(Some(source)) => peer = source.unwrap_or(peer),
            Ok(None) => return ClientConnectionEnd::Protocol,
            Err(_) => return ClientConnectionEnd::SlowHead,
        }
    }
    // A trusted proxy carries several clients, and a named client is known only with its request.
    let key = ClientKey::of_address(peer);
    let is_known = !config.proxies.trusts(peer) && config.spec.server.client_header.is_none();
    let counted_client = is_known.then_some(key.as_bytes());
    let permit = worker.state.limits.accept(counted_client);
    let Some(acceptor) = config.tls.clone() else {
        return match permit {
            Ok(permit) => {
                let client = ClientConnection::new(Arc::clone(worker), peer, false, permit);
                drop(config);
                serve_plaintext(stream, arrived, client).await
            }
            Err(refusal) => Box::pin(reject_connection(stream, arrived, peer, worker, refusal, false)).await,
        };
    };
    let tls_handshake =
        timeout(config.spec.server.header_timeout, acceptor.accept(PrefixedStream::new(arrived, stream)));
    let stream = match tls_handshake.await {
        Ok(Ok(stream)) => stream,
        Ok(Err(_)) => return ClientConnectionEnd::Protocol,
        Err(_) => return ClientConnectionEnd::SlowHead,
    };
    drop(config);
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(ALPN_HTTP2);
    match permit {
        Err(refusal) => {
            Box::pin(reject_connection(stream, ReadBuffer::default(), peer, worker, refusal, is_http2)).await
        }
        Ok(permit) => {
            let client = ClientConnection::new(Arc::clone(worker), peer, true, permit);
            if is_http2 {
                Box::pin(http2::serve(stream, ReadBuffer::default(), client)).await
            } else {
                Box::pin(http1::serve(stream, ReadBuffer::default(), client)).await
            }
        }
    }
}

/// Serves a plaintext connection as HTTP/1 or HTTP/2, depending on its first bytes.
async fn serve_plaintext(
    stream: TcpStream,
    arrived: ReadBuffer,
    client: ClientConnection,
) -> ClientConnectionEnd {
    let mut stream = stream;
    let mut arrived = arrived;
    match detect_http2(&mut stream, &mut arrived, &client).await {
        Ok(true) => Box::pin(http2::serve(stream, arrived, client)).await,
        Ok(false) => http1::serve(stream, arrived, client).await,
        Err(end) => end,
    }
}

/// Whether the connection starts with the HTTP/2 preface. Until the first byte the idle timeout applies.
async fn detect_http2(
    stream: &mut TcpStream,
    arrived: &mut ReadBuffer,
    client: &ClientConnection,
) -> Result<bool, ClientConnectionEnd> {
    let (idle, header) = {
        let config = client.worker.config();
        (config.spec.server.idle_timeout, config.spec.server.header_timeout)
    };
    // The complete preface must arrive within the header timeout.
    let mut head_deadline: Option<Instant> = None;
    loop {
        let prefix = arrived.filled();
        let length = prefix.len().min(PREFACE.len());
        if prefix[..length] != PREFACE[..length] {
            return Ok(false);
        }
        if length == PREFACE.len() {
            return Ok(true);
        }
        let now = client.worker.now();
        let due = if arrived.is_empty() {
            deadline_after(now, idle)
        } else {
            *head_deadline.get_or_insert_with(|| deadline_after(now, header))
        };
        let more = async {
            std::future::poll_fn(|cx| stream.poll_readable(cx)).await;
            std::future::poll_fn(|cx| arrived.poll_fill(Pin::new(&mut *stream), cx)).await
        };
        let shutdown = async {
            client.worker.state.shutdown.triggered().await;
            // A request may already be in transit. Its response will close the connection.
            tokio::time::sleep(http1::SHUTDOWN_GRACE).await;
        };
        let filled = tokio::select! {
            biased;
            filled = timeout_at(due, more) => filled,
            () = shutdown => return Err(ClientConnectionEnd::ShuttingDown),
        };
        match filled {
            Ok(Ok(0) | Err(_)) => return Err(ClientConnectionEnd::ClientClosed),
            Ok(Ok(_)) => {}
            Err(_) if arrived.is_empty() => return Err(ClientConnectionEnd::Idle),
            Err(_) => return Err(ClientConnectionEnd::SlowHead),
        }
    }
}

/// Reads a PROXY header. `Some(None)` if the proxy speaks for itself, `None` if there is no valid header.
async fn read_proxy_header(stream: &mut TcpStream, arrived: &mut ReadBuffer) -> Option<Option<IpAddr>> {
    loop {
        match parse_proxy_header(arrived.filled()) {
            Ok(header) => {
                arrived.consume(header.length);
                return Some(header.source.map(|source| source.ip().to_canonical()));
            }
            Err(ProxyHeaderError::Incomplete) if arrived.filled().len() < MAX_V2_BYTES => {}
            Err(_) => return None,
        }
        let filled = std::future::poll_fn(|cx| arrived.poll_fill(Pin::new(&mut *stream), cx)).await;
        if !matches!(filled, Ok(length) if length > 0) {
            return None;
        }
    }
}

/// Waits for the first request and answers it with the refusal.
async fn reject_connection<S: ClientStream>(
    mut stream: S,
    mut arrived: ReadBuffer,
    peer: IpAddr,
    worker: &Arc<GatewayWorker>,
    refusal: LimitRefusal,
    is_http2: bool,
) -> ClientConnectionEnd {
    worker.metrics.count_refused_connection();
    worker.metrics.count_client_request(ClientKey::of_address(peer).as_bytes(), true);
    let Some(_slot) = worker.state.reserve_rejection_slot() else { return ClientConnectionEnd::Refused };
    let reply = LocalReply::Refused(refusal);
    let started = worker.now();
    let rejection = async {
        loop {
            if is_http2 || arrived.filled().starts_with(PREFACE) {
                http2::reject_connection(PrefixedStream::new(arrived, stream), reply).await;
                RequestRecord::new(peer, "HTTP/2.0", started).finish_with_reply(
                    worker,
                    &RequestSummary::default(),
                    reply,
                );
                return;
            }
            let mut storage = header_storage();
            let parsed = Http1RequestHead::read(arrived.filled(), &mut storage);
            let may_be_http2 = PREFACE.starts_with(arrived.filled());
            if !matches!(parsed, Ok(None)) && !may_be_http2 || arrived.is_full() {
                let head = parsed.ok().flatten();
                let summary = head.as_ref().map_or_else(RequestSummary::default, RequestSummary::from_head);
                RequestRecord::new(peer, "HTTP/1.1", started).finish_with_reply(worker, &summary, reply);
                let mut out = Vec::new();
                reply.write(summary.method == "HEAD", true, &mut out);
                if stream.write_all(&out).await.is_ok() {
                    http1::close_gracefully(stream).await;
                }
                return;
            }
            let mut piece = [0; 4096];
            match stream.read(&mut piece).await {
                Ok(length) if length > 0 => {
                    let so_far = [arrived.filled(), &piece[..length]].concat();
                    arrived = ReadBuffer::from_bytes(&so_far);
                }
                _ => return,
            }
        }
    };
    let _in_time = timeout(REJECTION_TIMEOUT, rejection).await;
    ClientConnectionEnd::Refused
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The future is most of the memory of an idle connection, apart from socket buffers.
    #[test]
    fn plaintext_connection_future_is_below_6_kib() {
        fn size<A, F: Future<Output = ClientConnectionEnd>>(_: impl FnOnce(A) -> F) -> usize {
            size_of::<F>()
        }
        let size_of_future = size(|(stream, arrived, client)| serve_plaintext(stream, arrived, client));
        assert!(size_of_future < 6 * 1024, "{size_of_future}");
    }
}
