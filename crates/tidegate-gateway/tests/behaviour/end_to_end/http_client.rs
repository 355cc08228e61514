//! An HTTP/1 client for tests. Its parser shares no code with the gateway.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// Longer than any successful step takes.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A request or a response.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    pub(crate) line: String,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    /// The number of its connection, counted from 1.
    pub(crate) connection: usize,
    pub(crate) is_chunked: bool,
}

impl Message {
    /// Parses a head; the body is still unknown.
    fn from_head(head: &str) -> Message {
        let mut lines = head.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        Message { line, fields: lines.filter_map(parse_field).collect(), ..Message::default() }
    }

    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        let same = |(known, _): &&(String, String)| known.eq_ignore_ascii_case(name);
        self.fields.iter().filter(same).map(|(_, value)| value.as_str()).collect()
    }

    /// The single value of a field.
    #[track_caller]
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let values = self.values(name);
        assert!(values.len() < 2, "{name}: {values:?}");
        values.first().copied()
    }

    pub(crate) fn status(&self) -> u16 {
        self.line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The request that a backend echoed.
    pub(crate) fn echoed(&self) -> Message {
        let text = self.text();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        Message { body: body.as_bytes().to_vec(), ..Message::from_head(head) }
    }

    fn has_word(&self, name: &str, word: &str) -> bool {
        self.values(name).iter().any(|value| value.to_ascii_lowercase().contains(word))
    }

    pub(crate) fn closes(&self) -> bool {
        self.has_word("connection", "close")
    }
}

fn parse_field(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once(':')?;
    Some((name.to_owned(), value.trim().to_owned()))
}

/// One end of a connection with its buffered input.
#[derive(Debug)]
pub(crate) struct WireClient {
    pub(crate) stream: TcpStream,
    buffered: Vec<u8>,
}

impl WireClient {
    pub(crate) fn new(stream: TcpStream) -> WireClient {
        stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a socket has timeouts");
        stream.set_write_timeout(Some(TEST_TIMEOUT)).expect("a socket has timeouts");
        stream.set_nodelay(true).expect("a socket");
        WireClient { stream, buffered: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the peer is connected");
    }

    /// Sends bytes and ignores errors.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) {
        let _best_effort = self.stream.write_all(bytes.as_ref());
    }

    pub(crate) fn shutdown_write(&self) {
        self.stream.shutdown(Shutdown::Write).expect("it is open");
    }

    fn read_more(&mut self) -> io::Result<()> {
        let mut piece = vec![0; 64 * 1024];
        let length = self.stream.read(&mut piece)?;
        if length == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.buffered.extend_from_slice(&piece[..length]);
        Ok(())
    }

    /// Reads up to and including `end`.
    fn read_until(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        let mut looked = 0;
        loop {
            let from = looked;
            if let Some(at) = self.buffered[from..].windows(end.len()).position(|window| window == end) {
                return Ok(self.buffered.drain(..from + at + end.len()).collect());
            }
            looked = self.buffered.len().saturating_sub(end.len() - 1);
            self.read_more()?;
        }
    }

    pub(crate) fn read_exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.buffered.len() < length {
            self.read_more()?;
        }
        Ok(self.buffered.drain(..length).collect())
    }

    /// Reads a message. `is_head_request`: it responses `HEAD`.
    pub(crate) fn read_message(&mut self, is_head_request: bool) -> io::Result<Message> {
        let head = self.read_until(b"\r\n\r\n")?;
        let mut message = Message::from_head(String::from_utf8_lossy(&head[..head.len() - 4]).as_ref());
        let is_response = message.line.starts_with("HTTP/");
        let has_none = matches!(message.status(), 100..=199 | 204 | 304);
        if is_response && (is_head_request || has_none) {
            return Ok(message);
        }
        if message.has_word("transfer-encoding", "chunked") {
            message.is_chunked = true;
            self.read_chunks(&mut message)?;
        } else if let Some(length) = message.values("content-length").first() {
            let length = length.parse().map_err(|_| ErrorKind::InvalidData)?;
            message.body = self.read_exactly(length)?;
        } else if is_response {
            message.body = self.read_to_end();
        }
        Ok(message)
    }

    fn read_chunks(&mut self, message: &mut Message) -> io::Result<()> {
        loop {
            let line = self.read_until(b"\r\n")?;
            let digits = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
            let size = usize::from_str_radix(&digits, 16).map_err(|_| ErrorKind::InvalidData)?;
            if size == 0 {
                break;
            }
            message.body.extend(self.read_exactly(size)?);
            assert_eq!(self.read_exactly(2)?, b"\r\n", "behind a chunk there is the end of a line");
        }
        loop {
            let line = self.read_until(b"\r\n")?;
            if line == b"\r\n" {
                return Ok(());
            }
            message.trailers.extend(parse_field(&String::from_utf8_lossy(&line[..line.len() - 2])));
        }
    }

    #[track_caller]
    pub(crate) fn read_response(&mut self) -> Message {
        self.read_message(false).expect("a message")
    }

    #[track_caller]
    pub(crate) fn request(&mut self, request: impl AsRef<[u8]>) -> Message {
        self.send(request);
        self.read_response()
    }

    /// Reads a head unparsed.
    #[track_caller]
    pub(crate) fn head(&mut self) -> String {
        let head = self.read_until(b"\r\n\r\n").expect("a head");
        String::from_utf8_lossy(&head).into_owned()
    }

    /// Asserts that the connection closes, with or without more data.
    pub(crate) fn assert_closes_eventually(&mut self) {
        let _whatever = self.read_to_end();
    }

    /// Reads everything until the connection closes.
    pub(crate) fn read_to_end(&mut self) -> Vec<u8> {
        loop {
            match self.read_more() {
                Ok(()) => {}
                Err(error) if is_late(&error) => panic!("the connection stays open"),
                Err(_) => return std::mem::take(&mut self.buffered),
            }
        }
    }

    /// Asserts that the connection closes without more data.
    #[track_caller]
    pub(crate) fn assert_closed(&mut self) {
        let rest = self.read_to_end();
        assert!(rest.is_empty(), "{:?}", rest.escape_ascii().to_string());
    }

    /// Asserts that nothing arrives for this long and the connection stays open.
    #[track_caller]
    pub(crate) fn assert_silent_for(&mut self, patience: Duration) {
        self.stream.set_read_timeout(Some(patience)).expect("a socket has timeouts");
        let received = self.read_more();
        self.stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a socket has timeouts");
        assert!(
            received.as_ref().is_err_and(is_late),
            "{received:?} {:?}",
            self.buffered.escape_ascii().to_string()
        );
    }

    /// Gives the peer time to read what was sent. Received data is kept.
    pub(crate) fn let_peer_read(&mut self) {
        let _best_effort = self.ends_within(Duration::from_millis(10));
    }

    /// Whether the connection closes within this time.
    pub(crate) fn ends_within(&mut self, patience: Duration) -> bool {
        self.stream.set_read_timeout(Some(patience)).expect("a socket has timeouts");
        let received = self.read_more();
        self.stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a socket has timeouts");
        received.is_err_and(|error| !is_late(&error))
    }

    /// Resets the connection, like a machine that restarts.
    pub(crate) fn reset(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).expect("a socket");
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
