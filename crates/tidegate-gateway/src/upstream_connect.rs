//! Opens a connection to an endpoint, and says what a failure means for the client.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::endpoints::UpstreamEndpoint;
use crate::local_reply::LocalReply;

/// The reply for a failed connect, and whether the endpoint caused it. A lack of file descriptors is not its
/// fault.
pub(crate) fn classify_connect_error(error: &io::Error) -> (LocalReply, bool) {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    match error.raw_os_error() {
        Some(ENFILE | EMFILE) => (LocalReply::NoEndpoint, false),
        _ if error.kind() == io::ErrorKind::TimedOut => (LocalReply::GatewayTimeout, true),
        _ => (LocalReply::BadGateway, true),
    }
}

/// Opens a connection.
pub(crate) async fn connect(endpoint: &UpstreamEndpoint, max_wait: Duration) -> io::Result<TcpStream> {
    let connected = async {
        match endpoint.host().parse::<IpAddr>() {
            Ok(address) => TcpStream::connect((address, endpoint.port())).await,
            Err(_) => TcpStream::connect((endpoint.host(), endpoint.port())).await,
        }
    };
    let stream = timeout(max_wait, connected).await.map_err(|_| io::ErrorKind::TimedOut)??;
    // Heads are written at once; Nagle's algorithm would only delay them.
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_exhaustion_is_not_blamed_on_the_endpoint() {
        assert_eq!(
            classify_connect_error(&io::Error::from_raw_os_error(24)),
            (LocalReply::NoEndpoint, false)
        );
        assert_eq!(
            classify_connect_error(&io::ErrorKind::TimedOut.into()),
            (LocalReply::GatewayTimeout, true)
        );
        assert_eq!(
            classify_connect_error(&io::ErrorKind::ConnectionRefused.into()),
            (LocalReply::BadGateway, true)
        );
    }
}
