//! gRPC: calls by HTTP/2 on both sides, with a status behind their answers.

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

use super::fixture::{Backend, Stage, file, wait_until};
use super::http2::{AnyBody, Heard, ask, asking, connect, full, run};

/// A backend of calls, until it is dropped.
struct Calls {
    address: SocketAddr,
    /// How many connections are open.
    open: Arc<AtomicUsize>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

async fn answer(request: Request<Incoming>) -> Result<Response<AnyBody>, Infallible> {
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

impl Calls {
    fn new() -> Calls {
        Calls::at(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    fn at(address: SocketAddr) -> Calls {
        let (told, found) = channel();
        let open = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&open);
        let (end, mut ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::bind(address).await.expect("a free port");
                told.send(listener.local_addr().expect("it is bound")).expect("somebody waits");
                loop {
                    let (stream, _) = tokio::select! {
                        accepted = listener.accept() => accepted.expect("a connection"),
                        _ = &mut ended => return,
                    };
                    let connection = http2::Builder::new(TokioExecutor::new());
                    let serving = connection.serve_connection(TokioIo::new(stream), service_fn(answer));
                    let count = Arc::clone(&count);
                    count.fetch_add(1, Ordering::SeqCst);
                    tokio::spawn(async move {
                        let _over = serving.await;
                        count.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            });
        });
        let address = found.recv().expect("it listens");
        Calls { address, open, end: Some(end), thread: Some(thread) }
    }

    fn stage(&self, server: &str) -> Stage {
        let any = Backend::echo();
        Stage::new(
            &file(server, "", &[&any]).replace(&any.port().to_string(), &self.address.port().to_string()),
        )
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        drop(self.end.take());
        let _over = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn call(body: AnyBody) -> Request<AnyBody> {
    let mut request = asking("http://a.test/x.Greeter/Say", body);
    *request.method_mut() = http::Method::POST;
    let fields = request.headers_mut();
    fields.insert("content-type", "application/grpc+proto".parse().expect("a value"));
    fields.insert("te", "trailers".parse().expect("a value"));
    request
}

fn trailer<'h>(heard: &'h Heard, name: &str) -> Option<&'h str> {
    heard.trailers.get(name).and_then(|value| value.to_str().ok())
}

#[test]
fn calls_pass_with_what_is_behind_them() {
    let calls = Calls::new();
    let stage = calls.stage("");
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        for _ in 0..3 {
            let mut behind = HeaderMap::new();
            behind.insert("x-behind", "1".parse().expect("a value"));
            let body = Full::new(Bytes::from("hello")).with_trailers(async move { Some(Ok(behind)) });
            let heard = ask(&mut sender, call(body.boxed())).await;
            assert_eq!((heard.status.as_u16(), &heard.body[..]), (200, &b"hello"[..]));
            assert_eq!((trailer(&heard, "grpc-status"), trailer(&heard, "x-behind")), (Some("0"), Some("1")));
            let seen = format!("{:?} http://a.test/x.Greeter/Say trailers 127.0.0.1", Version::HTTP_2);
            assert_eq!(heard.field("x-seen"), Some(seen.as_str()));
        }
        let asked: Vec<_> = (0..50)
            .map(|number| tokio::spawn(ask(&mut sender, call(full(vec![b'x'; number * 5000])))))
            .collect();
        for (number, each) in asked.into_iter().enumerate() {
            assert_eq!(each.await.expect("no panic").body.len(), number * 5000);
        }
    });
    stage.end();
}

#[test]
fn calls_are_refused_in_their_own_words() {
    let calls = Calls::new();
    for (server, status) in
        [("rateLimit: {maxQps: 0}", "8"), ("rateLimit: {maxConnectionsPerClient: 0}", "8")]
    {
        let stage = calls.stage(server);
        run(async {
            let mut sender = connect(stage.gateway.address()).await;
            let heard = ask(&mut sender, call(full("hello"))).await;
            assert_eq!((heard.status.as_u16(), heard.field("grpc-status")), (200, Some(status)));
            assert_eq!(heard.field("content-type"), Some("application/grpc"));
            assert!(heard.field("grpc-message").is_some_and(|why| why.starts_with("Too Many ")));
            assert_eq!(heard.field("retry-after"), Some("1"));
        });
        stage.end();
    }
    // Nobody there, and no route.
    let stage = calls.stage("");
    let elsewhere =
        Stage::new(&file("", "", &[&Backend::echo()]).replace("{backend: b}", "{host: b.test, backend: b}"));
    drop(calls);
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        let heard = ask(&mut sender, call(full("hello"))).await;
        assert_eq!((heard.status.as_u16(), heard.field("grpc-status")), (200, Some("14")));
        let mut sender = connect(elsewhere.gateway.address()).await;
        let heard = ask(&mut sender, call(full("hello"))).await;
        assert_eq!((heard.status.as_u16(), heard.field("grpc-status")), (200, Some("12")));
    });
    stage.end();
    elsewhere.end();
}

/// Many calls share one connection to a backend; when that is gone, there is another.
#[test]
fn backends_of_calls_may_die_and_come_back() {
    let calls = Calls::new();
    let (stage, address) = (calls.stage(""), calls.address);
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        assert_eq!(trailer(&ask(&mut sender, call(full("x"))).await, "grpc-status"), Some("0"));
        drop(calls);
        assert_eq!(ask(&mut sender, call(full("x"))).await.field("grpc-status"), Some("14"));
        let again = Calls::at(address);
        assert_eq!(trailer(&ask(&mut sender, call(full("x"))).await, "grpc-status"), Some("0"));
        drop(again);
    });
    stage.end();
}

/// The connection that calls share is not kept for ever when there are none; nor is one to an endpoint that is gone.
#[test]
fn kept_connections_are_not_kept_for_ever() {
    let calls = Calls::new();
    let any = Backend::echo();
    let text = file("", "idleTimeout: 100ms", &[&any]);
    let stage = Stage::new(&text.replace(&any.port().to_string(), &calls.address.port().to_string()));
    run(async {
        let mut sender = connect(stage.gateway.address()).await;
        for _ in 0..2 {
            assert_eq!(trailer(&ask(&mut sender, call(full("x"))).await, "grpc-status"), Some("0"));
            assert_eq!(calls.open.load(Ordering::SeqCst), 1);
        }
        wait_until("it is closed", || calls.open.load(Ordering::SeqCst) == 0);
        assert_eq!(trailer(&ask(&mut sender, call(full("x"))).await, "grpc-status"), Some("0"));
    });
    stage.end();
}
