//! One connection to a gateway, which stays open from request to request.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use socket2::{Domain, Socket, Type};

/// Longer than anything takes here.
pub(super) const FAR_TOO_LONG: Duration = Duration::from_secs(60);

/// An answer.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Told {
    /// The body, if it was answered like this.
    #[track_caller]
    pub(super) fn is(self, status: u16) -> String {
        assert_eq!(self.status, status, "{}{}", self.head, self.body);
        self.body
    }

    /// The same, as JSON.
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
pub(super) struct Wire {
    stream: BufReader<TcpStream>,
}

impl Wire {
    pub(super) fn to(address: SocketAddr) -> io::Result<Wire> {
        Wire::over(TcpStream::connect(address)?)
    }

    /// The same from another address of this machine.
    pub(super) fn from(last: u8, address: SocketAddr) -> io::Result<Wire> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0)).into())?;
        socket.connect(&address.into())?;
        Wire::over(socket.into())
    }

    fn over(stream: TcpStream) -> io::Result<Wire> {
        stream.set_read_timeout(Some(FAR_TOO_LONG))?;
        stream.set_nodelay(true)?;
        Ok(Wire { stream: BufReader::new(stream) })
    }

    /// Asks, and waits for the answer. `what` is `METHOD PATH`.
    pub(super) fn try_ask(&mut self, what: &str, host: &str) -> io::Result<Told> {
        self.say(what, host)?;
        self.hear()
    }

    #[track_caller]
    pub(super) fn get(&mut self, path: &str) -> Told {
        self.try_ask(&format!("GET {path}"), "h").expect("an answer")
    }

    pub(super) fn say(&mut self, what: &str, host: &str) -> io::Result<()> {
        let request = format!("{what} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes())
    }

    pub(super) fn hear(&mut self) -> io::Result<Told> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head)? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, head));
            }
        }
        let status =
            head.get(9..12).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        let mut told = Told { status, head, body: String::new() };
        let length = told.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        told.body = String::from_utf8(body).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(told)
    }

    /// Whether nothing more comes on it.
    pub(super) fn is_over(&mut self) -> bool {
        let mut rest = Vec::new();
        // However it ends.
        let _ended = self.stream.read_to_end(&mut rest);
        rest.is_empty()
    }
}
