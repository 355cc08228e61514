//! The requirements of the frequency-limit service, one by one, over HTTP.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::Limiter;
use tidegate::clock::ManualClock;
use tidegate::model::Tick;
use tidegate::store::{LimitStore, MapStore, Memory, MemoryStore};
use tidegate_server::http::HttpApi;

use crate::api::fixture::ApiFixture;

/// `UpdateLimit`: uses `count` units; returns whether it was limited.
fn update(fixture: &ApiFixture, id: &str, key: &str, count: u64) -> bool {
    let ask = json!({"limit_id": id, "limit_key": key, "count": count}).to_string();
    !fixture.ask("POST /v1/acquire", &ask).allowed()
}

/// `QueryLimit`: whether an update would be limited.
fn query(fixture: &ApiFixture, id: &str, key: &str) -> bool {
    !fixture.ask("POST /v1/peek", &json!({"limit_id": id, "limit_key": key}).to_string()).allowed()
}

fn limit(id: &str, items: &Value) -> String {
    json!({"id": id, "items": items}).to_string()
}

/// The counts of an activity, or of a user, by item.
fn counts(fixture: &ApiFixture, id: &str, key: Option<&str>) -> Vec<(String, u64)> {
    let path = match key {
        Some(key) => format!("/v1/limits/{id}/usage?limit_key={key}"),
        None => format!("/v1/limits/{id}/usage"),
    };
    let status = fixture.get(&path).is(200).at("/policy_status");
    let count = |item: &Value| {
        let name = item["item"].as_str().expect("a name").to_owned();
        (name, item["current_count"].as_u64().expect("a count"))
    };
    status.as_array().expect("a list").iter().map(count).collect()
}

fn count(fixture: &ApiFixture, id: &str, key: Option<&str>) -> u64 {
    counts(fixture, id, key).first().expect("an item").1
}

/// Sets the clock to this instant.
fn go(fixture: &ApiFixture, instant: &str) {
    let since = tidegate_config::text::parse_instant(instant).expect("an instant");
    fixture.clock.set(Tick::NANOSECOND.instant(since).expect("before 2262"));
}

#[test]
fn e01_limits_are_added_deleted_read_and_set() {
    let fixture = ApiFixture::empty();
    fixture.ask("POST /v1/limits", &limit("a", &json!([{"policy": "total", "limit": 3}]))).is(201);
    assert_eq!(fixture.get("/v1/limits/a").is(200).at("/items/0/limit"), json!(3));
    fixture.ask("PUT /v1/limits/a", &limit("a", &json!([{"policy": "total", "limit": 4}]))).is(200);
    assert_eq!(fixture.get("/v1/limits/a").is(200).at("/items/0/limit"), json!(4));
    fixture.ask("DELETE /v1/limits/a", "").is(204);
    fixture.get("/v1/limits/a").problem(404, "unknown_limit");
}

#[test]
fn e02_query_changes_nothing() {
    let fixture = ApiFixture::with(&[&limit("a", &json!([{"policy": "total", "limit": 1}]))]);
    for _ in 0..3 {
        assert!(!query(&fixture, "a", "u"));
    }
    assert_eq!(count(&fixture, "a", None), 0);
}

#[test]
fn e03_update_counts_count_times() {
    let fixture = ApiFixture::with(&[&limit("a", &json!([{"policy": "total", "limit": 3}]))]);
    assert!(!update(&fixture, "a", "u", 2));
    assert_eq!(count(&fixture, "a", None), 2);
    assert!([1, 1].map(|n| update(&fixture, "a", "u", n)) == [false, true]);
    assert_eq!(count(&fixture, "a", None), 3);
}

#[test]
fn e04_counts_exist_per_activity_and_per_user() {
    let items = json!([{"policy": "total", "limit": 10}, {"policy": "total", "limit": 2, "per": "key"}]);
    let fixture = ApiFixture::with(&[&limit("a", &items), &limit("b", &items)]);
    assert!(!update(&fixture, "a", "u", 2));
    assert!(!update(&fixture, "a", "v", 1));
    assert_eq!(count(&fixture, "a", None), 3);
    assert_eq!([count(&fixture, "a", Some("u")), count(&fixture, "a", Some("v"))], [2, 1]);
    assert_eq!([count(&fixture, "b", None), count(&fixture, "b", Some("u"))], [0, 0]);
}

