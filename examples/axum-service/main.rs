//! A web service with three requests a minute for each API key, and a health page without a limit.
//!
//! Every limited response reports the remaining requests. A refusal has status 429 and a `Retry-After` field. The program
//! sends itself a few requests over the loopback interface and ends.
//!
//! Run it with `cargo run -p tidegate --example axum-service`.

use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use tidegate::clock::ManualClock;
use tidegate::layer::{RequestLimits, http};
use tidegate::{Limiter, Timestamp, sliding};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    example(&mut std::io::stdout()).await
}

/// Limits every route that is added before the layer.
fn router(limiter: Limiter) -> Router {
    Router::new()
        .route("/", get(async || "hello\n"))
        .layer(http::limit(limiter, by_api_key))
        .route("/health", get(async || "fine\n"))
}

/// Chooses the limit and the key of a request. Requests without an API key share one key.
fn by_api_key(request: &Request) -> RequestLimits {
    let key = request.headers().get("api-key").map_or(&b"anonymous"[..], |key| key.as_bytes());
    RequestLimits::of("api", key)
}

/// Sends more requests than the limit allows.
pub(crate) async fn example(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::builder()
        .limit("api", sliding(3, Duration::from_secs(60)).per_key())
        // A service leaves this line out and gets the system clock. With a stopped clock, every run prints the same.
        .clock(ManualClock::at(Timestamp::EPOCH))
        .build()?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router(limiter)).await });

    for path in ["/", "/", "/", "/", "/health"] {
        writeln!(out, "GET {path}")?;
        for line in get_page(address, path).await?.lines().filter(|line| is_status_or_limit(line)) {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(())
}

/// Sends one request over a new connection and returns the whole response.
async fn get_page(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: {address}\r\napi-key: ada\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response)
}

fn is_status_or_limit(line: &str) -> bool {
    ["HTTP/", "ratelimit", "retry-after"].iter().any(|prefix| line.starts_with(prefix))
}
