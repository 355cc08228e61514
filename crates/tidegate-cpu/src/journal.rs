//! The sample journal: every sample on disk, so that a restart continues the same window.
//!
//! ```text
//!   DIR/lock                        held by the running governor; removed if its creator wrote no sample
//!   DIR/00000000001761091200.samples   a header, then records of one size; named by the second of the first
//! ```
//!
//! A sample is one append, whatever the size of the journal. Each has a checksum: a record that a power failure tore is skipped, and its
//! time counts as unobserved. A file is deleted when all its samples are older than the retention.

mod record;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tidegate::budget::{BudgetTime, Quota, Rate};
use tidegate_core::{Span, Timestamp};

use crate::meter::TargetId;
use record::{HEADER, LENGTH};

/// Maximum samples in a file: one day at five seconds each.
const MAX_FILE_SAMPLES: u32 = 17_280;

/// Sync the file after this many samples: once a minute at five seconds each.
const SYNC_EVERY: u32 = 12;

const EXTENSION: &str = "samples";

/// Observed usage and the limit that followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageSample {
    /// Time of the sample.
    pub at: BudgetTime,
    /// Total usage since the journal began. The difference of two samples is the usage between them, even if one in between is lost.
    pub total: Quota,
    /// Whether usage since the previous sample is known.
    pub observed: bool,
    /// Limit from this sample on.
    pub applied: Rate,
    /// Counter value.
    pub counter: Duration,
    /// Identity of the counter.
    pub counter_id: u128,
    /// Identity of the counted target.
    pub target: TargetId,
    /// Identity of the boot.
    pub boot: u64,
    /// Time since boot.
    pub uptime: Duration,
}

/// An open journal.
#[derive(Debug)]
pub struct SampleJournal {
    folder: PathBuf,
    retention: Duration,
    /// The current file and its number of samples.
    file: Option<(File, u32)>,
    unsynced: u32,
    lock: JournalLock,
}

/// The journal's lock, held until it is closed.
#[derive(Debug)]
struct JournalLock {
    _file: File,
    path: PathBuf,
    /// Whether the lock file may be removed at the end: it was created here, and no sample was written.
    remove_on_drop: bool,
}

impl JournalLock {
    /// Locks a folder.
    fn acquire(folder: &Path) -> Result<JournalLock, JournalError> {
        let path = folder.join("lock");
        let failed = |error| JournalError::Io(path.clone(), error);
        loop {
            let mut options = OpenOptions::new();
            let created = options.create_new(true).write(true).open(&path);
            let remove_on_drop = created.is_ok();
            let file = match created {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    match OpenOptions::new().write(true).open(&path) {
                        // It was removed meanwhile.
                        Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                        opened => opened.map_err(failed)?,
                    }
                }
                created => created.map_err(failed)?,
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(JournalError::InUse),
                Err(error) => return Err(failed(error.into())),
            }
            // The creator may have removed the file meanwhile. Then another process could lock a new file, so check the identity.
            let (held, there) = (file.metadata().map_err(failed)?, fs::metadata(&path));
            if there.is_ok_and(|there| (there.dev(), there.ino()) == (held.dev(), held.ino())) {
                return Ok(JournalLock { _file: file, path, remove_on_drop });
            }
        }
    }
}

impl Drop for JournalLock {
    fn drop(&mut self) {
        if self.remove_on_drop {
            // Remove it while the lock is held. If this fails, the file is harmless.
            let _removed = fs::remove_file(&self.path);
        }
    }
}

/// Why a journal cannot be opened.
#[derive(Debug)]
pub enum JournalError {
    /// Another governor uses it.
    InUse,
    /// The folder or a file cannot be used.
    Io(PathBuf, io::Error),
}

