//! `tidegate store`: looking at a directory that a server keeps everything in, and copying it.
//!
//! ```text
//!   verify   every byte and every record, as a start would read them; what is wrong, and where
//!   dump     the records, one per line
//!   backup   the newest snapshot and the log on top of it, as far as they are whole
//! ```
//!
//! Nothing is written into the directory and no lock is taken, so a server may run on it meanwhile.
//!
//! Decided: ids of leases are never shown whole, in JSON neither. Whoever has one can give the lease back.
//!
//! Refused: a repair. Whatever could be left out to make a damaged store open again would sell something twice.

mod dump;
mod limit_names;
mod record_json;
mod verify;

use std::io;
use std::io::ErrorKind;
use std::path::Path;

use serde::Serialize;
use tidegate::model::Timestamp;
use tidegate_disk::directory::{Directory, RealDirectory};
use tidegate_disk::wal::{self, BackupError, OpenError};

use crate::args::{BackupArgs, StoreArgs, StoreCommand};
use crate::bench::number::{counted, grouped};
use crate::instant::InstantWriter;
use crate::{Failure, print_result};

/// What makes a directory a store.
const IDENTITY: &str = "identity";
/// What the names of the other files of a store begin with.
const OURS: [&str; 2] = ["log-", "snapshot-"];

/// Looks at a store, or copies it.
pub(crate) fn run(args: &StoreArgs) -> Result<(), Failure> {
    match &args.command {
        StoreCommand::Verify(args) => verify::run(args),
        StoreCommand::Dump(args) => dump::run(args),
        StoreCommand::Backup(args) => backup(args),
    }
}

/// A directory that is a store, or what is left of one.
fn open(folder: &Path) -> Result<RealDirectory, Failure> {
    let files = RealDirectory::open(folder).map_err(|error| refused(folder, error))?;
    let names = files.list().map_err(|error| refused(folder, error))?;
    let is_ours = |name: &String| name == IDENTITY || OURS.iter().any(|ours| name.starts_with(ours));
    if names.iter().any(is_ours) {
        return Ok(files);
    }
    let why = OpenError::NotAStore { location: folder.display().to_string(), found: None };
    Err(Failure::BadInput(why.to_string()))
}

/// Why a directory cannot be looked at.
fn refused(folder: &Path, error: io::Error) -> Failure {
    let place = folder.display().to_string();
    if error.kind() == ErrorKind::NotFound {
        return Failure::BadInput(format!("there is no directory {place}; choose another path"));
    }
    open_failure(&OpenError::of_disk(&place, error))
}

/// Whether it is the asker's to mend, or the disk's.
pub(crate) fn open_failure(error: &OpenError) -> Failure {
    match error {
        // A name that leads nowhere, or to something else, is no fault of the disk.
        OpenError::Disk { error: of_disk, .. }
            if !matches!(
                of_disk.kind(),
                ErrorKind::NotFound
                    | ErrorKind::IsADirectory
                    | ErrorKind::NotADirectory
                    | ErrorKind::InvalidInput
            ) =>
        {
            Failure::Failed(error.to_string())
        }
        _ => Failure::BadInput(error.to_string()),
    }
}

#[derive(Debug, Serialize)]
struct BackupJson {
    files: u64,
    bytes: u64,
    last_block: u64,
}

fn backup(args: &BackupArgs) -> Result<(), Failure> {
    let from = open(&args.folder)?;
    if is_inside(&args.to, &args.folder) {
        let (to, folder) = (path_text(&args.to), path_text(&args.folder));
        return Err(Failure::BadInput(format!(
            "{to} is inside of {folder}, which is to be copied; nothing was touched; choose a directory elsewhere"
        )));
    }
    let to = RealDirectory::create(&args.to)
        .map_err(|error| open_failure(&OpenError::of_disk(&path_text(&args.to), error)))?;
    let done = wal::backup(&from, &to).map_err(|error| match error {
        BackupError::NotEmpty { .. } => Failure::BadInput(error.to_string()),
        _ => Failure::Failed(error.to_string()),
    })?;
    if args.json {
        let reply = BackupJson { files: done.files, bytes: done.bytes, last_block: done.last_number };
        return print_result(&as_line(&reply));
    }
    let (files, bytes) = (counted(done.files, "file", "files"), counted(done.bytes, "byte", "bytes"));
    print_result(&format!(
        "copied {files} with {bytes}, up to block {}\nstart from it with: tidegate serve --store disk:{}\n",
        grouped(done.last_number),
        path_text(&args.to),
    ))
}

/// Whether a path, which need not be there yet, leads into a directory.
fn is_inside(path: &Path, folder: &Path) -> bool {
    let Ok(folder) = folder.canonicalize() else { return false };
    if let Ok(path) = path.canonicalize() {
        return path != folder && path.starts_with(&folder);
    }
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let there = absolute.ancestors().find_map(|ancestor| ancestor.canonicalize().ok());
    there.is_some_and(|there| there.starts_with(&folder))
}

fn path_text(folder: &Path) -> String {
    folder.display().to_string()
}

/// An instant as people and programs read it.
fn instant(at: Timestamp) -> String {
    let mut out = Vec::new();
    InstantWriter::default().write(at, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Bytes as hexadecimal digits.
fn digits(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _written = write!(out, "{byte:02x}");
        out
    })
}

/// A JSON object and the end of its line.
pub(crate) fn as_line<T: Serialize>(reply: &T) -> String {
    let mut line = serde_json::to_string(reply).expect("names and numbers are JSON");
    line.push('\n');
    line
}
