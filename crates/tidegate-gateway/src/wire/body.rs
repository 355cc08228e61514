//! Where a body ends, and what it carries.
//!
//! A body is taken from what has arrived piece by piece, and written anew: data in, data out. Nothing of how it was framed by whoever sent
//! it goes any further.

use super::header_fields::{Field, field};
use super::{Flaw, has_odd_line};

/// The longest line that says how large a chunk is, with what is said behind it.
const LONGEST_CHUNK_LINE: usize = 256;
/// The most digits of the size of a chunk.
const MOST_DIGITS: u32 = 15;
/// The longest fields behind a body.
const LARGEST_TRAILERS: usize = 8 * 1024;
/// The most of them.
const MOST_TRAILERS: usize = 32;

/// How a body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    None,
    /// It has this many bytes.
    Length(u64),
    /// It comes in chunks.
    Chunked,
    /// It ends with the connection.
    UntilClose,
}

/// A body that is being read.
#[derive(Debug)]
pub struct Body {
    state: State,
    /// How much data it may still have.
    room: u64,
    /// The fields behind it, as they are passed on: lines with their ends.
    trailers: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Done,
    Length(u64),
    UntilClose,
    /// In the line with the size of a chunk: what it says so far, in how many digits, and how long the line is.
    Size {
        size: u64,
        digits: u32,
        line: usize,
    },
    /// Behind the size, up to the end of the line.
    Extension {
        size: u64,
        line: usize,
    },
    /// The carriage return of that line was seen.
    SizeEnd {
        size: u64,
    },
    Data(u64),
    DataEnd,
    DataEndLine,
    Trailers,
}

/// What a look at the input found: data, and how much of the input is settled with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'i> {
    /// What the body carries.
    pub data: &'i [u8],
    /// How much of the input this was.
    pub used: usize,
}

impl Body {
    /// A body that begins, with at most so much data.
    pub fn new(framing: Framing, most: u64) -> Result<Body, Flaw> {
        let state = match framing {
            Framing::None | Framing::Length(0) => State::Done,
            Framing::Length(length) if length > most => return Err(Flaw::LargeBody),
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Size { size: 0, digits: 0, line: 0 },
            Framing::UntilClose => State::UntilClose,
        };
        Ok(Body { state, room: most, trailers: Vec::new() })
    }

    /// Whether all of it was read.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether the end of the connection is its end.
    pub fn ends_with_connection(&self) -> bool {
        self.state == State::UntilClose
    }

    /// The fields behind it that are passed on, with the end of each line.
    pub fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    /// Takes the next piece of what has arrived. Nothing used means that more must arrive, or that the body is done.
    pub fn next<'i>(&mut self, input: &'i [u8]) -> Result<Piece<'i>, Flaw> {
        let mut used = 0;
        while used < input.len() {
            let rest = &input[used..];
            match self.state {
                State::Done => break,
                State::UntilClose => return self.data(rest, used, u64::MAX),
                State::Length(left) | State::Data(left) => return self.data(rest, used, left),
                State::Trailers => {
                    let taken = self.trailer(rest)?;
                    used += taken;
                    if taken == 0 {
                        break;
                    }
                }
                state => {
                    self.state = after(state, rest[0])?;
                    used += 1;
                }
            }
        }
        Ok(Piece { data: &[], used })
    }

    fn data<'i>(&mut self, rest: &'i [u8], before: usize, left: u64) -> Result<Piece<'i>, Flaw> {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
        let count = length as u64;
        self.room = self.room.checked_sub(count).ok_or(Flaw::LargeBody)?;
        self.state = match self.state {
            State::Length(left) if left == count => State::Done,
            State::Length(left) => State::Length(left - count),
            State::Data(left) if left == count => State::DataEnd,
            State::Data(left) => State::Data(left - count),
            other => other,
        };
        Ok(Piece { data: &rest[..length], used: before + length })
    }

    /// Takes the fields behind the last chunk when all of them are here; how much that was.
    fn trailer(&mut self, rest: &[u8]) -> Result<usize, Flaw> {
        const BROKEN: Flaw = Flaw::Bad("the fields behind the body make no sense");
        let mut room = [httparse::EMPTY_HEADER; MOST_TRAILERS];
        match httparse::parse_headers(rest, &mut room) {
            Ok(httparse::Status::Complete((length, trailers)))
                if length <= LARGEST_TRAILERS && !has_odd_line(&rest[..length]) =>
            {
                for each in trailers.iter().filter(|each| may_follow(each.name.as_bytes())) {
                    self.trailers.extend_from_slice(each.name.as_bytes());
                    self.trailers.extend_from_slice(b": ");
                    self.trailers.extend_from_slice(each.value);
                    self.trailers.extend_from_slice(b"\r\n");
                }
                self.state = State::Done;
                Ok(length)
            }
            Ok(httparse::Status::Partial) if rest.len() < LARGEST_TRAILERS => Ok(0),
            _ => Err(BROKEN),
        }
    }
}

