//! A file of the file system.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::direct_io::{ALIGNMENT, DirectWrite, DirectWriter};
use super::preallocated_segment::SegmentPreallocator;
use crate::directory::DirectoryFile;

/// The size of one write where the file system cannot reserve space without writing.
const ZERO_CHUNK: usize = 64 << 10;

/// How far ahead of the last write a reserved file is filled with zeros.
const ZERO_AHEAD: u64 = 1 << 20;

/// A file of the file system.
///
/// Writing to reserved space is slow, because the file system journals at every sync which parts are
/// initialized. Unless the file was [preallocated](SegmentPreallocator), it is filled with zeros some
/// distance ahead of the writer. Then most syncs have nothing to journal.
#[derive(Debug)]
pub(super) struct RealFile {
    file: fs::File,
    space: Mutex<ReservedSpace>,
    preallocator: Arc<SegmentPreallocator>,
}

/// The reserved space of a file.
#[derive(Debug, Default)]
struct ReservedSpace {
    /// The length of the reserved space.
    reserved: u64,
    /// The end of the initialized part, including zeros.
    initialized: u64,
    /// The direct writer, as long as all writes are appends.
    direct: Option<DirectWriter>,
    /// Whether the preallocation of the next segment is still to be started.
    wants_next_segment: bool,
}

