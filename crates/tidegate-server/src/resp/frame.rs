//! Frames: finds the end of a command and the positions of its arguments.
//!
//! ```text
//!   *3\r\n  $7\r\nTG.PEEK\r\n  $5\r\nlogin\r\n  $3\r\nada\r\n        an array of bulk strings
//!           └─────┬────┘       ...             └──┬─┘
//!                 0                               2                  spans of the read buffer
//!
//!   PING hello\r\n                                                   an inline command
//! ```
//!
//! The reader works in place: arguments are slices of the buffer, and only their positions are kept. It resumes where it stopped, so
//! an array that arrives byte by byte is scanned once. Inline commands are short and scanned again.
//!
//! Lengths have one spelling: no sign, no leading zero, no space. A peer that writes them otherwise is not a Redis client, and guessing
//! the start of its next command is worse than closing the connection.
//!
//! Escapes in quoted inline arguments are refused. Decoding them would need a copy, and programs send arrays.

use std::fmt;

use memchr::memchr;

/// The most bytes of a frame, with lengths and line ends.
pub const MAX_FRAME_BYTES: usize = 64 * 1024;
/// The most arguments of a command, the name included.
pub const MAX_ARGUMENTS: usize = 1024;
/// The longest inline command, line end included.
pub const MAX_INLINE_BYTES: usize = 4 * 1024;

/// The longest number before a line end: 64 bits and a sign.
const MAX_NUMBER_BYTES: usize = 20;
pub(super) const LINE_END: &[u8] = b"\r\n";

/// What the buffer begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RespFrame {
    /// A command. Its arguments are valid until the next frame is read.
    Whole {
        /// Length in bytes.
        length: usize,
        /// How it is framed.
        framing: Framing,
    },
    /// An empty line, or an empty or negative array: no command.
    Blank {
        /// Length in bytes.
        length: usize,
    },
    /// The beginning of a frame; more input is needed.
    Partial,
}

/// The framing of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// An array of bulk strings.
    Array,
    /// A line of words.
    Inline,
}

/// A protocol error. The start of the next frame is unknown, so the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The number of arguments is malformed or above [`MAX_ARGUMENTS`].
    ArrayLength,
    /// The number of arguments has too many digits.
    ArrayLengthTooLong,
    /// An argument is not a bulk string; its first byte.
    NotBulk(u8),
    /// The length of an argument is malformed.
    BulkLength,
    /// The length of an argument has too many digits.
    BulkLengthTooLong,
    /// An argument does not end where its length says.
    BulkEnd,
    /// The frame exceeds [`MAX_FRAME_BYTES`].
    FrameTooLarge,
    /// The line exceeds [`MAX_INLINE_BYTES`].
    InlineTooLong,
    /// A quote is unbalanced, ends inside a word, or contains an escape.
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

/// Incremental reader of frames.
#[derive(Debug, Default)]
pub struct FrameReader {
    stage: FrameStage,
    /// How many bytes of the current frame are parsed.
    parsed: usize,
    spans: Vec<ArgumentSpan>,
}

/// Start and end of an argument in its frame.
type ArgumentSpan = (usize, usize);

/// What the reader expects next.
#[derive(Debug, Clone, Copy, Default)]
enum FrameStage {
    /// The first byte of a frame.
    #[default]
    Start,
    /// The rest of an inline command.
    Inline,
    /// The number of arguments.
    Array,
    /// The length of an argument, with `remaining` arguments to come.
    BulkLength { remaining: usize },
    /// The bytes of an argument, with `remaining` arguments to come including this one.
    Bulk { remaining: usize, length: usize },
}

impl FrameReader {
    /// Reads the frame at the start of `input`. Until it is whole, later calls must pass the same bytes and more; afterwards they
    /// begin with the next frame.
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

    /// Whether no frame is partially read.
    pub(super) fn is_at_frame_start(&self) -> bool {
        matches!(self.stage, FrameStage::Start)
    }

    /// The arguments of the frame just read from `input`, the command's name first.
    pub fn arguments<'i>(&self, input: &'i [u8]) -> FrameArguments<'i, '_> {
        FrameArguments { input, spans: &self.spans }
    }

    /// Fast path: the length of an array that is complete and well-formed, which nearly every frame is. `None` leaves the frame to the
    /// incremental reader.
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
        // A shorter input than before violates the contract and must not panic.
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

    /// Splits an inline command into words.
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

/// Result of one parsing step.
enum FrameStep {
    Continue,
    NeedMore,
    Blank,
}

/// The arguments of a command, borrowed from the read buffer.
#[derive(Debug, Clone, Copy)]
pub struct FrameArguments<'i, 'r> {
    input: &'i [u8],
    spans: &'r [ArgumentSpan],
}

impl<'i> FrameArguments<'i, '_> {
    /// Number of arguments, the command's name included.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are none, not even a name.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The argument at this index; the name is at 0.
    pub fn get(&self, index: usize) -> Option<&'i [u8]> {
        let (start, end) = *self.spans.get(index)?;
        self.input.get(start..end)
    }

    /// Start and end of the argument at this index.
    pub(super) fn span(&self, index: usize) -> Option<(usize, usize)> {
        self.spans.get(index).copied()
    }

    /// All arguments in order.
    pub fn iter(&self) -> impl Iterator<Item = &'i [u8]> {
        self.spans.iter().filter_map(|(start, end)| self.input.get(*start..*end))
    }
}

/// The text before the line end; `None` if the line is incomplete.
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

/// A number of at most four digits on a line of this type, and the start of the next line.
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
        // A leading zero is malformed.
        if number == 0 || length > 4 {
            return None;
        }
        number = number * 10 + digit(byte)?;
        length += 1;
    }
}

/// A canonical decimal number: digits only, no leading zero.
pub(crate) fn parse_number(text: &[u8]) -> Option<u64> {
    match text {
        [] | [b'0', _, ..] => None,
        digits => digits.iter().try_fold(0_u64, |number, byte| {
            let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
            number.checked_mul(10)?.checked_add(digit)
        }),
    }
}

/// A number that fits `usize`.
fn parse_size(text: &[u8]) -> Option<usize> {
    parse_number(text).and_then(|number| usize::try_from(number).ok())
}

/// The word in quotes that begins at `start`, and where the line continues.
fn find_quoted(line: &[u8], start: usize, quote: u8) -> Option<(ArgumentSpan, usize)> {
    let end = start + memchr(quote, &line[start..])?;
    let escapes = memchr(b'\\', &line[start..end]).is_some();
    let goes_on = line.get(end + 1).is_some_and(|next| !is_space(*next));
    (!escapes && !goes_on).then_some(((start, end), end + 1))
}

fn is_space(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}
