//! The limiter builder, and limits defined in Rust.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tidegate::clock::ManualClock;
use tidegate::model::{Capacity, Mode, Precision, Timestamp, WeekStart};
use tidegate::store::{LimitStore, Memory, MemoryStore};
use tidegate::{Limiter, bucket, concurrency, day, interval, rules, sliding, total, week};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn build_with_errors_lists_all_errors() {
    let error = Limiter::builder()
        .limit("zone", day(5).time_zone("Asia/Atlantis"))
        .limit("burst", bucket(5, SECOND).burst(0).per_key())
        .limit("twice", total(1))
        .limit("twice", total(2))
        .limit("negative", sliding(-2, SECOND))
        .limit("misplaced", total(5).burst(3))
        .limit("zones", [day(5).time_zone("Asia/Tokyo"), week(9).time_zone("Europe/Berlin")])
        .limit("override", rules(total(5).per_key()).override_limit("ada", "no such item", 3))
        .file("/nonexistent/tidegate.yaml")
        .build()
        .expect_err("there are mistakes");
    let listed: Vec<(Option<&str>, Option<&str>, &str)> = error
        .mistakes()
        .iter()
        .map(|mistake| (mistake.limit_id.as_deref(), mistake.item.as_deref(), mistake.field.as_str()))
        .collect();
    assert_eq!(
        listed,
        [
            (Some("zone"), None, "time_zone"),
            (Some("burst"), Some("key/bucket-1s"), "items[0].burst"),
            (Some("twice"), None, "id"),
            (Some("negative"), Some("all/sliding-1s"), "items[0].limit"),
            (Some("misplaced"), Some("all/total"), "items[0].burst"),
            (Some("zones"), None, "time_zone"),
            (Some("override"), None, "overrides[0].item"),
            (None, None, "/nonexistent/tidegate.yaml"),
        ]
    );
    let text = error.to_string();
    assert_eq!(text.lines().count(), 8, "{text}");
    assert!(text.contains("limit 'zone', time_zone: no time zone is named 'Asia/Atlantis'"), "{text}");
    assert!(text.contains("limit 'negative', items[0].limit (all/sliding-1s): -2 is below -1"), "{text}");
}

#[test]
fn builder_settings_match_file() {
    let path = std::env::temp_dir().join(format!("tidegate-builder-{}.yaml", std::process::id()));
    let yaml = "
limits:
  - id: l
    description: everything
    time_zone: Asia/Shanghai
    week_start: sunday
    mode: shadow
    on_outage: admit
    durability: sync
    fleet: sliced
    max_keys: 7
    starts_at: 1970-01-01T00:00:01Z
    ends_at: 2200-01-01T00:00:00Z
    items:
      - {policy: bucket, limit: 100, window: 1s, burst: 200, per: key, name: api}
      - {policy: sliding, limit: 2000000, window: 15s, precision: bucketed}
      - {policy: interval, limit: -1, window: 60s}
      - {policy: concurrency, limit: 3, ttl: 5s, charge: count}
      - {policy: week, limit: 9}
    overrides:
      - {key: ada, item: api, limit: 500, until: 2100-01-01T00:00:00Z}
";
    std::fs::write(&path, yaml).expect("a writable directory");
    let from_file = Limiter::builder().file(&path).build().expect("a valid file");
    std::fs::remove_file(&path).expect("it was written");
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let items = [
        bucket(100, SECOND).burst(200).per_key().name("api"),
        sliding(2_000_000, 15 * SECOND).precision(Precision::Bucketed),
        interval(-1, 60 * SECOND),
        concurrency(3).ttl(5 * SECOND).charge(tidegate::model::Charge::Count),
        week(9).time_zone("Asia/Shanghai").week_start(WeekStart::Sunday),
    ];
    let in_code = rules(items)
        .description("everything")
        .shadow()
        .on_outage(tidegate::model::OnOutage::Admit)
        .durability(tidegate::model::Durability::Sync)
        .fleet(tidegate::model::Fleet::Sliced)
        .max_keys(7)
        .starts_at(at(1))
        .ends_at(at(7_258_118_400))
        .override_limit_until("ada", "api", 500, at(4_102_444_800));
    let in_code = Limiter::builder().limit("l", in_code).build().expect("valid settings");
    let spec = |limiter: &Limiter| limiter.store().get("l").expect("it was put").spec().clone();
    assert_eq!(spec(&in_code), spec(&from_file));
    assert_eq!(spec(&in_code).mode, Mode::Shadow);
    assert_eq!(spec(&in_code).items[2].limit, Capacity::Unlimited);
}

