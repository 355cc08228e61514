//! Frames: where a command begins and ends in what was read, and where its arguments lie.
//!
//! ```text
//!   *3\r\n  $7\r\nTG.PEEK\r\n  $5\r\nlogin\r\n  $3\r\nada\r\n        an array of bulk strings
//!           └─────┬────┘       ...             └──┬─┘
//!                 0                               2                  spans of the read buffer
//!
//!   PING hello\r\n                                                   a line, for people with a terminal
//! ```
//!
//! The reader works in place: arguments are slices of the buffer, and it keeps only where they are. It goes on where it stopped, so an
//! array that comes byte by byte is looked at once, not once per byte. Lines are short, and begun again.
//!
//! Decided: lengths are written in one way, without signs, leading zeros and spaces, as every client writes them. What is written
//! otherwise is not a client, and guessing where its next command begins would be worse than hanging up.
//!
//! Refused: escapes in quoted words of a line. They would have to be copied to be read, and programs send arrays.

use std::fmt;

use memchr::memchr;

/// The most bytes of a frame, with all its lengths and line ends.
pub const MAX_FRAME_BYTES: usize = 64 * 1024;
/// The most arguments of a command, its name included.
pub const MAX_ARGUMENTS: usize = 1024;
/// The longest line that is not an array, its end included.
pub const MAX_INLINE_BYTES: usize = 4 * 1024;

/// The longest number in front of an array or a bulk string. 64 bits and a sign fit.
const MAX_NUMBER_BYTES: usize = 20;
pub(super) const LINE_END: &[u8] = b"\r\n";

/// What the bytes at the beginning of the buffer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RespFrame {
    /// A command; its arguments can be had until the next frame is read.
    Whole {
        /// How many bytes it takes.
        length: usize,
        /// How it was written.
        framing: Framing,
    },
    /// An empty line, an empty or a negative array: nothing, in so many bytes.
    Blank {
        /// How many.
        length: usize,
    },
    /// The beginning of something. More is needed.
    Partial,
}

/// How a command was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// As an array of bulk strings.
    Array,
    /// As a line of words.
    Inline,
}

/// Why the bytes are no frame. There is no telling where the next one would begin, so the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The number of arguments is no number, or above [`MAX_ARGUMENTS`].
    ArrayLength,
    /// The number of arguments does not end.
    ArrayLengthTooLong,
    /// An argument is not a bulk string; this is what it begins with.
    NotBulk(u8),
    /// The length of an argument is no number.
    BulkLength,
    /// The length of an argument does not end.
    BulkLengthTooLong,
    /// An argument is longer or shorter than it says.
    BulkEnd,
    /// The frame is above [`MAX_FRAME_BYTES`].
    FrameTooLarge,
    /// The line is above [`MAX_INLINE_BYTES`].
    InlineTooLong,
    /// A quote that does not close, closes in the middle of a word, or has an escape in it.
    Quotes,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Protocol error: ")?;
        match self {
            FrameError::ArrayLength => f.write_str("invalid multibulk length"),
            FrameError::ArrayLengthTooLong => f.write_str("too big mbulk count string"),
            FrameError::NotBulk(found) => write!(f, "expected '$', got '{}'", found.escape_ascii()),
            FrameError::BulkLength => f.write_str("invalid bulk length"),
            FrameError::BulkLengthTooLong => f.write_str("too big bulk count string"),
            FrameError::BulkEnd => f.write_str("a bulk string must end where its length says"),
            FrameError::FrameTooLarge => write!(f, "a frame has at most {MAX_FRAME_BYTES} bytes"),
            FrameError::InlineTooLong => f.write_str("too big inline request"),
            FrameError::Quotes => f.write_str("unbalanced quotes in request"),
        }
    }
}

/// Finds one frame after the other.
#[derive(Debug, Default)]
pub struct FrameReader {
    stage: FrameStage,
    /// How much of the frame has been understood.
    parsed: usize,
    spans: Vec<ArgumentSpan>,
}

/// Where an argument begins in its frame, and where it ends.
type ArgumentSpan = (usize, usize);

/// What comes next.
#[derive(Debug, Clone, Copy, Default)]
enum FrameStage {
    /// A frame.
    #[default]
    Start,
    /// The rest of a line.
    Inline,
    /// How many arguments there are.
    Array,
    /// The length of an argument; so many are remaining.
    BulkLength { remaining: usize },
    /// The bytes of an argument of this length; so many are remaining, this one included.
    Bulk { remaining: usize, length: usize },
}

impl FrameReader {
    /// Reads the frame that `input` begins with. Until it is whole, later inputs begin with the same bytes and only grow; after it, or
    /// after a fault, they begin with another.
    pub fn read(&mut self, input: &[u8]) -> Result<RespFrame, FrameError> {
        if matches!(self.stage, FrameStage::Start)
            && let Some(length) = self.read_whole_array(input)
        {
            return Ok(RespFrame::Whole { length, framing: Framing::Array });
        }
        let read = self.advance(input);
        if !matches!(read, Ok(RespFrame::Partial)) {
            (self.stage, self.parsed) = (FrameStage::Start, 0);
        }
        read
    }

