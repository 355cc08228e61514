//! Encoding of limits: every field in order, words as spelled in limits files, durations to the nanosecond.
//!
//! ```text
//!   id  [description]  zone  week-start  [starts]  [ends]  mode  on-outage  durability  fleet  [max-keys]
//!   items      ( [name]  policy  parameters  per  capacity  [charge] )…
//!   overrides  ( key  item  capacity  [until] )…
//!
//!   [x]  0, or 1 and x        capacity  0 unlimited, or 1 and the limit        a duration is seconds and nanoseconds
//! ```
//!
//! The JSON of the HTTP API was rejected: it rounds durations to milliseconds and cannot express every key.

use std::time::Duration;

use tidegate_core::{
    Capacity, Charge, Durability, Fleet, ItemSpec, LimitSpec, Mode, OnOutage, OverrideSpec, Per, Policy,
    Precision, Unit, WeekStart, Zone,
};

use super::CodecError;
use super::primitives::{ByteReader, ByteWriter};

/// Writes a limit definition.
pub fn write(out: &mut ByteWriter<'_>, spec: &LimitSpec) {
    out.text(spec.id.as_bytes());
    out.maybe(spec.description.as_deref(), |out, text| out.text(text.as_bytes()));
    out.text(spec.time_zone.name().as_bytes());
    word(out, spec.week_start.word());
    out.maybe(spec.starts_at, duration);
    out.maybe(spec.ends_at, duration);
    word(out, spec.mode.word());
    word(out, spec.on_outage.word());
    word(out, spec.durability.word());
    word(out, spec.fleet.word());
    out.maybe(spec.max_keys, ByteWriter::number);
    out.number(spec.items.len() as u64);
    spec.items.iter().for_each(|item| write_item(out, item));
    out.number(spec.overrides.len() as u64);
    for OverrideSpec { key, item, limit, until } in &spec.overrides {
        out.text(key);
        out.text(item.as_bytes());
        capacity(out, *limit);
        out.maybe(*until, duration);
    }
}

fn write_item(out: &mut ByteWriter<'_>, item: &ItemSpec) {
    out.maybe(item.name.as_deref(), |out, name| out.text(name.as_bytes()));
    word(out, item.policy.word());
    match item.policy {
        Policy::Total | Policy::Calendar(_) => {}
        Policy::Interval { window } => duration(out, window),
        Policy::Sliding { window, precision } => {
            duration(out, window);
            word(out, precision.word());
        }
        Policy::Bucket { window, burst } => {
            duration(out, window);
            out.maybe(burst, ByteWriter::number);
        }
        Policy::Concurrency { ttl } => duration(out, ttl),
    }
    word(out, item.per.word());
    capacity(out, item.limit);
    out.maybe(item.charge, |out, charge| word(out, charge.word()));
}

fn word(out: &mut ByteWriter<'_>, word: &str) {
    out.text(word.as_bytes());
}

fn duration(out: &mut ByteWriter<'_>, duration: Duration) {
    out.number(duration.as_secs());
    out.number(u64::from(duration.subsec_nanos()));
}

fn capacity(out: &mut ByteWriter<'_>, capacity: Capacity) {
    match capacity {
        Capacity::Unlimited => out.byte(0),
        Capacity::AtMost(limit) => {
            out.byte(1);
            out.number(limit);
        }
    }
}

/// Reads a limit definition.
pub fn read(body: &mut ByteReader<'_>) -> Result<LimitSpec, CodecError> {
    Ok(LimitSpec {
        id: body.string()?.to_owned(),
        description: body.maybe(|body| Ok(body.string()?.to_owned()))?,
        time_zone: {
            let name = body.string()?;
            Zone::named(name).ok_or(body.invalid("a time zone that this version does not know"))?
        },
        week_start: choice(body, &WeekStart::ALL, WeekStart::word)?,
        starts_at: body.maybe(read_duration)?,
        ends_at: body.maybe(read_duration)?,
        mode: choice(body, Mode::ALL, Mode::word)?,
        on_outage: choice(body, OnOutage::ALL, OnOutage::word)?,
        durability: choice(body, Durability::ALL, Durability::word)?,
        fleet: choice(body, Fleet::ALL, Fleet::word)?,
        max_keys: body.maybe(ByteReader::number)?,
        items: body.many(4, read_item)?,
        overrides: body.many(4, |body| {
            Ok(OverrideSpec {
                key: body.text()?.to_vec(),
                item: body.string()?.to_owned(),
                limit: read_capacity(body)?,
                until: body.maybe(read_duration)?,
            })
        })?,
    })
}

fn read_item(body: &mut ByteReader<'_>) -> Result<ItemSpec, CodecError> {
    let name = body.maybe(|body| Ok(body.string()?.to_owned()))?;
    let policy = match body.string()? {
        "total" => Policy::Total,
        "interval" => Policy::Interval { window: read_duration(body)? },
        "sliding" => Policy::Sliding {
            window: read_duration(body)?,
            precision: choice(body, Precision::ALL, Precision::word)?,
        },
        "bucket" => Policy::Bucket { window: read_duration(body)?, burst: body.maybe(ByteReader::number)? },
        "concurrency" => Policy::Concurrency { ttl: read_duration(body)? },
        unit => Policy::Calendar(
            *Unit::ALL
                .iter()
                .find(|known| known.word() == unit)
                .ok_or(body.invalid("a policy that this version does not know"))?,
        ),
    };
    Ok(ItemSpec {
        name,
        policy,
        per: choice(body, Per::ALL, Per::word)?,
        limit: read_capacity(body)?,
        charge: body.maybe(|body| choice(body, Charge::ALL, Charge::word))?,
    })
}

fn choice<T: Copy>(
    body: &mut ByteReader<'_>,
    all: &[T],
    word: impl Fn(T) -> &'static str,
) -> Result<T, CodecError> {
    let written = body.string()?;
    let known = all.iter().find(|known| word(**known) == written);
    known.copied().ok_or(body.invalid("a word that this version does not know"))
}

fn read_duration(body: &mut ByteReader<'_>) -> Result<Duration, CodecError> {
    let (seconds, nanos) = (body.number()?, body.number32()?);
    if nanos < 1_000_000_000 {
        Ok(Duration::new(seconds, nanos))
    } else {
        Err(body.invalid("more than a second of nanoseconds"))
    }
}

fn read_capacity(body: &mut ByteReader<'_>) -> Result<Capacity, CodecError> {
    Ok(if body.flag()? { Capacity::AtMost(body.number()?) } else { Capacity::Unlimited })
}
