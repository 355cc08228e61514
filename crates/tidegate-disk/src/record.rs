//! The binary encoding of records in the log and in snapshots.
//!
//! ```text
//!   ┌──────┬─────────┬──────────────────────────┐
//!   │ kind │ length  │ body                     │      numbers are base-128 varints, least significant group first;
//!   │  u8  │ varint  │ `length` bytes           │      times are u64 ticks, little-endian
//!   └──────┴─────────┴──────────────────────────┘
//!
//!   1 counters       generations  highest-fence  leases  lease-notes
//!   2 put            generation  version  at:8  fence  origin  items ( reshaped  step+1  unwritten )…  limit
//!   3 remove         generation  mode  until:8
//!   4 reset          generation  at:8  has-key  ( key  tag:12 )
//!   5 row            generation  version  has-key ( tag:12 )  usage ( item  usage-record )…
//!   6 assumed usage  generation  version  usage ( item  usage-record )…
//!   7 granted        serial  id:16  lease  fences ( generation  fence )…
//!   8 renewed        serial  id:16  expires:8
//!   9 released       serial  id:16
//!  10 settled        serial  id:16  until:8
//!  11 remembered     serial  request-id  grant
//!  12 leaf           generation  low:8  bits  pages
//!
//!   usage-record   0 count      count  last-time:8
//!                  1 bucket     tat:8  step  credits
//!                  2 run        at:8  count  last-time:8
//! ```
//!
//! The codec of `tidegate::store` encodes `limit`, `lease` and `grant`.
//!
//! A row record states a lower bound of the usage. Reading it twice, or an old one after a newer one, changes
//! nothing. A reset or a removal voids the records before it.
//!
//! A leaf record describes the layout of the rows after it, so that the table can allocate all of them at
//! once. A reader may ignore it.
//!
//! Every record has a length, so that `store dump` can show records of unknown kinds. Recovery never skips
//! one: a store that does not understand a record does not know how many units were granted.

use tidegate::catalog::RemovalMode;
use tidegate::store::journal::{LeaseAction, LeaseNote, Origin, Tag, Text};
use tidegate::store::memory::restore::{Counters, Restore, RestoreError, Spread, StoredLimit};
use tidegate_core::usage_record::NO_END;
use tidegate_core::{Amount, ItemLineage, LeaseId, Span, Timestamp, UsageRecord};

use tidegate::store::codec::primitives::{ByteReader, ByteWriter};
pub use tidegate::store::codec::{CodecError, LimitOf};
use tidegate::store::codec::{leases as lease_codec, limit as spec};

/// A record of the log.
#[derive(Debug)]
pub enum LogRecord<'a> {
    /// Counters whose values must never be reused.
    Counters(Counters),
    /// A version of a limit.
    Put {
        /// The definition of the limit and its version.
        text: Box<StoredLimit>,
        /// For each item, the usage that keys may have without a record.
        unwritten: Vec<Amount>,
    },
    /// The removal of a limit.
    Remove {
        /// The generation of the limit.
        generation: u64,
        /// Whether the limit is forgotten or retired.
        mode: RemovalMode,
        /// When a retired limit is forgotten.
        until: Timestamp,
    },
    /// A reset of counts to zero.
    Reset {
        /// The generation of the limit.
        generation: u64,
        /// The time of the reset.
        at: Timestamp,
        /// The key, if only one key is reset.
        key: Option<(&'a [u8], Tag)>,
    },
    /// A lower bound of a row's usage.
    Row {
        /// The generation of the limit.
        generation: u64,
        /// The version of the limit.
        version: u32,
        /// The key's tag, or `None` for the row shared by all keys.
        key: Option<Tag>,
        /// The usage of each item.
        usage: RowUsage<'a>,
    },
    /// A lower bound of the usage of keys without a row.
    AssumedUsage {
        /// The generation of the limit.
        generation: u64,
        /// The version of the limit.
        version: u32,
        /// The usage of each item.
        usage: RowUsage<'a>,
    },
    /// The layout of the rows that follow.
    Leaf {
        /// The generation of the limit.
        generation: u64,
        /// The layout.
        spread: Spread,
    },
    /// A change of a lease or of a remembered request id. Limits of grants are resolved by id.
    LeaseNote(Box<LeaseNote>),
}

