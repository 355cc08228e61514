//! Writing at the end of a file past the system's cache.
//!
//! A log is written once, in order, and synced after every block. The cache only stands in the way of that: every block is copied into it, looked
//! for in it and written from it. Past the cache whole pages are written, so the page in which a block ends is written again with the next one,
//! as the cache would do it too. What stands behind the end in that page are zeros, which the file has there anyhow.
//!
//! Decided: this is for appends to a file that holds zeros from its end on, and for nothing else. Whoever writes anywhere else goes through the cache.
//!
//! Not every file system does this. One that does not says so when the file is opened, or when it is first written; then the cache is used.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::preallocated_segment::proc_path;

/// What is written starts and ends at multiples of this, in the file and in memory. Some disks want less.
pub(super) const ALIGNMENT: usize = 4096;

/// How much is written at once.
const CHUNK: usize = 256 << 10;

/// The end of a file that holds zeros behind it.
#[derive(Debug)]
pub(super) struct DirectWriter {
    file: fs::File,
    buffer: AlignedBuffer,
    /// Where in the file the buffer begins.
    start: u64,
    /// How many bytes of the file are in it.
    held: usize,
}

/// What came of a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DirectWrite {
    /// All of it is written.
    Done,
    /// This file system does not do this, and it is unknown how much was written.
    Unsupported,
}

impl DirectWriter {
    /// The end of this file, which holds zeros from here on; `None` if the cache cannot be passed.
    pub(super) fn of(file: &fs::File, end: u64) -> io::Result<Option<DirectWriter>> {
        let flags = OFlags::DIRECT.bits().cast_signed();
        let Ok(direct) = OpenOptions::new().write(true).custom_flags(flags).open(proc_path(file)) else {
            return Ok(None);
        };
        DirectWriter::through(direct, file, end)
    }

    /// The same, where the file is opened already in the way in which it is written.
    pub(super) fn through(direct: fs::File, file: &fs::File, end: u64) -> io::Result<Option<DirectWriter>> {
        let Some(mut buffer) = AlignedBuffer::new(CHUNK) else { return Ok(None) };
        let start = end - end % ALIGNMENT as u64;
        let held = usize::try_from(end - start).expect("less than a page");
        file.read_exact_at(&mut buffer.bytes()[..held], start)?;
        Ok(Some(DirectWriter { file: direct, buffer, start, held }))
    }

    /// Where the next byte goes.
    pub(super) fn end(&self) -> u64 {
        self.start + self.held as u64
    }

    /// Writes this at the end. After an error nothing more can be written.
    pub(super) fn append(&mut self, mut bytes: &[u8]) -> io::Result<DirectWrite> {
        while !bytes.is_empty() {
            let (some, rest) = bytes.split_at(bytes.len().min(CHUNK - self.held));
            bytes = rest;
            let buffer = self.buffer.bytes();
            let end = self.held + some.len();
            let padded = end.next_multiple_of(ALIGNMENT);
            buffer[self.held..end].copy_from_slice(some);
            buffer[end..padded].fill(0);
            match self.file.write_all_at(&buffer[..padded], self.start) {
                Ok(()) => {}
                Err(error) if is_refusal(&error) => return Ok(DirectWrite::Unsupported),
                Err(error) => return Err(error),
            }
            let whole = end - end % ALIGNMENT;
            buffer.copy_within(whole..end, 0);
            self.start += whole as u64;
            self.held = end - whole;
        }
        Ok(DirectWrite::Done)
    }

    /// Writes zeros from here to there, both multiples of [`ALIGNMENT`], behind the page in which the end is.
    pub(super) fn fill(&self, from: u64, to: u64) -> io::Result<DirectWrite> {
        fill(&self.file, from, to)
    }
}

/// Writes zeros from here to there, both multiples of [`ALIGNMENT`], into a file that may be opened to be written past the cache.
pub(super) fn fill(file: &fs::File, from: u64, to: u64) -> io::Result<DirectWrite> {
    let Some(mut zeros) = AlignedBuffer::new(CHUNK) else { return Ok(DirectWrite::Unsupported) };
    let mut at = from;
    while at < to {
        let count = usize::try_from(to - at).map_or(CHUNK, |left| left.min(CHUNK));
        match file.write_all_at(&zeros.bytes()[..count], at) {
            Ok(()) => at += count as u64,
            Err(error) if is_refusal(&error) => return Ok(DirectWrite::Unsupported),
            Err(error) => return Err(error),
        }
    }
    Ok(DirectWrite::Done)
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INVAL | Errno::OPNOTSUPP))
}

/// Memory that begins at a multiple of [`ALIGNMENT`].
#[derive(Debug)]
struct AlignedBuffer {
    room: Vec<u8>,
    from: usize,
    length: usize,
}

impl AlignedBuffer {
    /// So many zeros.
    fn new(length: usize) -> Option<AlignedBuffer> {
        let room = vec![0; length + ALIGNMENT];
        let from = room.as_ptr().align_offset(ALIGNMENT);
        (from <= ALIGNMENT).then_some(AlignedBuffer { room, from, length })
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.room[self.from..][..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_appended_in_pieces_is_there_in_one() {
        let path = std::env::temp_dir().join(format!("tidegate-direct-{}", std::process::id()));
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("there is room");
        let length = 4 * CHUNK;
        file.set_len(length as u64).expect("there is room");
        let other = file.try_clone().expect("one more");
        let direct = DirectWriter::through(other, &file, 0).expect("it can be read");
        let mut direct = direct.expect("there is memory");
        let mut expected = Vec::new();
        for (index, piece) in [64, 1, 4031, 4096, 4097, 300, 2 * CHUNK + 5, 7].into_iter().enumerate() {
            let bytes: Vec<u8> =
                (0..piece).map(|at| u8::try_from((at * 7 + index) % 251 + 1).expect("small")).collect();
            assert_eq!(direct.end(), expected.len() as u64);
            assert_eq!(direct.append(&bytes).expect("there is room"), DirectWrite::Done);
            expected.extend_from_slice(&bytes);
            let mut found = vec![9; length];
            file.read_exact_at(&mut found, 0).expect("it is that long");
            let (front, behind) = found.split_at(expected.len());
            assert!(front == expected && behind.iter().all(|byte| *byte == 0), "after piece {index}");
        }
        fs::remove_file(path).expect("it is there");
    }
}
