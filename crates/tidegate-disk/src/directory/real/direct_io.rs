//! Appends to a file with direct I/O, past the page cache.
//!
//! A log is written once, sequentially, and synced after every block. The page cache only adds a copy and a
//! lookup per block. Direct I/O writes whole pages, so the last page of a block is written again with the
//! next block, as the page cache would do. The rest of that page holds zeros, which the file has there
//! anyway.
//!
//! Direct I/O is used only for appends to a file that holds zeros after its end. All other writes use the
//! page cache.
//!
//! Some file systems do not support direct I/O. They report it when the file is opened or at the first write,
//! and the page cache is used instead.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::preallocated_segment::proc_path;

/// The alignment of writes in the file and in memory. Some disks accept less.
pub(super) const ALIGNMENT: usize = 4096;

/// The maximum size of one write.
const CHUNK: usize = 256 << 10;

/// Appends to a file with zeros after its end.
#[derive(Debug)]
pub(super) struct DirectWriter {
    file: fs::File,
    buffer: AlignedBuffer,
    /// The file offset of the buffer.
    start: u64,
    /// The number of file bytes in the buffer.
    held: usize,
}

/// The outcome of a direct write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DirectWrite {
    /// All bytes were written.
    Done,
    /// The file system does not support direct I/O. An unknown part was written.
    Unsupported,
}

impl DirectWriter {
    /// Opens a writer at the end of a file that holds zeros from there on. `None` if direct I/O is not
    /// supported.
    pub(super) fn of(file: &fs::File, end: u64) -> io::Result<Option<DirectWriter>> {
        let flags = OFlags::DIRECT.bits().cast_signed();
        let Ok(direct) = OpenOptions::new().write(true).custom_flags(flags).open(proc_path(file)) else {
            return Ok(None);
        };
        DirectWriter::through(direct, file, end)
    }

    /// Creates a writer from a file that is already open for direct I/O.
    pub(super) fn through(direct: fs::File, file: &fs::File, end: u64) -> io::Result<Option<DirectWriter>> {
        let Some(mut buffer) = AlignedBuffer::new(CHUNK) else { return Ok(None) };
        let start = end - end % ALIGNMENT as u64;
        let held = usize::try_from(end - start).expect("less than a page");
        file.read_exact_at(&mut buffer.bytes()[..held], start)?;
        Ok(Some(DirectWriter { file: direct, buffer, start, held }))
    }

    /// The offset of the next byte.
    pub(super) fn end(&self) -> u64 {
        self.start + self.held as u64
    }

    /// Appends bytes. After an error the writer must not be used again.
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

    /// Writes zeros between two multiples of [`ALIGNMENT`] after the page that contains the end.
    pub(super) fn fill(&self, from: u64, to: u64) -> io::Result<DirectWrite> {
        fill(&self.file, from, to)
    }
}

/// Writes zeros between two multiples of [`ALIGNMENT`] to a file that may be open for direct I/O.
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

/// Memory aligned to [`ALIGNMENT`].
#[derive(Debug)]
struct AlignedBuffer {
    room: Vec<u8>,
    from: usize,
    length: usize,
}

impl AlignedBuffer {
    /// Allocates zeroed memory.
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
    fn direct_appends_form_contiguous_file() {
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
