//! A client connection to the server under test.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::target::{BenchProtocol, BenchTarget};
use super::wire::{WireAsk, WireProtocol, WireReply, resp};
use crate::Failure;

/// Read buffer size.
const READ_SIZE: usize = 16 << 10;
/// Connect timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Address, protocol and timeout of the server under test.
#[derive(Debug, Clone)]
pub(super) struct BenchEndpoint {
    name: String,
    addresses: Vec<SocketAddr>,
    wire: WireProtocol,
    /// Sent with AUTH on a new RESP connection.
    token: Option<String>,
    timeout_limit: Duration,
}

impl BenchEndpoint {
    /// Resolves the address of a target.
    pub(super) fn find(
        target: &BenchTarget,
        token: Option<&str>,
        timeout_limit: Duration,
    ) -> Result<BenchEndpoint, Failure> {
        let unknown = |why: String| Failure::Unreachable(format!("cannot reach {target}: {why}"));
        let found =
            (&*target.host, target.port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
        let addresses: Vec<_> = found.collect();
        if addresses.is_empty() {
            return Err(unknown("the host is unknown".to_owned()));
        }
        Ok(BenchEndpoint::at(target, addresses, token, timeout_limit))
    }

    /// An endpoint with known addresses.
    pub(super) fn at(
        target: &BenchTarget,
        addresses: Vec<SocketAddr>,
        token: Option<&str>,
        timeout_limit: Duration,
    ) -> BenchEndpoint {
        let wire = WireProtocol::of(target, token);
        let token = token.filter(|_| target.protocol == BenchProtocol::Resp).map(str::to_owned);
        BenchEndpoint { name: target.to_string(), addresses, wire, token, timeout_limit }
    }

    /// The target as written, for messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the endpoint is on this machine.
    pub(super) fn is_loopback(&self) -> bool {
        self.addresses.iter().all(|address| address.ip().to_canonical().is_loopback())
    }
}

/// A connection. After an error it is unusable.
#[derive(Debug)]
pub(super) struct BenchConnection {
    stream: TcpStream,
    endpoint: BenchEndpoint,
    out: Vec<u8>,
    /// Bytes received, and how many of them are parsed.
    received: Vec<u8>,
    parsed: usize,
}

impl BenchConnection {
    /// Connects, and authenticates a RESP connection.
    pub(super) async fn open(endpoint: &BenchEndpoint) -> Result<BenchConnection, String> {
        let connecting =
            timeout(endpoint.timeout_limit.min(CONNECT_TIMEOUT), TcpStream::connect(&endpoint.addresses[..]));
        let stream = connecting.await.map_err(|_| "timeout while connecting".to_owned())?;
        let stream = stream.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let mut line = BenchConnection {
            stream,
            endpoint: endpoint.clone(),
            out: Vec::new(),
            received: Vec::new(),
            parsed: 0,
        };
        if let Some(token) = line.endpoint.token.clone() {
            match line.call(&["AUTH", &token], |value| format!("{value:?}")).await? {
                Ok(_) => {}
                Err(why) => return Err(why),
            }
        }
        Ok(line)
    }

    /// Queues a request for the next [`BenchConnection::send`].
    pub(super) fn queue(&mut self, ask: WireAsk<'_>) {
        self.endpoint.wire.encode_ask(&mut self.out, ask);
    }

    /// Sends the queued requests.
    pub(super) async fn send(&mut self) -> Result<(), String> {
        let sent = timeout(self.endpoint.timeout_limit, self.stream.write_all(&self.out)).await;
        self.out.clear();
        sent.map_err(|_| self.timeout_message())?.map_err(|error| error.to_string())
    }

    /// Receives the next reply.
    pub(super) async fn receive(&mut self) -> Result<WireReply, String> {
        loop {
            if let Some((length, reply)) = self.endpoint.wire.parse_reply(&self.received[self.parsed..])? {
                self.consume(length);
                return Ok(reply);
            }
            self.read().await?;
        }
    }

    /// Sends one RESP command and waits for its reply. The inner error is the server's.
    pub(super) async fn call<T>(
        &mut self,
        words: &[&str],
        read: impl Fn(&resp::WireValue<'_>) -> T,
    ) -> Result<Result<T, String>, String> {
        resp::encode_command(&mut self.out, words);
        self.send().await?;
        loop {
            if let Some((value, length)) = resp::parse_value(&self.received[self.parsed..])? {
                let reply = match &value {
                    resp::WireValue::Error(why) => {
                        Err(String::from_utf8_lossy(why).escape_debug().to_string())
                    }
                    value => Ok(read(value)),
                };
                self.consume(length);
                return Ok(reply);
            }
            self.read().await?;
        }
    }

    fn consume(&mut self, length: usize) {
        self.parsed += length;
        if self.parsed == self.received.len() {
            self.received.clear();
            self.parsed = 0;
        }
    }

    async fn read(&mut self) -> Result<(), String> {
        if self.parsed > 0 {
            self.received.drain(..self.parsed);
            self.parsed = 0;
        }
        self.received.reserve(READ_SIZE);
        let read = timeout(self.endpoint.timeout_limit, self.stream.read_buf(&mut self.received)).await;
        match read.map_err(|_| self.timeout_message())? {
            Ok(0) => Err("the server closed the connection".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn timeout_message(&self) -> String {
        format!("no reply within {}ms", self.endpoint.timeout_limit.as_millis())
    }
}
