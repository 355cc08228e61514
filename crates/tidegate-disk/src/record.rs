//! Records: what the log and its snapshots say, in bytes.
//!
//! ```text
//!   ┌──────┬─────────┬──────────────────────────┐
//!   │ kind │ length  │ body                     │      numbers are base-128 varints, least significant first;
//!   │  u8  │ varint  │ as long as it says       │      times are u64 ticks, little-endian
//!   └──────┴─────────┴──────────────────────────┘
//!
//!   1 counters     generations  highest-fence  leases  deeds
//!   2 put          generation  version  at:8  fence  origin  items ( reshaped  step+1  unwritten )…  limit (see `tidegate::store::written::limit`)
//!   3 remove       generation  parting  until:8
//!   4 reset        generation  at:8  of-key  ( key  tag:12 )
//!   5 row          generation  version  whose ( tag:12 )  traces ( item  trace )…
//!   6 ghost        generation  version  traces ( item  trace )…
//!   7 granted      serial  id:16  lease (see `tidegate::store::written::held`)  fences ( generation  fence )…
//!   8 renewed      serial  id:16  expires:8
//!   9 released     serial  id:16
//!  10 settled      serial  id:16  until:8
//!  11 remembered   serial  request-id  grant (see `tidegate::store::written::held`)
//!  12 leaf         generation  low:8  bits  pages
//!
//!   trace    0 count      count  last-time:8
//!            1 arrival    tat:8  step  credits
//!            2 run        at:8  count  last-time:8
//! ```
//!
//! Rows say how much is remembered *at least*; reading one twice, or an old one after a new one, changes nothing. What a reset or a
//! removal makes void is what stands before it.
//!
//! A leaf says how the rows behind it lay, so that there can be room for all of them at once. It may be ignored.
//!
//! Decided: every record says its length, so that one that is not understood can be shown and refused by name. Nothing is skipped: a
//! store that does not understand a record does not know how much was sold.

use tidegate::catalog::RemovalMode;
use tidegate::store::memory::journal::{LeaseNote, Origin, Tag, Text, What};
use tidegate::store::memory::restoring::{Counters, Restore, RestoreError, Spread, StoredLimit};
use tidegate_core::usage_record::NO_END;
use tidegate_core::{Amount, ItemLineage, LeaseId, Span, Timestamp, UsageRecord};

use tidegate::store::written::bytes::{Reader, Writer};
pub use tidegate::store::written::{CodecError, LimitOf};
use tidegate::store::written::{held, limit as spec};

/// What was written down.
#[derive(Debug)]
pub enum Record<'a> {
    /// What must never be used twice.
    Counters(Counters),
    /// A text of a limit.
    Put {
        /// The text.
        text: Box<StoredLimit>,
        /// What keys may have used of each item without a record.
        unwritten: Vec<Amount>,
    },
    /// A limit goes.
    Remove {
        /// Which incarnation.
        generation: u64,
        /// For how long.
        parting: RemovalMode,
        /// When one that retires is forgotten.
        until: Timestamp,
    },
    /// Counts are zeroed.
    Reset {
        /// Of which incarnation.
        generation: u64,
        /// When.
        at: Timestamp,
        /// Of one key only.
        key: Option<(&'a [u8], Tag)>,
    },
    /// A row remembers at least this.
    Row {
        /// Which incarnation of the limit.
        generation: u64,
        /// Which version of it.
        version: u32,
        /// Whose row; `None` for the row of all keys.
        key: Option<Tag>,
        /// What, by item.
        traces: Traces<'a>,
    },
    /// Keys without a row remember at least this.
    Ghost {
        /// Which incarnation of the limit.
        generation: u64,
        /// Which version of it.
        version: u32,
        /// What, by item.
        traces: Traces<'a>,
    },
    /// How the rows that follow lay.
    Leaf {
        /// Which incarnation of the limit.
        generation: u64,
        /// How.
        spread: Spread,
    },
    /// A lease or a request id. Grants are told with the limits that are known by their ids.
    LeaseNote(Box<LeaseNote>),
}

