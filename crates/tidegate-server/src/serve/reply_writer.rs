//! Saying everything to a client that does not take it at once, and persistence from one that still talks.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::ConnectionEnd;
use super::bounds::LINGER_TIMEOUT;
use crate::metrics::CutReason;

/// Waits until the client has taken everything, for `write_timeout` at most between two pieces.
pub(super) async fn write_all(
    stream: &TcpStream,
    text: &[u8],
    write_timeout: Duration,
) -> Result<(), ConnectionEnd> {
    let mut written = 0;
    while written < text.len() {
        match stream.try_write(&text[written..]) {
            Ok(length) => written += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let writable = timeout(write_timeout, stream.writable()).await;
                writable
                    .map_err(|_| ConnectionEnd::Cut(CutReason::SlowReader))?
                    .map_err(|_| ConnectionEnd::ClientClosed)?;
            }
            Err(_) => return Err(ConnectionEnd::ClientClosed),
        }
    }
    Ok(())
}

/// Ends a connection so that the client hears the last words, even if it still talks: what it says is read and thrown away for
/// a while ([`LINGER_TIMEOUT`]). If it were left unread, the kernel would throw away what was written instead.
pub(super) async fn close_with_linger(mut stream: TcpStream) {
    let linger = async {
        stream.shutdown().await?;
        let mut discarded = [0; 1024];
        while stream.read(&mut discarded).await? > 0 {}
        io::Result::Ok(())
    };
    let _heard_or_not = timeout(LINGER_TIMEOUT, linger).await;
}