impl LogRecord<'_> {
    /// Applies the record to a store that is being restored.
    pub fn restore_into(self, restoring: &mut Restore) -> Result<(), RestoreError> {
        match self {
            LogRecord::Counters(counters) => restoring.counters(&counters),
            LogRecord::Put { text, .. } => return restoring.put(*text),
            LogRecord::Remove { generation, mode, until } => {
                return restoring.remove(generation, mode, until);
            }
            LogRecord::Reset { generation, at, key } => return restoring.reset(generation, key, at),
            LogRecord::Row { generation, version, key, usage } => {
                return restoring.row(generation, version, key, usage);
            }
            LogRecord::AssumedUsage { generation, version, usage } => {
                let now = restoring.now();
                return restoring.haunt(generation, version, usage, now);
            }
            LogRecord::Leaf { generation, spread } => restoring.leaf(generation, spread),
            LogRecord::LeaseNote(note) => restoring.deed(*note),
        }
        Ok(())
    }
}

const COUNTERS: u8 = 1;
const PUT: u8 = 2;
const REMOVE: u8 = 3;
const RESET: u8 = 4;
const ROW: u8 = 5;
const ASSUMED_USAGE: u8 = 6;
const GRANTED: u8 = 7;
const RENEWED: u8 = 8;
const RELEASED: u8 = 9;
const SETTLED: u8 = 10;
const REMEMBERED: u8 = 11;
const LEAF: u8 = 12;

/// Appends records to a buffer.
#[derive(Debug, Default)]
pub struct RecordWriter {
    bytes: Vec<u8>,
}

