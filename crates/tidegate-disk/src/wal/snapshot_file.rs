//! Snapshot files: each one replaces the start of a log.
//!
//! ```text
//!   0            16           32        40        48        56     60     64
//!   ├────────────┼────────────┼─────────┼─────────┼─────────┼──────┼──────┤
//!   │ preamble   │ store id   │ segment │ first   │ time    │chain │ sum  │   the header
//!   └────────────┴────────────┴─────────┴─────────┴─────────┴──────┴──────┘
//!   0      4        8        12       16
//!   ├──────┼────────┼────────┼────────┼──────────────────────────┬────────┐
//!   │"TGch"│ length │ index  │  sum   │ payload, `length` bytes  │  sum   │   a chunk; indices from 0
//!   └──────┴────────┴────────┴────────┴──────────────────────────┴────────┘
//!   0      4        8        16       24       28       32
//!   ├──────┼────────┼────────┼────────┼────────┼────────┤
//!   │"TGfi"│ zeros  │ chunks │ bytes  │ all    │  sum   │   the footer: without it there is no snapshot
//!   └──────┴────────┴────────┴────────┴────────┴────────┘
//! ```
//!
//! The number of a snapshot is that of the segment from which the log is replayed on top of it. `first` and
//! `chain` must match the header of that segment. `time` is the latest time of any earlier block. `all` is
//! the checksum of the checksums of all payloads.
//!
//! A snapshot is written under a temporary name, made durable, and then renamed. Only then are the superseded
//! files removed. An incomplete snapshot under its final name is therefore damaged.

use std::io;

use super::block::ChainPosition;
use super::codec::{
    PREAMBLE_BYTES, StoreId, array_at, check_preamble, checksum, checksum_after, checksum_of, preamble,
    u32_at, u64_at,
};
use super::error::{Damage, OpenError};
use super::file_names;
use crate::directory::{Directory, DirectoryFile, OpenMode};

/// The maximum payload of a chunk. About 1 MiB is best.
pub const MAX_CHUNK_BYTES: usize = 16 << 20;

const MAGIC: [u8; 8] = *b"TGATESNP";
const HEADER_BYTES: usize = 64;
const CHUNK_HEADER_BYTES: usize = 16;
const CHUNK_TRAILER_BYTES: usize = 4;
const FOOTER_BYTES: usize = 32;
const CHUNK_MARK: &[u8; 4] = b"TGch";
const FOOTER_MARK: &[u8; 4] = b"TGfi";
/// How many bytes are buffered before a write.
const WRITE_BUFFER_BYTES: usize = 1 << 20;

/// The header of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SnapshotHeader {
    /// The segment from which the log is replayed.
    pub(super) segment: u64,
    /// The position in the chain before its first block.
    pub(super) link: ChainPosition,
    /// The latest time of any earlier block.
    pub(super) time: u64,
}

impl SnapshotHeader {
    fn encode(&self, store: &StoreId) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..PREAMBLE_BYTES].copy_from_slice(&preamble(MAGIC));
        bytes[16..32].copy_from_slice(store);
        bytes[32..40].copy_from_slice(&self.segment.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.link.number.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.time.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.link.chain.to_le_bytes());
        let sum = checksum(&bytes[..60]);
        bytes[60..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(file: &str, bytes: &[u8], number: u64, store: &StoreId) -> Result<SnapshotHeader, OpenError> {
        check_preamble(file, bytes, MAGIC)?;
        if bytes.len() < HEADER_BYTES {
            return Err(Damage::at(file, bytes.len() as u64, "a snapshot's header").into());
        }
        if u32_at(bytes, 60) != checksum(&bytes[..60]) {
            return Err(Damage::at(file, 60, "the checksum of the snapshot's header").into());
        }
        if array_at::<16>(bytes, 16) != *store {
            return Err(OpenError::OtherStore { file: file.to_owned() });
        }
        if u64_at(bytes, 32) != number {
            return Err(Damage::at(file, 32, format!("a snapshot for segment {number}")).into());
        }
        Ok(SnapshotHeader {
            segment: number,
            link: ChainPosition { number: u64_at(bytes, 40), chain: u32_at(bytes, 56) },
            time: u64_at(bytes, 48),
        })
    }
}