impl Record<'_> {
    /// Tells a store that is being made again what was written down.
    pub fn tell(self, restoring: &mut Restore) -> Result<(), RestoreError> {
        match self {
            Record::Counters(counters) => restoring.counters(&counters),
            Record::Put { text, .. } => return restoring.put(*text),
            Record::Remove { generation, parting, until } => {
                return restoring.remove(generation, parting, until);
            }
            Record::Reset { generation, at, key } => return restoring.reset(generation, key, at),
            Record::Row { generation, version, key, traces } => {
                return restoring.row(generation, version, key, traces);
            }
            Record::Ghost { generation, version, traces } => {
                let now = restoring.now();
                return restoring.haunt(generation, version, traces, now);
            }
            Record::Leaf { generation, spread } => restoring.leaf(generation, spread),
            Record::LeaseNote(deed) => restoring.deed(*deed),
        }
        Ok(())
    }
}

const COUNTERS: u8 = 1;
const PUT: u8 = 2;
const REMOVE: u8 = 3;
const RESET: u8 = 4;
const ROW: u8 = 5;
const GHOST: u8 = 6;
const GRANTED: u8 = 7;
const RENEWED: u8 = 8;
const RELEASED: u8 = 9;
const SETTLED: u8 = 10;
const REMEMBERED: u8 = 11;
const LEAF: u8 = 12;

/// Appends records to a buffer.
#[derive(Debug, Default)]
pub struct Pen {
    bytes: Vec<u8>,
}

impl Pen {
    /// What was written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether nothing was.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Forgets it.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    fn record(&mut self, kind: u8, write: impl FnOnce(&mut Writer<'_>)) {
        self.bytes.push(kind);
        // Most bodies are short, and their length is one byte.
        let place = self.bytes.len();
        self.bytes.push(0);
        write(&mut Writer(&mut self.bytes));
        let length = self.bytes.len() - place - 1;
        if let Ok(short @ 0..0x80) = u8::try_from(length) {
            self.bytes[place] = short;
            return;
        }
        let body = self.bytes.split_off(place + 1);
        self.bytes.pop();
        Writer(&mut self.bytes).number(length as u64);
        self.bytes.extend_from_slice(&body);
    }

    /// What must never be used twice.
    pub fn counters(&mut self, counters: &Counters) {
        let Counters { generations, highest_fence, granted_leases, deeds } = *counters;
        self.record(COUNTERS, |out| {
            for number in [generations, highest_fence, granted_leases, deeds] {
                out.number(number);
            }
        });
    }

    /// A text of a limit.
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

    /// A limit goes.
    pub fn remove(&mut self, generation: u64, parting: RemovalMode, until: Timestamp) {
        self.record(REMOVE, |out| {
            out.number(generation);
            out.byte(match parting {
                RemovalMode::Forget => 0,
                RemovalMode::Retire => 1,
            });
            out.time(until);
        });
    }

    /// Counts are zeroed.
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

    /// A row remembers at least this.
    pub fn row(&mut self, generation: u64, version: u32, key: Option<Tag>, traces: &[(usize, UsageRecord)]) {
        if let (Some(tag), [(item, UsageRecord::Count { count, last_time, .. })]) = (key, traces)
            && let Some(short) =
                short_row([generation, u64::from(version), *item as u64, *count], tag, *last_time)
        {
            self.bytes.extend_from_slice(&short);
            return;
        }
        self.long_row(generation, version, key, traces);
    }

    fn long_row(&mut self, generation: u64, version: u32, key: Option<Tag>, traces: &[(usize, UsageRecord)]) {
        self.record(ROW, |out| {
            out.number(generation);
            out.number(u64::from(version));
            out.byte(u8::from(key.is_some()));
            if let Some(tag) = key {
                out.tag(tag);
            }
            write_traces(out, traces);
        });
    }

    /// Keys without a row remember at least this.
    pub fn ghost(&mut self, generation: u64, version: u32, traces: &[(usize, UsageRecord)]) {
        self.record(GHOST, |out| {
            out.number(generation);
            out.number(u64::from(version));
            write_traces(out, traces);
        });
    }

    /// How the rows that follow lay.
    pub fn leaf(&mut self, generation: u64, spread: Spread) {
        self.record(LEAF, |out| {
            out.number(generation);
            out.time(Timestamp::from_ticks(spread.low));
            out.number(u64::from(spread.bits));
            out.number(spread.pages as u64);
        });
    }

    /// A lease or a request id.
    pub fn deed(&mut self, deed: &LeaseNote) {
        let serial = deed.serial;
        let begin = |out: &mut Writer<'_>, id: LeaseId| {
            out.number(serial);
            out.lease_id(id);
        };
        match &deed.what {
            What::Granted { id, lease, fences } => self.record(GRANTED, |out| {
                begin(out, *id);
                held::write_lease(out, lease);
                out.number(fences.len() as u64);
                for (generation, fence) in fences {
                    out.number(*generation);
                    out.number(*fence);
                }
            }),
            What::Renewed { id, expires_at } => self.record(RENEWED, |out| {
                begin(out, *id);
                out.time(*expires_at);
            }),
            What::Released { id } => self.record(RELEASED, |out| begin(out, *id)),
            What::Settled { id, until } => self.record(SETTLED, |out| {
                begin(out, *id);
                out.time(*until);
            }),
            What::Remembered { id, grant } => self.record(REMEMBERED, |out| {
                out.number(serial);
                out.text(id);
                held::write_grant(out, grant);
            }),
        }
    }
}

