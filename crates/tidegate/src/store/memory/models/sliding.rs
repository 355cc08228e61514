//! Models of sliding windows, which are decided in place.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::spec::Precision;
use tidegate_core::{Amount, Ask, ItemSpec, Limit, Order, Per, Policy, Timestamp};

use super::super::cache_line::Tag;
use super::super::insert::{Missing, own_leaf, with_row};
use super::super::limit_table::Tenant;
use super::super::lockfree::Plea;
use super::super::row_epoch::Because;
use super::super::shared_rows::Gallery;
use super::super::sliding_path;
use super::super::sync::loom_sync;
use super::{START, at, beside, charged, explore, interval_per_key, limit_of, seed, table, tag, tenant_at};
use crate::reply::{Detail, Replies};

/// Half a second later.
const LATER: Timestamp = at(START.ticks() + 500_000_000);

fn sliding(limit: Amount) -> ItemSpec {
    ItemSpec::of(Policy::Sliding { window: Duration::from_secs(1), precision: Precision::Exact }, limit)
}

/// Two limits in one line, whose rows are at full width: they were charged twice.
fn side_by_side(first: &Arc<Limit>, second: &Arc<Limit>) -> Arc<[Tenant; 2]> {
    let gallery = Gallery::new();
    let both = [first, second].map(|limit| tenant_at(limit, gallery.place()));
    for tenant in &both {
        tenant.all.own().adopt(tenant, &tenant.edition());
        assert_eq!(ask(&[plea(tenant, None)], START) + ask(&[plea(tenant, None)], LATER), 2);
    }
    Arc::new(both)
}

fn plea(tenant: &Tenant, tag: Option<Tag>) -> Plea<'_> {
    Plea { tenant, key: None, tag, count: 1 }
}

/// How many were granted; none if it is not for the lean way.
fn ask(pleas: &[Plea<'_>], now: Timestamp) -> Amount {
    let asks = [Ask::one("model", None)];
    let mut answers = Replies::new(Detail::Verdicts);
    let answer = sliding_path::decide(&Order::acquire(&asks), pleas, now, &mut answers);
    Amount::from(answer.is_some_and(|answer| answer.is_granted()))
}

/// How much is in a row that was charged twice before.
fn used(tenant: &Tenant) -> Amount {
    let total = |row: &tidegate_core::Row| row.sliding_log().map_or(0, |runs| runs.total());
    with_row(tenant, None, LATER, Missing::Ignored, |_, _, row, _| total(row)).map_or(0, |total| total - 2)
}

/// Two orders over the same two rows, written in opposite order: nobody waits for ever, and both rows count the same.
#[test]
fn a_set_is_charged_whole() {
    let [few, many] = [3, 4].map(|limit| limit_of(sliding(limit)));
    explore(2, move || {
        let both = side_by_side(&few, &many);
        let shared = Arc::clone(&both);
        let other = loom_sync::beside(move || ask(&[plea(&shared[1], None), plea(&shared[0], None)], LATER));
        let granted = ask(&[plea(&both[0], None), plea(&both[1], None)], LATER);
        let granted = granted + other.join().expect("it ends");
        assert_eq!(granted, 1);
        assert_eq!((used(&both[0]), used(&both[1])), (granted, granted));
    });
}

/// Its counts are zeroed while somebody decides: what was granted before is gone, what was granted after is there.
#[test]
fn a_reset_is_before_an_order_or_after() {
    let limit = limit_of(sliding(4));
    explore(2, move || {
        let both = side_by_side(&limit, &limit);
        let shared = Arc::clone(&both);
        let other = loom_sync::beside(move || {
            let limit = Arc::clone(&shared[0].edition().limit);
            shared[0].publish(limit, Because::Reset, || LATER);
            shared[0].all.own().adopt(&shared[0], &shared[0].edition());
        });
        let granted = ask(&[plea(&both[0], None), plea(&both[1], None)], LATER);
        other.join().expect("it ends");
        let first = with_row(&both[0], None, LATER, Missing::Ignored, |_, _, row, _| {
            row.sliding_log().map_or(0, |runs| runs.total())
        });
        assert!(first.is_some_and(|first| first <= granted), "{first:?} of {granted}");
        assert_eq!(used(&both[1]), granted);
    });
}

/// Somebody decides without a lock by what the limit was, while it becomes a sliding window and is decided on by that: whoever comes late
/// takes nothing back that is not theirs.
#[test]
fn who_comes_late_takes_nothing_back() {
    let before = interval_per_key(2, 1_000);
    let after = limit_of(sliding(2).per_key());
    explore(2, move || {
        let tenant = table(&before);
        let key = tag(0, 1);
        seed(&tenant, key, 0);
        let after = Arc::clone(&after);
        let other = beside(&tenant, move |tenant| {
            tenant.publish(after, Because::Put, || START);
            drop(own_leaf(tenant, key));
            ask(&[plea(tenant, Some(key))], START)
        });
        let _of_what_was = charged(&tenant, key, 1);
        let granted = other.join().expect("it ends");
        let (mut owned, edition) = own_leaf(&tenant, key);
        let found = owned.hold(key).map(|spot| {
            let row = edition.borrow(Per::Key, spot.word, &mut owned.inner.shelf);
            let total = row.sliding_log().map_or(0, |runs| runs.total());
            owned.leave(&spot, row);
            total
        });
        assert_eq!(found.unwrap_or_default(), granted);
    });
}
