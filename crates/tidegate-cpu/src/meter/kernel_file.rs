//! A kernel file that stays open and is read repeatedly.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Enough for the first lines, which are all that is needed.
const BUFFER_SIZE: usize = 4096;

/// An open kernel file. Every read returns its current content.
#[derive(Debug)]
pub(super) struct KernelFile {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
}

impl KernelFile {
    pub(super) fn open(path: PathBuf) -> io::Result<KernelFile> {
        let file = File::open(&path)?;
        Ok(KernelFile { path, file, buffer: vec![0; BUFFER_SIZE] })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The first lines, as they are now.
    pub(super) fn text(&mut self) -> io::Result<&str> {
        let length = loop {
            match self.file.read_at(&mut self.buffer, 0) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        let whole = &self.buffer[..length];
        // Text after the first lines may be cut in the middle of a character. It is not needed.
        Ok(match std::str::from_utf8(whole) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&whole[..error.valid_up_to()]).unwrap_or_default(),
        })
    }
}
