//! Models of orders over several rows: all rows are charged, or none.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Intent, ItemSpec, Limit, Policy, Verdict};

use super::super::cache_line::PAYLOAD;
use super::super::insert::{Missing, admit, with_row};
use super::super::limit_table::Tenant;
use super::super::lockfree::{self, Bundle, Plea, Quick, Together};
use super::super::row_epoch::Because;
use super::super::shared_rows::Gallery;
use super::super::sync::Ordering;
use super::super::sync::loom_sync::beside;
use super::{LAST, START, brief, explore, limit_of, tenant_at};

fn used(tenant: &Tenant) -> u64 {
    let cell = tenant.all.cell().load(Ordering::Relaxed);
    brief(tenant).first.reading(cell & PAYLOAD, LAST, START).used
}

/// In one line, so that their addresses are in the same order every time.
fn side_by_side(first: &Arc<Limit>, second: &Arc<Limit>) -> Arc<[Tenant; 2]> {
    let gallery = Gallery::new();
    Arc::new([first, second].map(|limit| tenant_at(limit, gallery.place())))
}

fn order(first: &Tenant, second: &Tenant) -> u64 {
    ask(&[first, second].map(plea))
}

fn alone(tenant: &Tenant) -> u64 {
    ask(&[plea(tenant)])
}

fn plea(tenant: &Tenant) -> Plea<'_> {
    Plea { tenant, key: None, tag: None, count: 1 }
}

