//! HTTP/1 as the tests speak it: messages are read by a few lines that share nothing with the gateway's.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// Longer than anything takes that works.
pub(crate) const FAR_TOO_LONG: Duration = Duration::from_secs(20);

/// A request or a response.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    pub(crate) line: String,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    /// On which connection it came, counted from 1.
    pub(crate) connection: usize,
    pub(crate) is_chunked: bool,
}

impl Message {
    /// The head of these bytes; nothing is known of a body yet.
    fn of_head(head: &str) -> Message {
        let mut lines = head.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        Message { line, fields: lines.filter_map(parted).collect(), ..Message::default() }
    }

    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        let same = |(known, _): &&(String, String)| known.eq_ignore_ascii_case(name);
        self.fields.iter().filter(same).map(|(_, value)| value.as_str()).collect()
    }

    /// The one value of a field.
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

    /// The request that an endpoint has echoed.
    pub(crate) fn echoed(&self) -> Message {
        let text = self.text();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        Message { body: body.as_bytes().to_vec(), ..Message::of_head(head) }
    }

    fn has_word(&self, name: &str, word: &str) -> bool {
        self.values(name).iter().any(|value| value.to_ascii_lowercase().contains(word))
    }

    pub(crate) fn closes(&self) -> bool {
        self.has_word("connection", "close")
    }
}

fn parted(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once(':')?;
    Some((name.to_owned(), value.trim().to_owned()))
}

/// One end of a connection, and what has arrived on it.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    ahead: Vec<u8>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Wire {
        stream.set_read_timeout(Some(FAR_TOO_LONG)).expect("a socket has timeouts");
        stream.set_write_timeout(Some(FAR_TOO_LONG)).expect("a socket has timeouts");
        stream.set_nodelay(true).expect("a socket");
        Wire { stream, ahead: Vec::new() }
    }

    pub(crate) fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("somebody listens");
    }

    /// Says it, whether anybody listens or not.
    pub(crate) fn shout(&mut self, bytes: impl AsRef<[u8]>) {
        let _heard_or_not = self.stream.write_all(bytes.as_ref());
    }

    pub(crate) fn say_no_more(&self) {
        self.stream.shutdown(Shutdown::Write).expect("it is open");
    }

    fn more(&mut self) -> io::Result<()> {
        let mut piece = vec![0; 64 * 1024];
        let length = self.stream.read(&mut piece)?;
        if length == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.ahead.extend_from_slice(&piece[..length]);
        Ok(())
    }

    /// What has arrived up to this, and this.
    fn up_to(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        let mut looked = 0;
        loop {
            let from = looked;
            if let Some(at) = self.ahead[from..].windows(end.len()).position(|window| window == end) {
                return Ok(self.ahead.drain(..from + at + end.len()).collect());
            }
            looked = self.ahead.len().saturating_sub(end.len() - 1);
            self.more()?;
        }
    }

    pub(crate) fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.ahead.len() < length {
            self.more()?;
        }
        Ok(self.ahead.drain(..length).collect())
    }

    /// A message; `to_head` if it answers `HEAD`.
    pub(crate) fn message(&mut self, to_head: bool) -> io::Result<Message> {
        let head = self.up_to(b"\r\n\r\n")?;
        let mut message = Message::of_head(String::from_utf8_lossy(&head[..head.len() - 4]).as_ref());
        let is_response = message.line.starts_with("HTTP/");
        let has_none = matches!(message.status(), 100..=199 | 204 | 304);
        if is_response && (to_head || has_none) {
            return Ok(message);
        }
        if message.has_word("transfer-encoding", "chunked") {
            message.is_chunked = true;
            self.chunks(&mut message)?;
        } else if let Some(length) = message.values("content-length").first() {
            let length = length.parse().map_err(|_| ErrorKind::InvalidData)?;
            message.body = self.exactly(length)?;
        } else if is_response {
            message.body = self.rest();
        }
        Ok(message)
    }

    fn chunks(&mut self, message: &mut Message) -> io::Result<()> {
        loop {
            let line = self.up_to(b"\r\n")?;
            let digits = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
            let size = usize::from_str_radix(&digits, 16).map_err(|_| ErrorKind::InvalidData)?;
            if size == 0 {
                break;
            }
            message.body.extend(self.exactly(size)?);
            assert_eq!(self.exactly(2)?, b"\r\n", "behind a chunk there is the end of a line");
        }
        loop {
            let line = self.up_to(b"\r\n")?;
            if line == b"\r\n" {
                return Ok(());
            }
            message.trailers.extend(parted(&String::from_utf8_lossy(&line[..line.len() - 2])));
        }
    }

    #[track_caller]
    pub(crate) fn hear(&mut self) -> Message {
        self.message(false).expect("a message")
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, request: impl AsRef<[u8]>) -> Message {
        self.say(request);
        self.hear()
    }

    /// A head, as it is.
    #[track_caller]
    pub(crate) fn head(&mut self) -> String {
        let head = self.up_to(b"\r\n\r\n").expect("a head");
        String::from_utf8_lossy(&head).into_owned()
    }

    /// The connection ends, whatever is still said on it.
    pub(crate) fn is_over_somehow(&mut self) {
        let _whatever = self.rest();
    }

    /// Everything up to the end, however that comes.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        loop {
            match self.more() {
                Ok(()) => {}
                Err(error) if is_late(&error) => panic!("the connection stays open"),
                Err(_) => return std::mem::take(&mut self.ahead),
            }
        }
    }

    /// The connection ends, and nothing more is said on it.
    #[track_caller]
    pub(crate) fn is_over(&mut self) {
        let rest = self.rest();
        assert!(rest.is_empty(), "{:?}", rest.escape_ascii().to_string());
    }

    /// Nothing is said for this long, and the connection stays.
    #[track_caller]
    pub(crate) fn is_silent_for(&mut self, patience: Duration) {
        self.stream.set_read_timeout(Some(patience)).expect("a socket has timeouts");
        let heard = self.more();
        self.stream.set_read_timeout(Some(FAR_TOO_LONG)).expect("a socket has timeouts");
        assert!(heard.as_ref().is_err_and(is_late), "{heard:?} {:?}", self.ahead.escape_ascii().to_string());
    }

    /// Gives others time to hear what was said so far; whatever is heard meanwhile is kept.
    pub(crate) fn is_silent_for_a_moment(&mut self) {
        let _over_or_not = self.ends_within(Duration::from_millis(10));
    }

    /// Whether the connection is over, or is within this time.
    pub(crate) fn ends_within(&mut self, patience: Duration) -> bool {
        self.stream.set_read_timeout(Some(patience)).expect("a socket has timeouts");
        let heard = self.more();
        self.stream.set_read_timeout(Some(FAR_TOO_LONG)).expect("a socket has timeouts");
        heard.is_err_and(|error| !is_late(&error))
    }

    /// Ends the connection as a machine does that loses its power and comes back.
    pub(crate) fn vanish(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).expect("a socket");
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
