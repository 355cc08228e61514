//! A persistent HTTP connection to a server.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::remote::TestServer;

/// Longer than any test takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A reply.
#[derive(Debug)]
pub(super) struct HttpReply {
    pub(super) status: u16,
    head: String,
    pub(super) body: Value,
}

impl HttpReply {
    /// The body, after checking the status.
    #[track_caller]
    pub(super) fn is(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        self.body
    }

    /// Status and problem code.
    pub(super) fn problem(&self) -> (u16, &str) {
        (self.status, self.body["code"].as_str().unwrap_or_default())
    }

    /// The value of a header field.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.into_iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// A connection.
pub(super) struct HttpConnection {
    stream: BufReader<TcpStream>,
}

impl HttpConnection {
    pub(super) fn to(server: &TestServer) -> HttpConnection {
        let address = server.url().strip_prefix("http://").expect("an address");
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        HttpConnection { stream: BufReader::new(stream) }
    }

    /// Sends `METHOD PATH` and waits for the reply.
    #[track_caller]
    pub(super) fn send(&mut self, what: &str, body: &str) -> HttpReply {
        self.try_send(what, body).expect("an answer")
    }

    /// The same for a server that may be gone.
    pub(super) fn try_send(&mut self, what: &str, body: &str) -> io::Result<HttpReply> {
        self.write_request(what, body)?;
        let head = self.head()?;
        let status = head[9..12].parse().expect("a status");
        let mut output = HttpReply { status, head, body: Value::Null };
        let length = output.header("content-length").map_or(0, |length| length.parse().expect("a number"));
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        if length > 0 {
            output.body = serde_json::from_slice(&body).expect("JSON");
        }
        Ok(output)
    }

    #[track_caller]
    pub(super) fn get(&mut self, path: &str) -> HttpReply {
        self.send(&format!("GET {path}"), "")
    }

    #[track_caller]
    pub(super) fn post(&mut self, path: &str, body: &str) -> HttpReply {
        self.send(&format!("POST {path}"), body)
    }

    #[track_caller]
    pub(super) fn delete(&mut self, path: &str) -> HttpReply {
        self.send(&format!("DELETE {path}"), "")
    }

    /// Opens a stream of events.
    #[track_caller]
    pub(super) fn events(mut self, path: &str) -> EventStream {
        self.write_request(&format!("GET {path}"), "").expect("it listens");
        let head = self.head().expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        EventStream { stream: self.stream }
    }

    fn write_request(&mut self, what: &str, body: &str) -> io::Result<()> {
        let length = body.len();
        let request = format!("{what} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{body}");
        self.stream.get_mut().write_all(request.as_bytes())
    }

    fn head(&mut self) -> io::Result<String> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head)? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("no more after '{head}'")));
            }
        }
        Ok(head)
    }
}

/// A stream of server-sent events.
pub(super) struct EventStream {
    stream: BufReader<TcpStream>,
}

impl EventStream {
    /// The next event: name and data.
    #[track_caller]
    pub(super) fn next(&mut self) -> (String, Value) {
        let event = self.next_line_after("event: ");
        let data = self.next_line_after("data: ");
        (event, serde_json::from_str(&data).expect("JSON"))
    }

    /// The rest of the next line with this prefix.
    #[track_caller]
    fn next_line_after(&mut self, beginning: &str) -> String {
        loop {
            let mut line = String::new();
            let read = self.stream.read_line(&mut line).expect("an event");
            assert!(read > 0, "the stream ended");
            if let Some(rest) = line.trim_end().strip_prefix(beginning) {
                return rest.to_owned();
            }
        }
    }
}
