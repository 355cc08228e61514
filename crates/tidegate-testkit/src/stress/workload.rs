//! The limits of a storm: every law, for all keys together and for each alone, tight enough that each of them refuses somebody.
//!
//! Of a hundred orders some eight ask nothing but this one limit, for thirteen units together. Whatever the others refuse and
//! however the threads meet, those come through to it; so what is for the whole storm is for a twelfth of its orders, and what
//! comes back is for about what they ask in its window together with a few of the rest.

use std::time::Duration;

use tidegate::{Charge, ItemSpec, LimitSpec, Policy, Precision, Timestamp, Unit};

use super::{CLIENTS, StressPlan};

/// 2023-11-14T22:59:57Z: three seconds before an hour begins.
pub(super) const BEGINS: Timestamp = Timestamp::from_ticks(1_700_002_797_000_000_000);

/// Longer than any window and any lease of a storm, as its operator may stretch them.
pub(super) const LULL: Duration = Duration::from_secs(30);

/// How many keys are asked for by half of all orders.
pub(super) const HOT_KEYS: usize = 8;

/// The limit that no operator touches.
pub(super) const STEADY: &str = "stock";

const WINDOW: Duration = Duration::from_millis(200);

/// The limits as they are at first.
pub(super) fn limits(plan: &StressPlan) -> Vec<LimitSpec> {
    let all_orders = (plan.orders * CLIENTS) as u64;
    // Few keys share what many have each.
    let each = |all: u64| (all * 2 / (plan.keys.min(HOT_KEYS) as u64)).max(3);
    let exact = Policy::Sliding { window: WINDOW, precision: Precision::Exact };
    let bucketed = Policy::Sliding { window: WINDOW * 2, precision: Precision::Bucketed };
    let bucket = |burst| Policy::Bucket { window: WINDOW, burst };
    let held = Policy::Concurrency { ttl: WINDOW * 2 };
    let by_count = |item: ItemSpec| ItemSpec { charge: Some(Charge::Count), ..item };
    let one_by_one =
        |item: ItemSpec| ItemSpec { charge: Some(Charge::Ask), name: Some("asks".to_owned()), ..item };
    let limits = vec![
        LimitSpec::named(STEADY)
            .with(ItemSpec::of(Policy::Total, all_orders / 12))
            .with(ItemSpec::of(Policy::Total, each(all_orders / 12)).per_key())
            .with(one_by_one(ItemSpec::of(Policy::Total, each(all_orders / 18)).per_key())),
        LimitSpec::named("rate")
            .with(ItemSpec::of(bucket(None), 16))
            .with(ItemSpec::of(bucket(Some(5)), each(12)).per_key()),
        LimitSpec::named("turn")
            .with(ItemSpec::of(Policy::Interval { window: WINDOW }, 20))
            .with(ItemSpec::of(Policy::Interval { window: WINDOW / 2 }, each(12)).per_key()),
        LimitSpec::named("hour")
            .with(ItemSpec::of(Policy::Calendar(Unit::Hour), all_orders / 12))
            .with(ItemSpec::of(Policy::Calendar(Unit::Second), each(20)).per_key()),
        LimitSpec::named("slide")
            .with(ItemSpec::of(exact, 20))
            .with(ItemSpec::of(exact, each(20)).per_key())
            .with(ItemSpec::of(bucketed, each(30)).per_key()),
        LimitSpec::named("slots")
            .with(by_count(ItemSpec::of(held, 10)))
            .with(ItemSpec::of(held, each(4)).per_key()),
    ];
    limits.into_iter().map(named_throughout).collect()
}

/// The same limit with names written out, so that items stay the same when their windows change.
fn named_throughout(mut spec: LimitSpec) -> LimitSpec {
    for item in &mut spec.items {
        item.name = Some(item.effective_name());
    }
    spec
}

/// The key of this number.
pub(super) fn key(number: usize) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}