    /// Whether no frame has begun.
    pub(super) fn is_at_frame_start(&self) -> bool {
        matches!(self.stage, FrameStage::Start)
    }

    /// The arguments of the frame that was just read from `input`, the name of the command first.
    pub fn arguments<'i>(&self, input: &'i [u8]) -> FrameArguments<'i, '_> {
        FrameArguments { input, spans: &self.spans }
    }

    /// The length of an array that is there in one piece and has nothing odd about it: nearly every frame. Whatever it does not take
    /// is read step by step.
    fn read_whole_array(&mut self, input: &[u8]) -> Option<usize> {
        let (count, mut at) = read_short_number(input, b'*', 0)?;
        if count == 0 || count > MAX_ARGUMENTS {
            return None;
        }
        self.spans.clear();
        for _ in 0..count {
            let (length, start) = read_short_number(input, b'$', at)?;
            let end = start + length;
            if input.get(end..end + LINE_END.len())? != LINE_END {
                return None;
            }
            self.spans.push((start, end));
            at = end + LINE_END.len();
        }
        (at <= MAX_FRAME_BYTES).then_some(at)
    }

    fn advance(&mut self, input: &[u8]) -> Result<RespFrame, FrameError> {
        // An input that is shorter than before breaks the contract; it still must not break us.
        while let Some(rest) = input.get(self.parsed..) {
            let step = match self.stage {
                FrameStage::Start => self.read_type(rest),
                FrameStage::Inline => return self.read_inline(input),
                FrameStage::Array => self.read_array_length(rest)?,
                FrameStage::BulkLength { remaining: 0 } => {
                    return Ok(RespFrame::Whole { length: self.parsed, framing: Framing::Array });
                }
                FrameStage::BulkLength { remaining } => self.read_bulk_length(rest, remaining)?,
                FrameStage::Bulk { remaining, length } => self.read_bulk(rest, remaining, length)?,
            };
            match step {
                FrameStep::Continue => {}
                FrameStep::NeedMore => break,
                FrameStep::Blank => return Ok(RespFrame::Blank { length: self.parsed }),
            }
        }
        Ok(RespFrame::Partial)
    }

    fn read_type(&mut self, rest: &[u8]) -> FrameStep {
        self.spans.clear();
        (self.stage, self.parsed) = match rest.first() {
            None => return FrameStep::NeedMore,
            Some(b'*') => (FrameStage::Array, 1),
            Some(_) => (FrameStage::Inline, 0),
        };
        FrameStep::Continue
    }

    fn read_array_length(&mut self, rest: &[u8]) -> Result<FrameStep, FrameError> {
        let Some(text) = read_number_line(rest, FrameError::ArrayLengthTooLong, FrameError::ArrayLength)?
        else {
            return Ok(FrameStep::NeedMore);
        };
        self.parsed += text.len() + LINE_END.len();
        if let Some(below_zero) = text.strip_prefix(b"-") {
            let negative = parse_number(below_zero).filter(|number| *number > 0);
            return negative.map(|_| FrameStep::Blank).ok_or(FrameError::ArrayLength);
        }
        match parse_size(text) {
            Some(0) => Ok(FrameStep::Blank),
            Some(remaining) if remaining <= MAX_ARGUMENTS => {
                self.stage = FrameStage::BulkLength { remaining };
                Ok(FrameStep::Continue)
            }
            _ => Err(FrameError::ArrayLength),
        }
    }

    fn read_bulk_length(&mut self, rest: &[u8], remaining: usize) -> Result<FrameStep, FrameError> {
        let text = match rest.split_first() {
            None => return Ok(FrameStep::NeedMore),
            Some((b'$', text)) => {
                read_number_line(text, FrameError::BulkLengthTooLong, FrameError::BulkLength)?
            }
            Some((other, _)) => return Err(FrameError::NotBulk(*other)),
        };
        let Some(text) = text else { return Ok(FrameStep::NeedMore) };
        let length = parse_size(text).ok_or(FrameError::BulkLength)?;
        self.parsed += 1 + text.len() + LINE_END.len();
        let whole = length.checked_add(self.parsed + LINE_END.len());
        if whole.is_none_or(|whole| whole > MAX_FRAME_BYTES) {
            return Err(FrameError::FrameTooLarge);
        }
        self.stage = FrameStage::Bulk { remaining, length };
        Ok(FrameStep::Continue)
    }

    fn read_bulk(&mut self, rest: &[u8], remaining: usize, length: usize) -> Result<FrameStep, FrameError> {
        match rest.get(length..length + LINE_END.len()) {
            None => Ok(FrameStep::NeedMore),
            Some(LINE_END) => {
                self.spans.push((self.parsed, self.parsed + length));
                self.parsed += length + LINE_END.len();
                self.stage = FrameStage::BulkLength { remaining: remaining - 1 };
                Ok(FrameStep::Continue)
            }
            Some(_) => Err(FrameError::BulkEnd),
        }
    }

    fn read_inline(&mut self, input: &[u8]) -> Result<RespFrame, FrameError> {
        let window = &input[..input.len().min(MAX_INLINE_BYTES)];
        let Some(end) = memchr(b'\n', window) else {
            return if window.len() < MAX_INLINE_BYTES {
                Ok(RespFrame::Partial)
            } else {
                Err(FrameError::InlineTooLong)
            };
        };
        let line = &input[..end];
        self.split_words(line.strip_suffix(b"\r").unwrap_or(line))?;
        let length = end + 1;
        if self.spans.is_empty() {
            return Ok(RespFrame::Blank { length });
        }
        Ok(RespFrame::Whole { length, framing: Framing::Inline })
    }

    /// Finds the words of a line.
    fn split_words(&mut self, line: &[u8]) -> Result<(), FrameError> {
        let mut at = 0;
        while let Some(&first) = line.get(at) {
            if is_space(first) {
                at += 1;
                continue;
            }
            if self.spans.len() == MAX_ARGUMENTS {
                return Err(FrameError::ArrayLength);
            }
            let (word, after) = if first == b'"' || first == b'\'' {
                find_quoted(line, at + 1, first).ok_or(FrameError::Quotes)?
            } else {
                let length = line[at..].iter().position(|byte| is_space(*byte)).unwrap_or(line.len() - at);
                ((at, at + length), at + length)
            };
            self.spans.push(word);
            at = after;
        }
        Ok(())
    }
}

