//! Tasks on several servers: counted together, kept after a crash, and observed from any server.

use std::time::{Duration, Instant};

use super::{Fleet, HttpConnection};

/// Begins a task. Returns its id and expiry.
#[track_caller]
fn begin(wire: &mut HttpConnection, user: &str) -> (String, String) {
    let output = wire.post(&format!("/v1/activity/{user}"), "").is(201);
    let text = |field: &str| output[field].as_str().expect("a text").to_owned();
    (text("active_id"), text("expires_at"))
}

/// The status of a user: all tasks, own tasks, and the reason of a refusal.
#[track_caller]
fn user_status(wire: &mut HttpConnection, user: &str) -> (u64, u64, Option<String>) {
    let output = wire.get(&format!("/v1/activity/{user}")).is(200);
    let number = |field: &str| output[field].as_u64().expect("a number");
    (number("active"), number("user_active"), output["reason"].as_str().map(str::to_owned))
}

/// Tasks of a killed process keep their slots until they expire.
#[test]
fn tasks_of_killed_server_expire() {
    let mut fleet = Fleet::of(3, "activity: {max_concurrent_tasks: 4, lease_ttl: 8s}");
    let [mut doomed, mut second, mut third] = fleet.connect_all();
    let held: Vec<_> = (0..4).map(|task| begin(&mut doomed, &format!("doomed-{task}"))).collect();
    fleet.servers.remove(0).kill();
    let ends: Vec<i64> = held.iter().map(|(_, end)| fleet.sql.ms_of(end)).collect();
    let (first, last) = (ends[0], ends[3]);
    for wire in [&mut second, &mut third] {
        assert_eq!(user_status(wire, "eve"), (4, 0, Some("concurrency".to_owned())));
        assert_eq!(wire.post("/v1/activity/eve", "").problem(), (503, "ActivityError"));
    }
    fleet.sql.wait_until(first - 4000);
    for wire in [&mut second, &mut third] {
        assert_eq!(wire.post("/v1/activity/eve", "").problem(), (503, "ActivityError"), "before they expire");
        assert_eq!(user_status(wire, "doomed-0").1, 1);
    }
    assert_eq!(fleet.tasks().len(), 4);
    assert!(fleet.sql.now_ms() < first, "this machine is too slow to ask within four seconds");
    fleet.sql.wait_until(last + 1);
    assert_eq!(user_status(&mut second, "eve"), (0, 0, None));
    for task in 0..4 {
        begin(if task % 2 == 0 { &mut second } else { &mut third }, &format!("heir-{task}"));
    }
    assert_eq!(second.post("/v1/activity/eve", "").problem(), (503, "ActivityError"), "four and no more");
    assert!(fleet.tasks().iter().all(|[user, _]| user.starts_with("heir-")));
    // An expired id ends nothing.
    let late = third.delete(&format!("/v1/activity/doomed-0/{}", held[0].0)).is(200);
    assert_eq!(late["removed"], 0);
    assert_eq!(fleet.tasks().len(), 4);
}

/// Consecutive requests of 100 ms count in the window after they end.
#[test]
fn ended_request_counts_in_the_window() {
    let fleet = Fleet::of(2, "activity: {window_requests: 5, window: 15s}");
    let [mut first, mut second] = fleet.connect_all();
    let (mut oldest, mut admitted, mut refused) = (None, 0, 0);
    for request in 0..30 {
        let (wire, other) =
            if request % 2 == 0 { (&mut first, &mut second) } else { (&mut second, &mut first) };
        let before = fleet.sql.now_ms();
        let output = wire.post("/v1/activity/ada", "");
        let after = fleet.sql.now_ms();
        if output.status == 201 {
            admitted += 1;
            let began = fleet.sql.ms_of(output.body["timestamp"].as_str().expect("an instant"));
            oldest.get_or_insert(began);
            let id = output.body["active_id"].as_str().expect("a name").to_owned();
            fleet.sql.wait(100);
            assert_eq!(other.delete(&format!("/v1/activity/ada/{id}")).is(200)["removed"], 1);
            continue;
        }
        refused += 1;
        assert_eq!((admitted, output.problem()), (5, (429, "user_window")));
        // Exact to the millisecond: the oldest leaves the window then, and not before.
        let leaves = oldest.expect("some were admitted") + 15_000;
        let wait = output.body["retry_after_ms"].as_i64().expect("a wait");
        let right = leaves - after..=leaves - before + 2;
        assert!(right.contains(&wait), "{wait} is not in {right:?}");
        let seconds: i64 = output.header("retry-after").expect("a header").parse().expect("a number");
        assert!(seconds * 1000 >= wait && seconds * 1000 < wait + 1000, "{seconds} s for {wait} ms");
        fleet.sql.wait(100);
    }
    assert_eq!((admitted, refused), (5, 25));
    assert_eq!(fleet.tasks(), [[""; 2]; 0]);
}

/// A refused request does not end other tasks of its user.
#[test]
fn refusal_ends_no_other_task() {
    let fleet = Fleet::of(2, "activity: {max_concurrent_tasks: 4, window_requests: 3}");
    let [mut first, mut second] = fleet.connect_all();
    begin(&mut first, "ada");
    begin(&mut second, "ada");
    begin(&mut first, "bob");
    begin(&mut second, "eve");
    let tasks = fleet.tasks();
    assert_eq!(tasks.len(), 4);
    for wire in [&mut first, &mut second] {
        assert_eq!(wire.post("/v1/activity/ada", "").problem(), (503, "ActivityError"));
        assert_eq!(user_status(wire, "ada"), (4, 2, Some("concurrency".to_owned())));
        assert_eq!(fleet.tasks(), tasks);
    }
    // The same for a refusal by the window.
    assert_eq!(second.delete("/v1/activity/bob").is(200)["removed"], 1);
    begin(&mut first, "ada");
    assert_eq!(second.delete("/v1/activity/eve").is(200)["removed"], 1);
    let tasks = fleet.tasks();
    for wire in [&mut first, &mut second] {
        assert_eq!(wire.post("/v1/activity/ada", "").problem(), (429, "user_window"));
        assert_eq!(user_status(wire, "ada"), (3, 3, Some("user_window".to_owned())));
        assert_eq!(fleet.tasks(), tasks);
    }
    assert_eq!(first.delete("/v1/activity/ada").is(200)["removed"], 3);
}

/// The end of a task is reported on every server within half a second. The test allows more for busy machines.
#[test]
fn task_end_is_reported_on_every_server() {
    const ALLOWED: Duration = Duration::from_secs(5);
    let fleet = Fleet::of(2, "activity: {}");
    let [mut first, mut second] = fleet.connect_all();
    let (id, end) = begin(&mut first, "ada");
    let mut events = fleet.connect(0).events(&format!("/v1/activity/ada/{id}/events"));
    let (event, data) = events.next();
    assert_eq!((&*event, &data["active_id"], &data["expires_at"]), ("active", &id.into(), &end.into()));
    let began = now();
    assert_eq!(second.delete("/v1/activity/ada").is(200)["removed"], 1);
    let (event, data) = events.next();
    let took = now() - began;
    println!("told after {} ms", took.as_millis());
    assert_eq!((&*event, &data["reason"]), ("ended", &"released".into()));
    assert!(took < ALLOWED, "{took:?}");
}

#[expect(clippy::disallowed_methods, reason = "how long it takes is the question")]
fn now() -> Instant {
    Instant::now()
}
