//! Body framing: decodes received bodies and encodes them again.
//!
//! The decoder works on the pieces as they arrive. The sender's framing is never forwarded.

use super::header_fields::{HeaderField, classify_field};
use super::{WireError, has_bare_line_feed};

/// The maximum length of a chunk-size line with its extension.
const MAX_CHUNK_LINE: usize = 256;
/// The maximum number of digits of a chunk size.
const MAX_DIGITS: u32 = 15;
/// The maximum size of the trailers.
const MAX_TRAILER_BYTES: usize = 8 * 1024;
/// The maximum number of trailers.
const MAX_TRAILERS: usize = 32;

/// How a body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFraming {
    /// No body.
    None,
    /// A body of this many bytes.
    Length(u64),
    /// The chunked coding.
    Chunked,
    /// The body ends when the connection closes.
    UntilClose,
}

/// An incremental body decoder.
#[derive(Debug)]
pub struct BodyDecoder {
    state: DecoderState,
    /// The number of data bytes still allowed.
    remaining: u64,
    /// The trailers to forward, as lines with their ends.
    trailers: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DecoderState {
    Done,
    Length(u64),
    UntilClose,
    /// In a chunk-size line: the size so far, its digits and the length of the line.
    Size {
        size: u64,
        digits: u32,
        line: usize,
    },
    /// In the extension of a chunk-size line.
    Extension {
        size: u64,
        line: usize,
    },
    /// After the carriage return of a chunk-size line.
    SizeEnd {
        size: u64,
    },
    Data(u64),
    DataEnd,
    DataEndLine,
    Trailers,
}

/// A decoded piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyPiece<'i> {
    /// The data.
    pub data: &'i [u8],
    /// The number of input bytes consumed.
    pub used: usize,
}

impl BodyDecoder {
    /// Creates a decoder that accepts at max this many data bytes.
    pub fn new(framing: BodyFraming, max: u64) -> Result<BodyDecoder, WireError> {
        let state = match framing {
            BodyFraming::None | BodyFraming::Length(0) => DecoderState::Done,
            BodyFraming::Length(length) if length > max => return Err(WireError::BodyTooLarge),
            BodyFraming::Length(length) => DecoderState::Length(length),
            BodyFraming::Chunked => DecoderState::Size { size: 0, digits: 0, line: 0 },
            BodyFraming::UntilClose => DecoderState::UntilClose,
        };
        Ok(BodyDecoder { state, remaining: max, trailers: Vec::new() })
    }

    /// Whether the body is complete.
    pub fn is_done(&self) -> bool {
        self.state == DecoderState::Done
    }

    /// Whether the end of the connection is the end of the body.
    pub fn ends_with_connection(&self) -> bool {
        self.state == DecoderState::UntilClose
    }

    /// The trailers to forward, as lines with their ends.
    pub fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    /// Decodes the next piece of the input. If `used` is 0, more input is needed or the body is complete.
    pub fn next<'i>(&mut self, input: &'i [u8]) -> Result<BodyPiece<'i>, WireError> {
        let mut used = 0;
        while used < input.len() {
            let rest = &input[used..];
            match self.state {
                DecoderState::Done => break,
                DecoderState::UntilClose => return self.take_data(rest, used, u64::MAX),
                DecoderState::Length(left) | DecoderState::Data(left) => {
                    return self.take_data(rest, used, left);
                }
                DecoderState::Trailers => {
                    let taken = self.parse_trailers(rest)?;
                    used += taken;
                    if taken == 0 {
                        break;
                    }
                }
                state => {
                    self.state = next_state(state, rest[0])?;
                    used += 1;
                }
            }
        }
        Ok(BodyPiece { data: &[], used })
    }

    fn take_data<'i>(
        &mut self,
        rest: &'i [u8],
        before: usize,
        left: u64,
    ) -> Result<BodyPiece<'i>, WireError> {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
        let count = length as u64;
        self.remaining = self.remaining.checked_sub(count).ok_or(WireError::BodyTooLarge)?;
        self.state = match self.state {
            DecoderState::Length(left) if left == count => DecoderState::Done,
            DecoderState::Length(left) => DecoderState::Length(left - count),
            DecoderState::Data(left) if left == count => DecoderState::DataEnd,
            DecoderState::Data(left) => DecoderState::Data(left - count),
            other => other,
        };
        Ok(BodyPiece { data: &rest[..length], used: before + length })
    }

    /// Parses the trailers once they are complete. Returns the number of bytes consumed.
    fn parse_trailers(&mut self, rest: &[u8]) -> Result<usize, WireError> {
        const BROKEN: WireError = WireError::Malformed("the fields behind the body make no sense");
        let mut storage = [httparse::EMPTY_HEADER; MAX_TRAILERS];
        match httparse::parse_headers(rest, &mut storage) {
            Ok(httparse::Status::Complete((length, trailers)))
                if length <= MAX_TRAILER_BYTES && !has_bare_line_feed(&rest[..length]) =>
            {
                for each in trailers.iter().filter(|each| is_allowed_trailer(each.name.as_bytes())) {
                    self.trailers.extend_from_slice(each.name.as_bytes());
                    self.trailers.extend_from_slice(b": ");
                    self.trailers.extend_from_slice(each.value);
                    self.trailers.extend_from_slice(b"\r\n");
                }
                self.state = DecoderState::Done;
                Ok(length)
            }
            Ok(httparse::Status::Partial) if rest.len() < MAX_TRAILER_BYTES => Ok(0),
            _ => Err(BROKEN),
        }
    }
}