/// Whether reading goes on.
enum FrameStep {
    Continue,
    NeedMore,
    Blank,
}

/// The arguments of a command, where they were read.
#[derive(Debug, Clone, Copy)]
pub struct FrameArguments<'i, 'r> {
    input: &'i [u8],
    spans: &'r [ArgumentSpan],
}

impl<'i> FrameArguments<'i, '_> {
    /// How many there are, the name of the command included.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are none, not even a name.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The argument at this place; the name is at 0.
    pub fn get(&self, index: usize) -> Option<&'i [u8]> {
        let (start, end) = *self.spans.get(index)?;
        self.input.get(start..end)
    }

    /// Where the argument at this place begins in its frame, and where it ends.
    pub(super) fn span(&self, index: usize) -> Option<(usize, usize)> {
        self.spans.get(index).copied()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'i [u8]> {
        self.spans.iter().filter_map(|(start, end)| self.input.get(*start..*end))
    }
}

/// The text before the end of the line; `None` if it has not come yet.
fn read_number_line(
    rest: &[u8],
    too_long: FrameError,
    invalid: FrameError,
) -> Result<Option<&[u8]>, FrameError> {
    let window = &rest[..rest.len().min(MAX_NUMBER_BYTES + 1)];
    match memchr(b'\r', window) {
        Some(end) => match rest.get(end + 1) {
            None => Ok(None),
            Some(b'\n') => Ok(Some(&rest[..end])),
            Some(_) => Err(invalid),
        },
        None if window.len() > MAX_NUMBER_BYTES => Err(too_long),
        None => Ok(None),
    }
}

/// A number of at most four digits on a line of this kind, and where the next line begins.
#[inline]
pub(super) fn read_short_number(input: &[u8], kind: u8, at: usize) -> Option<(usize, usize)> {
    let line = input.get(at..)?;
    let digit = |byte: u8| byte.is_ascii_digit().then(|| usize::from(byte - b'0'));
    if *line.first()? != kind {
        return None;
    }
    let mut number = digit(*line.get(1)?)?;
    let mut length = 2;
    loop {
        let byte = *line.get(length)?;
        if byte == b'\r' {
            return (*line.get(length + 1)? == b'\n').then_some((number, at + length + LINE_END.len()));
        }
        // No number of several digits begins with a zero.
        if number == 0 || length > 4 {
            return None;
        }
        number = number * 10 + digit(byte)?;
        length += 1;
    }
}

/// A number as every client writes it: digits, no sign, no zero before another digit.
pub(crate) fn parse_number(text: &[u8]) -> Option<u64> {
    match text {
        [] | [b'0', _, ..] => None,
        digits => digits.iter().try_fold(0_u64, |number, byte| {
            let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
            number.checked_mul(10)?.checked_add(digit)
        }),
    }
}

/// A number of things in memory.
fn parse_size(text: &[u8]) -> Option<usize> {
    parse_number(text).and_then(|number| usize::try_from(number).ok())
}

/// The word whose quote opened just before `start`, and where the line goes on.
fn find_quoted(line: &[u8], start: usize, quote: u8) -> Option<(ArgumentSpan, usize)> {
    let end = start + memchr(quote, &line[start..])?;
    let escapes = memchr(b'\\', &line[start..end]).is_some();
    let goes_on = line.get(end + 1).is_some_and(|next| !is_space(*next));
    (!escapes && !goes_on).then_some(((start, end), end + 1))
}

fn is_space(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}
