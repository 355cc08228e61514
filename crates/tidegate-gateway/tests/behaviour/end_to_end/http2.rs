//! HTTP/2 clients.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Collected, Empty, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_gateway::ConnectionCounter;
use tokio::net::TcpStream;

use super::fixture::{TestBackend, TestGateway, file, get, response};
use super::http_client::{Message, TEST_TIMEOUT};
use crate::fixture::EXAMPLE;

pub(super) type AnyBody = BoxBody<Bytes, Infallible>;
pub(super) type Sender = SendRequest<AnyBody>;

pub(super) fn run<T>(what: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(3 * TEST_TIMEOUT, what).await.expect("in time") })
}

pub(super) async fn connect(address: SocketAddr) -> Sender {
    let stream = TcpStream::connect(address).await.expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    handshake(TokioIo::new(stream)).await
}

pub(super) async fn handshake(
    io: impl hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
) -> Sender {
    let (sender, connection) =
        Builder::new(TokioExecutor::new()).handshake(io).await.expect("it speaks HTTP/2");
    tokio::spawn(connection);
    sender
}

pub(super) fn empty() -> AnyBody {
    Empty::new().boxed()
}

pub(super) fn full(bytes: impl Into<Bytes>) -> AnyBody {
    Full::new(bytes.into()).boxed()
}

pub(super) fn request_for(uri: &str, body: AnyBody) -> Request<AnyBody> {
    let method = if body.is_end_stream() { "GET" } else { "POST" };
    Request::builder().method(method).uri(uri).body(body).expect("a request")
}

pub(super) struct ReceivedResponse {
    pub(super) status: StatusCode,
    pub(super) fields: HeaderMap,
    pub(super) trailers: HeaderMap,
    pub(super) body: Bytes,
}

impl ReceivedResponse {
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).and_then(|value| value.to_str().ok())
    }

    pub(super) fn echoed(&self) -> Message {
        Message { body: self.body.to_vec(), ..Message::default() }.echoed()
    }
}

pub(super) async fn receive(response: Response<Incoming>) -> Result<ReceivedResponse, hyper::Error> {
    let (head, body) = response.into_parts();
    let collected: Collected<Bytes> = body.collect().await?;
    let trailers = collected.trailers().cloned().unwrap_or_default();
    Ok(ReceivedResponse { status: head.status, fields: head.headers, trailers, body: collected.to_bytes() })
}

#[track_caller]
pub(super) fn send(
    sender: &mut Sender,
    request: Request<AnyBody>,
) -> impl Future<Output = ReceivedResponse> + use<> {
    let response = sender.send_request(request);
    async move { receive(response.await.expect("an response")).await.expect("all of it") }
}

#[test]
fn requests_are_forwarded() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&backend);
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        for _ in 0..2 {
            let mut request = request_for("http://a.test:81/x/y?z", empty());
            for cookie in ["a=1", "b=2"] {
                request.headers_mut().append("cookie", cookie.parse().expect("a value"));
            }
            request.headers_mut().insert("x-real-ip", "6.6.6.6".parse().expect("a value"));
            request.headers_mut().insert("te", "trailers".parse().expect("a value"));
            let received = send(&mut sender, request).await;
            assert_eq!(received.status, 200);
            let echoed = received.echoed();
            assert_eq!(echoed.line, "GET /x/y?z HTTP/1.1");
            let fields =
                ["host", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "via", "cookie"];
            let expected = ["a.test:81", "127.0.0.1", "http", "a.test:81", "2 tidegate", "a=1; b=2"];
            assert_eq!(fields.map(|name| echoed.field(name)), expected.map(Some));
            for gone in ["x-real-ip", "te", "connection", "transfer-encoding", "content-length"] {
                assert_eq!(echoed.field(gone), None, "{gone}");
            }
            let received = send(&mut sender, request_for("http://a.test/", full("hello"))).await;
            assert_eq!(received.echoed().body, b"hello");
        }
    });
    assert_eq!(backend.connection_count(), 1, "it is kept");
    gateway.end();
}

