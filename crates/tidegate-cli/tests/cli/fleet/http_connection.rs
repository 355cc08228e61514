//! One connection to a server's HTTP door, which stays open from request to request.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::remote::Serving;

/// Longer than anything takes here.
const FAR_TOO_LONG: Duration = Duration::from_secs(60);

/// An answer.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) status: u16,
    head: String,
    pub(super) body: Value,
}

impl Told {
    /// The body, if it was answered like this.
    #[track_caller]
    pub(super) fn is(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        self.body
    }

    /// The status and the code of a problem.
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
pub(super) struct Wire {
    stream: BufReader<TcpStream>,
}

impl Wire {
    pub(super) fn to(server: &Serving) -> Wire {
        let address = server.url().strip_prefix("http://").expect("an address");
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(FAR_TOO_LONG)).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        Wire { stream: BufReader::new(stream) }
    }

    /// Asks, and waits for the answer. `what` is `METHOD PATH`.
    #[track_caller]
    pub(super) fn ask(&mut self, what: &str, body: &str) -> Told {
        self.try_ask(what, body).expect("an answer")
    }

    /// The same of a server that may be gone before it has answered.
    pub(super) fn try_ask(&mut self, what: &str, body: &str) -> io::Result<Told> {
        self.say(what, body)?;
        let head = self.head()?;
        let status = head[9..12].parse().expect("a status");
        let mut told = Told { status, head, body: Value::Null };
        let length = told.header("content-length").map_or(0, |length| length.parse().expect("a number"));
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        if length > 0 {
            told.body = serde_json::from_slice(&body).expect("JSON");
        }
        Ok(told)
    }

    #[track_caller]
    pub(super) fn get(&mut self, path: &str) -> Told {
        self.ask(&format!("GET {path}"), "")
    }

    #[track_caller]
    pub(super) fn post(&mut self, path: &str, body: &str) -> Told {
        self.ask(&format!("POST {path}"), body)
    }

    #[track_caller]
    pub(super) fn delete(&mut self, path: &str) -> Told {
        self.ask(&format!("DELETE {path}"), "")
    }

    /// Asks for a stream of events.
    #[track_caller]
    pub(super) fn events(mut self, path: &str) -> Events {
        self.say(&format!("GET {path}"), "").expect("it listens");
        let head = self.head().expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        Events { stream: self.stream }
    }

    fn say(&mut self, what: &str, body: &str) -> io::Result<()> {
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

/// A stream of events.
pub(super) struct Events {
    stream: BufReader<TcpStream>,
}

impl Events {
    /// The next event and what it says.
    #[track_caller]
    pub(super) fn next(&mut self) -> (String, Value) {
        let event = self.after("event: ");
        let data = self.after("data: ");
        (event, serde_json::from_str(&data).expect("JSON"))
    }

    /// The rest of the next line that begins like this.
    #[track_caller]
    fn after(&mut self, beginning: &str) -> String {
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
