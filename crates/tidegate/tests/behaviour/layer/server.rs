//! The layer in an HTTP server: connections, bodies and disconnects.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::http::{HeaderMap, Request, Response, StatusCode};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::get;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tidegate::Limiter;
use tidegate::layer::http::{HttpLimitLayer, limit, too_many_requests};
use tidegate::layer::{FailureAction, RequestLimits};
use tidegate::limiter::ManualHolderClock;
use tidegate::model::{ItemSpec, LimitSpec, Policy, Precision};
use tidegate::store::MapStore;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc};

use super::{Silent, TTL, store};

type AxumLayer = HttpLimitLayer<Body, Body>;

/// Uses the header field `user` as key. Requests without it are not limited.
fn asking(request: &Request<Body>) -> RequestLimits {
    request.headers().get("user").map(|user| ("api", user.as_bytes().to_vec())).into()
}

fn sliding(limit: u64) -> LimitSpec {
    let window = Duration::from_secs(60);
    LimitSpec::named("api")
        .with(ItemSpec::of(Policy::Sliding { window, precision: Precision::Exact }, limit).per_key())
}

fn slots(limit: u64) -> LimitSpec {
    LimitSpec::named("api").with(ItemSpec::of(Policy::Concurrency { ttl: TTL }, limit))
}

fn shared(store: &Arc<MapStore>) -> Limiter {
    Limiter::new(Arc::clone(store) as Arc<_>)
}

/// A server that counts what reaches its handlers.
struct Server {
    address: SocketAddr,
    calls: Arc<AtomicUsize>,
    /// Sender of the body chunks of `/slow`. The body ends when it is dropped.
    chunks: Option<mpsc::Sender<Bytes>>,
}

#[derive(Clone)]
struct Inside {
    calls: Arc<AtomicUsize>,
    chunks: Arc<Mutex<Option<mpsc::Receiver<Bytes>>>>,
}

impl Server {
    async fn start(layer: AxumLayer) -> Server {
        let (sender, receiver) = mpsc::channel(1);
        let calls = Arc::new(AtomicUsize::new(0));
        let inside = Inside { calls: Arc::clone(&calls), chunks: Arc::new(Mutex::new(Some(receiver))) };
        let router =
            Router::new().route("/", get(hello)).route("/slow", get(slow)).layer(layer).with_state(inside);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(async move { axum::serve(listener, router).await });
        Server { address, calls, chunks: Some(sender) }
    }

    async fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).await.expect("the server listens");
        let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("it speaks HTTP");
        tokio::spawn(connection);
        Client(sender)
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

async fn hello(State(inside): State<Inside>) -> &'static str {
    inside.calls.fetch_add(1, Ordering::SeqCst);
    "hello"
}

async fn slow(State(inside): State<Inside>) -> Body {
    let chunks = inside.chunks.lock().await.take().expect("it is asked for once");
    Body::from_stream(futures_util::stream::unfold(chunks, async |mut chunks| {
        let chunk = chunks.recv().await?;
        Some((Ok::<Bytes, std::convert::Infallible>(chunk), chunks))
    }))
}

/// One connection.
struct Client(SendRequest<Empty<Bytes>>);

impl Client {
    async fn send(&mut self, path: &str, user: Option<&str>) -> Response<Incoming> {
        let mut request = Request::get(path).header("host", "localhost");
        if let Some(user) = user {
            request = request.header("user", user);
        }
        let request = request.body(Empty::new()).expect("a request");
        self.0.send_request(request).await.expect("an answer")
    }

    /// Status, header fields and body.
    async fn get(&mut self, user: Option<&str>) -> (StatusCode, HeaderMap, String) {
        let (head, body) = self.send("/", user).await.into_parts();
        let body = body.collect().await.expect("the body comes").to_bytes();
        (head.status, head.headers, String::from_utf8(body.to_vec()).expect("text"))
    }

    async fn status(&mut self, user: Option<&str>) -> u16 {
        self.get(user).await.0.as_u16()
    }
}

