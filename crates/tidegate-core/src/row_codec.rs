//! The binary encoding of a row, format 1.
//!
//! ```text
//!   ┌────────┬───────────────┬──────────────┬───────┬───────┬─────┬───────┐
//!   │ format │ limit version │ latest time  │ holds │ state │  …  │ state │
//!   │  = 1   │    varint     │ varint ticks │ varint│       │     │       │
//!   └────────┴───────────────┴──────────────┴───────┴───────┴─────┴───────┘
//!
//!   state    blank       0
//!            total       1  used  ago
//!            fixed       2  count  ago
//!            sliding     3  last-ago  length  ( ago amount ) ( later amount )…
//!            bucket      4  ago  step  credits
//!            leases      5  length  ( id:16  ago  amount )…
//! ```
//!
//! Numbers are little-endian base-128 varints in their shortest form. The latest time of the row is stored once. Every
//! other time is relative: `ago` counts ticks before it, `later` counts ticks after the previous entry.
//!
//! A row has one state for each item of its `per`, in item order. It is decoded with the limit version that it names. Each
//! row has exactly one encoding. Bytes that do not encode back to themselves are refused, so damage that a checksum missed
//! does not become a state.

use std::fmt;

use crate::law::{Law, State, concurrency, fixed_window, lifetime_total, sliding_window, token_bucket};
use crate::lease::{LeaseId, LeaseTerm};
use crate::limit::Limit;
use crate::row::Row;
use crate::spec::Per;
use crate::time::{Span, Timestamp};

/// The format that this version writes.
pub const FORMAT: u8 = 1;

/// Why bytes do not decode to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowDecodeError {
    /// The byte offset of the error.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

impl fmt::Display for RowDecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a row: {} at byte {}", self.what, self.at)
    }
}

impl std::error::Error for RowDecodeError {}

/// Appends the encoding of a row that was written under this version of its limit.
pub fn encode(row: &Row, limit: &Limit, per: Per, out: &mut Vec<u8>) {
    let latest = row.states.iter().map(latest).max().unwrap_or_default();
    out.push(FORMAT);
    put_varint(out, u64::from(limit.version()));
    put_varint(out, latest.ticks());
    put_varint(out, u64::from(row.holds));
    let laws = limit.items().iter().filter(|item| item.per() == per).map(|item| &item.rule().law);
    for (state, law) in row.states.iter().zip(laws) {
        if *state == State::blank(law) { out.push(0) } else { encode_state(out, state, latest) }
    }
}

/// Reads the version of the limit that a row was written under. Decode the row with that version.
pub fn limit_version(bytes: &[u8]) -> Result<u32, RowDecodeError> {
    RowReader::begin(bytes)?.number32("the version is too large")
}

/// Decodes a row. `limit` is the version that [`limit_version`] returns.
pub fn decode(bytes: &[u8], limit: &Limit, per: Per) -> Result<Row, RowDecodeError> {
    let mut reader = RowReader::begin(bytes)?;
    if reader.number32("the version is too large")? != limit.version() {
        return Err(reader.error("another version of the limit"));
    }
    let latest = Timestamp::from_ticks(reader.number()?);
    let holds = reader.number32("too many holds")?;
    let items = limit.items().iter().filter(|item| item.per() == per);
    let states = items.map(|item| reader.state(&item.rule().law, latest)).collect::<Result<_, _>>()?;
    if reader.at != bytes.len() {
        return Err(reader.error("bytes after the last state"));
    }
    let row = Row { states, holds };
    let mut reencoded = Vec::with_capacity(bytes.len());
    encode(&row, limit, per, &mut reencoded);
    if reencoded != bytes {
        return Err(RowDecodeError { at: 0, what: "not the canonical encoding" });
    }
    Ok(row)
}

/// The latest instant in a state.
fn latest(state: &State) -> Timestamp {
    match state {
        State::LifetimeTotal(total) => total.last_time,
        State::FixedWindow(count) => count.last_time,
        State::SlidingWindow(log) => {
            let last = log.iter().last().map_or(Timestamp::EPOCH, |(at, _)| at);
            log.last_charge().unwrap_or_default().max(last)
        }
        State::TokenBucket(bucket) => bucket.tat,
        State::Concurrency(holders) => {
            holders.iter().last().map_or(Timestamp::EPOCH, |(term, _)| term.expires_at)
        }
    }
}

fn encode_state(out: &mut Vec<u8>, state: &State, latest: Timestamp) {
    let ago = |at: Timestamp| latest.since(at).ticks();
    match state {
        State::LifetimeTotal(total) => {
            out.push(1);
            put_varint(out, total.used);
            put_varint(out, ago(total.last_time));
        }
        State::FixedWindow(count) => {
            out.push(2);
            put_varint(out, count.count);
            put_varint(out, ago(count.last_time));
        }
        State::SlidingWindow(log) => {
            out.push(3);
            put_varint(out, ago(log.last_charge().unwrap_or_default()));
            put_varint(out, log.iter().len() as u64);
            let mut before: Option<Timestamp> = None;
            for (at, amount) in log.iter() {
                put_varint(out, before.map_or_else(|| ago(at), |before| at.since(before).ticks()));
                put_varint(out, amount);
                before = Some(at);
            }
        }
        State::TokenBucket(bucket) => {
            out.push(4);
            put_varint(out, ago(bucket.tat));
            put_varint(out, bucket.step.ticks());
            put_varint(out, bucket.credits.ticks());
        }
        State::Concurrency(holders) => {
            out.push(5);
            put_varint(out, holders.iter().len() as u64);
            for (term, amount) in holders.iter() {
                out.extend_from_slice(&term.lease.0.to_le_bytes());
                put_varint(out, ago(term.expires_at));
                put_varint(out, amount);
            }
        }
    }
}

