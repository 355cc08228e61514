//! Closing a connection so that the client can read the last response.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::CLOSE_TIMEOUT;

/// Shuts down writing and drains the input before closing, so that the client can read the last response.
pub(crate) async fn close_gracefully<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let close = async {
        stream.shutdown().await?;
        let mut discarded = [0; 1024];
        while stream.read(&mut discarded).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _best_effort = timeout(CLOSE_TIMEOUT, close).await;
}
