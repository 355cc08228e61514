//! Saying everything to a client that does not take it at once.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Over;
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