/// Appends a varint in its shortest form.
pub fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// Reads a varint byte by byte; `None` if it exceeds 64 bits.
pub fn read_varint<E>(mut next: impl FnMut() -> Result<u8, E>) -> Result<Option<u64>, E> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = next()?;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            break;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

struct RowReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> RowReader<'a> {
    fn begin(bytes: &'a [u8]) -> Result<RowReader<'a>, RowDecodeError> {
        let mut reader = RowReader { bytes, at: 0 };
        match reader.byte()? {
            FORMAT => Ok(reader),
            _ => Err(RowDecodeError { at: 0, what: "an unknown format" }),
        }
    }

    fn error(&self, what: &'static str) -> RowDecodeError {
        RowDecodeError { at: self.at, what }
    }

    fn byte(&mut self) -> Result<u8, RowDecodeError> {
        let byte = *self.bytes.get(self.at).ok_or(self.error("an unexpected end"))?;
        self.at += 1;
        Ok(byte)
    }

    fn number(&mut self) -> Result<u64, RowDecodeError> {
        let number = read_varint(|| self.byte())?;
        number.ok_or(self.error("a number above 64 bits"))
    }

    fn number32(&mut self, what: &'static str) -> Result<u32, RowDecodeError> {
        let number = self.number()?;
        u32::try_from(number).map_err(|_| self.error(what))
    }

    /// Reads the number of entries that follow. Each takes at least `bytes_each` bytes, so a false length cannot cause a large
    /// allocation.
    fn length(&mut self, bytes_each: usize) -> Result<usize, RowDecodeError> {
        let claimed = self.number()?;
        let possible = (self.bytes.len() - self.at) / bytes_each;
        match usize::try_from(claimed) {
            Ok(length) if length <= possible => Ok(length),
            _ => Err(self.error("more entries than bytes")),
        }
    }

    fn time_before(&mut self, latest: Timestamp) -> Result<Timestamp, RowDecodeError> {
        let ago = self.number()?;
        latest.ticks().checked_sub(ago).map(Timestamp::from_ticks).ok_or(self.error("a time before 1970"))
    }

    fn state(&mut self, law: &Law, latest: Timestamp) -> Result<State, RowDecodeError> {
        match (self.byte()?, law) {
            (0, law) => Ok(State::blank(law)),
            (1, Law::LifetimeTotal) => Ok(State::LifetimeTotal(lifetime_total::TotalCount {
                used: self.number()?,
                last_time: self.time_before(latest)?,
            })),
            (2, Law::FixedWindow(_)) => Ok(State::FixedWindow(fixed_window::WindowCount {
                count: self.number()?,
                last_time: self.time_before(latest)?,
            })),
            (3, Law::SlidingWindow(_)) => self.sliding_log(latest).map(State::SlidingWindow),
            (4, Law::TokenBucket(_)) => Ok(State::TokenBucket(token_bucket::BucketState {
                tat: self.time_before(latest)?,
                step: Span::from_ticks(self.number()?),
                credits: Span::from_ticks(self.number()?),
            })),
            (5, Law::Concurrency(_)) => self.lease_holders(latest).map(State::Concurrency),
            _ => Err(self.error("a state of a different law")),
        }
    }

    fn sliding_log(&mut self, latest: Timestamp) -> Result<sliding_window::SlidingLog, RowDecodeError> {
        let last_time = self.time_before(latest)?;
        let length = self.length(2)?;
        let mut list: Vec<(Timestamp, u64)> = Vec::with_capacity(length);
        let mut sum = 0u64;
        for _ in 0..length {
            let at = match list.last() {
                None => self.time_before(latest)?,
                Some((before, _)) => before.plus(Span::from_ticks(self.number()?)),
            };
            let amount = self.number()?;
            let in_order = list.last().is_none_or(|(before, _)| *before < at);
            sum = sum.checked_add(amount).ok_or(self.error("a sum above 64 bits"))?;
            if !in_order || amount == 0 {
                return Err(self.error("an entry out of order"));
            }
            list.push((at, amount));
        }
        Ok(sliding_window::SlidingLog::from_sorted(list, last_time))
    }

    fn lease_holders(&mut self, latest: Timestamp) -> Result<concurrency::LeaseHolders, RowDecodeError> {
        let length = self.length(18)?;
        let mut holders = concurrency::LeaseHolders::default();
        for _ in 0..length {
            let id = self.bytes.get(self.at..self.at + 16).ok_or(self.error("an unexpected end"))?;
            self.at += 16;
            let lease = LeaseId(u128::from_le_bytes(id.try_into().expect("sixteen bytes")));
            let expires_at = self.time_before(latest)?;
            let amount = self.number()?;
            holders.insert(LeaseTerm { lease, expires_at }, amount);
        }
        Ok(holders)
    }
}
