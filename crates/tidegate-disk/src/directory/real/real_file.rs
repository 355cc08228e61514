//! A file of the file system.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::direct_io::{PAGE, Straight, Written};
use super::preallocated_segment::Spares;
use crate::directory::File;

/// How much is written at once where the file system cannot make room without writing.
const ZEROS: usize = 64 << 10;

/// How far ahead of what is written a reserved file is filled with zeros.
const AHEAD: u64 = 1 << 20;

/// A file of the file system.
///
/// Room that is only reserved is slow to write to: file systems note in their own journal which of it has been written, at every sync. So a
/// reserved file is filled with zeros a stretch ahead of its writer, if it is not one that was [filled before](Spares), and most syncs find
/// nothing to note.
#[derive(Debug)]
pub(super) struct RealFile {
    file: fs::File,
    room: Mutex<Room>,
    spares: Arc<Spares>,
}

/// What is known of the room of a file.
#[derive(Debug, Default)]
struct Room {
    /// How much was reserved.
    reserved: u64,
    /// How much of that has been written, zeros included.
    written: u64,
    /// The way past the cache, as long as everything was written at the end.
    straight: Option<Straight>,
    /// Whether another file like this will be wanted, and nobody was told.
    wants_another: bool,
}

impl File for RealFile {
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
        let mut room = self.room();
        let end = offset + bytes.len() as u64;
        if room.wants_another && end > room.reserved / 2 {
            room.wants_another = false;
            self.spares.make(room.reserved);
        }
        if room.write_straight(bytes, offset)? == Written::Refused {
            self.file.write_all_at(bytes, offset)?;
            self.fill_ahead(&mut room, end)?;
        }
        Ok(())
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        let mut room = self.room();
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, length) {
            Ok(()) => {
                room.reserved = length;
                Ok(())
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(length),
            Err(error) => Err(error.into()),
        }
    }

    fn appends_from(&self, end: u64) {
        let mut room = self.room();
        let length = self.file.metadata().map_or(0, |found| found.len());
        if !Spares::are_of(length) {
            return;
        }
        // Whatever goes wrong here goes wrong only for who wants to be quicker.
        room.straight = Straight::of(&self.file, end).ok().flatten();
        (room.reserved, room.written) = (length, room.written.max(end));
        room.wants_another = true;
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

impl RealFile {
    pub(super) fn of(file: fs::File, spares: &Arc<Spares>) -> RealFile {
        RealFile { file, room: Mutex::default(), spares: Arc::clone(spares) }
    }

    /// A file that holds so many zeros and nothing else.
    pub(super) fn filled(file: fs::File, length: u64, spares: &Arc<Spares>) -> RealFile {
        let room = Room { reserved: length, written: length, ..Room::default() };
        RealFile { file, room: Mutex::new(room), spares: Arc::clone(spares) }
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills what is reserved with zeros, if the writer has come to the end of those.
    fn fill_ahead(&self, room: &mut Room, end: u64) -> io::Result<()> {
        if end <= room.written || end >= room.reserved {
            return Ok(());
        }
        let to = room.reserved.min(end + AHEAD);
        let zeros = vec![0; usize::try_from(to - end).unwrap_or_default()];
        self.file.write_all_at(&zeros, end)?;
        room.written = to;
        Ok(())
    }

    /// Makes room by writing it, from the present end on.
    fn write_zeros(&self, length: u64) -> io::Result<()> {
        let zeros = vec![0; ZEROS];
        let mut at = self.length()?;
        while at < length {
            let count = usize::try_from(length - at).map_or(ZEROS, |left| left.min(ZEROS));
            self.file.write_all_at(&zeros[..count], at)?;
            at += count as u64;
        }
        Ok(())
    }
}

impl Room {
    /// Writes past the cache, if this is the end of the file and that can be done.
    fn write_straight(&mut self, bytes: &[u8], offset: u64) -> io::Result<Written> {
        let (end, page) = (offset + bytes.len() as u64, PAGE as u64);
        // Whatever else comes of it, a way on which something went wrong is not taken again.
        let Some(mut straight) = self.straight.take().filter(|it| it.end() == offset && end <= self.reserved)
        else {
            return Ok(Written::Refused);
        };
        if end > self.written {
            let to = self.reserved.min((end + AHEAD).next_multiple_of(page));
            if straight.fill(self.written.next_multiple_of(page), to)? == Written::Refused {
                return Ok(Written::Refused);
            }
            self.written = to;
        }
        let written = straight.append(bytes)?;
        if written == Written::All {
            self.straight = Some(straight);
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
        let spares = Arc::new(Spares::of(folder.to_owned()));
        let file = RealFile::of(file.expect("there is room"), &spares);
        file.reserve(LENGTH).expect("there is room");
        file
    }

    fn content(file: &RealFile) -> Vec<u8> {
        let mut bytes = vec![9; usize::try_from(LENGTH).expect("small")];
        assert_eq!(file.read_at(&mut bytes, 0).expect("it is open"), bytes.len());
        bytes
    }

    /// Whatever is written in whatever order is what is read, also in a file that is said to be appended to.
    #[test]
    fn what_is_written_is_read_past_the_cache_and_through_it() {
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
        // Not at the end: from here on through the cache.
        write(3, 1_300_000);
        write(9000, 1_205_107);
        file.appends_from(1_300_003);
        write(50, 1_300_003);
        // To the very end of the file.
        write(700_000, 1_300_053);
        write(usize::try_from(LENGTH).expect("small") - 2_000_053, 2_000_053);
        fs::remove_dir_all(folder).expect("it is there");
    }

    /// A file system that takes the file and then not the write: the kernel refuses what is not a number here.
    #[test]
    fn what_cannot_be_written_past_the_cache_goes_through_it() {
        let folder = folder("refused");
        let file = file(&folder);
        let refusing = OpenOptions::new().write(true).open("/proc/self/oom_score_adj").expect("it is Linux");
        let straight = Straight::through(refusing, &file.file, 0).expect("it can be read");
        *file.room() = Room { reserved: LENGTH, written: LENGTH, straight, wants_another: false };
        file.write_at(b"hello", 0).expect("through the cache");
        file.write_at(b" world", 5).expect("through the cache");
        assert!(file.room().straight.is_none(), "it is not tried again");
        assert!(content(&file).starts_with(b"hello world\0"));
        fs::remove_dir_all(folder).expect("it is there");
    }
}