#[test]
fn e05_every_policy_can_be_configured() {
    let units = ["total", "second", "minute", "hour", "day", "week", "month", "year"];
    let mut items: Vec<_> = units.iter().map(|unit| json!({"policy": unit, "limit": i64::MAX})).collect();
    items.push(json!({"policy": "interval", "limit": 5, "window": "60s"}));
    let fixture = ApiFixture::with(&[&limit("a", &Value::from(items))]);
    assert!(!update(&fixture, "a", "u", 5));
    assert!(update(&fixture, "a", "u", 1));
    let read = counts(&fixture, "a", None);
    assert_eq!(read.len(), 9);
    assert!(read.iter().all(|(_, count)| *count == 5), "{read:?}");
}

#[test]
fn e06_total_is_per_activity_or_per_user() {
    let items = json!([{"policy": "total", "limit": 3}, {"policy": "total", "limit": 2, "per": "key"}]);
    let fixture = ApiFixture::with(&[&limit("a", &items)]);
    assert_eq!([2, 1].map(|n| update(&fixture, "a", "u", n)), [false, true], "the user's own total");
    assert_eq!([1, 1].map(|n| update(&fixture, "a", "v", n)), [false, true], "the activity's");
    fixture.clock.advance(Duration::from_secs(400 * 86_400));
    assert!(query(&fixture, "a", "w"), "it does not come back");
}

#[test]
fn e07_calendar_windows_end_at_their_boundaries() {
    let units = ["minute", "hour", "day", "week", "month"];
    let resets = |before: &str, after: &str| {
        let fixture = ApiFixture::empty();
        for unit in units {
            let item =
                json!({"id": unit, "time_zone": "Asia/Shanghai", "items": [{"policy": unit, "limit": 1}]});
            fixture.ask("POST /v1/limits", &item.to_string()).is(201);
        }
        go(&fixture, before);
        for unit in units {
            assert!(!update(&fixture, unit, "u", 1) && query(&fixture, unit, "u"));
        }
        go(&fixture, after);
        units.into_iter().filter(|unit| !query(&fixture, unit, "u")).collect::<Vec<_>>().join(" ")
    };
    let shanghai = |day: &str, time: &str| format!("{day}T{time}+08:00");
    let midnight = |day: &str, next: &str| resets(&shanghai(day, "23:59:59"), &shanghai(next, "00:00:00"));
    assert_eq!(midnight("2030-12-31", "2031-01-01"), "minute hour day month", "a Tuesday, then a Wednesday");
    assert_eq!(midnight("2031-01-05", "2031-01-06"), "minute hour day week", "a Sunday, then a Monday");
    assert_eq!(midnight("2028-02-29", "2028-03-01"), "minute hour day month", "a leap year");
    assert_eq!(
        resets(&shanghai("2030-06-05", "10:59:59"), &shanghai("2030-06-05", "11:00:00")),
        "minute hour"
    );
    assert_eq!(
        resets(&shanghai("2030-06-05", "10:58:59"), &shanghai("2030-06-05", "10:58:59.999999999")),
        ""
    );
}

#[test]
fn e08_interval_begins_with_its_first_hit() {
    let fixture =
        ApiFixture::with(&[&limit("a", &json!([{"policy": "interval", "limit": 2, "window": "60s"}]))]);
    assert!(!update(&fixture, "a", "u", 1));
    fixture.clock.advance(Duration::from_secs(59));
    assert_eq!([1, 1].map(|n| update(&fixture, "a", "u", n)), [false, true]);
    fixture.clock.advance(Duration::from_secs(1));
    assert_eq!(
        [2, 1].map(|n| update(&fixture, "a", "u", n)),
        [false, true],
        "a new one, however busy the last was"
    );
}

