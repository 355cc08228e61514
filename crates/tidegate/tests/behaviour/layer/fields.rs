//! The exact header fields.

use std::time::Duration;

use tidegate::layer::http::{self, rate_limit, rate_limit_policy, retry_after};
use tidegate::model::{Ask, Capacity, ItemSpec, LimitSpec, Mode, Policy, Precision, Timestamp, Unit};
use tidegate::reply::{ItemReading, OrderError};
use tidegate::{AcquireError, Limiter, Refused};

use super::{TTL, limiter, store};
use crate::fixture::{DecisionExt, HandleExt};

const MINUTE: Duration = Duration::from_secs(60);

fn named(name: &str, mut item: ItemSpec) -> ItemSpec {
    item.name = Some(name.to_owned());
    item
}

fn sliding(limit: u64, window: Duration) -> ItemSpec {
    ItemSpec::of(Policy::Sliding { window, precision: Precision::Exact }, limit)
}

/// Both header fields after the first order on these limits.
fn fields_of(limits: Vec<LimitSpec>, count: u64) -> (Option<String>, Option<String>) {
    let ids: Vec<String> = limits.iter().map(|limit| limit.id.clone()).collect();
    let limiter = limiter(limits);
    let asks: Vec<Ask<'_>> = ids.iter().map(|id| Ask { limit_id: id, key: Some(b"ada"), count }).collect();
    let decision = limiter.request(&asks).readings().try_acquire();
    let (readings, at): (Vec<ItemReading>, Timestamp) = match &decision {
        Ok(granted) => (granted.readings().to_vec(), granted.at().expect("an order has an instant")),
        Err(AcquireError::Refused(denial)) => (denial.readings().to_vec(), denial.at()),
        Err(error) => panic!("no decision: {error}"),
    };
    let text =
        |value: Option<::http::HeaderValue>| value.map(|value| value.to_str().expect("text").to_owned());
    (text(rate_limit_policy(&readings)), text(rate_limit(&readings, at)))
}

#[track_caller]
fn check(item: ItemSpec, policy: &str, state: &str) {
    let (really_policy, really_state) = fields_of(vec![LimitSpec::named("l").with(item)], 1);
    assert_eq!(really_policy.as_deref(), Some(policy));
    assert_eq!(really_state.as_deref(), Some(state));
}