/// Fields that mean something only before a body are not taken from behind it.
fn may_follow(name: &[u8]) -> bool {
    matches!(field(name), Field::Ordinary)
        && ![
            &b"authorization"[..],
            b"cookie",
            b"set-cookie",
            b"content-encoding",
            b"content-range",
            b"cache-control",
        ]
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known))
}

/// The state behind a byte of what is between chunks.
fn after(state: State, byte: u8) -> Result<State, Flaw> {
    const BROKEN: Flaw = Flaw::Bad("the chunks make no sense");
    let begun = |size| if size == 0 { State::Trailers } else { State::Data(size) };
    Ok(match (state, byte) {
        (State::Size { size, digits, line }, byte) if byte.is_ascii_hexdigit() && digits < MOST_DIGITS => {
            let digit = char::from(byte).to_digit(16).ok_or(BROKEN)?;
            State::Size { size: size * 16 + u64::from(digit), digits: digits + 1, line: line + 1 }
        }
        (State::Size { size, digits, .. }, b'\r') if digits > 0 => State::SizeEnd { size },
        (State::Size { size, digits, line }, b';' | b' ' | b'\t') if digits > 0 => {
            State::Extension { size, line: line + 1 }
        }
        (State::Extension { size, .. }, b'\r') => State::SizeEnd { size },
        (State::Extension { size, line }, b'\t' | b' '..=b'~') if line < LONGEST_CHUNK_LINE => {
            State::Extension { size, line: line + 1 }
        }
        (State::SizeEnd { size }, b'\n') => begun(size),
        (State::DataEnd, b'\r') => State::DataEndLine,
        (State::DataEndLine, b'\n') => State::Size { size: 0, digits: 0, line: 0 },
        _ => return Err(BROKEN),
    })
}

/// How a body is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frames {
    /// As it is: a length was told before, or the connection ends behind it.
    Plain,
    /// In chunks.
    Chunks,
}

