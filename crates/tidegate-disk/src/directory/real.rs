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

/// Only the owner may read the files: they contain keys and the secret of their fingerprints.
const OWNER_ONLY: u32 = 0o600;
const OWNER_ONLY_DIRECTORY: u32 = 0o700;

/// A directory of the file system.
#[derive(Debug)]
pub struct RealDirectory {
    folder: PathBuf,
    /// Kept open to sync names.
    handle: fs::File,
    preallocator: Arc<SegmentPreallocator>,
}

impl RealDirectory {
    /// Opens the directory at this path and creates it if it does not exist.
    pub fn create(folder: &Path) -> io::Result<RealDirectory> {
        match DirBuilder::new().recursive(true).mode(OWNER_ONLY_DIRECTORY).create(folder) {
            Ok(()) => {}
            // A file has this name: opening it below reports the error.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let files = RealDirectory::open(folder)?;
        // The directory's own name must be durable as well.
        if let Some(parent) = folder.parent() {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            if let Ok(parent) = fs::File::open(parent) {
                parent.sync_all()?;
            }
        }
        Ok(files)
    }

    /// Opens an existing directory.
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

    /// The path.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl RealDirectory {
    /// Checks that the path still leads to the opened directory. Otherwise it may belong to another store.
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
        // A name that is not UTF-8 is not part of a store. A lossy copy is enough for messages.
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Box<dyn DirectoryFile>> {
        // Opening a named pipe would block.
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
        // If naming the preallocated file fails, create one in the normal way.
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
        // The lock file can be removed, which would free its lock. The directory is therefore locked as well.
        let folder = fs::File::open(&self.folder)?;
        // Some file systems support locks only on files and return another error.
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

/// Dropping the files releases the locks.
#[derive(Debug)]
struct RealDirectoryLock {
    _file: fs::File,
    _folder: fs::File,
}

impl DirectoryLock for RealDirectoryLock {}