/// Waits until another task makes this condition true.
async fn until(mut done: impl FnMut() -> bool) {
    let patience = Duration::from_secs(10);
    let come_true = async {
        while !done() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(patience, come_true).await.expect("it happens");
}

#[tokio::test]
async fn connections_share_counts() {
    let (store, _) = store([sliding(3)]);
    let server = Server::start(limit(shared(&store), asking)).await;
    let (mut one, mut other) = (server.connect().await, server.connect().await);
    assert_eq!(one.status(Some("ada")).await, 200);
    assert_eq!(other.status(Some("ada")).await, 200);
    assert_eq!(one.status(Some("ada")).await, 200);
    assert_eq!(other.status(Some("ada")).await, 429);
    assert_eq!(one.status(Some("ada")).await, 429);
    assert_eq!(other.status(Some("bob")).await, 200);
    assert_eq!(other.status(None).await, 200, "this request is not limited");
    assert_eq!(server.calls(), 5, "a refused request does not reach the handler");
}

#[tokio::test]
async fn replies_report_remaining_and_retry_after() {
    let (store, clock) = store([sliding(1)]);
    let server = Server::start(limit(shared(&store), asking)).await;
    let mut client = server.connect().await;
    let (status, headers, body) = client.get(Some("ada")).await;
    assert_eq!((status.as_u16(), &*body), (200, "hello"));
    assert_eq!(headers["ratelimit-policy"], r#""key/sliding-60s";q=1;w=60"#);
    assert_eq!(headers["ratelimit"], r#""key/sliding-60s";r=0;t=61"#);
    assert!(!headers.contains_key("retry-after"));

    clock.advance(Duration::from_millis(20_500));
    let (status, headers, body) = client.get(Some("ada")).await;
    assert_eq!(status, 429);
    assert_eq!(headers["retry-after"], "40");
    assert_eq!(headers["ratelimit"], r#""key/sliding-60s";r=0;t=40"#);
    assert_eq!(headers["content-type"], "application/problem+json");
    assert!(body.contains(r#""violated-policies":["key/sliding-60s"]"#), "{body}");

    clock.advance(Duration::from_secs(40));
    assert_eq!(client.status(Some("ada")).await, 200, "and that is true");

    let (_, headers, _) = client.get(None).await;
    assert!(!headers.contains_key("ratelimit"), "an unlimited request has no such field");
}

#[tokio::test]
async fn custom_refusal_replaces_response() {
    let (store, _) = store([sliding(0)]);
    let layer = limit(shared(&store), asking).refusing_with(|denial| {
        let (mut head, _) = too_many_requests(denial).into_parts();
        head.headers.clear();
        head.headers.insert("ratelimit", "\"mine\";r=7".parse().expect("a value"));
        Response::from_parts(head, format!("{} is enough", denial.item()))
    });
    let server = Server::start(layer).await;
    let (status, headers, body) = server.connect().await.get(Some("ada")).await;
    assert_eq!((status.as_u16(), &*body), (429, "key/sliding-60s is enough"));
    assert_eq!(headers["ratelimit-policy"], r#""key/sliding-60s";q=0;w=60"#, "what it does not say is added");
    assert_eq!(headers["ratelimit"], "\"mine\";r=7", "what it does say stands");
}

#[tokio::test]
async fn lease_is_held_until_body_ends() {
    let (store, _) = store([slots(1)]);
    let mut server = Server::start(limit(shared(&store), asking)).await;
    let (mut one, mut other) = (server.connect().await, server.connect().await);
    let chunks = server.chunks.take().expect("it was not taken");
    let mut slow = one.send("/slow", Some("ada")).await.into_body();
    chunks.send(Bytes::from_static(b"half")).await.expect("the body is read");
    slow.frame().await.expect("a frame").expect("without error");
    assert_eq!(store.leases(), 1);
    assert_eq!(other.status(Some("bob")).await, 429, "the answer is still being sent");
    drop(chunks);
    assert!(slow.frame().await.is_none(), "the body ends");
    until(|| store.leases() == 0).await;
    assert_eq!(other.status(Some("bob")).await, 200);
}

#[tokio::test]
async fn client_disconnect_releases_lease() {
    let (store, _) = store([slots(1)]);
    let server = Server::start(limit(shared(&store), asking)).await;
    let mut one = server.connect().await;
    let chunks = server.chunks.as_ref().expect("it was not taken");
    let mut slow = one.send("/slow", Some("ada")).await.into_body();
    chunks.send(Bytes::from_static(b"half")).await.expect("the body is read");
    slow.frame().await.expect("a frame").expect("without error");
    assert_eq!(store.leases(), 1);
    drop((one, slow));
    until(|| store.leases() == 0).await;
    assert_eq!(server.connect().await.status(Some("bob")).await, 200);
}

#[tokio::test]
async fn waiting_request_is_served_after_release() {
    let (store, _) = store([slots(1)]);
    let limiter = shared(&store);
    let patient = limit(limiter.clone(), asking).waiting(Duration::from_secs(60));
    let mut server = Server::start(patient).await;
    let (mut one, mut other) = (server.connect().await, server.connect().await);
    let slow = one.send("/slow", Some("ada")).await;
    let waiting = tokio::spawn(async move { other.status(Some("bob")).await });
    until(|| limiter.waiting("api") == 1).await;
    assert_eq!(server.calls(), 0, "it waits outside");
    drop(server.chunks.take());
    slow.into_body().collect().await.expect("the body ends");
    assert_eq!(waiting.await.expect("it is answered"), 200);
}

#[tokio::test]
async fn waiting_request_is_refused_at_timeout() {
    let (store, _) = store([slots(1)]);
    let holder_clock = ManualHolderClock::new();
    let limiter = Limiter::builder()
        .store(Arc::clone(&store) as Arc<_>)
        .holder_clock(holder_clock.clone())
        .build()
        .expect("valid settings");
    let patient = limit(limiter.clone(), asking).waiting(Duration::from_secs(2));
    let server = Server::start(patient).await;
    let (mut one, mut other) = (server.connect().await, server.connect().await);
    let _slow = one.send("/slow", Some("ada")).await;
    let waiting = tokio::spawn(async move { other.status(Some("bob")).await });
    until(|| limiter.waiting("api") == 1).await;
    holder_clock.advance(Duration::from_secs(2));
    assert_eq!(waiting.await.expect("it is answered"), 429);
    assert_eq!(server.calls(), 0);
}

#[tokio::test]
async fn client_disconnect_ends_wait() {
    let (store, _) = store([slots(1)]);
    let limiter = shared(&store);
    let patient = limit(limiter.clone(), asking).waiting(Duration::from_secs(60));
    let server = Server::start(patient).await;
    let (mut one, mut other) = (server.connect().await, server.connect().await);
    let _slow = one.send("/slow", Some("ada")).await;
    let waiting = tokio::spawn(async move { other.status(Some("bob")).await });
    until(|| limiter.waiting("api") == 1).await;
    waiting.abort();
    until(|| limiter.waiting("api") == 0).await;
}

#[tokio::test]
async fn body_longer_than_ttl_keeps_lease() {
    let (store, clock) = store([slots(1)]);
    let holder_clock = ManualHolderClock::new();
    let limiter = Limiter::builder()
        .store(Arc::clone(&store) as Arc<_>)
        .holder_clock(holder_clock.clone())
        .build()
        .expect("valid settings");
    let server = Server::start(limit(limiter, asking)).await;
    let mut one = server.connect().await;
    let _slow = one.send("/slow", Some("ada")).await.into_body();
    for _ in 0..8 {
        until(|| holder_clock.sleepers() > 0).await;
        clock.advance(TTL / 3);
        holder_clock.advance(TTL / 3);
    }
    assert_eq!(server.connect().await.status(Some("bob")).await, 429, "more than two lives later");
}

#[tokio::test]
async fn refusal_holds_no_lease() {
    let (store, _) = store([slots(0)]);
    let server = Server::start(limit(shared(&store), asking)).await;
    assert_eq!(server.connect().await.status(Some("ada")).await, 429);
    assert_eq!(store.leases(), 0);
}

#[tokio::test]
async fn unavailable_store_fails_request() {
    let (empty, _) = store([]);
    let server = Server::start(limit(shared(&empty), asking)).await;
    assert_eq!(server.connect().await.status(Some("ada")).await, 500);
    assert_eq!(server.calls(), 0);

    let server = Server::start(limit(Limiter::new(Arc::new(Silent)), asking)).await;
    let (status, _, body) = server.connect().await.get(Some("ada")).await;
    assert_eq!(status, 503);
    assert!(body.contains("store_unavailable"), "{body}");
    assert_eq!(server.calls(), 0);
}

#[tokio::test]
async fn fail_open_passes_request_without_decision() {
    let layer = limit(Limiter::new(Arc::new(Silent)), asking)
        .failing_with(|_| FailureAction::<Response<String>>::Admit);
    let server = Server::start(layer).await;
    assert_eq!(server.connect().await.status(Some("ada")).await, 200);
}

#[tokio::test]
async fn too_long_key_is_client_error() {
    let (store, _) = store([sliding(1)]);
    let server = Server::start(limit(shared(&store), asking)).await;
    assert_eq!(server.connect().await.status(Some(&"x".repeat(2000))).await, 400);
}