/// Writes a snapshot. The caller adds payloads in any order.
#[derive(Debug)]
pub struct SnapshotWriter {
    file: Box<dyn DirectoryFile>,
    store: StoreId,
    buffer: Vec<u8>,
    offset: u64,
    chunks: u32,
    bytes: u64,
    all: u32,
}

impl SnapshotWriter {
    /// Creates a snapshot under its temporary name.
    pub(super) fn begin(
        directory: &dyn Directory,
        header: &SnapshotHeader,
        store: &StoreId,
    ) -> io::Result<SnapshotWriter> {
        let name = file_names::unfinished_name(&file_names::snapshot_name(header.segment));
        remove_if_exists(directory, &name)?;
        Ok(SnapshotWriter {
            file: directory.create(&name)?,
            store: *store,
            buffer: header.encode(store).to_vec(),
            offset: 0,
            chunks: 0,
            bytes: 0,
            all: 0,
        })
    }

    /// Adds a payload. Opening the log returns it unchanged.
    pub fn put(&mut self, payload: &[u8]) -> io::Result<()> {
        let too_large = || io::Error::new(io::ErrorKind::InvalidInput, "a chunk of a snapshot is too large");
        let length = u32::try_from(payload.len()).map_err(|_| too_large())?;
        if payload.len() > MAX_CHUNK_BYTES {
            return Err(too_large());
        }
        let mut header = [0; CHUNK_HEADER_BYTES];
        header[..4].copy_from_slice(CHUNK_MARK);
        header[4..8].copy_from_slice(&length.to_le_bytes());
        header[8..12].copy_from_slice(&self.chunks.to_le_bytes());
        let sum = checksum_of(&self.store, &header[..12]);
        header[12..].copy_from_slice(&sum.to_le_bytes());
        let payload_sum = checksum_of(&self.store, payload).to_le_bytes();
        self.buffer.extend_from_slice(&header);
        self.buffer.extend_from_slice(payload);
        self.buffer.extend_from_slice(&payload_sum);
        self.all = checksum_after(self.all, &payload_sum);
        self.bytes += u64::from(length);
        self.chunks = self.chunks.checked_add(1).ok_or_else(|| io::Error::other("too many chunks"))?;
        if self.buffer.len() >= WRITE_BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    /// The number of payload bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_at(&self.buffer, self.offset)?;
        self.offset += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Completes the file and makes it durable. The caller renames it.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        let mut footer = [0; FOOTER_BYTES];
        footer[..4].copy_from_slice(FOOTER_MARK);
        footer[8..16].copy_from_slice(&u64::from(self.chunks).to_le_bytes());
        footer[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        footer[24..28].copy_from_slice(&self.all.to_le_bytes());
        let sum = checksum_of(&self.store, &footer[..28]);
        footer[28..].copy_from_slice(&sum.to_le_bytes());
        self.buffer.extend_from_slice(&footer);
        self.flush()?;
        self.file.sync()?;
        Ok(self.offset)
    }
}

/// Statistics of a snapshot that was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct SnapshotContents {
    pub(super) header: SnapshotHeader,
    pub(super) chunks: u64,
    /// The length of the file.
    pub(super) length: u64,
}

/// Receives the offset and the payload of each chunk.
pub(super) type ChunkVisitor<'a> = dyn FnMut(u64, &[u8]) -> Result<(), OpenError> + 'a;

