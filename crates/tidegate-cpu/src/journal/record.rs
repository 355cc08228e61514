//! A sample as a record of fixed length, little-endian.
//!
//! ```text
//!   0  wall      16  total   40  counter  64  boot     80  1 if usage was observed, else 0
//!   8  steady    32  applied 48  life     72  uptime   84  crc32c of all before
//!                                                81  target
//! ```
//!
//! The target was added later. Older versions wrote three zero bytes, which mean an unknown target, and ignore it when they read.

use std::time::Duration;

use tidegate::budget::{BudgetTime, Quota, Rate};
use tidegate_core::Timestamp;

use super::UsageSample;
use crate::meter::TargetId;

/// File header: format and version.
pub(super) const HEADER: &[u8] = b"tidegate cpu samples 1\n\n";

/// Length of a record.
pub(super) const LENGTH: usize = 88;

const CHECKED: usize = LENGTH - 4;

pub(super) fn encode(sample: &UsageSample) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    bytes[..8].copy_from_slice(&sample.at.wall.ticks().to_le_bytes());
    bytes[8..16].copy_from_slice(&sample.at.monotonic.to_le_bytes());
    bytes[16..32].copy_from_slice(&sample.total.raw().to_le_bytes());
    bytes[32..40].copy_from_slice(&sample.applied.billionths().to_le_bytes());
    bytes[40..48].copy_from_slice(&nanos(sample.counter).to_le_bytes());
    bytes[48..64].copy_from_slice(&sample.counter_id.to_le_bytes());
    bytes[64..72].copy_from_slice(&sample.boot.to_le_bytes());
    bytes[72..80].copy_from_slice(&nanos(sample.uptime).to_le_bytes());
    bytes[80] = u8::from(sample.observed);
    bytes[81..CHECKED].copy_from_slice(&sample.target.to_bytes());
    let sum = crc32c::crc32c(&bytes[..CHECKED]);
    bytes[CHECKED..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Decodes a record. Returns `None` if its checksum is wrong.
pub(super) fn decode(bytes: &[u8]) -> Option<UsageSample> {
    let sum = u32::from_le_bytes(array(bytes, CHECKED)?);
    if crc32c::crc32c(bytes.get(..CHECKED)?) != sum {
        return None;
    }
    let number = |at: usize| array(bytes, at).map(u64::from_le_bytes);
    Some(UsageSample {
        at: BudgetTime {
            wall: Timestamp::from_ticks(number(0)?),
            monotonic: i64::from_le_bytes(array(bytes, 8)?),
        },
        total: Quota::from_raw(i128::from_le_bytes(array(bytes, 16)?)),
        observed: bytes[80] == 1,
        applied: Rate::from_billionths(number(32)?),
        counter: Duration::from_nanos(number(40)?),
        counter_id: u128::from_le_bytes(array(bytes, 48)?),
        target: TargetId::from_bytes(array(bytes, 81)?),
        boot: number(64)?,
        uptime: Duration::from_nanos(number(72)?),
    })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}