impl Frames {
    /// Writes a piece of data.
    pub fn write(self, data: &[u8], out: &mut Vec<u8>) {
        if data.is_empty() {
            return;
        }
        match self {
            Frames::Plain => out.extend_from_slice(data),
            Frames::Chunks => {
                push_hex(out, data.len());
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(data);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Writes the end, with the fields behind it.
    pub fn finish(self, trailers: &[u8], out: &mut Vec<u8>) {
        if self == Frames::Chunks {
            out.extend_from_slice(b"0\r\n");
            out.extend_from_slice(trailers);
            out.extend_from_slice(b"\r\n");
        }
    }
}

fn push_hex(out: &mut Vec<u8>, number: usize) {
    let digits = (usize::BITS - number.leading_zeros()).div_ceil(4).max(1);
    for place in (0..digits).rev() {
        let digit = (number >> (4 * place)) & 15;
        out.push(b"0123456789abcdef"[digit]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a body carries, read from pieces of this size, and how much of the input it was.
    fn read(framing: Framing, input: &[u8], step: usize) -> Result<(Vec<u8>, usize, bool, Vec<u8>), Flaw> {
        let mut body = Body::new(framing, 1 << 20)?;
        let (mut data, mut start) = (Vec::new(), 0);
        let mut end = 0;
        while end < input.len() && !body.is_done() {
            end = (end + step).min(input.len());
            loop {
                let piece = body.next(&input[start..end])?;
                data.extend_from_slice(piece.data);
                start += piece.used;
                if piece.used == 0 || body.is_done() {
                    break;
                }
            }
        }
        Ok((data, start, body.is_done(), body.trailers().to_vec()))
    }

    #[test]
    fn bodies_are_the_same_however_they_arrive() {
        let chunks = b"5\r\nhello\r\n6;x=\"y\"\r\n world\r\n000\r\nX-Sum: 1\r\nContent-Length: 5\r\n\r\nGET";
        for step in 1..chunks.len() {
            let (data, used, done, trailers) = read(Framing::Chunked, chunks, step).expect("it makes sense");
            assert_eq!(
                (data.as_slice(), used, done),
                (&b"hello world"[..], chunks.len() - 3, true),
                "{step}"
            );
            assert_eq!(trailers, b"X-Sum: 1\r\n");
            let (data, used, done, _) =
                read(Framing::Length(11), b"hello worldGET", step).expect("it makes sense");
            assert_eq!((data.as_slice(), used, done), (&b"hello world"[..], 11, true));
        }
    }

    #[test]
    fn chunks_that_could_be_read_in_two_ways_are_refused() {
        let wrong: [&[u8]; 14] = [
            b"\r\n",
            b"g\r\n",
            b"-1\r\n",
            b"0x5\r\nhello\r\n",
            b"5\nhello\r\n0\r\n\r\n",
            b"5\r\nhello0\r\n\r\n",
            b"5\r\nhello\n0\r\n\r\n",
            b"5\r\nhello\r0\r\n\r\n",
            b"5;\n\r\nhello\r\n0\r\n\r\n",
            b"5;\0\r\nhello\r\n0\r\n\r\n",
            b"5\r \nhello\r\n0\r\n\r\n",
            b" 5\r\nhello\r\n0\r\n\r\n",
            b"1000000000000000\r\n",
            b"0\r\n folded: 1\r\n\r\n",
        ];
        for input in wrong {
            for step in 1..=input.len() {
                assert!(
                    read(Framing::Chunked, input, step).is_err(),
                    "{:?}",
                    input.escape_ascii().to_string()
                );
            }
        }
        let long = [b"5;".as_slice(), &[b'x'; 300], b"\r\n"].concat();
        assert!(read(Framing::Chunked, &long, 1000).is_err());
    }

    #[test]
    fn a_body_is_no_longer_than_it_may_be() {
        assert_eq!(Body::new(Framing::Length(11), 10).err(), Some(Flaw::LargeBody));
        let mut body = Body::new(Framing::Chunked, 10).expect("nobody knows yet");
        assert_eq!(body.next(b"b\r\nhello world\r\n"), Err(Flaw::LargeBody));
    }

    #[test]
    fn what_is_written_in_chunks_is_read_from_them() {
        let mut out = Vec::new();
        for data in [&[b'a'; 300][..], b"", b"b", &[b'c'; 16]] {
            Frames::Chunks.write(data, &mut out);
        }
        Frames::Chunks.finish(b"x-sum: 1\r\n", &mut out);
        let (data, used, done, trailers) = read(Framing::Chunked, &out, 7).expect("it makes sense");
        assert_eq!((data.len(), used, done), (317, out.len(), true));
        assert_eq!(trailers, b"x-sum: 1\r\n");
    }
}
