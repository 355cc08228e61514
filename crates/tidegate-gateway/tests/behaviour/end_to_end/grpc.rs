//! gRPC: HTTP/2 on both sides, with the status in trailers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::fixture::{TestBackend, TestGateway, file, wait_until};
use super::http2::{AnyBody, ReceivedResponse, connect, full, request_for, run, send};

/// A gRPC backend that runs until it is dropped.
struct GrpcBackend {
    address: SocketAddr,
    /// The number of open connections.
    open: Arc<AtomicUsize>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

async fn handle_call(request: Request<Incoming>) -> Result<Response<AnyBody>, Infallible> {
    let (head, body) = request.into_parts();
    let field =
        |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
    let seen = format!("{:?} {} {} {}", head.version, head.uri, field("te"), field("x-forwarded-for"));
    let collected = body.collect().await.expect("all of it");
    let behind = collected.trailers().and_then(|trailers| trailers.get("x-behind")).cloned();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().expect("a value"));
    trailers.extend(behind.map(|behind| (http::HeaderName::from_static("x-behind"), behind)));
    let body = Full::new(collected.to_bytes()).with_trailers(async move { Some(Ok(trailers)) });
    let response = Response::builder().header("content-type", "application/grpc").header("x-seen", seen);
    Ok(response.body(body.boxed()).expect("a response"))
}

impl GrpcBackend {
    fn new() -> GrpcBackend {
        GrpcBackend::at(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    fn at(address: SocketAddr) -> GrpcBackend {
        let (address_sender, address_receiver) = channel();
        let open = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&open);
        let (end, mut ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::bind(address).await.expect("a free port");
                address_sender.send(listener.local_addr().expect("it is bound")).expect("the test waits");
                loop {
                    let (stream, _) = tokio::select! {
                        accepted = listener.accept() => accepted.expect("a connection"),
                        _ = &mut ended => return,
                    };
                    let connection = http2::Builder::new(TokioExecutor::new());
                    let connection =
                        connection.serve_connection(TokioIo::new(stream), service_fn(handle_call));
                    let count = Arc::clone(&count);
                    count.fetch_add(1, Ordering::SeqCst);
                    tokio::spawn(async move {
                        let _result = connection.await;
                        count.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            });
        });
        let address = address_receiver.recv().expect("it listens");
        GrpcBackend { address, open, end: Some(end), thread: Some(thread) }
    }

    fn gateway(&self, server: &str) -> TestGateway {
        let any = TestBackend::echo();
        TestGateway::new(
            &file(server, "", &[&any]).replace(&any.port().to_string(), &self.address.port().to_string()),
        )
    }
}

impl Drop for GrpcBackend {
    fn drop(&mut self) {
        drop(self.end.take());
        let _result = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn grpc_request(body: AnyBody) -> Request<AnyBody> {
    let mut request = request_for("http://a.test/x.Greeter/Say", body);
    *request.method_mut() = http::Method::POST;
    let fields = request.headers_mut();
    fields.insert("content-type", "application/grpc+proto".parse().expect("a value"));
    fields.insert("te", "trailers".parse().expect("a value"));
    request
}

fn trailer<'h>(received: &'h ReceivedResponse, name: &str) -> Option<&'h str> {
    received.trailers.get(name).and_then(|value| value.to_str().ok())
}

#[test]
fn calls_pass_with_trailers() {
    let calls = GrpcBackend::new();
    let gateway = calls.gateway("");
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        for _ in 0..3 {
            let mut behind = HeaderMap::new();
            behind.insert("x-behind", "1".parse().expect("a value"));
            let body = Full::new(Bytes::from("hello")).with_trailers(async move { Some(Ok(behind)) });
            let received = send(&mut sender, grpc_request(body.boxed())).await;
            assert_eq!((received.status.as_u16(), &received.body[..]), (200, &b"hello"[..]));
            assert_eq!(
                (trailer(&received, "grpc-status"), trailer(&received, "x-behind")),
                (Some("0"), Some("1"))
            );
            let seen = format!("{:?} http://a.test/x.Greeter/Say trailers 127.0.0.1", Version::HTTP_2);
            assert_eq!(received.field("x-seen"), Some(seen.as_str()));
        }
        let pending: Vec<_> = (0..50)
            .map(|number| tokio::spawn(send(&mut sender, grpc_request(full(vec![b'x'; number * 5000])))))
            .collect();
        for (number, each) in pending.into_iter().enumerate() {
            assert_eq!(each.await.expect("no panic").body.len(), number * 5000);
        }
    });
    gateway.end();
}

#[test]
fn local_replies_use_grpc_status() {
    let calls = GrpcBackend::new();
    for (server, status) in
        [("rateLimit: {maxQps: 0}", "8"), ("rateLimit: {maxConnectionsPerClient: 0}", "8")]
    {
        let gateway = calls.gateway(server);
        run(async {
            let mut sender = connect(gateway.inner.address()).await;
            let received = send(&mut sender, grpc_request(full("hello"))).await;
            assert_eq!((received.status.as_u16(), received.field("grpc-status")), (200, Some(status)));
            assert_eq!(received.field("content-type"), Some("application/grpc"));
            assert!(received.field("grpc-message").is_some_and(|why| why.starts_with("Too Many ")));
            assert_eq!(received.field("retry-after"), Some("1"));
        });
        gateway.end();
    }
    // No endpoint, and no route.
    let gateway = calls.gateway("");
    let elsewhere = TestGateway::new(
        &file("", "", &[&TestBackend::echo()]).replace("{backend: b}", "{host: b.test, backend: b}"),
    );
    drop(calls);
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        let received = send(&mut sender, grpc_request(full("hello"))).await;
        assert_eq!((received.status.as_u16(), received.field("grpc-status")), (200, Some("14")));
        let mut sender = connect(elsewhere.inner.address()).await;
        let received = send(&mut sender, grpc_request(full("hello"))).await;
        assert_eq!((received.status.as_u16(), received.field("grpc-status")), (200, Some("12")));
    });
    gateway.end();
    elsewhere.end();
}

/// gRPC calls share one connection to a backend; after a restart there is a new one.
#[test]
fn backend_restart_is_recovered() {
    let calls = GrpcBackend::new();
    let (gateway, address) = (calls.gateway(""), calls.address);
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        assert_eq!(trailer(&send(&mut sender, grpc_request(full("x"))).await, "grpc-status"), Some("0"));
        drop(calls);
        assert_eq!(send(&mut sender, grpc_request(full("x"))).await.field("grpc-status"), Some("14"));
        let again = GrpcBackend::at(address);
        assert_eq!(trailer(&send(&mut sender, grpc_request(full("x"))).await, "grpc-status"), Some("0"));
        drop(again);
    });
    gateway.end();
}

/// The shared connection is closed when unused, also for removed endpoints.
#[test]
fn idle_http2_connections_are_closed() {
    let calls = GrpcBackend::new();
    let any = TestBackend::echo();
    let text = file("", "idleTimeout: 100ms", &[&any]);
    let gateway = TestGateway::new(&text.replace(&any.port().to_string(), &calls.address.port().to_string()));
    run(async {
        let mut sender = connect(gateway.inner.address()).await;
        for _ in 0..2 {
            assert_eq!(trailer(&send(&mut sender, grpc_request(full("x"))).await, "grpc-status"), Some("0"));
            assert_eq!(calls.open.load(Ordering::SeqCst), 1);
        }
        wait_until("it is closed", || calls.open.load(Ordering::SeqCst) == 0);
        assert_eq!(trailer(&send(&mut sender, grpc_request(full("x"))).await, "grpc-status"), Some("0"));
    });
    gateway.end();
}