/// Whether a field is allowed as a trailer. Fields that affect routing or framing are dropped.
fn is_allowed_trailer(name: &[u8]) -> bool {
    matches!(classify_field(name), HeaderField::Ordinary)
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

/// The next state after a byte of the chunk framing.
fn next_state(state: DecoderState, byte: u8) -> Result<DecoderState, WireError> {
    const BROKEN: WireError = WireError::Malformed("the chunks make no sense");
    let after_size = |size| if size == 0 { DecoderState::Trailers } else { DecoderState::Data(size) };
    Ok(match (state, byte) {
        (DecoderState::Size { size, digits, line }, byte)
            if byte.is_ascii_hexdigit() && digits < MAX_DIGITS =>
        {
            let digit = char::from(byte).to_digit(16).ok_or(BROKEN)?;
            DecoderState::Size { size: size * 16 + u64::from(digit), digits: digits + 1, line: line + 1 }
        }
        (DecoderState::Size { size, digits, .. }, b'\r') if digits > 0 => DecoderState::SizeEnd { size },
        (DecoderState::Size { size, digits, line }, b';' | b' ' | b'\t') if digits > 0 => {
            DecoderState::Extension { size, line: line + 1 }
        }
        (DecoderState::Extension { size, .. }, b'\r') => DecoderState::SizeEnd { size },
        (DecoderState::Extension { size, line }, b'\t' | b' '..=b'~') if line < MAX_CHUNK_LINE => {
            DecoderState::Extension { size, line: line + 1 }
        }
        (DecoderState::SizeEnd { size }, b'\n') => after_size(size),
        (DecoderState::DataEnd, b'\r') => DecoderState::DataEndLine,
        (DecoderState::DataEndLine, b'\n') => DecoderState::Size { size: 0, digits: 0, line: 0 },
        _ => return Err(BROKEN),
    })
}

/// How a body is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyEncoder {
    /// Unchanged: a length was sent, or the connection closes after it.
    Plain,
    /// In chunks.
    Chunks,
}

impl BodyEncoder {
    /// Writes a piece of data.
    pub fn write(self, data: &[u8], out: &mut Vec<u8>) {
        if data.is_empty() {
            return;
        }
        match self {
            BodyEncoder::Plain => out.extend_from_slice(data),
            BodyEncoder::Chunks => {
                push_hex(out, data.len());
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(data);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Writes the end of the body with its trailers.
    pub fn finish(self, trailers: &[u8], out: &mut Vec<u8>) {
        if self == BodyEncoder::Chunks {
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

    /// Decodes a body in steps of this size. Returns the data, the bytes consumed, completion and trailers.
    fn read(
        framing: BodyFraming,
        input: &[u8],
        step: usize,
    ) -> Result<(Vec<u8>, usize, bool, Vec<u8>), WireError> {
        let mut body = BodyDecoder::new(framing, 1 << 20)?;
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
    fn body_split_into_any_pieces_decodes_the_same() {
        let chunks = b"5\r\nhello\r\n6;x=\"y\"\r\n world\r\n000\r\nX-Sum: 1\r\nContent-Length: 5\r\n\r\nGET";
        for step in 1..chunks.len() {
            let (data, used, done, trailers) =
                read(BodyFraming::Chunked, chunks, step).expect("it makes sense");
            assert_eq!(
                (data.as_slice(), used, done),
                (&b"hello world"[..], chunks.len() - 3, true),
                "{step}"
            );
            assert_eq!(trailers, b"X-Sum: 1\r\n");
            let (data, used, done, _) =
                read(BodyFraming::Length(11), b"hello worldGET", step).expect("it makes sense");
            assert_eq!((data.as_slice(), used, done), (&b"hello world"[..], 11, true));
        }
    }

    #[test]
    fn ambiguous_chunks_are_refused() {
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
                    read(BodyFraming::Chunked, input, step).is_err(),
                    "{:?}",
                    input.escape_ascii().to_string()
                );
            }
        }
        let long = [b"5;".as_slice(), &[b'x'; 300], b"\r\n"].concat();
        assert!(read(BodyFraming::Chunked, &long, 1000).is_err());
    }

    #[test]
    fn body_above_maximum_is_refused() {
        assert_eq!(BodyDecoder::new(BodyFraming::Length(11), 10).err(), Some(WireError::BodyTooLarge));
        let mut body = BodyDecoder::new(BodyFraming::Chunked, 10).expect("the length is unknown");
        assert_eq!(body.next(b"b\r\nhello world\r\n"), Err(WireError::BodyTooLarge));
    }

    #[test]
    fn encoded_chunks_decode_to_the_same_data() {
        let mut out = Vec::new();
        for data in [&[b'a'; 300][..], b"", b"b", &[b'c'; 16]] {
            BodyEncoder::Chunks.write(data, &mut out);
        }
        BodyEncoder::Chunks.finish(b"x-sum: 1\r\n", &mut out);
        let (data, used, done, trailers) = read(BodyFraming::Chunked, &out, 7).expect("it makes sense");
        assert_eq!((data.len(), used, done), (317, out.len(), true));
        assert_eq!(trailers, b"x-sum: 1\r\n");
    }
}
