//! One event: a parsed line of the input.
//!
//! Errors of a single line are found here, with the field and the allowed values. Errors that depend on the limits
//! are found when the event is decided. A `null` field counts as absent.

use std::borrow::Cow;
use std::ops::Range;

use tidegate::model::{Amount, Timestamp};
use tidegate_config::text::suggestion;

use crate::instant;
use crate::json::{self, kind};

/// The fields of an event, in the order of [`WrittenEvent`].
const FIELDS: [&str; 7] = ["at", "op", "limit_id", "limit_key", "count", "as", "lease"];

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SimulatedEvent {
    /// Line number.
    pub(super) line: u64,
    /// Time of the event.
    pub(super) at: Timestamp,
    /// Range of the written time in the batch.
    pub(super) at_written: Range<usize>,
    pub(super) limit_id: Option<EventText>,
    pub(super) limit_key: Option<EventText>,
    pub(super) op: EventOp,
}

/// The operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EventOp {
    Acquire { count: Amount, label: Option<EventText> },
    Peek { count: Amount },
    Release { label: EventText },
    Reset,
}

/// A text field: its range in the batch with quotes, and its decoded value if it has escapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventText {
    pub(super) written: Range<usize>,
    decoded: Option<Box<str>>,
}

impl EventText {
    /// The decoded text. `batch` is the text that the event was parsed from.
    pub(super) fn meant<'a>(&'a self, batch: &'a str) -> &'a str {
        self.decoded.as_deref().unwrap_or_else(|| &batch[self.written.start + 1..self.written.end - 1])
    }
}

impl SimulatedEvent {
    /// Parses a line that will start at `start` of the batch's text.
    pub(super) fn read(
        line: &str,
        start: usize,
        number: u64,
        instants: &mut instant::InstantReader,
    ) -> Result<SimulatedEvent, String> {
        let written = WrittenEvent::read(line, start)?;
        let [at, op, limit_id, limit_key, count, label, lease] = written.values;
        let at =
            at.ok_or("at: is missing; every event says when it happens, in RFC 3339 or seconds since 1970")?;
        let text = |name, value: Option<&str>| value.map(|value| written.text(name, value)).transpose();
        let (count, label, lease) = (read_count(count)?, text("as", label)?, text("lease", lease)?);
        let op = read_op(op)?;
        if op != "acquire" && label.is_some() {
            return Err(format!("as: names the lease of an acquire, and this is {op}"));
        }
        if op != "release" && lease.is_some() {
            return Err(format!(
                "lease: says what a release gives back, and this is {op}; to name one write as"
            ));
        }
        let op = match op {
            "peek" => EventOp::Peek { count },
            "release" => EventOp::Release {
                label: lease.ok_or("lease: is missing; a release names what it gives back")?,
            },
            "reset" => EventOp::Reset,
            _ => EventOp::Acquire { count, label },
        };
        let event = SimulatedEvent {
            line: number,
            at: instants.read(at).map_err(|why| format!("at: {why}"))?,
            at_written: written.range(at),
            limit_id: text("limit_id", limit_id)?,
            limit_key: text("limit_key", limit_key)?,
            op,
        };
        if event.limit_id.is_none() && !matches!(event.op, EventOp::Release { .. }) {
            return Err("limit_id: is missing; it says which limit is meant".to_owned());
        }
        Ok(event)
    }
}

/// The raw JSON of every field, in the order of [`FIELDS`].
struct WrittenEvent<'a> {
    line: &'a str,
    start: usize,
    values: [Option<&'a str>; FIELDS.len()],
}

impl<'a> WrittenEvent<'a> {
    fn read(line: &'a str, start: usize) -> Result<WrittenEvent<'a>, String> {
        let mut written = WrittenEvent { line, start, values: [None; FIELDS.len()] };
        let mut is_set = [false; FIELDS.len()];
        let mut wrong = None;
        let is_object = json::fields(line, |name, value| match field(name) {
            Some(field) if !std::mem::replace(&mut is_set[field], true) => {
                written.values[field] = (value != "null").then_some(value);
            }
            Some(_) => wrong = wrong.take().or(Some(format!("{name}: is written twice"))),
            None => wrong = wrong.take().or_else(|| Some(unknown(name))),
        });
        if is_object.map_err(|why| format!("is not JSON: {why}"))? {
            return wrong.map_or(Ok(written), Err);
        }
        let (fields, found) = (FIELDS.join(", "), kind(line.trim()));
        Err(format!("must be an object with the fields {fields}, found {found}"))
    }

    /// The range of a value in the batch.
    fn range(&self, value: &str) -> Range<usize> {
        let start = self.start + (value.as_ptr().addr() - self.line.as_ptr().addr());
        start..start + value.len()
    }

    fn text(&self, name: &str, value: &str) -> Result<EventText, String> {
        let meant = json::text(value).ok_or_else(|| match kind(value) {
            "text" => format!("{name}: has an escape that is no character"),
            found => format!("{name}: must be text, found {found}"),
        })?;
        let decoded = match meant {
            Cow::Borrowed(_) => None,
            Cow::Owned(meant) => Some(meant.into_boxed_str()),
        };
        Ok(EventText { written: self.range(value), decoded })
    }
}

/// The index of a field in [`FIELDS`].
fn field(name: &str) -> Option<usize> {
    Some(match name {
        "at" => 0,
        "op" => 1,
        "limit_id" => 2,
        "limit_key" => 3,
        "count" => 4,
        "as" => 5,
        "lease" => 6,
        _ => return None,
    })
}

fn unknown(name: &str) -> String {
    let shown: String = name.chars().take(48).flat_map(char::escape_debug).collect();
    let meant = suggestion(name, FIELDS);
    format!("{shown}: is not a field of an event; the fields are {}{meant}", FIELDS.join(", "))
}

fn read_op(value: Option<&str>) -> Result<&'static str, String> {
    let Some(value) = value else { return Ok("acquire") };
    let known = ["acquire", "peek", "release", "reset"];
    let meant = json::text(value);
    known.into_iter().find(|op| meant.as_deref() == Some(op)).ok_or_else(|| {
        let meant = suggestion(meant.as_deref().unwrap_or_default(), known);
        format!("op: must be one of {}, found {}{meant}", known.join(", "), quoted(value))
    })
}

fn read_count(value: Option<&str>) -> Result<Amount, String> {
    let Some(value) = value else { return Ok(1) };
    let digits = value.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| value.parse().ok()).flatten().ok_or_else(|| {
        format!(
            "count: must be a whole number from 0 to {}, without fraction or exponent, found {}",
            Amount::MAX,
            quoted(value)
        )
    })
}

/// A value for messages: short ones as written, others by kind.
fn quoted(value: &str) -> &str {
    let short = value.len() <= 24 && value.bytes().all(|b| b.is_ascii_graphic());
    if short { value } else { kind(value) }
}
