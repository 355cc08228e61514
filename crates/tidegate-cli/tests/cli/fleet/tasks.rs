//! Tasks of a fleet: counted by all servers, kept when one dies, and heard of when they end.

use std::time::{Duration, Instant};

use super::{Fleet, Wire};

/// Begins a task: its name and when it lapses.
#[track_caller]
fn begin(wire: &mut Wire, user: &str) -> (String, String) {
    let told = wire.post(&format!("/v1/activity/{user}"), "").is(201);
    let text = |field: &str| told[field].as_str().expect("a text").to_owned();
    (text("active_id"), text("expires_at"))
}

/// What the user is told who asks how things are: the number of tasks, of their own tasks, and why they would be refused.
#[track_caller]
fn standing(wire: &mut Wire, user: &str) -> (u64, u64, Option<String>) {
    let told = wire.get(&format!("/v1/activity/{user}")).is(200);
    let number = |field: &str| told[field].as_u64().expect("a number");
    (number("active"), number("user_active"), told["reason"].as_str().map(str::to_owned))
}

/// A-F3: a process that dies gives its places back, but not before their time is over.
#[test]
fn a_server_that_is_killed_keeps_its_places_until_their_time_is_over() {
    let mut fleet = Fleet::of(3, "activity: {max_concurrent_tasks: 4, lease_ttl: 3s}");
    let [mut doomed, mut second, mut third] = fleet.wires();
    let held: Vec<_> = (0..4).map(|task| begin(&mut doomed, &format!("doomed-{task}"))).collect();
    fleet.servers.remove(0).kill();
    let ends: Vec<i64> = held.iter().map(|(_, end)| fleet.sql.ms_of(end)).collect();
    let (first, last) = (ends[0], ends[3]);
    for wire in [&mut second, &mut third] {
        assert_eq!(standing(wire, "eve"), (4, 0, Some("concurrency".to_owned())));
        assert_eq!(wire.post("/v1/activity/eve", "").problem(), (503, "ActivityError"));
    }
    fleet.sql.wait_until(first - 1000);
    for wire in [&mut second, &mut third] {
        assert_eq!(wire.post("/v1/activity/eve", "").problem(), (503, "ActivityError"), "a second before");
        assert_eq!(standing(wire, "doomed-0").1, 1);
    }
    assert_eq!(fleet.tasks().len(), 4);
    assert!(fleet.sql.now_ms() < first, "this machine is too slow to ask within a second");
    fleet.sql.wait_until(last + 1);
    assert_eq!(standing(&mut second, "eve"), (0, 0, None));
    for task in 0..4 {
        begin(if task % 2 == 0 { &mut second } else { &mut third }, &format!("heir-{task}"));
    }
    assert_eq!(second.post("/v1/activity/eve", "").problem(), (503, "ActivityError"), "four and no more");
    assert!(fleet.tasks().iter().all(|[user, _]| user.starts_with("heir-")));
    // Whoever comes back with a name of then finds nothing to end.
    let late = third.delete(&format!("/v1/activity/doomed-0/{}", held[0].0)).is(200);
    assert_eq!(late["removed"], 0);
    assert_eq!(fleet.tasks().len(), 4);
}

/// A-F1: requests of 100 ms, one after the other. The original forgot each as it ended, and let 151 of them in.
#[test]
fn short_requests_count_when_they_are_over() {
    let fleet = Fleet::of(2, "activity: {window_requests: 5, window: 15s}");
    let [mut first, mut second] = fleet.wires();
    let (mut oldest, mut admitted, mut refused) = (None, 0, 0);
    for request in 0..30 {
        let (wire, other) =
            if request % 2 == 0 { (&mut first, &mut second) } else { (&mut second, &mut first) };
        let before = fleet.sql.now_ms();
        let told = wire.post("/v1/activity/ada", "");
        let after = fleet.sql.now_ms();
        if told.status == 201 {
            admitted += 1;
            let began = fleet.sql.ms_of(told.body["timestamp"].as_str().expect("an instant"));
            oldest.get_or_insert(began);
            let id = told.body["active_id"].as_str().expect("a name").to_owned();
            fleet.sql.wait(100);
            assert_eq!(other.delete(&format!("/v1/activity/ada/{id}")).is(200)["removed"], 1);
            continue;
        }
        refused += 1;
        assert_eq!((admitted, told.problem()), (5, (429, "user_window")));
        // True to the millisecond: the oldest leaves the window then, and not before.
        let leaves = oldest.expect("some were admitted") + 15_000;
        let wait = told.body["retry_after_ms"].as_i64().expect("a wait");
        let right = leaves - after..=leaves - before + 2;
        assert!(right.contains(&wait), "{wait} is not in {right:?}");
        let seconds: i64 = told.header("retry-after").expect("a header").parse().expect("a number");
        assert!(seconds * 1000 >= wait && seconds * 1000 < wait + 1000, "{seconds} s for {wait} ms");
        fleet.sql.wait(100);
    }
    assert_eq!((admitted, refused), (5, 25));
    assert_eq!(fleet.tasks(), [[""; 2]; 0]);
}

/// A-F5: the original's refused requests ended what else their user was doing.
#[test]
fn whoever_is_refused_loses_nothing() {
    let fleet = Fleet::of(2, "activity: {max_concurrent_tasks: 4, window_requests: 3}");
    let [mut first, mut second] = fleet.wires();
    begin(&mut first, "ada");
    begin(&mut second, "ada");
    begin(&mut first, "bob");
    begin(&mut second, "eve");
    let tasks = fleet.tasks();
    assert_eq!(tasks.len(), 4);
    for wire in [&mut first, &mut second] {
        assert_eq!(wire.post("/v1/activity/ada", "").problem(), (503, "ActivityError"));
        assert_eq!(standing(wire, "ada"), (4, 2, Some("concurrency".to_owned())));
        assert_eq!(fleet.tasks(), tasks);
    }
    // The same by the window, when there is room for one more.
    assert_eq!(second.delete("/v1/activity/bob").is(200)["removed"], 1);
    begin(&mut first, "ada");
    assert_eq!(second.delete("/v1/activity/eve").is(200)["removed"], 1);
    let tasks = fleet.tasks();
    for wire in [&mut first, &mut second] {
        assert_eq!(wire.post("/v1/activity/ada", "").problem(), (429, "user_window"));
        assert_eq!(standing(wire, "ada"), (3, 3, Some("user_window".to_owned())));
        assert_eq!(fleet.tasks(), tasks);
    }
    assert_eq!(first.delete("/v1/activity/ada").is(200)["removed"], 3);
}

/// A16: whoever runs a task hears of its end within half a second, whichever server was told. A machine may be busy, so tests allow for more.
#[test]
fn an_end_at_one_server_is_heard_at_another() {
    const ALLOWED: Duration = Duration::from_secs(5);
    let fleet = Fleet::of(2, "activity: {}");
    let [mut first, mut second] = fleet.wires();
    let (id, end) = begin(&mut first, "ada");
    let mut events = fleet.wire(0).events(&format!("/v1/activity/ada/{id}/events"));
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
