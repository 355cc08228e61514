//! Edits: limits change and counts stay.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::catalog::{Change, PutError};
use tidegate::catalog::{ExpectedVersion, RemovalMode};
use tidegate::model::{ItemSpec, LimitSpec, Policy, Unit, Zone};

use super::decisions::{bucket, sliding, total};
use super::{Behaviour, StoreFixture, wait_ms};

pub(super) const ALL: &[Behaviour] = &[
    ("edit_keeps_counts", edit_keeps_counts),
    ("lowered_limit_acts_at_once", lowered_limit_acts_at_once),
    ("raised_limit_grants_the_difference", raised_limit_grants_the_difference),
    ("added_item_starts_at_zero", added_item_starts_at_zero),
    ("removed_item_loses_its_count", removed_item_loses_its_count),
    ("edited_window_counts_remembered_charges", edited_window_counts_remembered_charges),
    ("edited_time_zone_acts_at_once", edited_time_zone_acts_at_once),
    ("put_with_unmet_expectation_is_error", put_with_unmet_expectation_is_error),
    ("put_of_invalid_limit_changes_nothing", put_of_invalid_limit_changes_nothing),
    ("removed_limit_is_forgotten", removed_limit_is_forgotten),
    ("retired_limit_returns_with_its_counts", retired_limit_returns_with_its_counts),
    ("retired_limit_is_forgotten_after_seven_days", retired_limit_is_forgotten_after_seven_days),
    ("reset_zeroes_one_key_or_all", reset_zeroes_one_key_or_all),
    ("watcher_receives_every_change", watcher_receives_every_change),
];

fn edit_keeps_counts(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(5)).with(sliding(3, 60).per_key()));
    assert!(fixture.granted("l", "u", 3));
    fixture.edit(LimitSpec::named("l").with(sliding(4, 60).per_key()).with(total(6)));
    assert_eq!((fixture.used("l", "u", "all/total"), fixture.used("l", "u", "key/sliding-60s")), (3, 3));
    assert!(fixture.granted("l", "u", 1) && !fixture.granted("l", "u", 1));
}

fn lowered_limit_acts_at_once(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("b").with(bucket(1000, 1)));
    assert!(fixture.granted("b", "u", 1000));
    fixture.edit(LimitSpec::named("b").with(ItemSpec {
        name: Some("all/bucket-1s".to_owned()),
        policy: Policy::Bucket { window: Duration::from_secs(1), burst: Some(1000) },
        ..bucket(1, 1)
    }));
    fixture.pass(Duration::from_millis(500));
    assert_eq!(fixture.used("b", "u", "all/bucket-1s"), 1000, "half a unit came back, not half of all");
    assert_eq!(wait_ms(&fixture.take("b", "u", 1)), 500);
}

fn raised_limit_grants_the_difference(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("b").with(bucket(10, 10)));
    assert!(fixture.granted("b", "u", 9));
    fixture.edit(LimitSpec::named("b").with(bucket(1000, 10)));
    assert_eq!(fixture.used("b", "u", "all/bucket-10s"), 9);
    assert!(fixture.granted("b", "u", 991) && !fixture.granted("b", "u", 1));
}

fn added_item_starts_at_zero(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(5)));
    assert!(fixture.granted("l", "u", 5));
    fixture.edit(LimitSpec::named("l").with(total(10)).with(sliding(2, 60)));
    assert_eq!(fixture.used("l", "u", "all/sliding-60s"), 0);
}

fn removed_item_loses_its_count(fixture: &StoreFixture) {
    let both = || LimitSpec::named("l").with(total(5)).with(total(5).per_key());
    fixture.add(both());
    assert!(fixture.granted("l", "u", 5));
    fixture.edit(LimitSpec::named("l").with(total(5).per_key()));
    fixture.edit(both());
    assert_eq!((fixture.used("l", "u", "all/total"), fixture.used("l", "u", "key/total")), (0, 5));
}

fn edited_window_counts_remembered_charges(fixture: &StoreFixture) {
    let named = |limit, seconds| ItemSpec { name: Some("burst".to_owned()), ..sliding(limit, seconds) };
    fixture.add(LimitSpec::named("l").with(named(2, 10)));
    assert!(fixture.granted("l", "u", 1));
    fixture.pass_seconds(8);
    assert!(fixture.granted("l", "u", 1));
    fixture.edit(LimitSpec::named("l").with(named(2, 5)));
    assert_eq!(fixture.used("l", "u", "burst"), 1, "the first is out of the shorter window");
    fixture.edit(LimitSpec::named("l").with(named(2, 100)));
    assert_eq!(fixture.used("l", "u", "burst"), 1, "and was forgotten with it");
}

fn edited_time_zone_acts_at_once(fixture: &StoreFixture) {
    let day = ItemSpec::of(Policy::Calendar(Unit::Day), 1);
    // 1970-01-01 12:00 UTC is 20:00 in Shanghai.
    fixture.pass_seconds(12 * 3600);
    fixture.add(LimitSpec::named("l").with(day.clone()));
    assert!(fixture.granted("l", "u", 1));
    assert_eq!(wait_ms(&fixture.take("l", "u", 1)), 12 * 3_600_000);
    let shanghai = Zone::named("Asia/Shanghai").expect("a zone of the database");
    fixture.edit(LimitSpec { time_zone: shanghai, ..LimitSpec::named("l").with(day) });
    assert_eq!(wait_ms(&fixture.take("l", "u", 1)), 4 * 3_600_000, "midnight in Shanghai");
    fixture.pass_seconds(4 * 3600);
    assert!(fixture.granted("l", "u", 1));
}

