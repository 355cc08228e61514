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
pub const LARGEST_FRAME: usize = 64 * 1024;
/// The most arguments of a command, its name included.
pub const MOST_ARGUMENTS: usize = 1024;
/// The longest line that is not an array, its end included.
pub const LONGEST_LINE: usize = 4 * 1024;

/// The longest number in front of an array or a bulk string. 64 bits and a sign fit.
const LONGEST_NUMBER: usize = 20;
pub(super) const LINE_END: &[u8] = b"\r\n";

/// What the bytes at the beginning of the buffer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
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
    Half,
}

/// How a command was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// As an array of bulk strings.
    Array,
    /// As a line of words.
    Line,
}

/// Why the bytes are no frame. There is no telling where the next one would begin, so the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The number of arguments is no number, or above [`MOST_ARGUMENTS`].
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
    /// The frame is above [`LARGEST_FRAME`].
    FrameTooLarge,
    /// The line is above [`LONGEST_LINE`].
    LineTooLong,
    /// A quote that does not close, closes in the middle of a word, or has an escape in it.
    Quotes,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Protocol error: ")?;
        match self {
            Fault::ArrayLength => f.write_str("invalid multibulk length"),
            Fault::ArrayLengthTooLong => f.write_str("too big mbulk count string"),
            Fault::NotBulk(found) => write!(f, "expected '$', got '{}'", found.escape_ascii()),
            Fault::BulkLength => f.write_str("invalid bulk length"),
            Fault::BulkLengthTooLong => f.write_str("too big bulk count string"),
            Fault::BulkEnd => f.write_str("a bulk string must end where its length says"),
            Fault::FrameTooLarge => write!(f, "a frame has at most {LARGEST_FRAME} bytes"),
            Fault::LineTooLong => f.write_str("too big inline request"),
            Fault::Quotes => f.write_str("unbalanced quotes in request"),
        }
    }
}

/// Finds one frame after the other.
#[derive(Debug, Default)]
pub struct Reader {
    stage: Stage,
    /// How much of the frame has been understood.
    seen: usize,
    spans: Vec<Span>,
}

/// Where an argument begins in its frame, and where it ends.
type Span = (usize, usize);

/// What comes next.
#[derive(Debug, Clone, Copy, Default)]
enum Stage {
    /// A frame.
    #[default]
    Start,
    /// The rest of a line.
    Line,
    /// How many arguments there are.
    Array,
    /// The length of an argument; so many are due.
    BulkLength { due: usize },
    /// The bytes of an argument of this length; so many are due, this one included.
    Bulk { due: usize, length: usize },
}

impl Reader {
    /// Reads the frame that `input` begins with. Until it is whole, later inputs begin with the same bytes and only grow; after it, or
    /// after a fault, they begin with another.
    pub fn read(&mut self, input: &[u8]) -> Result<Frame, Fault> {
        if matches!(self.stage, Stage::Start)
            && let Some(length) = self.whole(input)
        {
            return Ok(Frame::Whole { length, framing: Framing::Array });
        }
        let read = self.advance(input);
        if !matches!(read, Ok(Frame::Half)) {
            (self.stage, self.seen) = (Stage::Start, 0);
        }
        read
    }

    /// Whether no frame has begun.
    pub(super) fn is_between(&self) -> bool {
        matches!(self.stage, Stage::Start)
    }

