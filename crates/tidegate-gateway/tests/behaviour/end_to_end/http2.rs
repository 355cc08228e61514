//! HTTP/2, as clients speak it.

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
use tidegate_gateway::Counted;
use tokio::net::TcpStream;

use super::fixture::{Backend, Stage, file, get, response};
use super::http_client::{FAR_TOO_LONG, Message};
use crate::fixture::DOCUMENT;

pub(super) type AnyBody = BoxBody<Bytes, Infallible>;
pub(super) type Sender = SendRequest<AnyBody>;

pub(super) fn run<T>(what: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(3 * FAR_TOO_LONG, what).await.expect("in time") })
}

pub(super) async fn connect(address: SocketAddr) -> Sender {
    let stream = TcpStream::connect(address).await.expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    shake(TokioIo::new(stream)).await
}

pub(super) async fn shake(io: impl hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static) -> Sender {
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

pub(super) fn asking(uri: &str, body: AnyBody) -> Request<AnyBody> {
    let method = if body.is_end_stream() { "GET" } else { "POST" };
    Request::builder().method(method).uri(uri).body(body).expect("a request")
}

pub(super) struct Heard {
    pub(super) status: StatusCode,
    pub(super) fields: HeaderMap,
    pub(super) trailers: HeaderMap,
    pub(super) body: Bytes,
}

impl Heard {
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).and_then(|value| value.to_str().ok())
    }

    pub(super) fn echoed(&self) -> Message {
        Message { body: self.body.to_vec(), ..Message::default() }.echoed()
    }
}

pub(super) async fn hear(response: Response<Incoming>) -> Result<Heard, hyper::Error> {
    let (head, body) = response.into_parts();
    let collected: Collected<Bytes> = body.collect().await?;
    let trailers = collected.trailers().cloned().unwrap_or_default();
    Ok(Heard { status: head.status, fields: head.headers, trailers, body: collected.to_bytes() })
}

#[track_caller]
pub(super) fn ask(sender: &mut Sender, request: Request<AnyBody>) -> impl Future<Output = Heard> + use<> {
    let answer = sender.send_request(request);
    async move { hear(answer.await.expect("an answer")).await.expect("all of it") }
}

#[test]
fn requests_pass() {
    let backend = Backend::echo();
    let stage = Stage::before(&backend);
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        for _ in 0..2 {
            let mut request = asking("http://a.test:81/x/y?z", empty());
            for cookie in ["a=1", "b=2"] {
                request.headers_mut().append("cookie", cookie.parse().expect("a value"));
            }
            request.headers_mut().insert("x-real-ip", "6.6.6.6".parse().expect("a value"));
            request.headers_mut().insert("te", "trailers".parse().expect("a value"));
            let heard = ask(&mut sender, request).await;
            assert_eq!(heard.status, 200);
            let echoed = heard.echoed();
            assert_eq!(echoed.line, "GET /x/y?z HTTP/1.1");
            let fields =
                ["host", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "via", "cookie"];
            let expected = ["a.test:81", "127.0.0.1", "http", "a.test:81", "2 tidegate", "a=1; b=2"];
            assert_eq!(fields.map(|name| echoed.field(name)), expected.map(Some));
            for gone in ["x-real-ip", "te", "connection", "transfer-encoding", "content-length"] {
                assert_eq!(echoed.field(gone), None, "{gone}");
            }
            let heard = ask(&mut sender, asking("http://a.test/", full("hello"))).await;
            assert_eq!(heard.echoed().body, b"hello");
        }
    });
    assert_eq!(backend.connections(), 1, "it is kept");
    stage.end();
}

#[test]
fn many_requests_are_under_way_at_once() {
    const MANY: usize = 60;
    let backend = Backend::echo();
    let stage = Stage::before(&backend);
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        let asked: Vec<_> = (0..MANY)
            .map(|number| {
                let body = full(vec![b'x'; number * 1000]);
                let request = Request::post(format!("http://a.test/{number}")).body(body).expect("a request");
                tokio::spawn(ask(&mut sender, request))
            })
            .collect();
        for (number, each) in asked.into_iter().enumerate() {
            let echoed = each.await.expect("no panic").echoed();
            assert_eq!(echoed.line, format!("POST /{number} HTTP/1.1"));
            assert_eq!(echoed.body.len(), number * 1000);
        }
    });
    assert_eq!(backend.requests(), MANY);
    stage.end();
}

