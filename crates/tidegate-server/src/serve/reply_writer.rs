//! Saying everything to a client that does not take it at once, and parting from one that still talks.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Over;
use super::bounds::FAREWELL;
use crate::metrics::Cut;

/// Waits until the client has taken everything, for `patience` at most between two pieces.
pub(super) async fn say(stream: &TcpStream, text: &[u8], patience: Duration) -> Result<(), Over> {
    let mut said = 0;
    while said < text.len() {
        match stream.try_write(&text[said..]) {
            Ok(length) => said += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let writable = timeout(patience, stream.writable()).await;
                writable.map_err(|_| Over::Cut(Cut::SlowReader))?.map_err(|_| Over::Left)?;
            }
            Err(_) => return Err(Over::Left),
        }
    }
    Ok(())
}

/// Ends a connection so that the client hears the last words, even if it still talks: what it says is read and thrown away for
/// a while ([`FAREWELL`]). If it were left unread, the kernel would throw away what was said instead.
pub(super) async fn part(mut stream: TcpStream) {
    let farewell = async {
        stream.shutdown().await?;
        let mut heard = [0; 1024];
        while stream.read(&mut heard).await? > 0 {}
        io::Result::Ok(())
    };
    let _heard_or_not = timeout(FAREWELL, farewell).await;
}