impl std::fmt::Display for JournalError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            JournalError::InUse => f.write_str("another governor is running with this state directory"),
            JournalError::Io(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for JournalError {}

impl SampleJournal {
    /// Opens the journal of a folder and creates the folder if necessary. Only one process can have it open.
    pub fn open(folder: &Path, retention: Duration) -> Result<SampleJournal, JournalError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| JournalError::Io(path, error)
        };
        fs::create_dir_all(folder).map_err(failed(folder))?;
        let lock = JournalLock::acquire(folder)?;
        Ok(SampleJournal { folder: folder.to_owned(), retention, file: None, unsynced: 0, lock })
    }

    /// Appends a sample.
    pub fn append(&mut self, sample: &UsageSample) -> io::Result<()> {
        if self.file.as_ref().is_none_or(|(_, count)| *count >= MAX_FILE_SAMPLES) {
            self.start_file(sample.at.wall)?;
        }
        self.lock.remove_on_drop = false;
        let Some((file, count)) = &mut self.file else { return Ok(()) };
        file.write_all(&record::encode(sample))?;
        *count += 1;
        self.unsynced += 1;
        if self.unsynced >= SYNC_EVERY {
            file.sync_data()?;
            self.unsynced = 0;
        }
        Ok(())
    }

    /// Syncs all samples to disk.
    pub fn sync(&mut self) -> io::Result<()> {
        self.unsynced = 0;
        self.file.as_ref().map_or(Ok(()), |(file, _)| file.sync_data())
    }

    /// Starts a new file and deletes expired ones.
    fn start_file(&mut self, now: Timestamp) -> io::Result<()> {
        self.sync()?;
        let mut second = now.ticks() / 1_000_000_000;
        // Keep file names in order when the wall clock was set back.
        if let Some((last, _)) = files(&self.folder)?.last() {
            second = second.max(last + 1);
        }
        let path = self.folder.join(format!("{second:020}.{EXTENSION}"));
        let mut file = OpenOptions::new().append(true).create_new(true).open(path)?;
        file.write_all(HEADER)?;
        self.file = Some((file, 0));
        self.delete_expired(now.ticks() / 1_000_000_000)
    }

    fn delete_expired(&self, now: u64) -> io::Result<()> {
        let oldest = now.saturating_sub(self.retention.as_secs());
        let files = files(&self.folder)?;
        for pair in files.windows(2) {
            // All its samples are older than the next file.
            if pair[1].0 < oldest {
                fs::remove_file(&pair[0].1)?;
            }
        }
        Ok(())
    }
}

/// Whether a governor uses this folder.
pub fn is_in_use(folder: &Path) -> bool {
    let Ok(lock) = File::open(folder.join("lock")) else { return false };
    matches!(flock(&lock, FlockOperation::NonBlockingLockShared), Err(rustix::io::Errno::WOULDBLOCK))
}

/// The samples since an instant, and earlier ones of the same file.
pub fn read_since(folder: &Path, since: Timestamp) -> io::Result<Vec<UsageSample>> {
    let files = match files(folder) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let second = since.ticks() / 1_000_000_000;
    let first = files.iter().rposition(|(first, _)| *first <= second).unwrap_or(0);
    let mut samples = Vec::new();
    for (_, path) in &files[first..] {
        samples.extend(read(path)?);
    }
    Ok(samples)
}

/// The latest sample of a folder, if there is one.
pub fn latest(folder: &Path) -> io::Result<Option<UsageSample>> {
    let files = match files(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    for (_, path) in files.iter().rev() {
        if let Some(last) = read(path)?.pop() {
            return Ok(Some(last));
        }
    }
    Ok(None)
}

/// The samples of a file.
fn read(path: &Path) -> io::Result<Vec<UsageSample>> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    if bytes.len() >= HEADER.len() && !bytes.starts_with(HEADER) {
        let why = format!("{} is not a sample file of this version", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let records = bytes.get(HEADER.len()..).unwrap_or_default().chunks_exact(LENGTH);
    Ok(records.filter_map(record::decode).collect())
}

/// The instant this long before another.
pub fn before(at: Timestamp, time: Duration) -> Timestamp {
    at.minus(Span::from_ticks(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
}

/// The files of a folder in order, with the second in their names.
fn files(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_ours = path.extension().is_some_and(|extension| extension == EXTENSION);
        let second = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        if let Some(second) = second.filter(|_| is_ours) {
            files.push((second, path));
        }
    }
    files.sort();
    Ok(files)
}