#[test]
fn every_policy_has_expected_fields() {
    // The clock stands at 2023-11-14T22:13:20Z. A sliding window is closed, so it empties a tick after its end.
    check(named("burst", sliding(100, MINUTE)), r#""burst";q=100;w=60"#, r#""burst";r=99;t=61"#);
    check(
        sliding(5, Duration::from_millis(1500)),
        r#""all/sliding-1500ms";q=5;w=2"#,
        r#""all/sliding-1500ms";r=4;t=2"#,
    );
    check(
        ItemSpec::of(Policy::Interval { window: MINUTE }, 5).per_key(),
        r#""key/interval-60s";q=5;w=60"#,
        r#""key/interval-60s";r=4;t=60"#,
    );
    check(
        ItemSpec::of(Policy::Calendar(Unit::Minute), 5),
        r#""all/minute";q=5;w=60"#,
        r#""all/minute";r=4;t=40"#,
    );
    check(
        ItemSpec::of(Policy::Calendar(Unit::Day), 5),
        r#""all/day";q=5;w=86400"#,
        r#""all/day";r=4;t=6400"#,
    );
    check(ItemSpec::of(Policy::Calendar(Unit::Year), 5), r#""all/year";q=5"#, r#""all/year";r=4;t=4067200"#);
    check(ItemSpec::of(Policy::Total, 5), r#""all/total";q=5"#, r#""all/total";r=4"#);
    check(
        ItemSpec::of(Policy::Concurrency { ttl: TTL }, 5),
        r#""all/concurrency";q=5;qu="concurrent-requests""#,
        r#""all/concurrency";r=4"#,
    );
    let bucket = |burst| ItemSpec::of(Policy::Bucket { window: Duration::from_secs(10), burst }, 100);
    check(bucket(None), r#""all/bucket-10s";q=100;w=10"#, r#""all/bucket-10s";r=99;t=1"#);
    check(bucket(Some(205)), r#""all/bucket-10s";q=205;w=21"#, r#""all/bucket-10s";r=204;t=1"#);
}

#[test]
fn several_items_are_listed_in_order() {
    let limit = |id: &str| {
        LimitSpec::named(id)
            .with(named("burst", sliding(100, MINUTE)))
            .with(named("daily", ItemSpec::of(Policy::Calendar(Unit::Day), 1000)))
    };
    let (policy, state) = fields_of(vec![limit("api")], 1);
    assert_eq!(policy.as_deref(), Some(r#""burst";q=100;w=60, "daily";q=1000;w=86400"#));
    assert_eq!(state.as_deref(), Some(r#""burst";r=99;t=61, "daily";r=999;t=6400"#));

    let (policy, _) =
        fields_of(vec![limit("api"), LimitSpec::named("sale").with(named("burst", sliding(7, MINUTE)))], 1);
    assert_eq!(
        policy.as_deref(),
        Some(r#""api/burst";q=100;w=60, "api/daily";q=1000;w=86400, "sale/burst";q=7;w=60"#),
        "limits are named where there are several"
    );
}

#[test]
fn items_that_refuse_nothing_are_omitted() {
    let unlimited = ItemSpec { limit: Capacity::Unlimited, ..sliding(0, MINUTE) };
    let unlimited =
        ItemSpec { policy: Policy::Sliding { window: MINUTE, precision: Precision::Bucketed }, ..unlimited };
    assert_eq!(fields_of(vec![LimitSpec::named("l").with(unlimited)], 1), (None, None));
    let shadow = LimitSpec { mode: Mode::Shadow, ..LimitSpec::named("l").with(sliding(5, MINUTE)) };
    assert_eq!(fields_of(vec![shadow], 1), (None, None));
}

#[test]
fn numbers_have_at_most_fifteen_digits() {
    let (policy, state) =
        fields_of(vec![LimitSpec::named("l").with(ItemSpec::of(Policy::Total, 1 << 62))], 1);
    assert_eq!(policy.as_deref(), Some(r#""all/total";q=999999999999999"#));
    assert_eq!(state.as_deref(), Some(r#""all/total";r=999999999999999"#));
}

fn denial(limiter: &Limiter, id: &str) -> Refused {
    let decision = limiter.handle(id).of("ada").readings().try_acquire();
    decision.refused().expect("it does not fit")
}

#[test]
fn retry_after_rounds_up_and_is_never_zero() {
    let (store, clock) = store([LimitSpec::named("l").with(sliding(1, Duration::from_secs(15)))]);
    let limiter = Limiter::new(store);
    assert!(limiter.handle("l").of("ada").try_acquire().is_granted());
    let wait = || retry_after(&denial(&limiter, "l")).expect("a matter of time");
    assert_eq!(wait(), "16", "15 s and a nanosecond");
    clock.advance(Duration::from_nanos(1));
    assert_eq!(wait(), "15");
    clock.advance(Duration::from_millis(14_800));
    assert_eq!(wait(), "1");
    clock.advance(Duration::from_nanos(199_999_999));
    assert_eq!(wait(), "1", "a nanosecond is a second too");
}

#[test]
fn refusal_without_wait_omits_retry_after() {
    let limiter = limiter([LimitSpec::named("l").with(ItemSpec::of(Policy::Total, 0))]);
    assert_eq!(retry_after(&denial(&limiter, "l")), None);
}

#[test]
fn default_refusal_matches_problem_json() {
    let limiter =
        limiter([LimitSpec::named("l").with(sliding(0, MINUTE)).with(ItemSpec::of(Policy::Total, 9))]);
    let response = http::too_many_requests(&denial(&limiter, "l"));
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert_eq!(response.headers()["ratelimit"], r#""all/sliding-60s";r=0, "all/total";r=9"#);
    assert_eq!(
        response.body(),
        r#"{"code":"quota_exceeded","status":429,"title":"Request cannot be satisfied as assigned quota has been exceeded","type":"https://iana.org/assignments/http-problem-types#quota-exceeded","violated-policies":["all/sliding-60s"]}"#
    );
}

/// A refusal for lack of room must not report an exceeded quota.
#[test]
fn refusal_without_room_matches_problem_json() {
    let spec = LimitSpec { max_keys: Some(1), ..LimitSpec::named("l").with(sliding(5, MINUTE).per_key()) };
    let limiter = limiter([spec]);
    assert!(limiter.handle("l").of("bob").try_acquire().is_granted());
    let response = http::too_many_requests(&denial(&limiter, "l"));
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["ratelimit-policy"], r#""key/sliding-60s";q=5;w=60"#);
    assert_eq!(response.headers().get("ratelimit"), None);
    assert_eq!(response.headers()["retry-after"], "61");
    assert_eq!(
        response.body(),
        r#"{"code":"no_room","status":429,"title":"Request cannot be satisfied as there is no room to count another client","type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","violated-policies":["key/sliding-60s"]}"#
    );
}

#[test]
fn errors_map_to_client_or_server_status() {
    let status = |error: AcquireError| http::undecided(&error).status().as_u16();
    assert_eq!(
        status(AcquireError::Unavailable(tidegate::store::Unavailable { reason: "it burns".into() })),
        503
    );
    assert_eq!(status(OrderError::UnknownLimit { limit_id: "l".into() }.into()), 500);
    assert_eq!(status(OrderError::KeyTooLong { bytes: 5000 }.into()), 400);
    let response = http::undecided(&OrderError::UnknownLimit { limit_id: "secret".into() }.into());
    assert_eq!(
        response.body(),
        r#"{"code":"unknown_limit","status":500,"title":"Internal Server Error","type":"about:blank"}"#
    );
}