fn put_with_unmet_expectation_is_error(fixture: &StoreFixture) {
    let spec = |limit| LimitSpec::named("l").with(total(limit));
    assert_eq!(fixture.store.put(spec(1), ExpectedVersion::Present).unwrap_err(), PutError::Unknown);
    assert_eq!(fixture.store.put(spec(1), ExpectedVersion::Version(1)).unwrap_err(), PutError::Unknown);
    let first = fixture.store.put(spec(1), ExpectedVersion::Absent).unwrap();
    assert_eq!(fixture.store.put(spec(2), ExpectedVersion::Absent).unwrap_err(), PutError::Exists);
    let same = fixture.store.put(spec(1), ExpectedVersion::Anything).unwrap();
    assert_eq!(first.version(), same.version(), "nothing changed");
    let second = fixture.store.put(spec(2), ExpectedVersion::Version(first.version())).unwrap();
    assert!(second.version() > first.version());
    let stale = fixture.store.put(spec(3), ExpectedVersion::Version(first.version())).unwrap_err();
    assert_eq!(stale, PutError::Stale { version: second.version() });
    assert_eq!(fixture.store.get("l").unwrap().version(), second.version());
}

fn put_of_invalid_limit_changes_nothing(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(ItemSpec { name: Some("cap".to_owned()), ..total(5) }));
    assert!(fixture.granted("l", "u", 2));
    let other_policy = ItemSpec { name: Some("cap".to_owned()), ..sliding(5, 10) };
    let error =
        fixture.store.put(LimitSpec::named("l").with(other_policy), ExpectedVersion::Present).unwrap_err();
    assert!(matches!(error, PutError::Invalid(flaws) if flaws[0].field == "items[0].policy"));
    let error = fixture.store.put(LimitSpec::named("bad id!"), ExpectedVersion::Absent).unwrap_err();
    assert!(matches!(error, PutError::Invalid(flaws) if flaws.len() == 2), "every flaw at once");
    assert_eq!(fixture.used("l", "u", "cap"), 2);
    assert!(fixture.store.get("bad id!").is_none());
}

fn removed_limit_is_forgotten(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(1)));
    assert!(fixture.granted("l", "u", 1));
    assert!(fixture.store.remove("l", RemovalMode::Forget));
    assert!(!fixture.store.remove("l", RemovalMode::Forget));
    assert!(fixture.store.get("l").is_none());
    fixture.add(LimitSpec::named("l").with(total(1)));
    assert!(fixture.granted("l", "u", 1), "a later add starts at zero");
}

fn retired_limit_returns_with_its_counts(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(1)).with(total(1).per_key()));
    assert!(fixture.granted("l", "u", 1));
    assert!(fixture.store.remove("l", RemovalMode::Retire));
    assert!(fixture.store.get("l").is_none(), "unknown at once");
    fixture.pass_seconds(7 * 86_400 - 1);
    fixture.add(LimitSpec::named("l").with(total(2)).with(total(1).per_key()));
    assert!(!fixture.granted("l", "u", 1), "a reverted edit does not oversell");
    assert!(fixture.granted("l", "v", 1));
}

fn retired_limit_is_forgotten_after_seven_days(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(1)));
    assert!(fixture.granted("l", "u", 1));
    assert!(fixture.store.remove("l", RemovalMode::Retire));
    fixture.pass_seconds(7 * 86_400);
    fixture.add(LimitSpec::named("l").with(total(1)));
    assert!(fixture.granted("l", "u", 1));
}

fn reset_zeroes_one_key_or_all(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(10)).with(total(2).per_key()));
    assert!(fixture.granted("l", "u", 2) && fixture.granted("l", "v", 2));
    fixture.store.reset("l", Some(b"u")).decided().unwrap();
    fixture.store.reset("l", Some(b"nobody")).decided().unwrap();
    assert_eq!((fixture.used("l", "u", "key/total"), fixture.used("l", "v", "key/total")), (0, 2));
    assert_eq!(fixture.used("l", "u", "all/total"), 4, "its per: key items only");
    fixture.store.reset("l", None).decided().unwrap();
    assert_eq!((fixture.used("l", "v", "key/total"), fixture.used("l", "v", "all/total")), (0, 0));
}

fn watcher_receives_every_change(fixture: &StoreFixture) {
    let changes = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&changes);
    fixture.store.watch(Box::new(move |change| {
        let line = match change {
            Change::Put(limit) => format!("put {} {}", limit.id(), limit.version()),
            Change::Removed(limit) => format!("removed {}", limit.id()),
        };
        sink.lock().expect("no panic while the lock is held").push(line);
    }));
    fixture.add(LimitSpec::named("l").with(total(1)));
    fixture.edit(LimitSpec::named("l").with(total(2)));
    assert!(fixture.store.remove("l", RemovalMode::Forget));
    assert_eq!(*changes.lock().unwrap(), ["put l 1", "put l 2", "removed l"]);
}