#[test]
fn e09_usage_has_lifetime_count_and_status_per_policy() {
    let items = json!([{"policy": "total", "limit": 9}, {"policy": "day", "limit": 5}, {"policy": "day", "limit": 5, "per": "key"}]);
    let fixture = ApiFixture::with(&[&limit("a", &items)]);
    assert!(!update(&fixture, "a", "u", 3));
    let data = fixture.get("/v1/limits/a/usage").is(200);
    assert_eq!(data.at("/count"), json!(3));
    assert_eq!(data.at("/policy_status/0/policy"), json!("total"));
    let day = data.at("/policy_status/1");
    assert_eq!(
        (&day["item"], &day["policy"], &day["current_count"]),
        (&json!("all/day"), &json!("day"), &json!(3))
    );
    assert!(day["last_time"].as_str().is_some_and(|at| at.starts_with("2026-01-20T00:00:00")), "{day}");
    let data = fixture.get("/v1/limits/a/usage?limit_key=u").is(200);
    assert_eq!((data.at("/count"), data.at("/policy_status/0/item")), (json!(null), json!("key/day")));
    fixture.get("/v1/limits/none/usage").problem(404, "unknown_limit");
    fixture.get("/v1/limits/a/usage?key=u").problem(400, "bad_request");
}

#[test]
fn e10_any_full_item_limits() {
    let items = json!([{"policy": "total", "limit": 2}, {"policy": "day", "limit": 1, "per": "key"}]);
    let fixture = ApiFixture::with(&[&limit("a", &items)]);
    assert!(!update(&fixture, "a", "u", 1));
    assert_eq!([query(&fixture, "a", "u"), query(&fixture, "a", "v")], [true, false], "the user's is full");
    assert!(!update(&fixture, "a", "v", 1));
    assert!(query(&fixture, "a", "w"), "the activity's is");
}

#[test]
fn e11_update_is_all_or_nothing() {
    let items = json!([{"policy": "total", "limit": 100}, {"policy": "day", "limit": 1, "per": "key"}]);
    let fixture = ApiFixture::with(&[&limit("a", &items)]);
    for user in 0..100 {
        assert!(!update(&fixture, "a", &format!("u{user}"), 1));
    }
    assert!(update(&fixture, "a", "u0", 1) && update(&fixture, "a", "u100", 1));
    assert_eq!(count(&fixture, "a", None), 100);
    assert_eq!([count(&fixture, "a", Some("u0")), count(&fixture, "a", Some("u100"))], [1, 0]);
}

#[test]
fn e12_count_fits_as_a_whole() {
    let fixture = ApiFixture::with(&[&limit("a", &json!([{"policy": "total", "limit": 10}]))]);
    let steps = [(8, false), (3, true), (0, false), (2, false), (1, true), (0, false)];
    for (count, limited) in steps {
        assert_eq!(update(&fixture, "a", "u", count), limited, "{count}");
    }
    assert_eq!(count(&fixture, "a", None), 10);
    assert!(query(&fixture, "a", "u"));
    fixture.ask("PUT /v1/limits/a", &limit("a", &json!([{"policy": "total", "limit": 9}]))).is(200);
    assert!(update(&fixture, "a", "u", 0), "more is used than there is");
}

#[test]
fn e13_limits_and_counts_are_kept_in_the_store() {
    let store: Arc<dyn LimitStore> =
        Arc::new(MemoryStore::new(ManualClock::at(tidegate::model::Timestamp::EPOCH), Memory::default()));
    let mut one = ApiFixture::empty();
    let mut other = ApiFixture::empty();
    for fixture in [&mut one, &mut other] {
        fixture.api = HttpApi::new(Arc::clone(&store), Limiter::new(Arc::clone(&store)));
    }
    one.ask("POST /v1/limits", &limit("a", &json!([{"policy": "total", "limit": 2}]))).is(201);
    assert!(!update(&one, "a", "u", 1) && !update(&other, "a", "u", 1));
    assert!(query(&one, "a", "u") && query(&other, "a", "u"));
    other.ask("PUT /v1/limits/a", &limit("a", &json!([{"policy": "total", "limit": 3}]))).is(200);
    assert!(!query(&one, "a", "u"), "at once, not after a refresh");
}

