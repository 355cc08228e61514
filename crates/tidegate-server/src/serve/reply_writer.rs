//! Writes replies to slow clients, and closes connections without losing the last reply.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::ConnectionEnd;
use super::bounds::LINGER_TIMEOUT;
use crate::metrics::CutReason;

/// Writes all bytes. Fails if the client accepts nothing for `write_timeout`.
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

/// Closes a connection so that the client receives the last reply. Input is read and discarded for up to [`LINGER_TIMEOUT`]; closing
/// with unread input would make the kernel send a reset and drop the reply.
pub(super) async fn close_with_linger(mut stream: TcpStream) {
    let linger = async {
        stream.shutdown().await?;
        let mut discarded = [0; 1024];
        while stream.read(&mut discarded).await? > 0 {}
        io::Result::Ok(())
    };
    let _heard_or_not = timeout(LINGER_TIMEOUT, linger).await;
}
