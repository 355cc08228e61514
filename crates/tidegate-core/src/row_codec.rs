//! The bytes of a row, format 1.
//!
//! ```text
//!   ┌────────┬───────────────┬──────────────┬───────┬───────┬─────┬───────┐
//!   │ format │ limit version │ latest time  │ holds │ state │  …  │ state │
//!   │  = 1   │    varint     │ varint ticks │ varint│       │     │       │
//!   └────────┴───────────────┴──────────────┴───────┴───────┴─────┴───────┘
//!
//!   state    blank       0
//!            never       1  used  ago
//!            windowed    2  count  ago
//!            rolling     3  last-ago  runs  ( ago amount ) ( later amount )…
//!            continuous  4  ago  step  credits
//!            on release  5  holders  ( id:16  ago  amount )…
//! ```
//!
//! Numbers are little-endian base-128 varints in their shortest form. The latest time in the row is written once;
//! every other time is `ago`, ticks before it, or `later`, ticks after the run before. There is one state for
//! every item of the row's `per`, in the order of the version of the limit that is named; a row is decoded with
//! that version. Every row has one encoding and every encoding one row: what does not encode back to itself is
//! refused, so damage that a checksum missed is not taken for a state.

use std::fmt;

use crate::law::{Law, State, concurrency, fixed_window, lifetime_total, sliding_window, token_bucket};
use crate::lease::{LeaseId, LeaseTerm};
use crate::limit::Limit;
use crate::row::Row;
use crate::spec::Per;
use crate::time::{Span, Timestamp};

/// The format this version writes.
pub const FORMAT: u8 = 1;

/// Why bytes are not a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowDecodeError {
    /// Where, in bytes from the start.
    pub at: usize,
    /// What was found there.
    pub what: &'static str,
}

impl fmt::Display for RowDecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a row: {} at byte {}", self.what, self.at)
    }
}

impl std::error::Error for RowDecodeError {}

/// Appends the bytes of a row that was written under this version of its limit.
pub fn encode(row: &Row, limit: &Limit, per: Per, out: &mut Vec<u8>) {
    let latest = row.states.iter().map(latest).max().unwrap_or_default();
    out.push(FORMAT);
    put_varint(out, u64::from(limit.version()));
    put_varint(out, latest.ticks());
    put_varint(out, u64::from(row.holds));
    let laws = limit.items().iter().filter(|item| item.per() == per).map(|item| &item.rule().law);
    for (state, law) in row.states.iter().zip(laws) {
        if *state == State::blank(law) { out.push(0) } else { put_state(out, state, latest) }
    }
}

/// The version of the limit that a row was written under, so that it can be decoded with it.
pub fn limit_version(bytes: &[u8]) -> Result<u32, RowDecodeError> {
    Reader::begin(bytes)?.number32("the version is too large")
}

/// Reads a row back. `limit` is the version named by [`version`].
pub fn decode(bytes: &[u8], limit: &Limit, per: Per) -> Result<Row, RowDecodeError> {
    let mut reader = Reader::begin(bytes)?;
    if reader.number32("the version is too large")? != limit.version() {
        return Err(reader.damage("another version of the limit"));
    }
    let latest = Timestamp::from_ticks(reader.number()?);
    let holds = reader.number32("too many holds")?;
    let items = limit.items().iter().filter(|item| item.per() == per);
    let states = items.map(|item| reader.state(&item.rule().law, latest)).collect::<Result<_, _>>()?;
    if reader.at != bytes.len() {
        return Err(reader.damage("bytes after the last state"));
    }
    let row = Row { states, holds };
    let mut again = Vec::with_capacity(bytes.len());
    encode(&row, limit, per, &mut again);
    if again != bytes {
        return Err(RowDecodeError { at: 0, what: "an encoding nobody writes" });
    }
    Ok(row)
}

/// The latest instant a state mentions.
fn latest(state: &State) -> Timestamp {
    match state {
        State::LifetimeTotal(tally) => tally.last_time,
        State::FixedWindow(count) => count.last_time,
        State::SlidingWindow(runs) => {
            let last = runs.iter().last().map_or(Timestamp::EPOCH, |(at, _)| at);
            runs.last_charge().unwrap_or_default().max(last)
        }
        State::TokenBucket(arrival) => arrival.tat,
        State::Concurrency(holders) => {
            holders.iter().last().map_or(Timestamp::EPOCH, |(tenure, _)| tenure.expires_at)
        }
    }
}

fn put_state(out: &mut Vec<u8>, state: &State, latest: Timestamp) {
    let ago = |at: Timestamp| latest.since(at).ticks();
    match state {
        State::LifetimeTotal(tally) => {
            out.push(1);
            put_varint(out, tally.used);
            put_varint(out, ago(tally.last_time));
        }
        State::FixedWindow(count) => {
            out.push(2);
            put_varint(out, count.count);
            put_varint(out, ago(count.last_time));
        }
        State::SlidingWindow(runs) => {
            out.push(3);
            put_varint(out, ago(runs.last_charge().unwrap_or_default()));
            put_varint(out, runs.iter().len() as u64);
            let mut before: Option<Timestamp> = None;
            for (at, amount) in runs.iter() {
                put_varint(out, before.map_or_else(|| ago(at), |before| at.since(before).ticks()));
                put_varint(out, amount);
                before = Some(at);
            }
        }
        State::TokenBucket(arrival) => {
            out.push(4);
            put_varint(out, ago(arrival.tat));
            put_varint(out, arrival.step.ticks());
            put_varint(out, arrival.credits.ticks());
        }
        State::Concurrency(holders) => {
            out.push(5);
            put_varint(out, holders.iter().len() as u64);
            for (tenure, amount) in holders.iter() {
                out.extend_from_slice(&tenure.lease.0.to_le_bytes());
                put_varint(out, ago(tenure.expires_at));
                put_varint(out, amount);
            }
        }
    }
}