fn ask(pleas: &[Plea<'_>]) -> u64 {
    match lockfree::decide(pleas, Intent::Acquire, START, &mut None) {
        Quick::Granted(_) => 1,
        _ => 0,
    }
}

/// Two orders over the same two rows, written in opposite order: nobody waits for ever, and both rows count the same.
#[test]
fn a_set_is_charged_whole() {
    let [few, many] = [1, 2].map(|limit| limit_of(ItemSpec::of(Policy::Total, limit)));
    explore(2, move || {
        let both = side_by_side(&few, &many);
        let shared = Arc::clone(&both);
        let other = beside(move || order(&shared[1], &shared[0]));
        let granted = order(&both[0], &both[1]) + other.join().expect("it ends");
        assert!(granted <= 1);
        assert_eq!((used(&both[0]), used(&both[1])), (granted, granted));
    });
}

/// The same through handles, whose way is their own, beside an order that is none of a handle's.
#[test]
fn a_set_of_a_handle_is_charged_whole() {
    let [few, many] = [1, 2].map(|limit| limit_of(ItemSpec::of(Policy::Total, limit)));
    explore(2, move || {
        let gallery = Gallery::new();
        let both = [&few, &many].map(|limit| Arc::new(tenant_at(limit, gallery.place())));
        let [first, second] = both.clone();
        let other = beside(move || order(&second, &first));
        let together = Together { tenants: &both, keys: &[None, None] };
        let ours = lockfree::decide_together(together, START) == Some(Verdict::Granted);
        let granted = u64::from(ours) + other.join().expect("it ends");
        assert!(granted <= 1);
        assert_eq!((used(&both[0]), used(&both[1])), (granted, granted));
    });
}

/// Two handles ask for two rows that lie apart, in opposite orders.
#[test]
fn handles_over_rows_that_lie_apart_charge_them_whole() {
    let limit = limit_of(ItemSpec::of(Policy::Total, 1));
    explore(2, move || {
        let mut both = [(); 2].map(|()| Arc::new(tenant_at(&limit, Gallery::new().place())));
        // So that they are taken in the same order every time.
        both.sort_by_key(|tenant| std::ptr::from_ref(tenant.all.place.guard()).addr());
        let turned = [Arc::clone(&both[1]), Arc::clone(&both[0])];
        let ask = |tenants: &[Arc<Tenant>]| {
            let verdict = lockfree::decide_together(Together { tenants, keys: &[None, None] }, START);
            u64::from(verdict == Some(Verdict::Granted))
        };
        let other = beside(move || ask(&turned));
        let granted = ask(&both) + other.join().expect("it ends");
        assert!(granted <= 1);
        assert_eq!((used(&both[0]), used(&both[1])), (granted, granted));
    });
}

/// An order that finds its second row changed under it leaves the first as it was.
#[test]
fn a_set_that_comes_too_late_is_not_charged() {
    let limit = limit_of(ItemSpec::of(Policy::Total, 3));
    explore(3, move || {
        let both = side_by_side(&limit, &limit);
        let shared = Arc::clone(&both);
        let other = beside(move || alone(&shared[1]));
        let granted = order(&both[0], &both[1]);
        let others = other.join().expect("it ends");
        assert_eq!((used(&both[0]), used(&both[1])), (granted, granted + others));
    });
}

/// Somebody takes a row out with its lock and puts it back while an order is decided without.
#[test]
fn the_thorough_way_loses_no_charge() {
    let limit = limit_of(ItemSpec::of(Policy::Total, 3));
    explore(3, move || {
        let both = side_by_side(&limit, &limit);
        let shared = Arc::clone(&both);
        let other = beside(move || with_row(&shared[1], None, START, Missing::Ignored, |_, _, _, _| ()));
        let granted = order(&both[0], &both[1]);
        assert!(other.join().expect("it ends").is_some());
        assert_eq!((used(&both[0]), used(&both[1])), (granted, granted));
    });
}

/// A bucket for all and one for each key, as a handle knows them, and the row of a key.
fn bundle_of(burst: u64) -> (Arc<Bundle>, [Arc<Tenant>; 2]) {
    let gallery = Gallery::new();
    let tenants = [bucket(burst, 60), bucket(burst, 60).per_key()]
        .map(|item| Arc::new(tenant_at(&limit_of(item), gallery.place())));
    assert!(admit(&tenants[1], tenants[1].printer.print(KEY), START));
    let bundle = Arc::new(Bundle::of(&tenants).expect("it is one"));
    assert_eq!(take(&bundle), 0, "the first who comes looks around");
    (bundle, tenants)
}

const KEY: &[u8] = b"key";

fn bucket(burst: u64, seconds: u64) -> ItemSpec {
    let policy = Policy::Bucket { window: Duration::from_secs(seconds), burst: None };
    // An item that keeps its name keeps what is in use.
    ItemSpec { name: Some("units".into()), ..ItemSpec::of(policy, burst) }
}

fn take(bundle: &Bundle) -> u64 {
    u64::from(bundle.take(&[None, Some(KEY)], || START).is_some())
}

fn used_of_key(tenant: &Tenant) -> u64 {
    super::used(tenant, tenant.printer.print(KEY)).expect("it has a row")
}

/// Two who want the last unit of two buckets: one gets it, and both rows say so.
#[test]
fn a_bundle_is_charged_whole() {
    explore(2, || {
        let (bundle, tenants) = bundle_of(1);
        let shared = Arc::clone(&bundle);
        let other = beside(move || take(&shared));
        let granted = take(&bundle) + other.join().expect("it ends");
        assert!(granted <= 1);
        assert_eq!((used(&tenants[0]), used_of_key(&tenants[1])), (granted, granted));
    });
}

/// A limit is edited while a handle that knew it as it was asks: what was taken is in use after the edit, and nothing else.
#[test]
fn a_bundle_is_not_charged_by_limits_as_they_were() {
    explore(2, || {
        let (bundle, tenants) = bundle_of(2);
        let edited = Arc::clone(&tenants[0]);
        let slower = limit_of(bucket(2, 120));
        let other = beside(move || {
            edited.publish(slower, Because::Put, || START);
            edited.all.own().adopt(&edited, &edited.edition());
        });
        let granted = take(&bundle);
        other.join().expect("it ends");
        assert_eq!((used(&tenants[0]), used_of_key(&tenants[1])), (granted, granted));
    });
}
