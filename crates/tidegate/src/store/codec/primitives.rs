//! Encoding of numbers, times and texts.

use crate::store::journal::Tag;
use tidegate_core::{LeaseId, Timestamp, row_codec};

use super::CodecError;

/// Appends to a buffer.
#[derive(Debug)]
pub struct ByteWriter<'a>(pub &'a mut Vec<u8>);

impl ByteWriter<'_> {
    /// Writes one byte.
    pub fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// Writes a number.
    pub fn number(&mut self, number: u64) {
        row_codec::put_varint(self.0, number);
    }

    /// Writes an instant.
    pub fn time(&mut self, time: Timestamp) {
        self.0.extend_from_slice(&time.ticks().to_le_bytes());
    }

    /// Writes the fingerprint of a key.
    pub fn tag(&mut self, tag: Tag) {
        self.0.extend_from_slice(&tag.low.to_le_bytes());
        self.0.extend_from_slice(&tag.high.to_le_bytes());
    }

    /// Writes a lease id.
    pub fn lease_id(&mut self, id: LeaseId) {
        self.0.extend_from_slice(&id.0.to_le_bytes());
    }

    /// Writes bytes after their length.
    pub fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text);
    }

    /// Writes a flag, and the value if there is one.
    pub fn maybe<T>(&mut self, something: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.byte(u8::from(something.is_some()));
        if let Some(something) = something {
            write(self, something);
        }
    }
}

/// Reads what was written.
#[derive(Debug, Clone)]
pub struct ByteReader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Offset of `bytes` in the whole input.
    offset: usize,
}

impl<'a> ByteReader<'a> {
    /// Reads these bytes from their start.
    pub fn new(bytes: &'a [u8]) -> ByteReader<'a> {
        ByteReader { bytes, at: 0, offset: 0 }
    }

    /// Whether everything was read.
    pub fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// An error at the current offset.
    pub fn invalid(&self, what: &'static str) -> CodecError {
        CodecError { at: self.offset + self.at, what }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], CodecError> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(self.invalid("the end too early"))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        Ok(self.take(N)?.try_into().expect("as long as it was asked to be"))
    }

    /// Reads one byte.
    pub fn byte(&mut self) -> Result<u8, CodecError> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads a flag.
    pub fn flag(&mut self) -> Result<bool, CodecError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.invalid("neither yes nor no")),
        }
    }

    /// Reads a number.
    pub fn number(&mut self) -> Result<u64, CodecError> {
        let number = row_codec::read_varint(|| self.byte())?;
        number.ok_or(self.invalid("a number above 64 bits"))
    }

    /// Reads a number of 32 bits.
    pub fn number32(&mut self) -> Result<u32, CodecError> {
        let number = self.number()?;
        u32::try_from(number).map_err(|_| self.invalid("a number above 32 bits"))
    }

    /// Reads a number of bytes or entries.
    pub fn size(&mut self) -> Result<usize, CodecError> {
        let number = self.number()?;
        usize::try_from(number).map_err(|_| self.invalid("a number above 64 bits"))
    }

    /// Reads the number of following entries. Each takes at least `bytes_each`, so a wrong number cannot cause a large
    /// allocation.
    pub fn length(&mut self, bytes_each: usize) -> Result<usize, CodecError> {
        let claimed = self.size()?;
        let possible = (self.bytes.len() - self.at) / bytes_each;
        if claimed <= possible { Ok(claimed) } else { Err(self.invalid("more entries than bytes")) }
    }

    /// Reads an instant.
    pub fn time(&mut self) -> Result<Timestamp, CodecError> {
        Ok(Timestamp::from_ticks(u64::from_le_bytes(self.array()?)))
    }

    /// Reads the fingerprint of a key.
    pub fn tag(&mut self) -> Result<Tag, CodecError> {
        Ok(Tag { low: u64::from_le_bytes(self.array()?), high: u32::from_le_bytes(self.array()?) })
    }

    /// Reads a lease id.
    pub fn lease_id(&mut self) -> Result<LeaseId, CodecError> {
        Ok(LeaseId(u128::from_le_bytes(self.array()?)))
    }

    /// Reads bytes after their length.
    pub fn text(&mut self) -> Result<&'a [u8], CodecError> {
        let length = self.size()?;
        self.take(length)
    }

    /// Reads text after its length.
    pub fn string(&mut self) -> Result<&'a str, CodecError> {
        let text = self.text()?;
        std::str::from_utf8(text).map_err(|_| self.invalid("text that is not UTF-8"))
    }

    /// Reads a length and returns a reader for that many bytes.
    pub fn part(&mut self) -> Result<ByteReader<'a>, CodecError> {
        let length = self.size()?;
        let offset = self.offset + self.at;
        Ok(ByteReader { bytes: self.take(length)?, at: 0, offset })
    }

    /// Reads a value if its flag is set.
    pub fn maybe<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, CodecError>,
    ) -> Result<Option<T>, CodecError> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    /// Reads entries after their number.
    pub fn many<T>(
        &mut self,
        bytes_each: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, CodecError>,
    ) -> Result<Vec<T>, CodecError> {
        let length = self.length(bytes_each)?;
        (0..length).map(|_| read(self)).collect()
    }
}
