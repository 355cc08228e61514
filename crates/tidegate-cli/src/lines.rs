//! Lines out of a stream, as many at once as have arrived.
//!
//! One read brings up to 256 KiB; all lines that are complete then are handed on together, and the rest waits for the
//! next read. So a fast stream is handled in large batches and a slow one line by line, without a timer, and whoever
//! writes once per batch has flushed whenever the input pauses.
//!
//! A line longer than [`LONGEST_LINE`] is not collected. It is handed on in parts, so that memory stays bounded
//! whatever arrives.

use std::io::{self, Read};

/// How much is read at once.
const CHUNK: usize = 256 * 1024;

/// The longest line that is looked at: 16 MiB, its end included.
pub(crate) const LONGEST_LINE: usize = 16 * 1024 * 1024;

/// What comes next in a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LineBatch<'a> {
    /// Whole lines with their ends. Only the last line of the stream may have none.
    Lines(&'a [u8]),
    /// A part of a line that is too long; whether it is the first.
    Overlong(&'a [u8], LinePart),
    /// There is nothing more.
    End,
}

/// Which part of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinePart {
    First,
    Further,
}

/// Reads lines.
#[derive(Debug)]
pub(crate) struct LineReader<R> {
    source: R,
    buffer: Vec<u8>,
    /// How much of the buffer has been handed on.
    consumed: usize,
    /// How much of it is known to hold no line end, beyond what was handed on.
    searched: usize,
    /// How much of it has been read into.
    filled: usize,
    inside_overlong: bool,
    ended: bool,
}

impl<R: Read> LineReader<R> {
    pub(crate) fn new(source: R) -> LineReader<R> {
        LineReader {
            source,
            buffer: Vec::new(),
            consumed: 0,
            searched: 0,
            filled: 0,
            inside_overlong: false,
            ended: false,
        }
    }

    /// The next piece; waits for input only if there is none.
    pub(crate) fn next(&mut self) -> io::Result<LineBatch<'_>> {
        loop {
            if let Some((end, part)) = self.piece() {
                let start = std::mem::replace(&mut self.consumed, end);
                self.searched = end;
                let piece = &self.buffer[start..end];
                return Ok(part.map_or(LineBatch::Lines(piece), |part| LineBatch::Overlong(piece, part)));
            }
            if self.ended {
                return Ok(LineBatch::End);
            }
            self.read()?;
        }
    }

    /// Where the next piece ends, if it is there, and which part of an overlong line it is.
    fn piece(&mut self) -> Option<(usize, Option<LinePart>)> {
        let unsearched = &self.buffer[self.searched..self.filled];
        if self.inside_overlong {
            let end = memchr::memchr(b'\n', unsearched).map(|at| self.searched + at + 1);
            self.inside_overlong = end.is_none();
            let end = end.unwrap_or(self.filled);
            return (end > self.consumed).then_some((end, Some(LinePart::Further)));
        }
        if let Some(at) = memchr::memrchr(b'\n', unsearched) {
            return Some((self.searched + at + 1, None));
        }
        self.searched = self.filled;
        if self.filled - self.consumed > LONGEST_LINE {
            self.inside_overlong = true;
            return Some((self.filled, Some(LinePart::First)));
        }
        (self.ended && self.filled > self.consumed).then_some((self.filled, None))
    }

    /// Reads once, behind what is not yet handed on.
    fn read(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.consumed..self.filled, 0);
        self.filled -= self.consumed;
        self.searched -= self.consumed;
        self.consumed = 0;
        if self.buffer.len() < self.filled + CHUNK {
            // Doubling, so that a long line is copied a constant number of times.
            self.buffer.resize((2 * self.filled).max(self.filled + CHUNK), 0);
        }
        match self.source.read(&mut self.buffer[self.filled..self.filled + CHUNK]) {
            Ok(0) => self.ended = true,
            Ok(count) => self.filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// The lines of a piece, each with its end.
pub(crate) fn split(piece: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    let ends = memchr::memchr_iter(b'\n', piece).map(|at| at + 1);
    let rest = (piece.last().is_some_and(|&b| b != b'\n')).then_some(piece.len());
    ends.chain(rest).map(move |end| &piece[std::mem::replace(&mut start, end)..end])
}

/// A piece without what follows its last line end.
pub(crate) fn whole(piece: &[u8]) -> &[u8] {
    &piece[..memchr::memrchr(b'\n', piece).map_or(0, |at| at + 1)]
}

/// Whether a line has nothing on it.
pub(crate) fn is_blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives out its pieces one read at a time.
    struct Script(Vec<Vec<u8>>);

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let next = self.0.remove(0);
            buffer[..next.len()].copy_from_slice(&next);
            Ok(next.len())
        }
    }

    fn reader(reads: &[&str]) -> LineReader<Script> {
        LineReader::new(Script(reads.iter().map(|read| read.as_bytes().to_vec()).collect()))
    }

    #[test]
    fn whole_lines_are_handed_on_as_they_arrive() {
        let mut lines = reader(&["a\nb\nc", "c\r\n", "d"]);
        assert_eq!(lines.next().unwrap(), LineBatch::Lines(b"a\nb\n"));
        assert_eq!(lines.next().unwrap(), LineBatch::Lines(b"cc\r\n"));
        assert_eq!(lines.next().unwrap(), LineBatch::Lines(b"d"));
        assert_eq!(lines.next().unwrap(), LineBatch::End);
        assert_eq!(lines.next().unwrap(), LineBatch::End);
    }

    #[test]
    fn a_line_that_is_too_long_comes_in_parts_and_the_next_one_is_whole() {
        let mut reads = vec!["x".repeat(CHUNK); LONGEST_LINE / CHUNK];
        reads.extend(["y".into(), "yy".into(), "y\nz\nzz".into(), "z\n".into()]);
        let reads: Vec<&str> = reads.iter().map(String::as_str).collect();
        let mut lines = reader(&reads);
        assert!(
            matches!(lines.next().unwrap(), LineBatch::Overlong(part, LinePart::First) if part.len() == LONGEST_LINE + 1)
        );
        assert_eq!(lines.next().unwrap(), LineBatch::Overlong(b"yy", LinePart::Further));
        assert_eq!(lines.next().unwrap(), LineBatch::Overlong(b"y\n", LinePart::Further));
        assert_eq!(lines.next().unwrap(), LineBatch::Lines(b"z\n"));
        assert_eq!(lines.next().unwrap(), LineBatch::Lines(b"zzz\n"));
        assert_eq!(lines.next().unwrap(), LineBatch::End);
    }

    #[test]
    fn splitting_keeps_the_ends() {
        let lines: Vec<&[u8]> = split(b"a\r\n\nb").collect();
        assert_eq!(lines, [&b"a\r\n"[..], b"\n", b"b"]);
        assert_eq!(split(b"").count(), 0);
    }
}
