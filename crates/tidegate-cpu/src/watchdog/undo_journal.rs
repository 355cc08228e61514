//! The file that keeps the undo steps.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::WatchdogError;
use super::undo::{Undo, UndoRecord, parse_records};

/// Other users of the machine must not see what is governed.
const OWNER_ONLY: u32 = 0o600;
/// Number of lines after which obsolete ones are dropped.
const COMPACT_LINES: usize = 4096;

#[derive(Debug)]
pub(super) struct UndoJournal {
    path: PathBuf,
    file: File,
    boot: String,
    lines: usize,
}

impl UndoJournal {
    /// Creates an empty journal and replaces an existing file.
    pub(super) fn begin(path: &Path, boot: &str) -> io::Result<UndoJournal> {
        let file = new_file(path, &UndoRecord::Boot { name: boot.to_owned() }.line())?;
        Ok(UndoJournal { path: path.to_owned(), file, boot: boot.to_owned(), lines: 1 })
    }

    /// Appends lines. They survive the end of the process once this returns.
    pub(super) fn append(&mut self, lines: &str) -> Result<(), WatchdogError> {
        let mut append = || {
            self.file.write_all(lines.as_bytes())?;
            let is_lasting = parse_records(lines.as_bytes()).open.values().any(Undo::is_lasting);
            if is_lasting { self.file.sync_data() } else { Ok(()) }
        };
        append().map_err(|error| WatchdogError::of("write", &self.path, error))?;
        self.lines += lines.lines().count();
        Ok(())
    }

    /// Rewrites the file if most of its lines are obsolete.
    pub(super) fn compact(&mut self, open: &BTreeMap<u64, Undo>) -> Result<(), WatchdogError> {
        if self.lines < COMPACT_LINES || self.lines < 2 * open.len() {
            return Ok(());
        }
        self.rewrite(open)
    }

    /// Rewrites the file with only these steps.
    pub(super) fn rewrite(&mut self, open: &BTreeMap<u64, Undo>) -> Result<(), WatchdogError> {
        let mut lines = UndoRecord::Boot { name: self.boot.clone() }.line();
        for (number, undo) in open {
            lines += &UndoRecord::Add { number: *number, undo: undo.clone() }.line();
        }
        let rewritten = new_file(&self.path, &lines);
        self.file = rewritten.map_err(|error| WatchdogError::of("write", &self.path, error))?;
        self.lines = 1 + open.len();
        Ok(())
    }

    /// Removes the file.
    pub(super) fn remove(&self) -> Result<(), WatchdogError> {
        remove(&self.path)
    }
}

/// Removes the file if it exists.
pub(super) fn remove(path: &Path) -> Result<(), WatchdogError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(WatchdogError::of("remove", path, error))
        }
        _ => Ok(()),
    }
}

/// Writes a file under a temporary name and renames it, so that a complete file always exists.
fn new_file(path: &Path, lines: &str) -> io::Result<File> {
    let temporary = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(OWNER_ONLY).open(&temporary)?;
    file.write_all(lines.as_bytes())?;
    file.sync_data()?;
    fs::rename(&temporary, path)?;
    if let Some(folder) = path.parent() {
        File::open(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })?.sync_all()?;
    }
    Ok(file)
}
