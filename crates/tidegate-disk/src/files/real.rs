//! A directory of the file system.

use std::fs::{self, DirBuilder, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use super::{File, Files, Guard, Purpose};

/// Files are their owner's: a log names customers and holds the secret of their fingerprints.
const OWNER_ONLY: u32 = 0o600;
const OWNER_ONLY_FOLDER: u32 = 0o700;

/// How much is written at once where the file system cannot make room without writing.
const ZEROS: usize = 64 << 10;

/// A directory of the file system.
#[derive(Debug)]
pub struct Real {
    folder: PathBuf,
    /// Kept open to make names durable.
    handle: fs::File,
}

impl Real {
    /// The directory at this path, which is made if it is not there.
    pub fn create(folder: &Path) -> io::Result<Real> {
        match DirBuilder::new().recursive(true).mode(OWNER_ONLY_FOLDER).create(folder) {
            Ok(()) => {}
            // Something else has this name: opening it says what is wrong with it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let files = Real::open(folder)?;
        // A directory whose own name is lost in a crash takes everything with it.
        if let Some(parent) = folder.parent() {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            if let Ok(parent) = fs::File::open(parent) {
                parent.sync_all()?;
            }
        }
        Ok(files)
    }

    /// The directory at this path, which must be there.
    pub fn open(folder: &Path) -> io::Result<Real> {
        let handle = fs::File::open(folder)?;
        if !handle.metadata()?.is_dir() {
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        Ok(Real { folder: folder.to_owned(), handle })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Real {
    /// Whether the directory of this name is still the one that was opened. Another one may be somebody else's store by now.
    fn check_place(&self) -> io::Result<()> {
        let (own, there) = (self.handle.metadata()?, fs::metadata(&self.folder)?);
        if (own.dev(), own.ino()) == (there.dev(), there.ino()) {
            return Ok(());
        }
        Err(io::Error::other("the directory was removed or replaced while it was in use"))
    }
}

impl Files for Real {
    fn place(&self) -> String {
        self.folder.display().to_string()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&self.folder)?;
        // A name that is not text is none of ours; what is left of it is enough to be told of.
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn open(&self, name: &str, purpose: Purpose) -> io::Result<Box<dyn File>> {
        // Whoever opens a pipe waits for somebody to write into it.
        if !fs::metadata(self.folder.join(name))?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name} is not a file")));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(purpose == Purpose::Writing);
        Ok(Box::new(RealFile::of(options.open(self.folder.join(name))?)))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.check_place()?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(OWNER_ONLY);
        Ok(Box::new(RealFile::of(options.open(self.folder.join(name))?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.check_place()?;
        fs::rename(self.folder.join(from), self.folder.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.check_place()?;
        fs::remove_file(self.folder.join(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Guard>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(OWNER_ONLY);
        let file = options.open(self.folder.join(name))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(io::Error::from(io::ErrorKind::WouldBlock)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Whoever removes the file takes its lock out of the way of the next one; the directory cannot be removed and stay.
        let folder = fs::File::open(&self.folder)?;
        // Some file systems lock files only, and say so by another error.
        if matches!(folder.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(io::Error::from(io::ErrorKind::WouldBlock));
        }
        Ok(Box::new(RealGuard { _file: file, _folder: folder }))
    }

    fn random(&self) -> io::Result<[u8; 16]> {
        let mut bytes = [0; 16];
        let filled = rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
        if filled < bytes.len() {
            return Err(io::Error::other("the system gave fewer random bytes than it was asked for"));
        }
        Ok(bytes)
    }
}

/// How far ahead of what is written a reserved file is filled with zeros.
const AHEAD: u64 = 1 << 20;

/// A file of the file system.
///
/// Room that is only reserved is slow to write to: file systems note in their own journal which of it has been written, at every sync. So a
/// reserved file is filled with zeros a stretch ahead of its writer, and most syncs find nothing to note.
#[derive(Debug)]
struct RealFile {
    file: fs::File,
    /// How much was reserved.
    reserved: AtomicU64,
    /// How much of that has been written, zeros included.
    written: AtomicU64,
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
        self.file.write_all_at(bytes, offset)?;
        self.fill_ahead(offset + bytes.len() as u64)
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, length) {
            Ok(()) => {
                self.reserved.store(length, Ordering::Relaxed);
                Ok(())
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(length),
            Err(error) => Err(error.into()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

impl RealFile {
    fn of(file: fs::File) -> RealFile {
        RealFile { file, reserved: AtomicU64::new(0), written: AtomicU64::new(0) }
    }

    /// Fills what is reserved with zeros, if the writer has come to the end of those.
    fn fill_ahead(&self, end: u64) -> io::Result<()> {
        let (reserved, written) =
            (self.reserved.load(Ordering::Relaxed), self.written.load(Ordering::Relaxed));
        if end <= written || end >= reserved {
            return Ok(());
        }
        let to = reserved.min(end + AHEAD);
        let zeros = vec![0; usize::try_from(to - end).unwrap_or_default()];
        self.file.write_all_at(&zeros, end)?;
        self.written.store(to, Ordering::Relaxed);
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

/// Closing them gives the locks back.
#[derive(Debug)]
struct RealGuard {
    _file: fs::File,
    _folder: fs::File,
}

impl Guard for RealGuard {}