#[test]
fn large_bodies_pass_both_ways() {
    let backend = Backend::new(|message, wire| {
        wire.shout(response(&message.body));
        true
    });
    let stage = Stage::before(&backend);
    let body: Bytes = (0..10_u32 << 18).flat_map(u32::to_le_bytes).collect::<Vec<u8>>().into();
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        for _ in 0..2 {
            let heard = ask(&mut sender, asking("http://a.test/", full(body.clone()))).await;
            assert!(heard.body == body, "{} of {}", heard.body.len(), body.len());
        }
    });
    stage.end();
}

#[test]
fn fields_behind_responses_pass_and_those_for_one_hop_do_not() {
    let backend = Backend::saying(
        "HTTP/1.1 200 OK\r\nConnection: X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nX-Kept: 1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 7\r\n\r\n",
    );
    let stage = Stage::before(&backend);
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        let heard = ask(&mut sender, asking("http://a.test/", empty())).await;
        assert_eq!((&heard.body[..], heard.field("x-kept")), (&b"hello"[..], Some("1")));
        for gone in ["connection", "x-mine", "keep-alive", "transfer-encoding"] {
            assert_eq!(heard.field(gone), None, "{gone}");
        }
        assert_eq!(heard.trailers.get("x-sum").map(http::HeaderValue::as_bytes), Some(&b"7"[..]));
    });
    stage.end();
}

#[test]
fn every_request_finds_its_own_way_and_is_charged_there() {
    let (api, plain) = (Backend::saying(response("api")), Backend::saying(response("plain")));
    let text = DOCUMENT.replace("8080", &api.port().to_string()).replace("8081", &plain.port().to_string());
    let stage = Stage::new(&text);
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        for (uri, status, body) in [
            ("http://api.example.com/", 200, "api"),
            ("http://plain.example.com/", 200, "plain"),
            ("http://nobody.example.org/", 404, "Not Found"),
        ] {
            let heard = ask(&mut sender, asking(uri, empty())).await;
            assert_eq!((heard.status.as_u16(), &heard.body[..]), (status, body.as_bytes()));
        }
        assert_eq!(stage.counted(Counted::Server), 1);
        assert_eq!(stage.counted(Counted::Route("plain.example.com")), 1);
        assert_eq!(stage.counted(Counted::Backend("api-service")), 1);
        let mut refused = None;
        for _ in 0..30 {
            let heard = ask(&mut sender, asking("http://plain.example.com/", empty())).await;
            if heard.status == 429 {
                refused = Some(heard);
            }
        }
        let refused = refused.expect("ten a second");
        assert_eq!(&refused.body[..], b"Too Many Requests");
        assert_eq!(refused.field("ratelimit-policy"), Some("\"client\";q=10;w=1"));
        assert_eq!(refused.field("retry-after"), Some("1"));
    });
    stage.end();
}

