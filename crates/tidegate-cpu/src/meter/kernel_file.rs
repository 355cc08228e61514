//! A file of the kernel that is read again and again, and stays open.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// More than the part of a file that is needed: its first lines.
const ENOUGH: usize = 4096;

/// A file of the kernel that stays open: every read makes its content anew.
#[derive(Debug)]
pub(super) struct KernelFile {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
}

impl KernelFile {
    pub(super) fn open(path: PathBuf) -> io::Result<KernelFile> {
        let file = File::open(&path)?;
        Ok(KernelFile { path, file, buffer: vec![0; ENOUGH] })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its first lines, as they are now.
    pub(super) fn text(&mut self) -> io::Result<&str> {
        let length = loop {
            match self.file.read_at(&mut self.buffer, 0) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        let whole = &self.buffer[..length];
        // What follows the first lines may be cut anywhere; it is not needed.
        Ok(match std::str::from_utf8(whole) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&whole[..error.valid_up_to()]).unwrap_or_default(),
        })
    }
}