#[test]
fn e14_errors_are_not_refusals() {
    let fixture = ApiFixture::with(&[&limit("a", &json!([{"policy": "total", "limit": 1, "per": "key"}]))]);
    for path in ["acquire", "peek"] {
        fixture.ask(&format!("POST /v1/{path}"), r#"{"limit_id": "b"}"#).problem(404, "unknown_limit");
        fixture.ask(&format!("POST /v1/{path}"), r#"{"limit_id": "a"}"#).problem(400, "bad_request");
    }
    fixture
        .ask("POST /v1/limits", &limit("a", &json!([{"policy": "total", "limit": 1}])))
        .problem(409, "limit_exists");
    for (line, body) in [
        ("PUT /v1/limits/b", r#"{"items": [{"policy": "total", "limit": 1}]}"#),
        ("DELETE /v1/limits/b", ""),
        ("POST /v1/limits/b/reset", ""),
    ] {
        fixture.ask(line, body).problem(404, "unknown_limit");
    }
}

#[test]
fn e15_set_keeps_delete_forgets_and_reset_clears() {
    let fixture = ApiFixture::with(&[&limit(
        "a",
        &json!([{"policy": "total", "limit": 9}, {"policy": "day", "limit": 9}]),
    )]);
    assert!(!update(&fixture, "a", "u", 5));
    let items = json!([{"policy": "total", "limit": 6}, {"policy": "hour", "limit": 9}]);
    fixture.ask("PUT /v1/limits/a", &limit("a", &items)).is(200);
    assert_eq!(counts(&fixture, "a", None), [("all/total".to_owned(), 5), ("all/hour".to_owned(), 0)]);
    assert!(update(&fixture, "a", "u", 2));

    fixture.ask("DELETE /v1/limits/a", "").is(204);
    let items = json!([{"policy": "total", "limit": 9}, {"policy": "total", "limit": 9, "per": "key"}]);
    fixture.ask("POST /v1/limits", &limit("a", &items)).is(201);
    assert_eq!(count(&fixture, "a", None), 0);

    assert!(!update(&fixture, "a", "u", 4) && !update(&fixture, "a", "v", 4));
    fixture.ask("POST /v1/limits/a/reset", r#"{"limit_key": "u"}"#).is(204);
    assert_eq!(
        (count(&fixture, "a", None), count(&fixture, "a", Some("u")), count(&fixture, "a", Some("v"))),
        (8, 0, 4)
    );
    fixture.ask("POST /v1/limits/a/reset", r#"{"limit_key": null}"#).is(204);
    assert_eq!((count(&fixture, "a", None), count(&fixture, "a", Some("v"))), (0, 0));
    fixture.ask("POST /v1/limits/a/reset", r#"{"key": "u"}"#).problem(400, "bad_request");
}

#[test]
fn e16_time_zone_week_start_and_validity_are_explicit() {
    let weekly = json!({"id": "a", "time_zone": "Asia/Shanghai", "week_start": "sunday",
        "starts_at": "2030-01-05T00:00:00+08:00", "ends_at": "2030-01-20T00:00:00+08:00", "items": [{"policy": "week", "limit": 1}]});
    let fixture = ApiFixture::with(&[&weekly.to_string()]);
    let early = fixture.ask("POST /v1/acquire", r#"{"limit_id": "a"}"#).is(200);
    assert_eq!((early.allowed(), early.at("/wait")), (false, json!("until")));
    for (instant, limited) in [
        ("2030-01-05T23:59:59+08:00", false),
        ("2030-01-05T23:59:59.9+08:00", true),
        ("2030-01-06T00:00:00+08:00", false),
        ("2030-01-12T23:59:59+08:00", true),
    ] {
        go(&fixture, instant);
        assert_eq!(update(&fixture, "a", "u", 1), limited, "{instant}");
    }
    go(&fixture, "2030-01-20T00:00:00+08:00");
    let late = fixture.ask("POST /v1/acquire", r#"{"limit_id": "a"}"#).is(200);
    assert_eq!((late.allowed(), late.at("/wait")), (false, json!("never")));
}

#[test]
fn model_and_memory_store_agree() {
    let tell = |fixture: &ApiFixture| {
        fixture
            .ask("POST /v1/limits", &limit("a", &json!([{"policy": "day", "limit": 2, "per": "key"}])))
            .is(201);
        (0..3)
            .map(|_| fixture.ask("POST /v1/acquire", r#"{"limit_id": "a", "limit_key": "u"}"#).text())
            .collect::<Vec<_>>()
    };
    let map = ApiFixture::over(|clock| Arc::new(MapStore::new(clock, 7)));
    assert_eq!(tell(&ApiFixture::empty()), tell(&map));
}