impl DirectoryFile for RealFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < buffer.len() {
            match self.file.read_at(&mut buffer[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut space = self.space();
        let end = offset + bytes.len() as u64;
        if space.wants_next_segment && end > space.reserved / 2 {
            space.wants_next_segment = false;
            self.preallocator.start(space.reserved);
        }
        if space.write_direct(bytes, offset)? == DirectWrite::Unsupported {
            self.file.write_all_at(bytes, offset)?;
            self.fill_ahead(&mut space, end)?;
        }
        Ok(())
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        let mut space = self.space();
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, length) {
            Ok(()) => {
                space.reserved = length;
                Ok(())
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(length),
            Err(error) => Err(error.into()),
        }
    }

    fn appends_from(&self, end: u64) {
        let mut space = self.space();
        let length = self.file.metadata().map_or(0, |found| found.len());
        if !SegmentPreallocator::supports_length(length) {
            return;
        }
        // An error only disables the optimization.
        space.direct = DirectWriter::of(&self.file, end).ok().flatten();
        (space.reserved, space.initialized) = (length, space.initialized.max(end));
        space.wants_next_segment = true;
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

impl RealFile {
    pub(super) fn of(file: fs::File, preallocator: &Arc<SegmentPreallocator>) -> RealFile {
        RealFile { file, space: Mutex::default(), preallocator: Arc::clone(preallocator) }
    }

    /// A file that holds only zeros.
    pub(super) fn preallocated(
        file: fs::File,
        length: u64,
        preallocator: &Arc<SegmentPreallocator>,
    ) -> RealFile {
        let space = ReservedSpace { reserved: length, initialized: length, ..ReservedSpace::default() };
        RealFile { file, space: Mutex::new(space), preallocator: Arc::clone(preallocator) }
    }

    fn space(&self) -> MutexGuard<'_, ReservedSpace> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills the reserved space with zeros if the writer has reached the end of the initialized part.
    fn fill_ahead(&self, space: &mut ReservedSpace, end: u64) -> io::Result<()> {
        if end <= space.initialized || end >= space.reserved {
            return Ok(());
        }
        let to = space.reserved.min(end + ZERO_AHEAD);
        let zeros = vec![0; usize::try_from(to - end).unwrap_or_default()];
        self.file.write_all_at(&zeros, end)?;
        space.initialized = to;
        Ok(())
    }

    /// Reserves space by writing zeros from the present end on.
    fn write_zeros(&self, length: u64) -> io::Result<()> {
        let zeros = vec![0; ZERO_CHUNK];
        let mut at = self.length()?;
        while at < length {
            let count = usize::try_from(length - at).map_or(ZERO_CHUNK, |left| left.min(ZERO_CHUNK));
            self.file.write_all_at(&zeros[..count], at)?;
            at += count as u64;
        }
        Ok(())
    }
}

impl ReservedSpace {
    /// Writes with direct I/O if this is an append and direct I/O is available.
    fn write_direct(&mut self, bytes: &[u8], offset: u64) -> io::Result<DirectWrite> {
        let (end, page) = (offset + bytes.len() as u64, ALIGNMENT as u64);
        // Taken out first: a direct writer that fails is not used again.
        let Some(mut direct) = self.direct.take().filter(|it| it.end() == offset && end <= self.reserved)
        else {
            return Ok(DirectWrite::Unsupported);
        };
        if end > self.initialized {
            let to = self.reserved.min((end + ZERO_AHEAD).next_multiple_of(page));
            if direct.fill(self.initialized.next_multiple_of(page), to)? == DirectWrite::Unsupported {
                return Ok(DirectWrite::Unsupported);
            }
            self.initialized = to;
        }
        let written = direct.append(bytes)?;
        if written == DirectWrite::Done {
            self.direct = Some(direct);
        }
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::path::PathBuf;

    const LENGTH: u64 = 2 << 20;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tidegate-file-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("there is room");
        folder
    }

    fn file(folder: &std::path::Path) -> RealFile {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(folder.join("a"));
        let preallocator = Arc::new(SegmentPreallocator::of(folder.to_owned()));
        let file = RealFile::of(file.expect("there is room"), &preallocator);
        file.reserve(LENGTH).expect("there is room");
        file
    }

    fn content(file: &RealFile) -> Vec<u8> {
        let mut bytes = vec![9; usize::try_from(LENGTH).expect("small")];
        assert_eq!(file.read_at(&mut bytes, 0).expect("it is open"), bytes.len());
        bytes
    }

    /// Reads return the written bytes in any order of writes, also after the hint that the file is appended
    /// to.
    #[test]
    fn direct_and_cached_writes_are_read_back() {
        let folder = folder("orders");
        let file = file(&folder);
        let mut expected = content(&file);
        let mut write = |length: usize, offset: usize| {
            let bytes: Vec<u8> =
                (offset..offset + length).map(|at| (at % 251).to_le_bytes()[0] + 1).collect();
            file.write_at(&bytes, offset as u64).expect("there is room");
            expected[offset..offset + length].copy_from_slice(&bytes);
            file.sync().expect("it can be synced");
            assert!(content(&file) == expected, "{length} bytes at {offset}");
        };
        write(5000, 0);
        file.appends_from(5000);
        write(100, 5000);
        write(1_200_000, 5100);
        write(7, 1_205_100);
        // Not at the end: from here on through the page cache.
        write(3, 1_300_000);
        write(9000, 1_205_107);
        file.appends_from(1_300_003);
        write(50, 1_300_003);
        // Up to the end of the file.
        write(700_000, 1_300_053);
        write(usize::try_from(LENGTH).expect("small") - 2_000_053, 2_000_053);
        fs::remove_dir_all(folder).expect("it is there");
    }

    /// A file that can be opened and then refuses the write: the kernel accepts only numbers here.
    #[test]
    fn unsupported_direct_write_falls_back_to_cache() {
        let folder = folder("refused");
        let file = file(&folder);
        let refusing = OpenOptions::new().write(true).open("/proc/self/oom_score_adj").expect("it is Linux");
        let direct = DirectWriter::through(refusing, &file.file, 0).expect("it can be read");
        *file.space() =
            ReservedSpace { reserved: LENGTH, initialized: LENGTH, direct, wants_next_segment: false };
        file.write_at(b"hello", 0).expect("through the cache");
        file.write_at(b" world", 5).expect("through the cache");
        assert!(file.space().direct.is_none(), "it is not tried again");
        assert!(content(&file).starts_with(b"hello world\0"));
        fs::remove_dir_all(folder).expect("it is there");
    }
}