#[test]
fn build_over_store_with_limit_keeps_counts() {
    let clock = Arc::new(ManualClock::at(Timestamp::EPOCH));
    let store: Arc<dyn LimitStore> = Arc::new(MemoryStore::new(clock, Memory::default()));
    let build = |most: u64| {
        let builder = Limiter::builder().store(Arc::clone(&store)).limit("l", total(most).per_key());
        builder.build().expect("valid settings").limit("l").expect("it was put")
    };
    assert!(build(1).try_acquire("ada").is_ok());
    assert_eq!(store.get("l").expect("it is there").version(), 1);
    assert!(build(1).try_acquire("ada").is_err(), "an equal definition changes nothing");
    assert_eq!(store.get("l").expect("it is there").version(), 1);
    assert!(build(2).try_acquire("ada").is_ok(), "an edit keeps what is counted");
    assert!(build(2).try_acquire("ada").is_err());
    assert_eq!(store.get("l").expect("it is there").version(), 2);
}

#[test]
fn build_with_wrong_limit_opens_no_store_and_puts_no_limit() {
    let opened =
        Limiter::builder().limit("l", total(-2)).open_store(|| panic!("it must not be opened")).build();
    assert_eq!(opened.expect_err("a mistake").mistakes().len(), 1);

    let store: Arc<dyn LimitStore> =
        Arc::new(MemoryStore::new(ManualClock::at(Timestamp::EPOCH), Memory::default()));
    let builder =
        Limiter::builder().store(Arc::clone(&store)).limit("right", total(1)).limit("wrong", total(-2));
    assert_eq!(builder.build().expect_err("a mistake").mistakes().len(), 1);
    assert!(store.list().is_empty());
}

#[test]
fn clock_and_memory_with_store_are_an_error() {
    let store = || -> Arc<dyn LimitStore> {
        Arc::new(MemoryStore::new(ManualClock::at(Timestamp::EPOCH), Memory::default()))
    };
    let builder = || Limiter::builder().store(store()).limit("l", total(1));
    assert!(builder().build().is_ok());
    for builder in [builder().clock(ManualClock::at(Timestamp::EPOCH)), builder().memory(Memory::default())] {
        let error = builder.build().expect_err("the store has its own");
        let fields: Vec<_> = error.mistakes().iter().map(|mistake| mistake.field.as_str()).collect();
        assert_eq!(fields, ["store"]);
    }
}

#[test]
fn day_limit_starts_at_midnight_of_time_zone() {
    // 1970-01-01T15:59:59Z is one second before midnight in Shanghai.
    let clock = Arc::new(ManualClock::at(Timestamp::from_ticks((16 * 3600 - 1) * 1_000_000_000)));
    let limiter = Limiter::builder()
        .clock(Arc::clone(&clock))
        .limit("l", day(1).time_zone("Asia/Shanghai"))
        .build()
        .expect("valid settings");
    let handle = limiter.limit("l").expect("it was put");
    assert!(handle.try_acquire("").is_ok());
    let refused = handle.try_acquire("").expect_err("one a day");
    assert_eq!(refused.retry_after(), Some(SECOND));
    clock.advance(SECOND);
    assert!(handle.try_acquire("").is_ok());
}
