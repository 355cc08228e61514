//! Tasks of users: test vectors, refusals, and operations by id.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::Request;
use serde_json::{Value, json};
use tidegate::Limiter;
use tidegate::activity::{Activity, ActivityRules};
use tidegate::clock::ManualClock;
use tidegate::limiter::ManualHolderClock;
use tidegate::model::{Capacity, Timestamp};
use tidegate::store::MapStore;
use tidegate_server::http::HttpApi;
use tidegate_server::http::events::{EventStream, MAX_EVENT_STREAMS};
use tidegate_server::tokens::{Caller, Permissions, Role};
use tidegate_testkit::logged_store::{LoggedStore, ManualLog};

use crate::api::fixture::{ApiFixture, ApiResponse, holder};

const NOBODY: &str = "00000000000000000000000000000007";

/// An API with an activity of these rules.
fn with(rules: ActivityRules) -> ApiFixture {
    let ApiFixture { api, clock, pulse, limiter, store, metrics } = ApiFixture::empty();
    let activity = Activity::new(limiter.clone(), rules).expect("sensible rules");
    ApiFixture { api: api.activity(activity), clock, pulse, limiter, store, metrics }
}

fn both() -> [(ActivityRules, ApiFixture); 2] {
    let (strict, letter) =
        (ActivityRules::default(), ActivityRules { compat: true, ..ActivityRules::default() });
    [(strict, with(strict)), (letter, with(letter))]
}

#[track_caller]
fn begin(fixture: &ApiFixture, user: &str) -> String {
    let response = fixture.ask(&format!("POST /v1/activity/{user}"), "").is(201);
    response.at("/active_id").as_str().expect("a name").to_owned()
}

/// Whether a user is limited, and why.
#[track_caller]
fn limited(fixture: &ApiFixture, user: &str) -> Value {
    let response = fixture.get(&format!("/v1/activity/{user}")).is(200);
    assert_eq!(response.at("/limited"), !response.at("/reason").is_null());
    response.at("/reason")
}

#[track_caller]
fn running(fixture: &ApiFixture, user: &str) -> (Value, Value) {
    let response = fixture.get(&format!("/v1/activity/{user}")).is(200);
    (response.at("/active"), response.at("/user_active"))
}

