//! A persistent connection to a gateway.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use socket2::{Domain, Socket, Type};

/// Longer than any successful step takes.
pub(super) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A response.
#[derive(Debug)]
pub(super) struct HttpResponse {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl HttpResponse {
    /// Asserts the status and returns the body.
    #[track_caller]
    pub(super) fn is(self, status: u16) -> String {
        assert_eq!(self.status, status, "{}{}", self.head, self.body);
        self.body
    }

    /// Asserts the status and returns the body as JSON.
    #[track_caller]
    pub(super) fn json(self, status: u16) -> Value {
        serde_json::from_str(&self.is(status)).expect("JSON")
    }

    /// The value of a header field.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// A connection.
pub(super) struct HttpClient {
    stream: BufReader<TcpStream>,
}

impl HttpClient {
    pub(super) fn to(address: SocketAddr) -> io::Result<HttpClient> {
        HttpClient::over(TcpStream::connect(address)?)
    }

    /// From another loopback address.
    pub(super) fn from(last: u8, address: SocketAddr) -> io::Result<HttpClient> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0)).into())?;
        socket.connect(&address.into())?;
        HttpClient::over(socket.into())
    }

    fn over(stream: TcpStream) -> io::Result<HttpClient> {
        stream.set_read_timeout(Some(TEST_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(HttpClient { stream: BufReader::new(stream) })
    }

    /// Sends a request and reads the response. `what` is `METHOD PATH`.
    pub(super) fn try_request(&mut self, what: &str, host: &str) -> io::Result<HttpResponse> {
        self.send(what, host)?;
        self.read_response()
    }

    #[track_caller]
    pub(super) fn get(&mut self, path: &str) -> HttpResponse {
        self.try_request(&format!("GET {path}"), "h").expect("an answer")
    }

    pub(super) fn send(&mut self, what: &str, host: &str) -> io::Result<()> {
        let request = format!("{what} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes())
    }

    pub(super) fn read_response(&mut self) -> io::Result<HttpResponse> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head)? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, head));
            }
        }
        let status =
            head.get(9..12).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        let mut response = HttpResponse { status, head, body: String::new() };
        let length = response.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        response.body = String::from_utf8(body).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(response)
    }

    /// Whether the connection is closed.
    pub(super) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        // The connection may be closed or reset.
        let _ended = self.stream.read_to_end(&mut rest);
        rest.is_empty()
    }
}
