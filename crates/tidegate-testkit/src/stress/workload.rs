//! The limits of a stress run: every policy, for all keys and per key, tight enough that each limit refuses some
//! orders.
//!
//! About eight of a hundred orders ask only one limit, for thirteen units together. Those reach the limit however the
//! others interleave. So a limit for the whole run allows a twelfth of its orders, and a limit with a window allows
//! about what is asked of it in that window.

use std::time::Duration;

use tidegate::model::{Charge, ItemSpec, LimitSpec, Policy, Precision, Timestamp, Unit};

use super::{CLIENTS, StressPlan};

/// 2023-11-14T22:59:57Z: three seconds before an hour begins.
pub(super) const START: Timestamp = Timestamp::from_ticks(1_700_002_797_000_000_000);

/// Longer than any window and any lease of a run, including those that the operator extends.
pub(super) const QUIET_PERIOD: Duration = Duration::from_secs(30);

/// Number of keys that half of all orders use.
pub(super) const HOT_KEYS: usize = 8;

/// The limit that the operator never touches.
pub(super) const UNEDITED: &str = "stock";

const WINDOW: Duration = Duration::from_millis(200);

/// The limits before any edit.
pub(super) fn limits(plan: &StressPlan) -> Vec<LimitSpec> {
    let all_orders = (plan.orders * CLIENTS) as u64;
    // With few keys, each key gets the share of many.
    let per_key_limit = |all: u64| (all * 2 / (plan.keys.min(HOT_KEYS) as u64)).max(3);
    let exact = Policy::Sliding { window: WINDOW, precision: Precision::Exact };
    let bucketed = Policy::Sliding { window: WINDOW * 2, precision: Precision::Bucketed };
    let bucket = |burst| Policy::Bucket { window: WINDOW, burst };
    let held = Policy::Concurrency { ttl: WINDOW * 2 };
    let by_count = |item: ItemSpec| ItemSpec { charge: Some(Charge::Count), ..item };
    let by_ask =
        |item: ItemSpec| ItemSpec { charge: Some(Charge::Ask), name: Some("asks".to_owned()), ..item };
    let limits = vec![
        LimitSpec::named(UNEDITED)
            .with(ItemSpec::of(Policy::Total, all_orders / 12))
            .with(ItemSpec::of(Policy::Total, per_key_limit(all_orders / 12)).per_key())
            .with(by_ask(ItemSpec::of(Policy::Total, per_key_limit(all_orders / 18)).per_key())),
        LimitSpec::named("rate")
            .with(ItemSpec::of(bucket(None), 16))
            .with(ItemSpec::of(bucket(Some(5)), per_key_limit(12)).per_key()),
        LimitSpec::named("turn")
            .with(ItemSpec::of(Policy::Interval { window: WINDOW }, 20))
            .with(ItemSpec::of(Policy::Interval { window: WINDOW / 2 }, per_key_limit(12)).per_key()),
        LimitSpec::named("hour")
            .with(ItemSpec::of(Policy::Calendar(Unit::Hour), all_orders / 12))
            .with(ItemSpec::of(Policy::Calendar(Unit::Second), per_key_limit(20)).per_key()),
        LimitSpec::named("slide")
            .with(ItemSpec::of(exact, 20))
            .with(ItemSpec::of(exact, per_key_limit(20)).per_key())
            .with(ItemSpec::of(bucketed, per_key_limit(30)).per_key()),
        LimitSpec::named("slots")
            .with(by_count(ItemSpec::of(held, 10)))
            .with(ItemSpec::of(held, per_key_limit(4)).per_key()),
    ];
    limits.into_iter().map(with_item_names).collect()
}

/// The same limit with explicit item names, so that an item keeps its identity when its window changes.
fn with_item_names(mut spec: LimitSpec) -> LimitSpec {
    for item in &mut spec.items {
        item.name = Some(item.effective_name());
    }
    spec
}

/// The key with this number.
pub(super) fn key(number: usize) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}
