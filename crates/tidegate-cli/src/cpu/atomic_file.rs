//! Files that are replaced atomically: a reader sees the old or the new content, never a mixture.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::Failure;

/// Write buffer size.
const CHUNK: usize = 256 * 1024;

/// A new file that replaces the old one on [`AtomicFile::finish`]. Dropped earlier, it leaves no trace.
#[derive(Debug)]
pub(super) struct AtomicFile {
    path: PathBuf,
    /// The temporary file; `None` if the path is not a regular file, such as a terminal.
    temporary: Option<PathBuf>,
    out: Option<BufWriter<File>>,
}

impl AtomicFile {
    /// Creates the temporary file.
    pub(super) fn begin(path: &Path) -> Result<AtomicFile, Failure> {
        let is_special = fs::metadata(path).is_ok_and(|found| !found.is_file());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{}.new", std::process::id()));
        let temporary = (!is_special).then_some(temporary);
        let file =
            File::create(temporary.as_deref().unwrap_or(path)).map_err(|error| write_error(path, &error))?;
        let out = Some(BufWriter::with_capacity(CHUNK, file));
        Ok(AtomicFile { path: path.to_owned(), temporary, out })
    }

    /// Creates the temporary file for an option. An error blames the option.
    pub(super) fn begin_for(option: &str, path: &Path) -> Result<AtomicFile, Failure> {
        AtomicFile::begin(path).map_err(|failure| Failure::BadInput(format!("{option}: {failure}")))
    }

    /// Appends bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.out.as_mut().map_or(Ok(()), |out| out.write_all(bytes));
        written.map_err(|error| write_error(&self.path, &error))
    }

    /// Moves the file to its path.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        let flushed = self.out.take().map_or(Ok(()), |mut out| out.flush());
        let moved = flushed.and_then(|()| match &self.temporary {
            Some(temporary) => fs::rename(temporary, &self.path),
            None => Ok(()),
        });
        moved.map_err(|error| write_error(&self.path, &error))?;
        self.temporary = None;
        Ok(())
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            // An error has no receiver here.
            let _gone = fs::remove_file(temporary);
        }
    }
}

/// Replaces a file with this text.
pub(super) fn write_atomically(path: &Path, text: &str) -> Result<(), Failure> {
    let mut file = AtomicFile::begin(path)?;
    file.write(text.as_bytes())?;
    file.finish()
}

fn write_error(path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot write {}: {error}", path.display()))
}