impl RecordWriter {
    /// The encoded records.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Clears the buffer and keeps its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    fn record(&mut self, kind: u8, write: impl FnOnce(&mut ByteWriter<'_>)) {
        self.bytes.push(kind);
        // Most bodies are short, and their length takes one byte.
        let place = self.bytes.len();
        self.bytes.push(0);
        write(&mut ByteWriter(&mut self.bytes));
        let length = self.bytes.len() - place - 1;
        if let Ok(short @ 0..0x80) = u8::try_from(length) {
            self.bytes[place] = short;
            return;
        }
        let body = self.bytes.split_off(place + 1);
        self.bytes.pop();
        ByteWriter(&mut self.bytes).number(length as u64);
        self.bytes.extend_from_slice(&body);
    }

    /// Appends a counters record.
    pub fn counters(&mut self, counters: &Counters) {
        let Counters { generations, highest_fence, granted_leases, deeds } = *counters;
        self.record(COUNTERS, |out| {
            for number in [generations, highest_fence, granted_leases, deeds] {
                out.number(number);
            }
        });
    }

    /// Appends a version of a limit.
    pub fn put(&mut self, text: &Text<'_>, unwritten: &[Amount]) {
        self.record(PUT, |out| {
            out.number(text.generation);
            out.number(u64::from(text.limit.version()));
            out.time(text.at);
            out.number(text.fence);
            out.byte(match text.origin {
                Origin::Put => 0,
                Origin::Applied => 1,
            });
            out.number(text.limit.items().len() as u64);
            for (index, item) in text.limit.items().iter().enumerate() {
                let ItemLineage { law_version: reshaped, step } = item.lineage();
                out.number(u64::from(reshaped));
                out.number(step.map_or(0, |step| step.ticks().saturating_add(1)));
                out.number(unwritten.get(index).copied().unwrap_or_default());
            }
            spec::write(out, text.limit.spec());
        });
    }

    /// Appends the removal of a limit.
    pub fn remove(&mut self, generation: u64, mode: RemovalMode, until: Timestamp) {
        self.record(REMOVE, |out| {
            out.number(generation);
            out.byte(match mode {
                RemovalMode::Forget => 0,
                RemovalMode::Retire => 1,
            });
            out.time(until);
        });
    }

    /// Appends a reset.
    pub fn reset(&mut self, generation: u64, key: Option<(&[u8], Tag)>, at: Timestamp) {
        self.record(RESET, |out| {
            out.number(generation);
            out.time(at);
            out.byte(u8::from(key.is_some()));
            if let Some((key, tag)) = key {
                out.text(key);
                out.tag(tag);
            }
        });
    }

    /// Appends a row.
    pub fn row(&mut self, generation: u64, version: u32, key: Option<Tag>, usage: &[(usize, UsageRecord)]) {
        if let (Some(tag), [(item, UsageRecord::Count { count, last_time, .. })]) = (key, usage)
            && let Some(short) =
                short_row([generation, u64::from(version), *item as u64, *count], tag, *last_time)
        {
            self.bytes.extend_from_slice(&short);
            return;
        }
        self.long_row(generation, version, key, usage);
    }

    fn long_row(&mut self, generation: u64, version: u32, key: Option<Tag>, usage: &[(usize, UsageRecord)]) {
        self.record(ROW, |out| {
            out.number(generation);
            out.number(u64::from(version));
            out.byte(u8::from(key.is_some()));
            if let Some(tag) = key {
                out.tag(tag);
            }
            write_usage(out, usage);
        });
    }

    /// Appends the assumed usage of keys without a row.
    pub fn assumed_usage(&mut self, generation: u64, version: u32, usage: &[(usize, UsageRecord)]) {
        self.record(ASSUMED_USAGE, |out| {
            out.number(generation);
            out.number(u64::from(version));
            write_usage(out, usage);
        });
    }

    /// Appends the layout of the rows that follow.
    pub fn leaf(&mut self, generation: u64, spread: Spread) {
        self.record(LEAF, |out| {
            out.number(generation);
            out.time(Timestamp::from_ticks(spread.low));
            out.number(u64::from(spread.bits));
            out.number(spread.pages as u64);
        });
    }

    /// Appends a change of a lease or of a request id.
    pub fn lease_note(&mut self, note: &LeaseNote) {
        let serial = note.serial;
        let begin = |out: &mut ByteWriter<'_>, id: LeaseId| {
            out.number(serial);
            out.lease_id(id);
        };
        match &note.what {
            LeaseAction::Granted { id, lease, fences } => self.record(GRANTED, |out| {
                begin(out, *id);
                lease_codec::write_lease(out, lease);
                out.number(fences.len() as u64);
                for (generation, fence) in fences {
                    out.number(*generation);
                    out.number(*fence);
                }
            }),
            LeaseAction::Renewed { id, expires_at } => self.record(RENEWED, |out| {
                begin(out, *id);
                out.time(*expires_at);
            }),
            LeaseAction::Released { id } => self.record(RELEASED, |out| begin(out, *id)),
            LeaseAction::Settled { id, until } => self.record(SETTLED, |out| {
                begin(out, *id);
                out.time(*until);
            }),
            LeaseAction::Remembered { id, grant } => self.record(REMEMBERED, |out| {
                out.number(serial);
                out.text(id);
                lease_codec::write_grant(out, grant);
            }),
        }
    }
}

/// The length of the most common row record.
const SHORT_ROW_BYTES: usize = 29;

/// Encodes the most common row in one step: one count of one key, where generation, version, item and count
/// are below 128. The bytes equal those of the general encoding.
fn short_row(numbers: [u64; 4], tag: Tag, last_time: Timestamp) -> Option<[u8; SHORT_ROW_BYTES]> {
    if numbers.iter().any(|number| *number >= 0x80) {
        return None;
    }
    let [generation, version, item, count] = numbers.map(|number| number.to_le_bytes()[0]);
    let mut row = [0; SHORT_ROW_BYTES];
    row[..5].copy_from_slice(&[ROW, SHORT_ROW_BYTES.to_le_bytes()[0] - 2, generation, version, 1]);
    row[5..13].copy_from_slice(&tag.low.to_le_bytes());
    row[13..17].copy_from_slice(&tag.high.to_le_bytes());
    row[17..21].copy_from_slice(&[1, item, 0, count]);
    row[21..].copy_from_slice(&last_time.ticks().to_le_bytes());
    Some(row)
}