#[test]
fn task_starts_is_renewed_and_ends() {
    let fixture = ApiFixture::empty();
    let free = r#"{"limited": false, "reason": null, "retry_after_ms": null, "active": 0, "user_active": 0}"#;
    fixture.get("/v1/activity/ada").is(200).says(free);
    let response = fixture.ask("POST /v1/activity/ada", "").is(201);
    let id = response.at("/active_id").as_str().expect("a name").to_owned();
    assert_eq!((id.len(), response.json().as_object().expect("an object").len()), (32, 3));
    assert_eq!(response.at("/timestamp"), "2026-01-20T00:00:00Z");
    assert_eq!(response.at("/expires_at"), "2026-01-20T00:05:00Z");
    let one = r#"{"limited": false, "reason": null, "retry_after_ms": null, "active": 1, "user_active": 1}"#;
    fixture.get("/v1/activity/ada").is(200).says(one);
    fixture.clock.advance(Duration::from_secs(60));
    let renew = format!("POST /v1/activity/ada/{id}/renew");
    fixture.ask(&renew, "").is(200).says(r#"{"expires_at": "2026-01-20T00:06:00Z"}"#);
    fixture.ask(&renew, r#"{"ttl_ms": 1500}"#).is(200).says(r#"{"expires_at": "2026-01-20T00:01:01.5Z"}"#);
    fixture.ask(&format!("DELETE /v1/activity/ada/{id}"), "").is(200).says(r#"{"removed": 1}"#);
    fixture.ask(&format!("DELETE /v1/activity/ada/{id}"), "").is(200).says(r#"{"removed": 0}"#);
    fixture.ask(&renew, "").problem(410, "unknown_lease");
    let short = fixture.ask("POST /v1/activity/ada", r#"{"ttl_ms": 1000}"#).is(201);
    assert_eq!(short.at("/expires_at"), "2026-01-20T00:01:01Z");
    fixture.clock.advance(Duration::from_secs(1));
    assert_eq!(running(&fixture, "ada"), (json!(0), json!(0)), "it was not renewed");
}

#[test]
fn v1_window_is_closed() {
    for (_, fixture) in both() {
        for _ in 0..5 {
            begin(&fixture, "u");
            fixture.clock.advance(Duration::from_secs(1));
        }
        assert_eq!(limited(&fixture, "u"), "user_window");
        assert_eq!(limited(&fixture, "v"), Value::Null);
        fixture.clock.advance(Duration::from_secs(10));
        assert_eq!(limited(&fixture, "u"), "user_window", "15 s");
        fixture.clock.advance(Duration::from_millis(1));
        assert_eq!(limited(&fixture, "u"), Value::Null, "15.001 s");
    }
}

#[test]
fn v2_v4_thirty_tasks_fill_and_window_is_reported_first() {
    for (rules, fixture) in both() {
        for task in 0..30 {
            begin(&fixture, if task < 5 { "u".to_owned() } else { format!("u-{task}") }.as_str());
        }
        assert_eq!(limited(&fixture, "v"), "concurrency");
        let response = fixture.ask("POST /v1/activity/v", "");
        assert_eq!(response.header("retry-after"), None, "no retry time is known");
        let detail = response.problem(503, "ActivityError");
        assert!(detail.starts_with("系统并发已达上限"), "{detail}");
        assert_eq!(running(&fixture, "v"), (json!(30), json!(0)), "nothing was written");
        assert_eq!(limited(&fixture, "u"), "user_window", "if both are full");
        let response = fixture.ask("POST /v1/activity/u", "");
        if rules.compat {
            response.problem(503, "ActivityError");
        } else {
            assert_eq!(response.header("retry-after"), Some("16"));
            response.problem(429, "user_window");
        }
    }
}

#[test]
fn v3_all_tasks_of_a_user_end() {
    for (_, fixture) in both() {
        let ids = [begin(&fixture, "u"), begin(&fixture, "u"), begin(&fixture, "u")];
        begin(&fixture, "v");
        fixture.ask("DELETE /v1/activity/u", "").is(200).says(r#"{"removed": 3}"#);
        fixture.ask("DELETE /v1/activity/u", "").is(200).says(r#"{"removed": 0}"#);
        fixture.ask(&format!("DELETE /v1/activity/u/{}", ids[0]), "").is(200).says(r#"{"removed": 0}"#);
        assert_eq!(running(&fixture, "v"), (json!(1), json!(1)));
    }
}

#[test]
fn v5_old_requests_leave_the_window_while_tasks_run() {
    for (_, fixture) in both() {
        for _batch in 0..6 {
            assert_eq!(limited(&fixture, "u"), Value::Null);
            (0..5).for_each(|_| drop(begin(&fixture, "u")));
            fixture.clock.advance(Duration::from_millis(15_001));
        }
        assert_eq!(running(&fixture, "u"), (json!(30), json!(30)));
        assert_eq!(limited(&fixture, "u"), "concurrency");
    }
}

#[test]
fn retry_after_is_exact() {
    let fixture = ApiFixture::empty();
    for _ in 0..5 {
        let id = begin(&fixture, "u");
        fixture.ask(&format!("DELETE /v1/activity/u/{id}"), "").is(200);
    }
    fixture.clock.advance(Duration::from_millis(14_500));
    let response = fixture.ask("POST /v1/activity/u", "");
    assert_eq!((response.header("retry-after"), response.at("/retry_after_ms")), (Some("1"), json!(501)));
    assert_eq!(fixture.get("/v1/activity/u").at("/retry_after_ms"), 501);
    response.problem(429, "user_window");
    fixture.clock.advance(Duration::from_millis(500));
    fixture.ask("POST /v1/activity/u", "").problem(429, "user_window");
    fixture.clock.advance(Duration::from_millis(1));
    begin(&fixture, "u");
}

#[test]
fn per_user_limit_leaves_room_for_others() {
    let fixture =
        with(ActivityRules { max_concurrent_per_user: Capacity::AtMost(1), ..ActivityRules::default() });
    begin(&fixture, "u");
    let detail = fixture.ask("POST /v1/activity/u", "").problem(503, "ActivityError");
    assert!(detail.contains("of this user"), "{detail}");
    begin(&fixture, "v");
}

#[test]
fn task_belongs_to_its_user() {
    let fixture = ApiFixture::empty();
    let id = begin(&fixture, "u");
    fixture.ask(&format!("DELETE /v1/activity/v/{id}"), "").is(200).says(r#"{"removed": 0}"#);
    for id in [&*id, NOBODY, "nonsense", "%00"] {
        fixture.ask(&format!("POST /v1/activity/v/{id}/renew"), "").problem(410, "unknown_lease");
        fixture.get(&format!("/v1/activity/v/{id}/events")).problem(410, "unknown_lease");
    }
    fixture.ask("DELETE /v1/activity/u/nonsense", "").is(200).says(r#"{"removed": 0}"#);
    assert_eq!(running(&fixture, "u"), (json!(1), json!(1)));
}

#[test]
fn activity_is_an_ordinary_limit() {
    let fixture = ApiFixture::empty();
    fixture.get("/v1/limits/activity").problem(404, "unknown_limit");
    let id = begin(&fixture, "u");
    let items = fixture.get("/v1/limits/activity").is(200).at("/items");
    assert_eq!(items.as_array().expect("a list").len(), 3);
    fixture
        .ask("POST /v1/release", &format!(r#"{{"lease_id": "{id}"}}"#))
        .is(200)
        .says(r#"{"released": true}"#);
    assert_eq!(running(&fixture, "u"), (json!(0), json!(0)));
}

#[test]
fn unsuitable_activity_limit_is_refused() {
    let fixture = ApiFixture::empty();
    let odd = r#"{"id": "activity", "items": [{"policy": "total", "limit": 5}]}"#;
    let response = fixture.ask("POST /v1/limits", odd).is(422);
    assert_eq!(
        (response.at("/code"), response.at("/errors/0/field")),
        (json!("invalid_limit"), json!("items"))
    );
    let why = response.at("/errors/0/message").to_string();
    assert!(why.contains("policy: concurrency, per: all"), "{why}");
    begin(&fixture, "u");
    fixture.ask("PUT /v1/limits/activity", odd).problem(422, "invalid_limit");
    begin(&fixture, "u");
    // Another process puts it anyway.
    let spec = tidegate::model::LimitSpec::named("activity")
        .with(tidegate::model::ItemSpec::of(tidegate::model::Policy::Total, 5));
    fixture.store.put(spec, tidegate::catalog::ExpectedVersion::Anything).expect("a limit");
    for line in ["GET", "POST"] {
        let why = fixture.ask(&format!("{line} /v1/activity/u"), "").problem(422, "invalid_limit");
        assert!(why.contains("the items of the limit 'activity' must"), "{why}");
    }
    let usage = fixture.get("/v1/limits/activity/usage").is(200);
    assert_eq!(usage.at("/count"), 0, "nothing was charged");
}

#[test]
fn task_expires_without_renewal() {
    let fixture = ApiFixture::empty();
    let id = begin(&fixture, "u");
    let (day, more) = (r#"{"ttl_ms": 86400000}"#, r#"{"ttl_ms": 86400001}"#);
    for path in ["/v1/activity/u".to_owned(), format!("/v1/activity/u/{id}/renew")] {
        let why = fixture.ask(&format!("POST {path}"), more).problem(422, "invalid_ttl");
        assert!(why.contains("at most 1d"), "{why}");
    }
    fixture.ask("POST /v1/activity/u", day).is(201);
    fixture.ask(&format!("POST /v1/activity/u/{id}/renew"), day).is(200);
}

#[test]
fn status_query_creates_nothing() {
    let fixture = ApiFixture::empty();
    assert_eq!(running(&fixture, "u"), (json!(0), json!(0)));
    fixture.get(&format!("/v1/activity/u/{NOBODY}/events")).problem(410, "unknown_lease");
    fixture.ask("DELETE /v1/activity/u", "").is(200).says(r#"{"removed": 0}"#);
    fixture.get("/v1/limits/activity").problem(404, "unknown_limit");
    begin(&fixture, "u");
    fixture.get("/v1/limits/activity").is(200);
}

#[test]
fn invalid_task_requests_are_refused() {
    let fixture = ApiFixture::empty();
    let long = "x".repeat(1025);
    for (user, why) in [
        ("%00", "U+0000"),
        ("a%00b", "U+0000"),
        (&long, "1025 bytes"),
        ("%ff", "UTF-8"),
        ("%zz", "hexadecimal"),
        (&"y".repeat(60_000), "60000 bytes"),
    ] {
        for line in ["GET", "POST", "DELETE"] {
            let detail = fixture.ask(&format!("{line} /v1/activity/{user}"), "").problem(400, "bad_request");
            assert!(detail.contains(why), "{detail}");
        }
        fixture.ask(&format!("DELETE /v1/activity/{user}/{NOBODY}"), "").problem(400, "bad_request");
        fixture.ask(&format!("POST /v1/activity/{user}/{NOBODY}/renew"), "").problem(400, "bad_request");
        fixture.get(&format!("/v1/activity/{user}/{NOBODY}/events")).problem(400, "bad_request");
    }
    for path in ["/v1/activity", "/v1/activity/", "/v1/activity/u/", "/v1/activity//x", "/v1/activity/u/x/y"]
    {
        fixture.get(path).problem(404, "not_found");
    }
    let id = begin(&fixture, "u");
    for body in
        ["[]", "{", r#"{"ttl": 1}"#, r#"{"ttl_ms": 0}"#, r#"{"ttl_ms": -1}"#, r#"{"ttl_ms": 1.5}"#, "7"]
    {
        fixture.ask("POST /v1/activity/u", body).problem(400, "bad_request");
        fixture.ask(&format!("POST /v1/activity/u/{id}/renew"), body).problem(400, "bad_request");
    }
    fixture.get("/v1/activity/u?x=1").problem(400, "bad_request");
    fixture.ask("PUT /v1/activity/u", "").problem(405, "method_not_allowed");
    fixture.get(&format!("/v1/activity/u/{id}")).problem(405, "method_not_allowed");
    assert_eq!(running(&fixture, "u"), (json!(1), json!(1)), "nothing else has happened");
    for user in ["%E7%94%A8%E6%88%B7", "a%2Fb", "%20", &"x".repeat(1024)] {
        begin(&fixture, user);
    }
}

#[test]
fn token_must_cover_activity() {
    let fixture = ApiFixture::empty();
    let id = begin(&fixture, "u");
    let calls = [
        ("GET /v1/activity/u".to_owned(), 200),
        (format!("GET /v1/activity/u/{id}/events"), 200),
        ("POST /v1/activity/u".to_owned(), 201),
        (format!("POST /v1/activity/u/{id}/renew"), 200),
        (format!("DELETE /v1/activity/u/{id}"), 200),
        ("DELETE /v1/activity/u".to_owned(), 200),
    ];
    for (line, status) in &calls {
        let ask = |who: &Caller| fixture.ask_as(who, line, &[], "");
        ask(&Caller::Anonymous).problem(401, "unauthorized");
        ask(&holder(Role::Admin, "shop/")).problem(403, "forbidden");
        if !line.starts_with("GET") {
            ask(&holder(Role::Read, "")).problem(403, "forbidden");
        }
        let least = if line.starts_with("GET") { Role::Read } else { Role::Decide };
        ask(&holder(least, "act")).is(*status);
    }
}

/// Sends a request and returns the event stream.
async fn events(api: &HttpApi<MapStore>, path: &str) -> Result<EventStream, u16> {
    let request = Request::get(path).body(bytes::Bytes::new()).expect("a request");
    let answered = api.respond(request, Caller::Authenticated(Permissions::all())).await;
    let status = answered.response.status().as_u16();
    if let Some(events) = answered.events {
        assert_eq!(answered.response.headers()["content-type"], "text/event-stream");
        return Ok(events);
    }
    Err(status)
}

async fn next(events: &mut EventStream) -> Option<String> {
    let piece = poll_fn(|cx| events.poll_next(cx)).await;
    piece.map(|piece| String::from_utf8(piece.to_vec()).expect("text"))
}

struct StreamFixture {
    store: Arc<MapStore>,
    activity: Activity,
    api: HttpApi<MapStore>,
    clock: Arc<ManualClock>,
    pulse: ManualHolderClock,
}

impl StreamFixture {
    fn new() -> StreamFixture {
        let clock = Arc::new(ManualClock::at(Timestamp::EPOCH));
        let (store, pulse) = (Arc::new(MapStore::new(Arc::clone(&clock), 7)), ManualHolderClock::new());
        let limiter = Limiter::builder()
            .store(Arc::clone(&store) as _)
            .holder_clock(pulse.clone())
            .build()
            .expect("no mistakes");
        let activity = Activity::new(limiter.clone(), ActivityRules::default()).expect("sensible rules");
        let api = HttpApi::new(Arc::clone(&store), limiter).activity(activity.clone());
        StreamFixture { store, activity, api, clock, pulse }
    }
}

#[tokio::test(start_paused = true)]
async fn stream_reports_events_of_a_task() {
    let StreamFixture { store, activity, api, clock, pulse } = StreamFixture::new();
    let id = activity.set_active("u").await.expect("room").into_id();
    let mut stream = events(&api, &format!("/v1/activity/u/{id}/events")).await.expect("a stream");
    let active = format!(
        "event: active\ndata: {{\"active_id\":\"{id}\",\"expires_at\":\"1970-01-01T00:05:00Z\"}}\n\n"
    );
    assert_eq!(next(&mut stream).await, Some(active));
    for _ in 0..2 {
        assert_eq!(next(&mut stream).await.as_deref(), Some(":\n\n"), "fifteen seconds of silence");
    }
    clock.advance(Duration::from_secs(1));
    activity.renew("u", id, None).await.expect("an answer");
    let renewed = "event: renewed\ndata: {\"expires_at\":\"1970-01-01T00:05:01Z\"}\n\n";
    assert_eq!(next(&mut stream).await.as_deref(), Some(renewed));
    // The lease expires. The watcher sleeps until a stream waits.
    let mut waiting = tokio::spawn(async move { (next(&mut stream).await, stream) });
    while pulse.sleepers() == 0 {
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_secs(300));
    pulse.advance(tidegate::activity::LOOK_EVERY);
    let (ended, mut stream) = (&mut waiting).await.expect("no panic");
    assert_eq!(ended.as_deref(), Some("event: ended\ndata: {\"reason\":\"expired\"}\n\n"));
    assert_eq!(next(&mut stream).await, None, "once");
    // A release by another process is reported as such.
    let id = activity.set_active("u").await.expect("room").into_id();
    let mut stream = events(&api, &format!("/v1/activity/u/{id}/events")).await.expect("a stream");
    next(&mut stream).await;
    activity.remove_active("u").await.expect("an answer");
    assert_eq!(next(&mut stream).await.as_deref(), Some("event: ended\ndata: {\"reason\":\"released\"}\n\n"));
    assert_eq!(next(&mut stream).await, None);
    assert_eq!(store.leases(), 0);
}

#[tokio::test(start_paused = true)]
async fn number_of_streams_is_bounded() {
    let StreamFixture { activity, api, .. } = StreamFixture::new();
    let id = activity.set_active("u").await.expect("room").into_id();
    let path = format!("/v1/activity/u/{id}/events");
    let mut streams = Vec::new();
    for _ in 0..MAX_EVENT_STREAMS {
        streams.push(events(&api, &path).await.expect("a stream"));
    }
    assert_eq!(events(&api, &path).await.map(|_| ()), Err(503));
    assert_eq!(activity.watched(), 1, "they are events of one task");
    streams.pop();
    assert!(events(&api, &path).await.is_ok());
    // Streams that end free their permits.
    activity.remove_active("u").await.expect("an answer");
    for stream in &mut streams {
        while next(stream).await.is_some() {}
    }
    let id = activity.set_active("u").await.expect("room").into_id();
    assert!(events(&api, &format!("/v1/activity/u/{id}/events")).await.is_ok());
}

#[test]
fn stream_opens_only_after_the_task_is_durable() {
    let log = ManualLog::manual();
    let fixture =
        ApiFixture::over(|clock| Arc::new(LoggedStore::new(Arc::new(MapStore::new(clock, 7)), log.clone())));
    let call = |line: &str| -> ApiResponse {
        let mut call = Box::pin(fixture.send(&Caller::Authenticated(Permissions::all()), line, &[], ""));
        let mut waited = 0;
        loop {
            match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(response) if waited > 0 => return response,
                Poll::Ready(_) => panic!("{line} does not wait"),
                Poll::Pending => waited += 1,
            }
            log.sync_all();
        }
    };
    let response = call("POST /v1/activity/u").is(201);
    let id = response.at("/active_id").as_str().expect("a name").to_owned();
    call(&format!("POST /v1/activity/u/{id}/renew")).is(200);
    call(&format!("DELETE /v1/activity/u/{id}")).is(200).says(r#"{"removed": 1}"#);
    assert!(fixture.store.holders("activity", Some(b"u")).decided().expect("a limit").is_empty());
}
