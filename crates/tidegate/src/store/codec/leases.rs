//! Encoding of leases and remembered grants.
//!
//! ```text
//!   lease     expires:8  ttl
//!             holdings ( limit-id  generation  version  [key]  pins  charges ( item-name  item  cost  receipt )… )…
//!             asks ( [holding]  [holding] )…
//!   receipt   0 plain, 1 at:8, 2 tat:8 step credits
//!   grant     until:8  asks ( limit-id  [key]  count )…  at:8  degraded  [ id:16  expires:8  fences ( limit-id  fence )… ]
//!             shadowed ( limit-id )…  readings ( limit-id  item-name  reading )…
//!   reading   capacity  used  [remaining]  [resets:8]
//! ```
//!
//! A grant names its limits by id. Limits and items that are gone are left out when it is decoded.

use std::sync::Arc;

use crate::reply::{GrantedLease, ItemReading, OrderReply, Outcome};
use crate::store::leases::{HeldAsk, LeaseHolding, LeaseRecord};
use crate::store::remembered_grants::RememberedGrant;
use tidegate_core::law::token_bucket::BucketReceipt;
use tidegate_core::{Capacity, ChargeRecord, ItemPosition, Limit, Reading, Receipt, Span};

use super::primitives::{ByteReader, ByteWriter};
use super::{CodecError, LimitOf};

/// Writes a lease.
pub fn write_lease(out: &mut ByteWriter<'_>, lease: &LeaseRecord) {
    out.time(lease.expires_at);
    out.number(lease.ttl.ticks());
    out.number(lease.holdings.len() as u64);
    for holding in &lease.holdings {
        out.text(holding.limit_id.as_bytes());
        out.number(holding.generation);
        out.number(u64::from(holding.version));
        out.maybe(holding.key.as_deref(), ByteWriter::text);
        out.byte(u8::from(holding.pins));
        out.number(holding.charges.len() as u64);
        for (name, charged) in &holding.charges {
            out.text(name.as_bytes());
            out.number(charged.position.item as u64);
            out.number(charged.cost);
            write_receipt(out, charged.receipt);
        }
    }
    out.number(lease.asks.len() as u64);
    for HeldAsk { holdings } in &lease.asks {
        for holding in holdings {
            out.maybe(holding.map(|index| index as u64), ByteWriter::number);
        }
    }
}

fn write_receipt(out: &mut ByteWriter<'_>, receipt: Receipt) {
    match receipt {
        Receipt::Plain => out.byte(0),
        Receipt::At(at) => {
            out.byte(1);
            out.time(at);
        }
        Receipt::Bucket(BucketReceipt { tat, step, credits }) => {
            out.byte(2);
            out.time(tat);
            out.number(step.ticks());
            out.number(credits.ticks());
        }
    }
}

/// Reads a lease.
pub fn read_lease(body: &mut ByteReader<'_>) -> Result<LeaseRecord, CodecError> {
    Ok(LeaseRecord {
        expires_at: body.time()?,
        ttl: Span::from_ticks(body.number()?),
        holdings: body.many(6, |body| {
            Ok(LeaseHolding {
                limit_id: body.string()?.into(),
                generation: body.number()?,
                version: body.number32()?,
                key: body.maybe(|body| Ok(body.text()?.into()))?,
                pins: body.flag()?,
                charges: body.many(4, |body| {
                    let name = body.string()?.into();
                    let place = ItemPosition { row: 0, item: body.size()? };
                    Ok((
                        name,
                        ChargeRecord { position: place, cost: body.number()?, receipt: read_receipt(body)? },
                    ))
                })?,
            })
        })?,
        asks: body.many(2, |body| {
            Ok(HeldAsk { holdings: [body.maybe(ByteReader::size)?, body.maybe(ByteReader::size)?] })
        })?,
    })
}

fn read_receipt(body: &mut ByteReader<'_>) -> Result<Receipt, CodecError> {
    Ok(match body.byte()? {
        0 => Receipt::Plain,
        1 => Receipt::At(body.time()?),
        2 => Receipt::Bucket(BucketReceipt {
            tat: body.time()?,
            step: Span::from_ticks(body.number()?),
            credits: Span::from_ticks(body.number()?),
        }),
        _ => return Err(body.invalid("a receipt of an unknown kind")),
    })
}