#[test]
fn concurrent_requests_share_a_connection() {
    const MANY: usize = 60;
    let backend = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&backend);
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        let pending: Vec<_> = (0..MANY)
            .map(|number| {
                let body = full(vec![b'x'; number * 1000]);
                let request = Request::post(format!("http://a.test/{number}")).body(body).expect("a request");
                tokio::spawn(send(&mut sender, request))
            })
            .collect();
        for (number, each) in pending.into_iter().enumerate() {
            let echoed = each.await.expect("no panic").echoed();
            assert_eq!(echoed.line, format!("POST /{number} HTTP/1.1"));
            assert_eq!(echoed.body.len(), number * 1000);
        }
    });
    assert_eq!(backend.request_count(), MANY);
    gateway.end();
}

#[test]
fn large_bodies_pass_in_both_directions() {
    let backend = TestBackend::new(|message, wire| {
        wire.try_send(response(&message.body));
        true
    });
    let gateway = TestGateway::in_front_of(&backend);
    let body: Bytes = (0..10_u32 << 18).flat_map(u32::to_le_bytes).collect::<Vec<u8>>().into();
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        for _ in 0..2 {
            let received = send(&mut sender, request_for("http://a.test/", full(body.clone()))).await;
            assert!(received.body == body, "{} of {}", received.body.len(), body.len());
        }
    });
    gateway.end();
}

#[test]
fn trailers_pass_and_hop_by_hop_fields_do_not() {
    let backend = TestBackend::always(
        "HTTP/1.1 200 OK\r\nConnection: X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nX-Kept: 1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 7\r\n\r\n",
    );
    let gateway = TestGateway::in_front_of(&backend);
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        let received = send(&mut sender, request_for("http://a.test/", empty())).await;
        assert_eq!((&received.body[..], received.field("x-kept")), (&b"hello"[..], Some("1")));
        for gone in ["connection", "x-mine", "keep-alive", "transfer-encoding"] {
            assert_eq!(received.field(gone), None, "{gone}");
        }
        assert_eq!(received.trailers.get("x-sum").map(http::HeaderValue::as_bytes), Some(&b"7"[..]));
    });
    gateway.end();
}

#[test]
fn each_request_is_routed_and_counted_separately() {
    let (api, plain) = (TestBackend::always(response("api")), TestBackend::always(response("plain")));
    let text = EXAMPLE.replace("8080", &api.port().to_string()).replace("8081", &plain.port().to_string());
    let gateway = TestGateway::new(&text);
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        for (uri, status, body) in [
            ("http://api.example.com/", 200, "api"),
            ("http://plain.example.com/", 200, "plain"),
            ("http://unknown.example.org/", 404, "Not Found"),
        ] {
            let received = send(&mut sender, request_for(uri, empty())).await;
            assert_eq!((received.status.as_u16(), &received.body[..]), (status, body.as_bytes()));
        }
        assert_eq!(gateway.counted(ConnectionCounter::Server), 1);
        assert_eq!(gateway.counted(ConnectionCounter::Route("plain.example.com")), 1);
        assert_eq!(gateway.counted(ConnectionCounter::Backend("api-service")), 1);
        let mut refused = None;
        for _ in 0..30 {
            let received = send(&mut sender, request_for("http://plain.example.com/", empty())).await;
            if received.status == 429 {
                refused = Some(received);
            }
        }
        let refused = refused.expect("ten a second");
        assert_eq!(&refused.body[..], b"Too Many Requests");
        assert_eq!(refused.field("ratelimit-policy"), Some("\"client\";q=10;w=1"));
        assert_eq!(refused.field("retry-after"), Some("1"));
    });
    gateway.end();
}

