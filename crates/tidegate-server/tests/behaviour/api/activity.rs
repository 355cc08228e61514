//! Document 000 over HTTP: its vectors, what is refused and how, and tasks by their names.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::Request;
use serde_json::{Value, json};
use tidegate::Limiter;
use tidegate::activity::{Activity, Rules};
use tidegate::clock::ManualClock;
use tidegate::limiter::ManualHolderClock;
use tidegate::model::{Capacity, Timestamp};
use tidegate::store::MapStore;
use tidegate_server::http::HttpApi;
use tidegate_server::http::events::{EventStream, MAX_EVENT_STREAMS};
use tidegate_server::tokens::{Caller, Permissions, Role};
use tidegate_testkit::logged_store::{LoggedStore, ManualLog};

use crate::api::stage::{Stage, Told, holder};

const NOBODY: &str = "00000000000000000000000000000007";

/// A door to an activity with these rules.
fn with(rules: Rules) -> Stage {
    let Stage { api, clock, pulse, limiter, store, metrics } = Stage::empty();
    let activity = Activity::new(limiter.clone(), rules).expect("sensible rules");
    Stage { api: api.activity(activity), clock, pulse, limiter, store, metrics }
}

fn both() -> [(Rules, Stage); 2] {
    let (strict, letter) = (Rules::default(), Rules { compat: true, ..Rules::default() });
    [(strict, with(strict)), (letter, with(letter))]
}

#[track_caller]
fn begin(stage: &Stage, user: &str) -> String {
    let told = stage.ask(&format!("POST /v1/activity/{user}"), "").is(201);
    told.at("/active_id").as_str().expect("a name").to_owned()
}

/// Whether a user is limited, and by what.
#[track_caller]
fn limited(stage: &Stage, user: &str) -> Value {
    let told = stage.get(&format!("/v1/activity/{user}")).is(200);
    assert_eq!(told.at("/limited"), !told.at("/reason").is_null());
    told.at("/reason")
}

#[track_caller]
fn running(stage: &Stage, user: &str) -> (Value, Value) {
    let told = stage.get(&format!("/v1/activity/{user}")).is(200);
    (told.at("/active"), told.at("/user_active"))
}