/// Writes a remembered grant.
pub fn write_grant(out: &mut ByteWriter<'_>, grant: &RememberedGrant) {
    out.time(grant.until);
    out.number(grant.asks.len() as u64);
    for (limit_id, key, count) in &grant.asks {
        out.text(limit_id.as_bytes());
        out.maybe(key.as_deref(), ByteWriter::text);
        out.number(*count);
    }
    let answer = &grant.answer;
    out.time(answer.at);
    out.byte(u8::from(answer.degraded));
    let lease = if let Outcome::Granted(Some(lease)) = &answer.outcome { Some(lease) } else { None };
    out.maybe(lease, |out, GrantedLease { lease, expires_at, fences }| {
        out.lease_id(*lease);
        out.time(*expires_at);
        out.number(fences.len() as u64);
        for (limit, fence) in fences {
            out.text(limit.id().as_bytes());
            out.number(*fence);
        }
    });
    out.number(answer.shadowed.len() as u64);
    answer.shadowed.iter().for_each(|limit| out.text(limit.id().as_bytes()));
    out.number(grant.readings.len() as u64);
    for ItemReading { limit, item, reading } in &grant.readings {
        out.text(limit.id().as_bytes());
        out.text(limit.items()[*item].name().as_bytes());
        write_reading(out, reading);
    }
}

fn write_reading(out: &mut ByteWriter<'_>, reading: &Reading) {
    let capacity = match reading.capacity {
        Capacity::Unlimited => None,
        Capacity::AtMost(limit) => Some(limit),
    };
    out.maybe(capacity, ByteWriter::number);
    out.number(reading.used);
    out.maybe(reading.remaining, ByteWriter::number);
    out.maybe(reading.resets_at, ByteWriter::time);
}

/// Reads a remembered grant.
pub fn read_grant(body: &mut ByteReader<'_>, limit_of: LimitOf<'_>) -> Result<RememberedGrant, CodecError> {
    let until = body.time()?;
    let asks = body.many(3, |body| {
        let limit_id = body.string()?.into();
        let key = body.maybe(|body| Ok(body.text()?.into()))?;
        Ok((limit_id, key, body.number()?))
    })?;
    let (at, degraded) = (body.time()?, body.flag()?);
    let lease = body.maybe(|body| {
        let (lease, expires_at) = (body.lease_id()?, body.time()?);
        let fences = body.many(2, |body| Ok((limit_of(body.string()?), body.number()?)))?;
        let fences = fences.into_iter().filter_map(|(limit, fence)| Some((limit?, fence))).collect();
        Ok(GrantedLease { lease, expires_at, fences })
    })?;
    let shadowed = body.many(1, |body| Ok(limit_of(body.string()?)))?;
    let readings = body.many(5, |body| {
        let (limit_id, name) = (body.string()?, body.string()?);
        let reading = read_reading(body)?;
        Ok(reading_of(limit_of(limit_id), name, reading))
    })?;
    let answer = OrderReply {
        outcome: Outcome::Granted(lease),
        at,
        degraded,
        shadowed: shadowed.into_iter().flatten().collect(),
        readings: 0..0,
    };
    Ok(RememberedGrant { until, asks, answer, readings: readings.into_iter().flatten().collect() })
}

fn reading_of(limit: Option<Arc<Limit>>, name: &str, reading: Reading) -> Option<ItemReading> {
    let limit = limit?;
    let (item, _) = limit.item_named(name)?;
    Some(ItemReading { limit, item, reading })
}

fn read_reading(body: &mut ByteReader<'_>) -> Result<Reading, CodecError> {
    Ok(Reading {
        capacity: body.maybe(ByteReader::number)?.map_or(Capacity::Unlimited, Capacity::AtMost),
        used: body.number()?,
        remaining: body.maybe(ByteReader::number)?,
        resets_at: body.maybe(ByteReader::time)?,
    })
}