fn write_usage(out: &mut ByteWriter<'_>, usage: &[(usize, UsageRecord)]) {
    out.number(usage.len() as u64);
    for (item, usage_record) in usage {
        out.number(*item as u64);
        match *usage_record {
            UsageRecord::Count { count, last_time, .. } => {
                out.byte(0);
                out.number(count);
                out.time(last_time);
            }
            UsageRecord::Bucket { tat, step, credits } => {
                out.byte(1);
                out.time(tat);
                out.number(step.ticks());
                out.number(credits.ticks());
            }
            UsageRecord::Sliding { at, count, last_time } => {
                out.byte(2);
                out.time(at);
                out.number(count);
                out.time(last_time);
            }
        }
    }
}

/// Decodes the usage records of a row one by one.
#[derive(Debug, Clone)]
pub struct RowUsage<'a> {
    reader: ByteReader<'a>,
    left: usize,
}

impl Iterator for RowUsage<'_> {
    type Item = (usize, UsageRecord);

    fn next(&mut self) -> Option<(usize, UsageRecord)> {
        self.left = self.left.checked_sub(1)?;
        read_usage_record(&mut self.reader).ok()
    }
}

fn read_usage_record(reader: &mut ByteReader<'_>) -> Result<(usize, UsageRecord), CodecError> {
    let item = reader.size()?;
    let usage_record = match reader.byte()? {
        0 => UsageRecord::Count { count: reader.number()?, last_time: reader.time()?, until: NO_END },
        1 => UsageRecord::Bucket {
            tat: reader.time()?,
            step: Span::from_ticks(reader.number()?),
            credits: Span::from_ticks(reader.number()?),
        },
        2 => UsageRecord::Sliding { at: reader.time()?, count: reader.number()?, last_time: reader.time()? },
        _ => return Err(reader.invalid("a usage record of an unknown kind")),
    };
    Ok((item, usage_record))
}

/// Validates all usage records and returns an iterator that reads them again.
fn read_usage<'a>(reader: &mut ByteReader<'a>) -> Result<RowUsage<'a>, CodecError> {
    let left = reader.length(10)?;
    let usage = RowUsage { reader: reader.clone(), left };
    for _ in 0..left {
        read_usage_record(reader)?;
    }
    Ok(usage)
}

/// Decodes records one by one.
#[derive(Debug)]
pub struct RecordReader<'a> {
    reader: ByteReader<'a>,
}