#[test]
fn malformed_requests_are_refused() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&file("maxBodyBytes: 10", "", &[&backend]));
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        for uri in
            ["http://a.test/a/../b", "http://a.test/%2e%2e/b", "http://a.test/a%2f..%2fb", "http://a.test/.."]
        {
            assert_eq!(send(&mut sender, request_for(uri, empty())).await.status, 400, "{uri}");
        }
        let mut request = request_for("http://a.test/", empty());
        request.headers_mut().insert("host", "b.test".parse().expect("a value"));
        assert_eq!(send(&mut sender, request).await.status, 400, "two hosts");
        let mut request = request_for("http://a.test/", empty());
        *request.method_mut() = http::Method::TRACE;
        let received = send(&mut sender, request).await;
        assert_eq!((received.status.as_u16(), received.field("allow").is_some()), (405, true));
        let long = format!("http://a.test/{}", "x".repeat(20_000));
        assert_eq!(send(&mut sender, request_for(&long, empty())).await.status, 414);
        let mut request = request_for("http://a.test/", empty());
        for number in 0..200 {
            let name: http::HeaderName = format!("x-{number}").parse().expect("a name");
            request.headers_mut().insert(name, "1".parse().expect("a value"));
        }
        assert_eq!(send(&mut sender, request).await.status, 431);
        let mut request = request_for("http://a.test/", empty());
        request.headers_mut().insert("x", "x".repeat(100_000).parse().expect("a value"));
        let answered = sender.send_request(request).await;
        assert!(answered.is_err() || answered.is_ok_and(|response| response.status() == 431));
        let mut sender = connect(gateway.inner.address()).await;
        assert_eq!(send(&mut sender, request_for("http://a.test/", full("0123456789"))).await.status, 200);
        let known = send(&mut sender, request_for("http://a.test/", full("0123456789x"))).await;
        assert_eq!(known.status, 413);
        let unknown = DelayedBody::new(["01234", "56789x"], Duration::ZERO);
        assert_eq!(send(&mut sender, request_for("http://a.test/", unknown.boxed())).await.status, 413);
    });
    assert_eq!(backend.request_count(), 1);
    gateway.end();
}

/// A body in pieces with a pause before each and no known length.
pub(super) struct DelayedBody {
    left: Vec<&'static str>,
    pause: Duration,
    alarm: Pin<Box<tokio::time::Sleep>>,
}

impl DelayedBody {
    pub(super) fn new(pieces: impl IntoIterator<Item = &'static str>, pause: Duration) -> DelayedBody {
        let mut left: Vec<&str> = pieces.into_iter().collect();
        left.reverse();
        DelayedBody { left, pause, alarm: Box::pin(tokio::time::sleep(pause)) }
    }
}

impl Body for DelayedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::task::ready!(self.alarm.as_mut().poll(cx));
        let next = tokio::time::Instant::now() + self.pause;
        self.alarm.as_mut().reset(next);
        Poll::Ready(self.left.pop().map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes())))))
    }
}

/// A slow body is allowed as long as it makes progress.
#[test]
fn slow_but_steady_body_is_not_late() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&file("bodyTimeout: 2s", "responseTimeout: 300ms", &[&backend]));
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        let slow = DelayedBody::new(["a", "b", "c", "d", "e", "f", "g", "h"], Duration::from_millis(100));
        let received = send(&mut sender, request_for("http://a.test/", slow.boxed())).await;
        assert_eq!((received.status.as_u16(), received.echoed().body.as_slice()), (200, &b"abcdefgh"[..]));
    });
    gateway.end();
}

#[test]
fn stalled_body_is_late() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&file("bodyTimeout: 200ms", "", &[&backend]));
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        let slow = DelayedBody::new(["a", "b"], TEST_TIMEOUT);
        let received = send(&mut sender, request_for("http://a.test/", slow.boxed())).await;
        assert_eq!(received.status, 408);
    });
    assert_eq!(backend.request_count(), 0);
    gateway.end();
}

#[test]
fn client_that_does_not_read_is_disconnected() {
    let backend = TestBackend::with_connections(|mut wire, _| {
        use std::io::Write;
        if wire.read_message(false).is_err() {
            return;
        }
        wire.try_send("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
        let much = vec![b'x'; 65_536];
        while wire.stream.write_all(&much).is_ok() {}
    });
    let gateway = TestGateway::new(&file("bodyTimeout: 300ms", "", &[&backend]));
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        let response = sender.send_request(request_for("http://a.test/", empty())).await.expect("a head");
        // The body is not read and the client stays connected.
        let wait = async {
            while gateway.inner.active_requests() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, wait).await.expect("the gateway has done with it");
        assert!(receive(response).await.is_err(), "it is not whole");
    });
    gateway.end();
}

