//! The header fields `RateLimit-Policy`, `RateLimit` and `Retry-After`.
//!
//! The first two are lists of structured fields (RFC 9651). Only a small part of that syntax is written here: item
//! names, which are checked when a limit is made, and integers of at most fifteen digits.

use std::fmt::Write;
use std::time::Duration;

use ::http::header::{Entry, RETRY_AFTER};
use ::http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::{Amount, Capacity, Item, Limit, Mode, Policy, Timestamp, Unit};

use crate::limiter::Refused;
use crate::reply::ItemReading;

/// The field that lists the quotas.
pub const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// The field that lists what is left.
pub const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The largest integer of a structured field.
const LARGEST: u64 = 999_999_999_999_999;

/// Adds `RateLimit-Policy` and `RateLimit` to a response, unless they are present.
pub fn describe(headers: &mut HeaderMap, readings: &[ItemReading], at: Timestamp) {
    add(headers, RATE_LIMIT_POLICY, rate_limit_policy(readings));
    add(headers, RATE_LIMIT, rate_limit(readings, at));
}

/// Adds `RateLimit-Policy`, `RateLimit` and `Retry-After` to a refusal, unless they are present. If there is no room to
/// count the key, `RateLimit` is left out: it would report the whole quota as left.
pub fn describe_refusal(headers: &mut HeaderMap, refused: &Refused) {
    if refused.is_degraded() {
        add(headers, RATE_LIMIT_POLICY, rate_limit_policy(refused.readings()));
    } else {
        describe(headers, refused.readings(), refused.at());
    }
    add(headers, RETRY_AFTER, retry_after(refused));
}

fn add(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) {
    if let (Entry::Vacant(entry), Some(value)) = (headers.entry(name), value) {
        entry.insert(value);
    }
}

/// The `RateLimit-Policy` of these items: `"burst";q=100;w=60`. `None` if none of them can refuse.
///
/// An entry is named after its item, with the limit's id in front if there are several limits. A window is in whole
/// seconds, rounded up; months and years have no fixed length and no `w`. The quota of a bucket is its burst, and its
/// window is the time in which the burst refills.
pub fn rate_limit_policy(readings: &[ItemReading]) -> Option<HeaderValue> {
    list(readings, |out, item, reading| {
        let Capacity::AtMost(quota) = reading.reading.capacity else { return };
        let _ = write!(out, ";q={}", quota.min(LARGEST));
        if let Policy::Concurrency { .. } = item.policy() {
            out.push_str(";qu=\"concurrent-requests\"");
        }
        if let Some(window) = window(item.policy(), &reading.limit, reading.item) {
            let _ = write!(out, ";w={}", whole_seconds(window).max(1));
        }
    })
}

/// The `RateLimit` of these items, as read at this instant: `"burst";r=50;t=30`. `None` if none of them can refuse.
///
/// `t` is the time until nothing is in use, if time alone leads there.
pub fn rate_limit(readings: &[ItemReading], at: Timestamp) -> Option<HeaderValue> {
    list(readings, |out, _, reading| {
        let _ = write!(out, ";r={}", reading.reading.remaining.unwrap_or_default().min(LARGEST));
        if let Some(resets_at) = reading.reading.resets_at {
            let left = reading.limit.tick().duration(resets_at.since(at));
            let _ = write!(out, ";t={}", whole_seconds(left));
        }
    })
}

/// The `Retry-After` of a refusal: whole seconds, rounded up, at least 1. `None` if time alone does not help.
pub fn retry_after(refused: &Refused) -> Option<HeaderValue> {
    refused.retry_after().map(|wait| whole_seconds(wait).max(1).into())
}

/// A list with an entry for each item that can refuse.
fn list(
    readings: &[ItemReading],
    parameters: impl Fn(&mut String, &Item, &ItemReading),
) -> Option<HeaderValue> {
    let mut out = String::new();
    for reading in readings.iter().filter(|reading| can_refuse(reading)) {
        let Some(item) = reading.limit.items().get(reading.item) else { continue };
        if !out.is_empty() {
            out.push_str(", ");
        }
        let _ = write!(out, "\"{}\"", policy_name(&reading.limit, item.name(), readings));
        parameters(&mut out, item, reading);
    }
    if out.is_empty() { None } else { HeaderValue::try_from(out).ok() }
}

/// Whether an item can refuse. Limits that are not enforced are not shown to clients.
fn can_refuse(reading: &ItemReading) -> bool {
    reading.limit.mode() == Mode::Enforce && reading.reading.capacity != Capacity::Unlimited
}

/// The name of an item in a list, with the limit's id in front if there are several limits.
pub(super) fn policy_name(limit: &Limit, item: &str, among: &[ItemReading]) -> String {
    if among.iter().all(|reading| reading.limit.id() == limit.id()) {
        item.to_owned()
    } else {
        format!("{}/{item}", limit.id())
    }
}

/// The time in which the quota of an item refills; `None` if it has no fixed length.
fn window(policy: &Policy, limit: &Limit, index: usize) -> Option<Duration> {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    match *policy {
        Policy::Interval { window }
        | Policy::Sliding { window, .. }
        | Policy::Bucket { window, burst: None } => Some(window),
        Policy::Bucket { window, burst: Some(burst) } => {
            refill(window, burst, limit.spec().items.get(index)?.limit)
        }
        Policy::Calendar(unit) => match unit {
            Unit::Second => seconds(1),
            Unit::Minute => seconds(60),
            Unit::Hour => seconds(3600),
            Unit::Day => seconds(86_400),
            Unit::Week => seconds(7 * 86_400),
            Unit::Month | Unit::Year => None,
        },
        Policy::Total | Policy::Concurrency { .. } => None,
    }
}

/// The time in which a burst refills at `limit` per window.
fn refill(window: Duration, burst: Amount, limit: Capacity) -> Option<Duration> {
    let Capacity::AtMost(limit @ 1..) = limit else { return None };
    let nanos = (window.as_nanos().checked_mul(u128::from(burst))?).div_ceil(u128::from(limit));
    Some(Duration::from_nanos(u64::try_from(nanos).ok()?))
}

/// The duration in seconds, rounded up.
fn whole_seconds(duration: Duration) -> u64 {
    (duration.as_secs() + u64::from(duration.subsec_nanos() > 0)).min(LARGEST)
}