#[test]
fn odd_requests_are_refused() {
    let backend = Backend::echo();
    let stage = Stage::new(&file("maxBodyBytes: 10", "", &[&backend]));
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        for uri in
            ["http://a.test/a/../b", "http://a.test/%2e%2e/b", "http://a.test/a%2f..%2fb", "http://a.test/.."]
        {
            assert_eq!(ask(&mut sender, asking(uri, empty())).await.status, 400, "{uri}");
        }
        let mut request = asking("http://a.test/", empty());
        request.headers_mut().insert("host", "b.test".parse().expect("a value"));
        assert_eq!(ask(&mut sender, request).await.status, 400, "two hosts");
        let mut request = asking("http://a.test/", empty());
        *request.method_mut() = http::Method::TRACE;
        let heard = ask(&mut sender, request).await;
        assert_eq!((heard.status.as_u16(), heard.field("allow").is_some()), (405, true));
        let long = format!("http://a.test/{}", "x".repeat(20_000));
        assert_eq!(ask(&mut sender, asking(&long, empty())).await.status, 414);
        let mut request = asking("http://a.test/", empty());
        for number in 0..200 {
            let name: http::HeaderName = format!("x-{number}").parse().expect("a name");
            request.headers_mut().insert(name, "1".parse().expect("a value"));
        }
        assert_eq!(ask(&mut sender, request).await.status, 431);
        let mut request = asking("http://a.test/", empty());
        request.headers_mut().insert("x", "x".repeat(100_000).parse().expect("a value"));
        let answered = sender.send_request(request).await;
        assert!(answered.is_err() || answered.is_ok_and(|answer| answer.status() == 431));
        let mut sender = connect(stage.gateway.address()).await;
        assert_eq!(ask(&mut sender, asking("http://a.test/", full("0123456789"))).await.status, 200);
        let known = ask(&mut sender, asking("http://a.test/", full("0123456789x"))).await;
        assert_eq!(known.status, 413);
        let unknown = Pieces::new(["01234", "56789x"], Duration::ZERO);
        assert_eq!(ask(&mut sender, asking("http://a.test/", unknown.boxed())).await.status, 413);
    });
    assert_eq!(backend.requests(), 1);
    stage.end();
}

/// A body that comes in pieces, with a pause before each; nobody knows how long it is.
pub(super) struct Pieces {
    left: Vec<&'static str>,
    pause: Duration,
    alarm: Pin<Box<tokio::time::Sleep>>,
}

impl Pieces {
    pub(super) fn new(pieces: impl IntoIterator<Item = &'static str>, pause: Duration) -> Pieces {
        let mut left: Vec<&str> = pieces.into_iter().collect();
        left.reverse();
        Pieces { left, pause, alarm: Box::pin(tokio::time::sleep(pause)) }
    }
}

impl Body for Pieces {
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

/// A request may take as long as it goes on: only standing still is slow.
#[test]
fn a_body_that_goes_on_is_not_late() {
    let backend = Backend::echo();
    let stage = Stage::new(&file("bodyTimeout: 2s", "responseTimeout: 300ms", &[&backend]));
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        let slow = Pieces::new(["a", "b", "c", "d", "e", "f", "g", "h"], Duration::from_millis(100));
        let heard = ask(&mut sender, asking("http://a.test/", slow.boxed())).await;
        assert_eq!((heard.status.as_u16(), heard.echoed().body.as_slice()), (200, &b"abcdefgh"[..]));
    });
    stage.end();
}

#[test]
fn a_body_that_stands_still_is_late() {
    let backend = Backend::echo();
    let stage = Stage::new(&file("bodyTimeout: 200ms", "", &[&backend]));
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        let slow = Pieces::new(["a", "b"], FAR_TOO_LONG);
        let heard = ask(&mut sender, asking("http://a.test/", slow.boxed())).await;
        assert_eq!(heard.status, 408);
    });
    assert_eq!(backend.requests(), 0);
    stage.end();
}

#[test]
fn who_does_not_take_a_response_is_cut_off() {
    let backend = Backend::raw(|mut wire, _| {
        use std::io::Write;
        if wire.message(false).is_err() {
            return;
        }
        wire.shout("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
        let much = vec![b'x'; 65_536];
        while wire.stream.write_all(&much).is_ok() {}
    });
    let stage = Stage::new(&file("bodyTimeout: 300ms", "", &[&backend]));
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        let answer = sender.send_request(asking("http://a.test/", empty())).await.expect("a head");
        // Nothing of its body is taken, and the client stays.
        let wait = async {
            while stage.gateway.under_way() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(FAR_TOO_LONG, wait).await.expect("the gateway has done with it");
        assert!(hear(answer).await.is_err(), "it is not whole");
    });
    stage.end();
}