impl<'a> RecordReader<'a> {
    /// Creates a reader of these bytes.
    pub fn new(bytes: &'a [u8]) -> RecordReader<'a> {
        RecordReader { reader: ByteReader::new(bytes) }
    }

    /// Decodes the next record, if there is one.
    pub fn next(&mut self, limit_of: LimitOf<'_>) -> Result<Option<LogRecord<'a>>, CodecError> {
        if self.reader.is_at_end() {
            return Ok(None);
        }
        let kind = self.reader.byte()?;
        let mut body = self.reader.part()?;
        let record = read(kind, &mut body, limit_of)?;
        if !body.is_at_end() {
            return Err(body.invalid("bytes after the end of the record"));
        }
        Ok(Some(record))
    }
}

fn read<'a>(kind: u8, body: &mut ByteReader<'a>, limit_of: LimitOf<'_>) -> Result<LogRecord<'a>, CodecError> {
    let lease_note = |serial, what| LogRecord::LeaseNote(Box::new(LeaseNote { serial, what }));
    Ok(match kind {
        COUNTERS => LogRecord::Counters(Counters {
            generations: body.number()?,
            highest_fence: body.number()?,
            granted_leases: body.number()?,
            deeds: body.number()?,
        }),
        PUT => read_put(body)?,
        REMOVE => LogRecord::Remove {
            generation: body.number()?,
            mode: match body.byte()? {
                0 => RemovalMode::Forget,
                1 => RemovalMode::Retire,
                _ => return Err(body.invalid("an unknown removal mode")),
            },
            until: body.time()?,
        },
        RESET => LogRecord::Reset {
            generation: body.number()?,
            at: body.time()?,
            key: if body.flag()? { Some((body.text()?, body.tag()?)) } else { None },
        },
        ROW => LogRecord::Row {
            generation: body.number()?,
            version: body.number32()?,
            key: if body.flag()? { Some(body.tag()?) } else { None },
            usage: read_usage(body)?,
        },
        ASSUMED_USAGE => LogRecord::AssumedUsage {
            generation: body.number()?,
            version: body.number32()?,
            usage: read_usage(body)?,
        },
        LEAF => LogRecord::Leaf {
            generation: body.number()?,
            spread: Spread { low: body.time()?.ticks(), bits: body.number32()?, pages: body.size()? },
        },
        GRANTED => {
            let (serial, id) = (body.number()?, body.lease_id()?);
            let lease = lease_codec::read_lease(body)?;
            let fences = body.length(2)?;
            let fences =
                (0..fences).map(|_| Ok((body.number()?, body.number()?))).collect::<Result<_, _>>()?;
            lease_note(serial, LeaseAction::Granted { id, lease, fences })
        }
        RENEWED => lease_note(
            body.number()?,
            LeaseAction::Renewed { id: body.lease_id()?, expires_at: body.time()? },
        ),
        RELEASED => lease_note(body.number()?, LeaseAction::Released { id: body.lease_id()? }),
        SETTLED => {
            lease_note(body.number()?, LeaseAction::Settled { id: body.lease_id()?, until: body.time()? })
        }
        REMEMBERED => {
            let (serial, id) = (body.number()?, body.text()?.into());
            lease_note(
                serial,
                LeaseAction::Remembered { id, grant: lease_codec::read_grant(body, limit_of)? },
            )
        }
        _ => return Err(body.invalid("a record of a kind that this version does not know")),
    })
}

fn read_put<'a>(body: &mut ByteReader<'a>) -> Result<LogRecord<'a>, CodecError> {
    let (generation, version) = (body.number()?, body.number32()?);
    let (at, fence) = (body.time()?, body.number()?);
    let origin = if body.flag()? { Origin::Applied } else { Origin::Put };
    let items = body.length(3)?;
    let (mut descent, mut unwritten) = (Vec::with_capacity(items), Vec::with_capacity(items));
    for _ in 0..items {
        let reshaped = body.number32()?;
        let step = body.number()?.checked_sub(1).map(Span::from_ticks);
        descent.push(ItemLineage { law_version: reshaped, step });
        unwritten.push(body.number()?);
    }
    let spec = spec::read(body)?;
    let text = Box::new(StoredLimit { generation, version, spec, descent, at, fence, origin });
    Ok(LogRecord::Put { text, unwritten })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_row_encoding_equals_general_encoding() {
        let tag = Tag { low: 0x0102_0304_0506_0708, high: 0x090a_0b0c };
        let last_time = Timestamp::from_ticks(1_700_000_000_123_456_789);
        for generation in [0, 1, 127, 128, 1 << 40] {
            for (version, item) in [(1, 0), (127, 1), (128, 127), (1, 128), (u32::MAX, 3)] {
                for count in [0, 1, 99, 127, 128, u64::MAX] {
                    let usage = [(item, UsageRecord::Count { count, last_time, until: NO_END })];
                    let (mut short, mut long) = (RecordWriter::default(), RecordWriter::default());
                    short.row(generation, version, Some(tag), &usage);
                    long.long_row(generation, version, Some(tag), &usage);
                    assert_eq!(short.bytes(), long.bytes(), "{generation} {version} {item} {count}");
                }
            }
        }
    }
}