/// How long most rows are.
const SHORT_ROW: usize = 29;

/// A row as most are, in one piece: one count of one key, and generation, version, item and count are all below 128. These are the bytes that it
/// would have if they were written one by one.
fn short_row(numbers: [u64; 4], tag: Tag, last_time: Timestamp) -> Option<[u8; SHORT_ROW]> {
    if numbers.iter().any(|number| *number >= 0x80) {
        return None;
    }
    let [generation, version, item, count] = numbers.map(|number| number.to_le_bytes()[0]);
    let mut row = [0; SHORT_ROW];
    row[..5].copy_from_slice(&[ROW, SHORT_ROW.to_le_bytes()[0] - 2, generation, version, 1]);
    row[5..13].copy_from_slice(&tag.low.to_le_bytes());
    row[13..17].copy_from_slice(&tag.high.to_le_bytes());
    row[17..21].copy_from_slice(&[1, item, 0, count]);
    row[21..].copy_from_slice(&last_time.ticks().to_le_bytes());
    Some(row)
}

fn write_traces(out: &mut Writer<'_>, traces: &[(usize, UsageRecord)]) {
    out.number(traces.len() as u64);
    for (item, trace) in traces {
        out.number(*item as u64);
        match *trace {
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

/// Traces that are read one by one.
#[derive(Debug, Clone)]
pub struct Traces<'a> {
    reader: Reader<'a>,
    left: usize,
}

impl Iterator for Traces<'_> {
    type Item = (usize, UsageRecord);

    fn next(&mut self) -> Option<(usize, UsageRecord)> {
        self.left = self.left.checked_sub(1)?;
        read_trace(&mut self.reader).ok()
    }
}

fn read_trace(reader: &mut Reader<'_>) -> Result<(usize, UsageRecord), CodecError> {
    let item = reader.size()?;
    let trace = match reader.byte()? {
        0 => UsageRecord::Count { count: reader.number()?, last_time: reader.time()?, until: NO_END },
        1 => UsageRecord::Bucket {
            tat: reader.time()?,
            step: Span::from_ticks(reader.number()?),
            credits: Span::from_ticks(reader.number()?),
        },
        2 => UsageRecord::Sliding { at: reader.time()?, count: reader.number()?, last_time: reader.time()? },
        _ => return Err(reader.illegible("a trace of an unknown kind")),
    };
    Ok((item, trace))
}

/// Checks all traces, and leaves them to be read again.
fn read_traces<'a>(reader: &mut Reader<'a>) -> Result<Traces<'a>, CodecError> {
    let left = reader.length(10)?;
    let traces = Traces { reader: reader.clone(), left };
    for _ in 0..left {
        read_trace(reader)?;
    }
    Ok(traces)
}

/// Reads records one after the other.
#[derive(Debug)]
pub struct Records<'a> {
    reader: Reader<'a>,
}

