//! `tidegate store`: verify, dump and back up the data directory of a server.
//!
//! ```text
//!   verify   reads every byte and record as a start would; reports damage and its position
//!   dump     prints the records, one per line
//!   backup   copies the newest snapshot and the log after it, as far as they are intact
//! ```
//!
//! The directory is only read and no lock is taken, so a server may be running on it.
//!
//! Lease ids are never shown in full, in JSON neither, because a full id permits a release. There is no repair:
//! leaving out damaged records would grant units twice.

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

/// The file that identifies a store.
const IDENTITY: &str = "identity";
/// Name prefixes of the other files of a store.
const OURS: [&str; 2] = ["log-", "snapshot-"];

/// Runs a subcommand.
pub(crate) fn run(args: &StoreArgs) -> Result<(), Failure> {
    match &args.command {
        StoreCommand::Verify(args) => verify::run(args),
        StoreCommand::Dump(args) => dump::run(args),
        StoreCommand::Backup(args) => backup(args),
    }
}

/// Opens a directory that is a store or a remainder of one.
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

/// The failure of an unreadable directory.
fn refused(folder: &Path, error: io::Error) -> Failure {
    let place = folder.display().to_string();
    if error.kind() == ErrorKind::NotFound {
        return Failure::BadInput(format!("there is no directory {place}; choose another path"));
    }
    open_failure(&OpenError::of_disk(&place, error))
}

/// Classifies an open error as bad input or as a disk failure.
pub(crate) fn open_failure(error: &OpenError) -> Failure {
    match error {
        // A wrong path is not a disk failure.
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
            "{to} is inside {folder}, the directory to copy; nothing was changed; choose a directory elsewhere"
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

/// Whether a path, which may not exist yet, is inside a directory.
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

/// An instant as RFC 3339.
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

/// A JSON object with a line end.
pub(crate) fn as_line<T: Serialize>(reply: &T) -> String {
    let mut line = serde_json::to_string(reply).expect("names and numbers are JSON");
    line.push('\n');
    line
}
