//! The loop that accepts connections until the shutdown.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use crate::shutdown_signal::Shutdown;

/// Pause after `accept` fails, for example because the process has no free file descriptor.
const BACKOFF: Duration = Duration::from_millis(50);

/// Passes every connection to `admit` until the shutdown. Errors of a single connection are ignored. Other errors are
/// passed to `failed`, and the loop pauses.
pub async fn accept_connections(
    listener: &TcpListener,
    shutdown: &Shutdown,
    mut admit: impl FnMut(TcpStream, SocketAddr),
    failed: impl Fn(&io::Error),
) {
    let mut triggered = pin!(shutdown.triggered());
    loop {
        let mut arrival = pin!(listener.accept());
        let accepted = poll_fn(|cx| {
            if triggered.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            arrival.as_mut().poll(cx).map(Some)
        });
        match accepted.await {
            None => return,
            Some(Ok((stream, address))) => admit(stream, address),
            Some(Err(error)) if is_connection_error(&error) => {}
            Some(Err(error)) => {
                failed(&error);
                tokio::time::sleep(BACKOFF).await;
            }
        }
    }
}

/// Whether an `accept` error concerns only the connection that was about to be accepted.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_accepted_until_the_shutdown() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("it is bound");
            let shutdown = Shutdown::default();
            let clients = [
                std::net::TcpStream::connect(address).expect("it listens"),
                std::net::TcpStream::connect(address).expect("it listens"),
            ];
            let mut accepted = Vec::new();
            let admit = |_, peer| {
                accepted.push(peer);
                if accepted.len() == clients.len() {
                    shutdown.trigger();
                }
            };
            accept_connections(&listener, &shutdown, admit, |error| panic!("{error}")).await;
            let peers = clients.iter().map(|client| client.local_addr().expect("it is connected"));
            assert_eq!(accepted, peers.collect::<Vec<_>>());
        });
    }
}