impl<'a> Records<'a> {
    /// All records of these bytes.
    pub fn new(bytes: &'a [u8]) -> Records<'a> {
        Records { reader: Reader::new(bytes) }
    }

    /// The next one, if there is one.
    pub fn next(&mut self, limit_of: LimitOf<'_>) -> Result<Option<Record<'a>>, CodecError> {
        if self.reader.is_at_end() {
            return Ok(None);
        }
        let kind = self.reader.byte()?;
        let mut body = self.reader.part()?;
        let record = read(kind, &mut body, limit_of)?;
        if !body.is_at_end() {
            return Err(body.illegible("more than the record has"));
        }
        Ok(Some(record))
    }
}

fn read<'a>(kind: u8, body: &mut Reader<'a>, limit_of: LimitOf<'_>) -> Result<Record<'a>, CodecError> {
    let deed = |serial, what| Record::LeaseNote(Box::new(LeaseNote { serial, what }));
    Ok(match kind {
        COUNTERS => Record::Counters(Counters {
            generations: body.number()?,
            highest_fence: body.number()?,
            granted_leases: body.number()?,
            deeds: body.number()?,
        }),
        PUT => read_put(body)?,
        REMOVE => Record::Remove {
            generation: body.number()?,
            parting: match body.byte()? {
                0 => RemovalMode::Forget,
                1 => RemovalMode::Retire,
                _ => return Err(body.illegible("an unknown way to part")),
            },
            until: body.time()?,
        },
        RESET => Record::Reset {
            generation: body.number()?,
            at: body.time()?,
            key: if body.flag()? { Some((body.text()?, body.tag()?)) } else { None },
        },
        ROW => Record::Row {
            generation: body.number()?,
            version: body.number32()?,
            key: if body.flag()? { Some(body.tag()?) } else { None },
            traces: read_traces(body)?,
        },
        GHOST => Record::Ghost {
            generation: body.number()?,
            version: body.number32()?,
            traces: read_traces(body)?,
        },
        LEAF => Record::Leaf {
            generation: body.number()?,
            spread: Spread { low: body.time()?.ticks(), bits: body.number32()?, pages: body.size()? },
        },
        GRANTED => {
            let (serial, id) = (body.number()?, body.lease_id()?);
            let lease = held::read_lease(body)?;
            let fences = body.length(2)?;
            let fences =
                (0..fences).map(|_| Ok((body.number()?, body.number()?))).collect::<Result<_, _>>()?;
            deed(serial, What::Granted { id, lease, fences })
        }
        RENEWED => deed(body.number()?, What::Renewed { id: body.lease_id()?, expires_at: body.time()? }),
        RELEASED => deed(body.number()?, What::Released { id: body.lease_id()? }),
        SETTLED => deed(body.number()?, What::Settled { id: body.lease_id()?, until: body.time()? }),
        REMEMBERED => {
            let (serial, id) = (body.number()?, body.text()?.into());
            deed(serial, What::Remembered { id, grant: held::read_grant(body, limit_of)? })
        }
        _ => return Err(body.illegible("a record of a kind that this version does not know")),
    })
}

fn read_put<'a>(body: &mut Reader<'a>) -> Result<Record<'a>, CodecError> {
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
    Ok(Record::Put { text, unwritten })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_in_one_piece_has_the_bytes_that_it_has_one_by_one() {
        let tag = Tag { low: 0x0102_0304_0506_0708, high: 0x090a_0b0c };
        let last_time = Timestamp::from_ticks(1_700_000_000_123_456_789);
        for generation in [0, 1, 127, 128, 1 << 40] {
            for (version, item) in [(1, 0), (127, 1), (128, 127), (1, 128), (u32::MAX, 3)] {
                for count in [0, 1, 99, 127, 128, u64::MAX] {
                    let traces = [(item, UsageRecord::Count { count, last_time, until: NO_END })];
                    let (mut quick, mut slow) = (Pen::default(), Pen::default());
                    quick.row(generation, version, Some(tag), &traces);
                    slow.long_row(generation, version, Some(tag), &traces);
                    assert_eq!(quick.bytes(), slow.bytes(), "{generation} {version} {item} {count}");
                }
            }
        }
    }
}
