//! Files that are replaced as a whole: whoever reads one sees the old one or the new one, never half of either.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::Failure;

/// How much is written at once.
const CHUNK: usize = 256 * 1024;

/// A file that takes the place of another when it is whole. Dropped before that, it is as if it had never been.
#[derive(Debug)]
pub(super) struct AtomicFile {
    path: PathBuf,
    /// Where it is written; `None` if the path is no file that could be replaced, such as a terminal.
    temporary: Option<PathBuf>,
    out: Option<BufWriter<File>>,
}

impl AtomicFile {
    /// Begins a file for this path.
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

    /// Begins a file that an option names; if that cannot be, it is the option that is wrong.
    pub(super) fn begin_for(option: &str, path: &Path) -> Result<AtomicFile, Failure> {
        AtomicFile::begin(path).map_err(|failure| Failure::BadInput(format!("{option}: {failure}")))
    }

    /// Writes more of it.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.out.as_mut().map_or(Ok(()), |out| out.write_all(bytes));
        written.map_err(|error| write_error(&self.path, &error))
    }

    /// Puts it in its place.
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
            // Nobody is left to tell.
            let _gone = fs::remove_file(temporary);
        }
    }
}

/// Replaces a file by this text.
pub(super) fn write_atomically(path: &Path, text: &str) -> Result<(), Failure> {
    let mut file = AtomicFile::begin(path)?;
    file.write(text.as_bytes())?;
    file.finish()
}

fn write_error(path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot write {}: {error}", path.display()))
}