#[test]
fn a_task_begins_is_renewed_and_ends() {
    let stage = Stage::empty();
    let free = r#"{"limited": false, "reason": null, "retry_after_ms": null, "active": 0, "user_active": 0}"#;
    stage.get("/v1/activity/ada").is(200).says(free);
    let told = stage.ask("POST /v1/activity/ada", "").is(201);
    let id = told.at("/active_id").as_str().expect("a name").to_owned();
    assert_eq!((id.len(), told.json().as_object().expect("an object").len()), (32, 3));
    assert_eq!(told.at("/timestamp"), "2026-01-20T00:00:00Z");
    assert_eq!(told.at("/expires_at"), "2026-01-20T00:05:00Z");
    let one = r#"{"limited": false, "reason": null, "retry_after_ms": null, "active": 1, "user_active": 1}"#;
    stage.get("/v1/activity/ada").is(200).says(one);
    stage.clock.advance(Duration::from_secs(60));
    let renew = format!("POST /v1/activity/ada/{id}/renew");
    stage.ask(&renew, "").is(200).says(r#"{"expires_at": "2026-01-20T00:06:00Z"}"#);
    stage.ask(&renew, r#"{"ttl_ms": 1500}"#).is(200).says(r#"{"expires_at": "2026-01-20T00:01:01.5Z"}"#);
    stage.ask(&format!("DELETE /v1/activity/ada/{id}"), "").is(200).says(r#"{"removed": 1}"#);
    stage.ask(&format!("DELETE /v1/activity/ada/{id}"), "").is(200).says(r#"{"removed": 0}"#);
    stage.ask(&renew, "").problem(410, "unknown_lease");
    let short = stage.ask("POST /v1/activity/ada", r#"{"ttl_ms": 1000}"#).is(201);
    assert_eq!(short.at("/expires_at"), "2026-01-20T00:01:01Z");
    stage.clock.advance(Duration::from_secs(1));
    assert_eq!(running(&stage, "ada"), (json!(0), json!(0)), "it was not renewed");
}

#[test]
fn v1_the_window_is_closed() {
    for (_, stage) in both() {
        for _ in 0..5 {
            begin(&stage, "u");
            stage.clock.advance(Duration::from_secs(1));
        }
        assert_eq!(limited(&stage, "u"), "user_window");
        assert_eq!(limited(&stage, "v"), Value::Null);
        stage.clock.advance(Duration::from_secs(10));
        assert_eq!(limited(&stage, "u"), "user_window", "15 s");
        stage.clock.advance(Duration::from_millis(1));
        assert_eq!(limited(&stage, "u"), Value::Null, "15.001 s");
    }
}

#[test]
fn v2_v4_thirty_are_enough_and_the_window_is_named_first() {
    for (rules, stage) in both() {
        for task in 0..30 {
            begin(&stage, if task < 5 { "u".to_owned() } else { format!("u-{task}") }.as_str());
        }
        assert_eq!(limited(&stage, "v"), "concurrency");
        let told = stage.ask("POST /v1/activity/v", "");
        assert_eq!(told.header("retry-after"), None, "nobody knows");
        let detail = told.problem(503, "ActivityError");
        assert!(detail.starts_with("系统并发已达上限"), "{detail}");
        assert_eq!(running(&stage, "v"), (json!(30), json!(0)), "nothing was written");
        assert_eq!(limited(&stage, "u"), "user_window", "if both are full");
        let told = stage.ask("POST /v1/activity/u", "");
        if rules.compat {
            told.problem(503, "ActivityError");
        } else {
            assert_eq!(told.header("retry-after"), Some("16"));
            told.problem(429, "user_window");
        }
    }
}

#[test]
fn v3_all_tasks_of_a_user_end() {
    for (_, stage) in both() {
        let ids = [begin(&stage, "u"), begin(&stage, "u"), begin(&stage, "u")];
        begin(&stage, "v");
        stage.ask("DELETE /v1/activity/u", "").is(200).says(r#"{"removed": 3}"#);
        stage.ask("DELETE /v1/activity/u", "").is(200).says(r#"{"removed": 0}"#);
        stage.ask(&format!("DELETE /v1/activity/u/{}", ids[0]), "").is(200).says(r#"{"removed": 0}"#);
        assert_eq!(running(&stage, "v"), (json!(1), json!(1)));
    }
}

#[test]
fn v5_old_requests_are_forgotten_though_their_tasks_run() {
    for (_, stage) in both() {
        for _batch in 0..6 {
            assert_eq!(limited(&stage, "u"), Value::Null);
            (0..5).for_each(|_| drop(begin(&stage, "u")));
            stage.clock.advance(Duration::from_millis(15_001));
        }
        assert_eq!(running(&stage, "u"), (json!(30), json!(30)));
        assert_eq!(limited(&stage, "u"), "concurrency");
    }
}

#[test]
fn when_to_come_back_is_true() {
    let stage = Stage::empty();
    for _ in 0..5 {
        let id = begin(&stage, "u");
        stage.ask(&format!("DELETE /v1/activity/u/{id}"), "").is(200);
    }
    stage.clock.advance(Duration::from_millis(14_500));
    let told = stage.ask("POST /v1/activity/u", "");
    assert_eq!((told.header("retry-after"), told.at("/retry_after_ms")), (Some("1"), json!(501)));
    assert_eq!(stage.get("/v1/activity/u").at("/retry_after_ms"), 501);
    told.problem(429, "user_window");
    stage.clock.advance(Duration::from_millis(500));
    stage.ask("POST /v1/activity/u", "").problem(429, "user_window");
    stage.clock.advance(Duration::from_millis(1));
    begin(&stage, "u");
}

#[test]
fn one_user_need_not_own_everything() {
    let stage = with(Rules { max_concurrent_per_user: Capacity::AtMost(1), ..Rules::default() });
    begin(&stage, "u");
    let detail = stage.ask("POST /v1/activity/u", "").problem(503, "ActivityError");
    assert!(detail.contains("of this user"), "{detail}");
    begin(&stage, "v");
}

#[test]
fn a_task_belongs_to_its_user() {
    let stage = Stage::empty();
    let id = begin(&stage, "u");
    stage.ask(&format!("DELETE /v1/activity/v/{id}"), "").is(200).says(r#"{"removed": 0}"#);
    for id in [&*id, NOBODY, "nonsense", "%00"] {
        stage.ask(&format!("POST /v1/activity/v/{id}/renew"), "").problem(410, "unknown_lease");
        stage.get(&format!("/v1/activity/v/{id}/events")).problem(410, "unknown_lease");
    }
    stage.ask("DELETE /v1/activity/u/nonsense", "").is(200).says(r#"{"removed": 0}"#);
    assert_eq!(running(&stage, "u"), (json!(1), json!(1)));
}

#[test]
fn it_is_a_limit_like_any_other() {
    let stage = Stage::empty();
    stage.get("/v1/limits/activity").problem(404, "unknown_limit");
    let id = begin(&stage, "u");
    let items = stage.get("/v1/limits/activity").is(200).at("/items");
    assert_eq!(items.as_array().expect("a list").len(), 3);
    stage
        .ask("POST /v1/release", &format!(r#"{{"lease_id": "{id}"}}"#))
        .is(200)
        .says(r#"{"released": true}"#);
    assert_eq!(running(&stage, "u"), (json!(0), json!(0)));
}

#[test]
fn a_limit_of_another_shape_is_refused() {
    let stage = Stage::empty();
    let odd = r#"{"id": "activity", "items": [{"policy": "total", "limit": 5}]}"#;
    let told = stage.ask("POST /v1/limits", odd).is(422);
    assert_eq!((told.at("/code"), told.at("/errors/0/field")), (json!("invalid_limit"), json!("items")));
    let why = told.at("/errors/0/message").to_string();
    assert!(why.contains("policy: concurrency, per: all"), "{why}");
    begin(&stage, "u");
    stage.ask("PUT /v1/limits/activity", odd).problem(422, "invalid_limit");
    begin(&stage, "u");
    // Somebody else puts it all the same.
    let spec = tidegate::model::LimitSpec::named("activity")
        .with(tidegate::model::ItemSpec::of(tidegate::model::Policy::Total, 5));
    stage.store.put(spec, tidegate::catalog::ExpectedVersion::Anything).expect("a limit");
    for line in ["GET", "POST"] {
        let why = stage.ask(&format!("{line} /v1/activity/u"), "").problem(422, "invalid_limit");
        assert!(why.contains("the items of the limit 'activity' must"), "{why}");
    }
    let usage = stage.get("/v1/limits/activity/usage").is(200);
    assert_eq!(usage.at("/count"), 0, "nothing was charged");
}

#[test]
fn nobody_keeps_a_place_for_good() {
    let stage = Stage::empty();
    let id = begin(&stage, "u");
    let (day, more) = (r#"{"ttl_ms": 86400000}"#, r#"{"ttl_ms": 86400001}"#);
    for path in ["/v1/activity/u".to_owned(), format!("/v1/activity/u/{id}/renew")] {
        let why = stage.ask(&format!("POST {path}"), more).problem(422, "invalid_ttl");
        assert!(why.contains("at most 1d"), "{why}");
    }
    stage.ask("POST /v1/activity/u", day).is(201);
    stage.ask(&format!("POST /v1/activity/u/{id}/renew"), day).is(200);
}

#[test]
fn looking_makes_nothing() {
    let stage = Stage::empty();
    assert_eq!(running(&stage, "u"), (json!(0), json!(0)));
    stage.get(&format!("/v1/activity/u/{NOBODY}/events")).problem(410, "unknown_lease");
    stage.ask("DELETE /v1/activity/u", "").is(200).says(r#"{"removed": 0}"#);
    stage.get("/v1/limits/activity").problem(404, "unknown_limit");
    begin(&stage, "u");
    stage.get("/v1/limits/activity").is(200);
}

#[test]
fn what_makes_no_sense_is_told() {
    let stage = Stage::empty();
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
            let detail = stage.ask(&format!("{line} /v1/activity/{user}"), "").problem(400, "bad_request");
            assert!(detail.contains(why), "{detail}");
        }
        stage.ask(&format!("DELETE /v1/activity/{user}/{NOBODY}"), "").problem(400, "bad_request");
        stage.ask(&format!("POST /v1/activity/{user}/{NOBODY}/renew"), "").problem(400, "bad_request");
        stage.get(&format!("/v1/activity/{user}/{NOBODY}/events")).problem(400, "bad_request");
    }
    for path in ["/v1/activity", "/v1/activity/", "/v1/activity/u/", "/v1/activity//x", "/v1/activity/u/x/y"]
    {
        stage.get(path).problem(404, "not_found");
    }
    let id = begin(&stage, "u");
    for body in
        ["[]", "{", r#"{"ttl": 1}"#, r#"{"ttl_ms": 0}"#, r#"{"ttl_ms": -1}"#, r#"{"ttl_ms": 1.5}"#, "7"]
    {
        stage.ask("POST /v1/activity/u", body).problem(400, "bad_request");
        stage.ask(&format!("POST /v1/activity/u/{id}/renew"), body).problem(400, "bad_request");
    }
    stage.get("/v1/activity/u?x=1").problem(400, "bad_request");
    stage.ask("PUT /v1/activity/u", "").problem(405, "method_not_allowed");
    stage.get(&format!("/v1/activity/u/{id}")).problem(405, "method_not_allowed");
    assert_eq!(running(&stage, "u"), (json!(1), json!(1)), "nothing else has happened");
    for user in ["%E7%94%A8%E6%88%B7", "a%2Fb", "%20", &"x".repeat(1024)] {
        begin(&stage, user);
    }
}

#[test]
fn a_token_must_be_for_activities() {
    let stage = Stage::empty();
    let id = begin(&stage, "u");
    let calls = [
        ("GET /v1/activity/u".to_owned(), 200),
        (format!("GET /v1/activity/u/{id}/events"), 200),
        ("POST /v1/activity/u".to_owned(), 201),
        (format!("POST /v1/activity/u/{id}/renew"), 200),
        (format!("DELETE /v1/activity/u/{id}"), 200),
        ("DELETE /v1/activity/u".to_owned(), 200),
    ];
    for (line, status) in &calls {
        let ask = |who: &Caller| stage.ask_as(who, line, &[], "");
        ask(&Caller::Anonymous).problem(401, "unauthorized");
        ask(&holder(Role::Admin, "shop/")).problem(403, "forbidden");
        if !line.starts_with("GET") {
            ask(&holder(Role::Read, "")).problem(403, "forbidden");
        }
        let least = if line.starts_with("GET") { Role::Read } else { Role::Decide };
        ask(&holder(least, "act")).is(*status);
    }
}

/// Sends this; what follows the answer piece by piece.
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

struct Theatre {
    store: Arc<MapStore>,
    activity: Activity,
    api: HttpApi<MapStore>,
    clock: Arc<ManualClock>,
    pulse: ManualHolderClock,
}

impl Theatre {
    fn new() -> Theatre {
        let clock = Arc::new(ManualClock::at(Timestamp::EPOCH));
        let (store, pulse) = (Arc::new(MapStore::new(Arc::clone(&clock), 7)), ManualHolderClock::new());
        let limiter = Limiter::builder(Arc::clone(&store) as _).holder_clock(pulse.clone()).build();
        let activity = Activity::new(limiter.clone(), Rules::default()).expect("sensible rules");
        let api = HttpApi::new(Arc::clone(&store), limiter).activity(activity.clone());
        Theatre { store, activity, api, clock, pulse }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_tells_what_becomes_of_a_task() {
    let Theatre { store, activity, api, clock, pulse } = Theatre::new();
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
    // It lapses, and nobody here did that. The one who looks sleeps until somebody waits.
    let mut waiting = tokio::spawn(async move { (next(&mut stream).await, stream) });
    while pulse.sleepers() == 0 {
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_secs(300));
    pulse.advance(tidegate::activity::LOOK_EVERY);
    let (ended, mut stream) = (&mut waiting).await.expect("no panic");
    assert_eq!(ended.as_deref(), Some("event: ended\ndata: {\"reason\":\"expired\"}\n\n"));
    assert_eq!(next(&mut stream).await, None, "once");
    // Released by anybody, it is told as such.
    let id = activity.set_active("u").await.expect("room").into_id();
    let mut stream = events(&api, &format!("/v1/activity/u/{id}/events")).await.expect("a stream");
    next(&mut stream).await;
    activity.remove_active("u").await.expect("an answer");
    assert_eq!(next(&mut stream).await.as_deref(), Some("event: ended\ndata: {\"reason\":\"released\"}\n\n"));
    assert_eq!(next(&mut stream).await, None);
    assert_eq!(store.leases(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_so_many_streams_are_open() {
    let Theatre { activity, api, .. } = Theatre::new();
    let id = activity.set_active("u").await.expect("room").into_id();
    let path = format!("/v1/activity/u/{id}/events");
    let mut streams = Vec::new();
    for _ in 0..MAX_EVENT_STREAMS {
        streams.push(events(&api, &path).await.expect("a stream"));
    }
    assert_eq!(events(&api, &path).await.map(|_| ()), Err(503));
    assert_eq!(activity.watched(), 1, "they are told of one task");
    streams.pop();
    assert!(events(&api, &path).await.is_ok());
    // Those that end make room as well.
    activity.remove_active("u").await.expect("an answer");
    for stream in &mut streams {
        while next(stream).await.is_some() {}
    }
    let id = activity.set_active("u").await.expect("room").into_id();
    assert!(events(&api, &format!("/v1/activity/u/{id}/events")).await.is_ok());
}

#[test]
fn nobody_is_told_before_the_log_is_durable() {
    let log = ManualLog::manual();
    let stage =
        Stage::over(|clock| Arc::new(LoggedStore::new(Arc::new(MapStore::new(clock, 7)), log.clone())));
    let call = |line: &str| -> Told {
        let mut call = Box::pin(stage.send(&Caller::Authenticated(Permissions::all()), line, &[], ""));
        let mut waited = 0;
        loop {
            match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(told) if waited > 0 => return told,
                Poll::Ready(_) => panic!("{line} does not wait"),
                Poll::Pending => waited += 1,
            }
            log.sync_all();
        }
    };
    let told = call("POST /v1/activity/u").is(201);
    let id = told.at("/active_id").as_str().expect("a name").to_owned();
    call(&format!("POST /v1/activity/u/{id}/renew")).is(200);
    call(&format!("DELETE /v1/activity/u/{id}")).is(200).says(r#"{"removed": 1}"#);
    assert!(stage.store.holders("activity", Some(b"u")).decided().expect("a limit").is_empty());
}