/// Appends a number in its shortest form.
pub fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// A number out of bytes that are given one by one; `None` if it has more than 64 bits.
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

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn begin(bytes: &'a [u8]) -> Result<Reader<'a>, RowDecodeError> {
        let mut reader = Reader { bytes, at: 0 };
        match reader.byte()? {
            FORMAT => Ok(reader),
            _ => Err(RowDecodeError { at: 0, what: "a format this version does not know" }),
        }
    }

    fn damage(&self, what: &'static str) -> RowDecodeError {
        RowDecodeError { at: self.at, what }
    }

    fn byte(&mut self) -> Result<u8, RowDecodeError> {
        let byte = *self.bytes.get(self.at).ok_or(self.damage("the end too early"))?;
        self.at += 1;
        Ok(byte)
    }

    fn number(&mut self) -> Result<u64, RowDecodeError> {
        let number = read_varint(|| self.byte())?;
        number.ok_or(self.damage("a number above 64 bits"))
    }

    fn number32(&mut self, what: &'static str) -> Result<u32, RowDecodeError> {
        let number = self.number()?;
        u32::try_from(number).map_err(|_| self.damage(what))
    }

    /// How many entries follow; each takes at least `bytes_each`, so a lie about it cannot make us allocate.
    fn length(&mut self, bytes_each: usize) -> Result<usize, RowDecodeError> {
        let claimed = self.number()?;
        let possible = (self.bytes.len() - self.at) / bytes_each;
        match usize::try_from(claimed) {
            Ok(length) if length <= possible => Ok(length),
            _ => Err(self.damage("more entries than bytes")),
        }
    }

    fn ago(&mut self, latest: Timestamp) -> Result<Timestamp, RowDecodeError> {
        let ago = self.number()?;
        latest.ticks().checked_sub(ago).map(Timestamp::from_ticks).ok_or(self.damage("a time before 1970"))
    }

    fn state(&mut self, law: &Law, latest: Timestamp) -> Result<State, RowDecodeError> {
        match (self.byte()?, law) {
            (0, law) => Ok(State::blank(law)),
            (1, Law::LifetimeTotal) => Ok(State::LifetimeTotal(lifetime_total::TotalCount {
                used: self.number()?,
                last_time: self.ago(latest)?,
            })),
            (2, Law::FixedWindow(_)) => Ok(State::FixedWindow(fixed_window::WindowCount {
                count: self.number()?,
                last_time: self.ago(latest)?,
            })),
            (3, Law::SlidingWindow(_)) => self.runs(latest).map(State::SlidingWindow),
            (4, Law::TokenBucket(_)) => Ok(State::TokenBucket(token_bucket::BucketState {
                tat: self.ago(latest)?,
                step: Span::from_ticks(self.number()?),
                credits: Span::from_ticks(self.number()?),
            })),
            (5, Law::Concurrency(_)) => self.holders(latest).map(State::Concurrency),
            _ => Err(self.damage("a state of another law")),
        }
    }

    fn runs(&mut self, latest: Timestamp) -> Result<sliding_window::SlidingLog, RowDecodeError> {
        let last_time = self.ago(latest)?;
        let length = self.length(2)?;
        let mut list: Vec<(Timestamp, u64)> = Vec::with_capacity(length);
        let mut sum = 0u64;
        for _ in 0..length {
            let at = match list.last() {
                None => self.ago(latest)?,
                Some((before, _)) => before.plus(Span::from_ticks(self.number()?)),
            };
            let amount = self.number()?;
            let in_order = list.last().is_none_or(|(before, _)| *before < at);
            sum = sum.checked_add(amount).ok_or(self.damage("more spent than can be counted"))?;
            if !in_order || amount == 0 {
                return Err(self.damage("a run out of order"));
            }
            list.push((at, amount));
        }
        Ok(sliding_window::SlidingLog::from_sorted(list, last_time))
    }

    fn holders(&mut self, latest: Timestamp) -> Result<concurrency::LeaseHolders, RowDecodeError> {
        let length = self.length(18)?;
        let mut holders = concurrency::LeaseHolders::default();
        for _ in 0..length {
            let id = self.bytes.get(self.at..self.at + 16).ok_or(self.damage("the end too early"))?;
            self.at += 16;
            let lease = LeaseId(u128::from_le_bytes(id.try_into().expect("sixteen bytes")));
            let expires_at = self.ago(latest)?;
            let amount = self.number()?;
            holders.insert(LeaseTerm { lease, expires_at }, amount);
        }
        Ok(holders)
    }
}
