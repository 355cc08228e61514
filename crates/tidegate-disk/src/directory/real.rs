//! A directory of the file system.

mod direct_io;
mod preallocated_segment;
mod real_file;

use std::fs::{self, DirBuilder, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::rand::GetRandomFlags;

use super::{Directory, DirectoryFile, DirectoryLock, OpenMode};
use preallocated_segment::SegmentPreallocator;
use real_file::RealFile;

/// Directory are their owner's: a log names customers and holds the secret of their fingerprints.
const OWNER_ONLY: u32 = 0o600;
const OWNER_ONLY_DIRECTORY: u32 = 0o700;

/// A directory of the file system.
#[derive(Debug)]
pub struct RealDirectory {
    folder: PathBuf,
    /// Kept open to make names durable.
    handle: fs::File,
    preallocator: Arc<SegmentPreallocator>,
}

impl RealDirectory {
    /// The directory at this path, which is made if it is not there.
    pub fn create(folder: &Path) -> io::Result<RealDirectory> {
        match DirBuilder::new().recursive(true).mode(OWNER_ONLY_DIRECTORY).create(folder) {
            Ok(()) => {}
            // Something else has this name: opening it says what is wrong with it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let files = RealDirectory::open(folder)?;
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
    pub fn open(folder: &Path) -> io::Result<RealDirectory> {
        let handle = fs::File::open(folder)?;
        if !handle.metadata()?.is_dir() {
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        Ok(RealDirectory {
            folder: folder.to_owned(),
            handle,
            preallocator: Arc::new(SegmentPreallocator::of(folder.to_owned())),
        })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl RealDirectory {
    /// Whether the directory of this name is still the one that was opened. Another one may be somebody else's store by now.
    fn check_not_replaced(&self) -> io::Result<()> {
        let (own, there) = (self.handle.metadata()?, fs::metadata(&self.folder)?);
        if (own.dev(), own.ino()) == (there.dev(), there.ino()) {
            return Ok(());
        }
        Err(io::Error::other("the directory was removed or replaced while it was in use"))
    }
}

impl Directory for RealDirectory {
    fn location(&self) -> String {
        self.folder.display().to_string()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&self.folder)?;
        // A name that is not text is none of ours; what is left of it is enough to be told of.
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Box<dyn DirectoryFile>> {
        // Whoever opens a pipe waits for somebody to write into it.
        if !fs::metadata(self.folder.join(name))?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name} is not a file")));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(mode == OpenMode::ReadWrite);
        Ok(Box::new(RealFile::of(options.open(self.folder.join(name))?, &self.preallocator)))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DirectoryFile>> {
        self.check_not_replaced()?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(OWNER_ONLY);
        Ok(Box::new(RealFile::of(options.open(self.folder.join(name))?, &self.preallocator)))
    }

    fn create_reserved(&self, name: &str, length: u64) -> io::Result<Box<dyn DirectoryFile>> {
        self.check_not_replaced()?;
        // If it cannot be named, it is as if there were none.
        if let Some(segment) = self.preallocator.take(length)
            && segment.link_as(&self.handle, name).is_ok()
        {
            let file = OpenOptions::new().read(true).write(true).open(self.folder.join(name))?;
            return Ok(Box::new(RealFile::preallocated(file, length, &self.preallocator)));
        }
        let file = self.create(name)?;
        file.reserve(length)?;
        Ok(file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.check_not_replaced()?;
        fs::rename(self.folder.join(from), self.folder.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.check_not_replaced()?;
        fs::remove_file(self.folder.join(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn DirectoryLock>> {
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
        Ok(Box::new(RealDirectoryLock { _file: file, _folder: folder }))
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

/// Closing them gives the locks back.
#[derive(Debug)]
struct RealDirectoryLock {
    _file: fs::File,
    _folder: fs::File,
}

impl DirectoryLock for RealDirectoryLock {}
