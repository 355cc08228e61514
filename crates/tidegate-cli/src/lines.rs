//! Splits a stream into batches of lines.
//!
//! One read returns up to 256 KiB. All complete lines form a batch; the rest waits for the next read. So a fast
//! stream is processed in large batches and a slow one line by line, without a timer.
//!
//! A line longer than [`LONGEST_LINE`] is returned in parts, so that memory stays bounded.

use std::io::{self, Read};

/// Read size.
const CHUNK: usize = 256 * 1024;

/// Longest line that is collected: 16 MiB with its end.
pub(crate) const LONGEST_LINE: usize = 16 * 1024 * 1024;

/// The next piece of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LineBatch<'a> {
    /// Whole lines with their ends. Only the last line of the stream may have none.
    Lines(&'a [u8]),
    /// A part of a line that is too long.
    Overlong(&'a [u8], LinePart),
    /// The end of the stream.
    End,
}

/// Position of a part in its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinePart {
    First,
    Further,
}

/// Reads batches of lines.
#[derive(Debug)]
pub(crate) struct LineReader<R> {
    source: R,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were returned.
    consumed: usize,
    /// Bytes after those that are known to have no line end.
    searched: usize,
    /// Bytes of the buffer that are filled.
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

    /// The next batch. Reads only if the buffer has none.
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

    /// The end of the next batch in the buffer, and the part if its line is too long.
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

    /// Reads once, after moving unreturned bytes to the front.
    fn read(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.consumed..self.filled, 0);
        self.filled -= self.consumed;
        self.searched -= self.consumed;
        self.consumed = 0;
        if self.buffer.len() < self.filled + CHUNK {
            // Doubling keeps the copying of a long line linear.
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

/// The lines of a batch with their ends.
pub(crate) fn split(piece: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    let ends = memchr::memchr_iter(b'\n', piece).map(|at| at + 1);
    let rest = (piece.last().is_some_and(|&b| b != b'\n')).then_some(piece.len());
    ends.chain(rest).map(move |end| &piece[std::mem::replace(&mut start, end)..end])
}

/// A batch without an incomplete last line.
pub(crate) fn whole(piece: &[u8]) -> &[u8] {
    &piece[..memchr::memrchr(b'\n', piece).map_or(0, |at| at + 1)]
}

/// Whether a line is blank.
pub(crate) fn is_blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source that returns one piece per read.
    struct ScriptedReader(Vec<Vec<u8>>);

    impl Read for ScriptedReader {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let next = self.0.remove(0);
            buffer[..next.len()].copy_from_slice(&next);
            Ok(next.len())
        }
    }

    fn reader(reads: &[&str]) -> LineReader<ScriptedReader> {
        LineReader::new(ScriptedReader(reads.iter().map(|read| read.as_bytes().to_vec()).collect()))
    }

    #[test]
    fn complete_lines_form_a_batch() {
        let mut lines = reader(&["a\nb\nc", "c\r\n", "d"]);
        assert_eq!(lines.next().unwrap(), LineBatch::Lines(b"a\nb\n"));
        assert_eq!(lines.next().unwrap(), LineBatch::Lines(b"cc\r\n"));
        assert_eq!(lines.next().unwrap(), LineBatch::Lines(b"d"));
        assert_eq!(lines.next().unwrap(), LineBatch::End);
        assert_eq!(lines.next().unwrap(), LineBatch::End);
    }

    #[test]
    fn overlong_line_is_returned_in_parts() {
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
    fn split_keeps_line_ends() {
        let lines: Vec<&[u8]> = split(b"a\r\n\nb").collect();
        assert_eq!(lines, [&b"a\r\n"[..], b"\n", b"b"]);
        assert_eq!(split(b"").count(), 0);
    }
}