/// Reads a snapshot from start to end. Every chunk is passed on as soon as it is read, so a later part may
/// still turn out to be damaged.
pub(super) fn read_snapshot(
    directory: &dyn Directory,
    number: u64,
    store: &StoreId,
    visit: &mut ChunkVisitor<'_>,
) -> Result<SnapshotContents, OpenError> {
    let name = file_names::snapshot_name(number);
    let of_disk = |error| OpenError::of_disk(&name, error);
    let file = directory.open(&name, OpenMode::Read).map_err(of_disk)?;
    let length = file.length().map_err(of_disk)?;
    let mut reader = SnapshotFileReader { name: &name, file: &*file, offset: 0, store };
    let mut head = [0; HEADER_BYTES];
    let got = file.read_at(&mut head, 0).map_err(of_disk)?;
    let header = SnapshotHeader::decode(&name, &head[..got], number, store)?;
    reader.offset = HEADER_BYTES as u64;
    let mut payload = Vec::new();
    let (mut chunks, mut bytes, mut all) = (0_u64, 0_u64, 0_u32);
    loop {
        let offset = reader.offset;
        match reader.next(chunks, &mut payload)? {
            SnapshotPart::Chunk { sum } => {
                chunks += 1;
                bytes += payload.len() as u64;
                all = checksum_after(all, &sum.to_le_bytes());
                visit(offset, &payload)?;
            }
            SnapshotPart::Footer(footer) => {
                if footer != (SnapshotFooter { chunks, bytes, all }) {
                    return Err(Damage::at(&name, offset, "a footer for the chunks before it").into());
                }
                if reader.offset != length {
                    return Err(Damage::at(&name, reader.offset, "the end of the file").into());
                }
                return Ok(SnapshotContents { header, chunks, length });
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct SnapshotFooter {
    chunks: u64,
    bytes: u64,
    all: u32,
}

enum SnapshotPart {
    Chunk { sum: u32 },
    Footer(SnapshotFooter),
}

struct SnapshotFileReader<'a> {
    name: &'a str,
    file: &'a dyn DirectoryFile,
    offset: u64,
    store: &'a StoreId,
}

impl SnapshotFileReader<'_> {
    fn next(&mut self, index: u64, payload: &mut Vec<u8>) -> Result<SnapshotPart, OpenError> {
        let mut head = [0; CHUNK_HEADER_BYTES];
        self.fill(&mut head)?;
        if &head[..4] == FOOTER_MARK {
            return self.footer(&head);
        }
        if &head[..4] != CHUNK_MARK {
            return Err(self.damage(0, "a chunk, or the footer"));
        }
        if u32_at(&head, 12) != checksum_of(self.store, &head[..12]) {
            return Err(self.damage(12, "the checksum of the chunk's header"));
        }
        if u64::from(u32_at(&head, 8)) != index {
            return Err(self.damage(8, &format!("chunk {index}")));
        }
        let length = u32_at(&head, 4) as usize;
        if length > MAX_CHUNK_BYTES {
            return Err(self.damage(4, "a chunk that is not too large"));
        }
        self.offset += CHUNK_HEADER_BYTES as u64;
        payload.resize(length + CHUNK_TRAILER_BYTES, 0);
        self.fill(payload)?;
        let sum = u32_at(payload, length);
        payload.truncate(length);
        if sum != checksum_of(self.store, payload) {
            return Err(self.damage(length as u64, "the checksum of the chunk"));
        }
        self.offset += (length + CHUNK_TRAILER_BYTES) as u64;
        Ok(SnapshotPart::Chunk { sum })
    }

    fn footer(&mut self, head: &[u8; CHUNK_HEADER_BYTES]) -> Result<SnapshotPart, OpenError> {
        let mut footer = [0; FOOTER_BYTES];
        footer[..CHUNK_HEADER_BYTES].copy_from_slice(head);
        self.fill(&mut footer)?;
        if u32_at(&footer, 28) != checksum_of(self.store, &footer[..28]) {
            return Err(self.damage(28, "the checksum of the footer"));
        }
        self.offset += FOOTER_BYTES as u64;
        let (chunks, bytes, all) = (u64_at(&footer, 8), u64_at(&footer, 16), u32_at(&footer, 24));
        Ok(SnapshotPart::Footer(SnapshotFooter { chunks, bytes, all }))
    }

    fn fill(&self, buffer: &mut [u8]) -> Result<(), OpenError> {
        let got =
            self.file.read_at(buffer, self.offset).map_err(|error| OpenError::of_disk(self.name, error))?;
        if got < buffer.len() {
            return Err(self.damage(got as u64, "more of the snapshot, which ends here"));
        }
        Ok(())
    }

    fn damage(&self, at: u64, expected: &str) -> OpenError {
        Damage::at(self.name, self.offset + at, expected).into()
    }
}

/// Removes a file if it exists.
pub(super) fn remove_if_exists(directory: &dyn Directory, name: &str) -> io::Result<()> {
    match directory.remove(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}