    /// The arguments of the frame that was just read from `input`, the name of the command first.
    pub fn arguments<'i>(&self, input: &'i [u8]) -> Arguments<'i, '_> {
        Arguments { input, spans: &self.spans }
    }

    /// The length of an array that is there in one piece and has nothing odd about it: nearly every frame. Whatever it does not take
    /// is read step by step.
    fn whole(&mut self, input: &[u8]) -> Option<usize> {
        let (count, mut at) = short_number(input, b'*', 0)?;
        if count == 0 || count > MOST_ARGUMENTS {
            return None;
        }
        self.spans.clear();
        for _ in 0..count {
            let (length, start) = short_number(input, b'$', at)?;
            let end = start + length;
            if input.get(end..end + LINE_END.len())? != LINE_END {
                return None;
            }
            self.spans.push((start, end));
            at = end + LINE_END.len();
        }
        (at <= LARGEST_FRAME).then_some(at)
    }

    fn advance(&mut self, input: &[u8]) -> Result<Frame, Fault> {
        // An input that is shorter than before breaks the contract; it still must not break us.
        while let Some(rest) = input.get(self.seen..) {
            let step = match self.stage {
                Stage::Start => self.begin(rest),
                Stage::Line => return self.line(input),
                Stage::Array => self.array(rest)?,
                Stage::BulkLength { due: 0 } => {
                    return Ok(Frame::Whole { length: self.seen, framing: Framing::Array });
                }
                Stage::BulkLength { due } => self.bulk_length(rest, due)?,
                Stage::Bulk { due, length } => self.bulk(rest, due, length)?,
            };
            match step {
                Step::On => {}
                Step::Stuck => break,
                Step::Blank => return Ok(Frame::Blank { length: self.seen }),
            }
        }
        Ok(Frame::Half)
    }

    fn begin(&mut self, rest: &[u8]) -> Step {
        self.spans.clear();
        (self.stage, self.seen) = match rest.first() {
            None => return Step::Stuck,
            Some(b'*') => (Stage::Array, 1),
            Some(_) => (Stage::Line, 0),
        };
        Step::On
    }

    fn array(&mut self, rest: &[u8]) -> Result<Step, Fault> {
        let Some(text) = number_line(rest, Fault::ArrayLengthTooLong, Fault::ArrayLength)? else {
            return Ok(Step::Stuck);
        };
        self.seen += text.len() + LINE_END.len();
        if let Some(below_zero) = text.strip_prefix(b"-") {
            let negative = number(below_zero).filter(|number| *number > 0);
            return negative.map(|_| Step::Blank).ok_or(Fault::ArrayLength);
        }
        match size(text) {
            Some(0) => Ok(Step::Blank),
            Some(due) if due <= MOST_ARGUMENTS => {
                self.stage = Stage::BulkLength { due };
                Ok(Step::On)
            }
            _ => Err(Fault::ArrayLength),
        }
    }

    fn bulk_length(&mut self, rest: &[u8], due: usize) -> Result<Step, Fault> {
        let text = match rest.split_first() {
            None => return Ok(Step::Stuck),
            Some((b'$', text)) => number_line(text, Fault::BulkLengthTooLong, Fault::BulkLength)?,
            Some((other, _)) => return Err(Fault::NotBulk(*other)),
        };
        let Some(text) = text else { return Ok(Step::Stuck) };
        let length = size(text).ok_or(Fault::BulkLength)?;
        self.seen += 1 + text.len() + LINE_END.len();
        let whole = length.checked_add(self.seen + LINE_END.len());
        if whole.is_none_or(|whole| whole > LARGEST_FRAME) {
            return Err(Fault::FrameTooLarge);
        }
        self.stage = Stage::Bulk { due, length };
        Ok(Step::On)
    }

    fn bulk(&mut self, rest: &[u8], due: usize, length: usize) -> Result<Step, Fault> {
        match rest.get(length..length + LINE_END.len()) {
            None => Ok(Step::Stuck),
            Some(LINE_END) => {
                self.spans.push((self.seen, self.seen + length));
                self.seen += length + LINE_END.len();
                self.stage = Stage::BulkLength { due: due - 1 };
                Ok(Step::On)
            }
            Some(_) => Err(Fault::BulkEnd),
        }
    }

    fn line(&mut self, input: &[u8]) -> Result<Frame, Fault> {
        let window = &input[..input.len().min(LONGEST_LINE)];
        let Some(end) = memchr(b'\n', window) else {
            return if window.len() < LONGEST_LINE { Ok(Frame::Half) } else { Err(Fault::LineTooLong) };
        };
        let line = &input[..end];
        self.split(line.strip_suffix(b"\r").unwrap_or(line))?;
        let length = end + 1;
        if self.spans.is_empty() {
            return Ok(Frame::Blank { length });
        }
        Ok(Frame::Whole { length, framing: Framing::Line })
    }

    /// Finds the words of a line.
    fn split(&mut self, line: &[u8]) -> Result<(), Fault> {
        let mut at = 0;
        while let Some(&first) = line.get(at) {
            if is_space(first) {
                at += 1;
                continue;
            }
            if self.spans.len() == MOST_ARGUMENTS {
                return Err(Fault::ArrayLength);
            }
            let (word, after) = if first == b'"' || first == b'\'' {
                quoted(line, at + 1, first).ok_or(Fault::Quotes)?
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
enum Step {
    On,
    Stuck,
    Blank,
}

/// The arguments of a command, where they were read.
#[derive(Debug, Clone, Copy)]
pub struct Arguments<'i, 'r> {
    input: &'i [u8],
    spans: &'r [Span],
}

impl<'i> Arguments<'i, '_> {
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
fn number_line(rest: &[u8], too_long: Fault, invalid: Fault) -> Result<Option<&[u8]>, Fault> {
    let window = &rest[..rest.len().min(LONGEST_NUMBER + 1)];
    match memchr(b'\r', window) {
        Some(end) => match rest.get(end + 1) {
            None => Ok(None),
            Some(b'\n') => Ok(Some(&rest[..end])),
            Some(_) => Err(invalid),
        },
        None if window.len() > LONGEST_NUMBER => Err(too_long),
        None => Ok(None),
    }
}

/// A number of at most four digits on a line of this kind, and where the next line begins.
#[inline]
pub(super) fn short_number(input: &[u8], kind: u8, at: usize) -> Option<(usize, usize)> {
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
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    match text {
        [] | [b'0', _, ..] => None,
        digits => digits.iter().try_fold(0_u64, |number, byte| {
            let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
            number.checked_mul(10)?.checked_add(digit)
        }),
    }
}

/// A number of things in memory.
fn size(text: &[u8]) -> Option<usize> {
    number(text).and_then(|number| usize::try_from(number).ok())
}

/// The word whose quote opened just before `start`, and where the line goes on.
fn quoted(line: &[u8], start: usize, quote: u8) -> Option<(Span, usize)> {
    let end = start + memchr(quote, &line[start..])?;
    let escapes = memchr(b'\\', &line[start..end]).is_some();
    let goes_on = line.get(end + 1).is_some_and(|next| !is_space(*next));
    (!escapes && !goes_on).then_some(((start, end), end + 1))
}

fn is_space(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}