#[test]
fn backend_failures_are_reported() {
    let mut dead = TestBackend::echo();
    let silent = TestBackend::with_connections(|mut wire, _| wire.assert_closes_eventually());
    let broken = TestBackend::always_then_close("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
    let odd = TestBackend::always_then_close("nonsense\r\n\r\n");
    let stages = [
        (TestGateway::in_front_of(&dead), Some(502)),
        (TestGateway::new(&file("", "responseTimeout: 100ms", &[&silent])), Some(504)),
        (TestGateway::in_front_of(&odd), Some(502)),
        (TestGateway::in_front_of(&broken), None),
    ];
    dead.end();
    for (gateway, status) in stages {
        run(async {
            let mut sender = connect(gateway.inner.address()).await;
            let response = sender.send_request(request_for("http://a.test/", empty())).await.expect("a head");
            let received = receive(response).await;
            assert_eq!(received.as_ref().ok().map(|received| received.status.as_u16()), status);
        });
        gateway.end();
    }
}

/// Responds to the first request of every connection and closes on the second.
#[test]
fn closed_pooled_connection_is_retried() {
    let backend = TestBackend::with_connections(|mut wire, number| {
        if wire.read_message(false).is_ok() {
            wire.try_send(response(number.to_string()));
            let _ignored = wire.read_message(false);
        }
    });
    let gateway = TestGateway::in_front_of(&backend);
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        for number in 1..=4 {
            let received = send(&mut sender, request_for("http://a.test/", empty())).await;
            assert_eq!(&received.body[..], number.to_string().as_bytes());
        }
    });
    gateway.end();
}

#[test]
fn refused_connection_gets_a_reply() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&file("rateLimit: {maxConnections: 1}", "", &[&backend]));
    let mut first = gateway.client();
    assert_eq!(first.request(get("a.test")).status(), 200);
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        let received = send(&mut sender, request_for("http://a.test/", empty())).await;
        assert_eq!((received.status.as_u16(), &received.body[..]), (429, &b"Too Many Connections"[..]));
        let mut sender = connect(gateway.inner.address()).await;
        let mut request = request_for("http://a.test/x.Y/Z", full("x"));
        request.headers_mut().insert("content-type", "application/grpc".parse().expect("a value"));
        let received = send(&mut sender, request).await;
        assert_eq!((received.status.as_u16(), received.field("grpc-status")), (200, Some("8")));
    });
    drop(first);
    gateway.end();
}

#[test]
fn vanished_clients_leave_no_counts() {
    let backend = TestBackend::with_connections(|mut wire, _| {
        let _head = wire.head();
        wire.assert_closes_eventually();
    });
    let gateway = TestGateway::in_front_of(&backend);
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        let pending: Vec<_> = (0..10)
            .map(|_| tokio::spawn(sender.send_request(request_for("http://a.test/", empty()))))
            .collect();
        while gateway.inner.active_requests() < 10 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Some of the requests first, then all.
        for each in pending.iter().take(5) {
            each.abort();
        }
        while gateway.inner.active_requests() > 5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    gateway.end();
}

/// An idle connection is closed with GOAWAY.
#[test]
fn idle_connection_is_closed() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&file("idleTimeout: 200ms", "", &[&backend]));
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        assert_eq!(send(&mut sender, request_for("http://a.test/", empty())).await.status, 200);
        while sender.ready().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    gateway.end();
}

#[test]
fn active_calls_complete_during_drain() {
    let (arrived, arrivals) = std::sync::mpsc::channel();
    let (go, may_go) = std::sync::mpsc::channel::<()>();
    let may_go = std::sync::Mutex::new(may_go);
    let backend = TestBackend::new(move |_, wire| {
        arrived.send(()).expect("the test waits");
        let _told = may_go.lock().expect("no panic").recv_timeout(TEST_TIMEOUT);
        wire.try_send(response("done"));
        true
    });
    let gateway = TestGateway::in_front_of(&backend);
    let address = gateway.inner.address();
    run(async {
        let mut sender = connect(address).await;
        let pending = tokio::spawn(send(&mut sender, request_for("http://a.test/", empty())));
        while arrivals.try_recv().is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let ending = std::thread::spawn(move || gateway.drain());
        while TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        go.send(()).expect("it waits");
        assert_eq!(&pending.await.expect("no panic").body[..], b"done");
        ending.join().expect("it ends");
    });
}
