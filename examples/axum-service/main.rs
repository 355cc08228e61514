//! A web service: three requests a minute for each API key, and a page that is free.
//!
//! The layer uses one limiter for all connections. Every response reports the remaining requests. A refusal has status 429
//! and a `Retry-After` field. The program sends itself a few requests on the loopback interface and ends.
//! Run it with `cargo run -p tidegate --example axum-service`.

use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use tidegate::Limiter;
use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::ManualClock;
use tidegate::layer::{Asking, http};
use tidegate::model::{ItemSpec, LimitSpec, Policy, Precision, Timestamp};
use tidegate::store::{Memory, MemoryStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    example(&mut std::io::stdout()).await
}

/// The limit and the key of a request.
fn asking(request: &Request) -> Asking {
    if request.uri().path() == "/health" {
        return Asking::nothing();
    }
    // Requests without an API key share one key.
    let key = request.headers().get("api-key").map_or(&b"anonymous"[..], |key| key.as_bytes());
    Asking::of("api", key)
}

fn service(limiter: Limiter) -> Router {
    Router::new()
        .route("/", get(async || "hello\n"))
        .route("/health", get(async || "fine\n"))
        .layer(http::limit(limiter, asking))
}

/// Sends more requests than the limit allows.
pub(crate) async fn example(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let window = Duration::from_secs(60);
    let sliding = ItemSpec::of(Policy::Sliding { window, precision: Precision::Exact }, 3).per_key();
    // A program uses Limiter::in_memory. This clock stands still, so every run prints the same.
    let store = MemoryStore::new(ManualClock::at(Timestamp::EPOCH), Memory::default());
    store.put(LimitSpec::named("api").with(sliding), ExpectedVersion::Absent)?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, service(Limiter::new(Arc::new(store)))).await });

    for path in ["/", "/", "/", "/", "/health"] {
        // Each request has its own connection.
        writeln!(out, "GET {path}")?;
        for line in request(address, path).await?.lines().filter(|line| is_of_interest(line)) {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(())
}

/// A minimal HTTP client.
async fn request(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: {address}\r\napi-key: ada\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn is_of_interest(line: &str) -> bool {
    ["HTTP/", "ratelimit", "retry-after"].iter().any(|start| line.starts_with(start))
}