#[test]
fn failures_of_backends_are_told() {
    let mut dead = Backend::echo();
    let silent = Backend::raw(|mut wire, _| wire.is_over_somehow());
    let broken = Backend::closing("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
    let odd = Backend::closing("nonsense\r\n\r\n");
    let stages = [
        (Stage::before(&dead), Some(502)),
        (Stage::new(&file("", "responseTimeout: 100ms", &[&silent])), Some(504)),
        (Stage::before(&odd), Some(502)),
        (Stage::before(&broken), None),
    ];
    dead.end();
    for (stage, status) in stages {
        run(async {
            let mut sender = connect(stage.gateway.address()).await;
            let answer = sender.send_request(asking("http://a.test/", empty())).await.expect("a head");
            let heard = hear(answer).await;
            assert_eq!(heard.as_ref().ok().map(|heard| heard.status.as_u16()), status);
        });
        stage.end();
    }
}

/// Replies the first request of every connection, and closes on the second.
#[test]
fn a_kept_connection_that_is_closed_costs_nobody_a_request() {
    let backend = Backend::raw(|mut wire, number| {
        if wire.message(false).is_ok() {
            wire.shout(response(number.to_string()));
            let _ignored = wire.message(false);
        }
    });
    let stage = Stage::before(&backend);
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        for number in 1..=4 {
            let heard = ask(&mut sender, asking("http://a.test/", empty())).await;
            assert_eq!(&heard.body[..], number.to_string().as_bytes());
        }
    });
    stage.end();
}

#[test]
fn connections_that_are_refused_are_told() {
    let backend = Backend::echo();
    let stage = Stage::new(&file("rateLimit: {maxConnections: 1}", "", &[&backend]));
    let mut first = stage.client();
    assert_eq!(first.ask(get("a.test")).status(), 200);
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        let heard = ask(&mut sender, asking("http://a.test/", empty())).await;
        assert_eq!((heard.status.as_u16(), &heard.body[..]), (429, &b"Too Many Connections"[..]));
        let mut sender = connect(stage.gateway.address()).await;
        let mut request = asking("http://a.test/x.Y/Z", full("x"));
        request.headers_mut().insert("content-type", "application/grpc".parse().expect("a value"));
        let heard = ask(&mut sender, request).await;
        assert_eq!((heard.status.as_u16(), heard.field("grpc-status")), (200, Some("8")));
    });
    drop(first);
    stage.end();
}

#[test]
fn clients_that_vanish_leave_nothing() {
    let backend = Backend::raw(|mut wire, _| {
        let _head = wire.head();
        wire.is_over_somehow();
    });
    let stage = Stage::before(&backend);
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        let asked: Vec<_> =
            (0..10).map(|_| tokio::spawn(sender.send_request(asking("http://a.test/", empty())))).collect();
        while stage.gateway.under_way() < 10 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Some of the requests, then everybody.
        for each in asked.iter().take(5) {
            each.abort();
        }
        while stage.gateway.under_way() > 5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    stage.end();
}

/// Who says nothing is let go, and told so.
#[test]
fn idle_connections_end() {
    let backend = Backend::echo();
    let stage = Stage::new(&file("idleTimeout: 200ms", "", &[&backend]));
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        assert_eq!(ask(&mut sender, asking("http://a.test/", empty())).await.status, 200);
        while sender.ready().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    stage.end();
}

#[test]
fn calls_under_way_are_finished_when_the_gateway_ends() {
    let (arrived, arrivals) = std::sync::mpsc::channel();
    let (go, may_go) = std::sync::mpsc::channel::<()>();
    let may_go = std::sync::Mutex::new(may_go);
    let backend = Backend::new(move |_, wire| {
        arrived.send(()).expect("somebody waits");
        let _told = may_go.lock().expect("no panic").recv_timeout(FAR_TOO_LONG);
        wire.shout(response("done"));
        true
    });
    let stage = Stage::before(&backend);
    let address = stage.gateway.address();
    run(async {
        let mut sender = connect(address).await;
        let asked = tokio::spawn(ask(&mut sender, asking("http://a.test/", empty())));
        while arrivals.try_recv().is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let ending = std::thread::spawn(move || stage.drain());
        while TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        go.send(()).expect("it waits");
        assert_eq!(&asked.await.expect("no panic").body[..], b"done");
        ending.join().expect("it ends");
    });
}
