//! A database that goes away under its servers, and comes back.

use std::time::Duration;

use tidegate_testkit::postgres_cluster::Cluster;

use super::protocols::Resp;
use super::{Fleet, Wire};

const LIMITS: &str = "limits:
  - {id: strict, items: [{policy: total, limit: 100}], on_outage: deny}
  - {id: lenient, items: [{policy: total, limit: 100}], on_outage: admit}
  - {id: workers, items: [{policy: concurrency, limit: 1, ttl: 10m}]}
activity: {}";

/// More than it takes to notice: a look every second, and an answer.
const TRIES: usize = 2_000;

/// How often somebody looks who has nothing else to ask, and how many times at most.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LOOKS: usize = 200;

/// Asks until it is answered like this.
#[track_caller]
fn until_ready_is(wire: &mut Wire, status: u16) {
    let found = (0..TRIES).any(|_| {
        let is = wire.get("/readyz").status == status;
        if !is {
            // A decision takes as long as the database lets it, and shows whether there is one.
            wire.post("/v1/peek", r#"{"limit_id": "strict"}"#).is(200);
        }
        is
    });
    assert!(found, "/readyz never said {status}");
}

#[track_caller]
fn acquire(wire: &mut Wire, id: &str) -> (bool, bool) {
    let told = wire.post("/v1/acquire", &format!(r#"{{"limit_id": "{id}"}}"#)).is(200);
    (told["allowed"] == true, told["degraded"] == true)
}

#[test]
fn servers_answer_by_rule_while_the_database_is_away_and_come_back_by_themselves() {
    let cluster = Cluster::start(&[]);
    let fleet = Fleet::at(cluster.url(), 2, LIMITS);
    let [mut first, mut second] = fleet.wires();
    assert_eq!(
        (acquire(&mut first, "strict"), acquire(&mut second, "lenient")),
        ((true, false), (true, false))
    );
    let granted = first.post("/v1/acquire", r#"{"limit_id": "workers"}"#).is(200);
    let lease = format!(r#"{{"lease_id": {}}}"#, granted["lease"]["id"]);
    cluster.run("stop");
    for wire in [&mut first, &mut second] {
        assert_eq!(acquire(wire, "strict"), (false, true));
        assert_eq!(acquire(wire, "lenient"), (true, true));
        until_ready_is(wire, 503);
        let ready = wire.get("/readyz");
        assert_eq!(ready.problem(), (503, "not_ready"));
        assert!(ready.body["detail"].as_str().is_some_and(|why| why.contains("PostgreSQL")), "{ready:?}");
        let peeked = wire.post("/v1/peek", r#"{"limit_id": "lenient"}"#).is(200);
        assert_eq!((&peeked["allowed"], &peeked["degraded"]), (&true.into(), &true.into()));
        let new = r#"{"id": "new", "items": [{"policy": "total", "limit": 1}]}"#;
        let others = [
            wire.post("/v1/release", &lease),
            wire.post("/v1/renew", &lease),
            wire.post("/v1/limits", new),
            wire.post("/v1/limits/strict/reset", r#"{"limit_key": null}"#),
            wire.get("/v1/limits/strict/usage"),
            wire.post("/v1/activity/ada", ""),
            wire.get("/v1/activity/ada"),
        ];
        for told in others {
            assert_eq!(told.problem(), (503, "store_unavailable"), "{told:?}");
        }
    }
    let mut resp = Resp::to(&fleet.servers[0]);
    assert_eq!(resp.say(&[b"TG.ACQUIRE", b"lenient", b"ada"]), "[1 -1 -1 -1 -1  ]");
    let told = resp.say(&[b"TG.ACQUIRE", b"strict", b"ada"]);
    assert!(told.starts_with("UNAVAILABLE "), "{told}");
    cluster.run("start");
    for wire in [&mut first, &mut second] {
        until_ready_is(wire, 200);
        assert_eq!(acquire(wire, "lenient"), (true, false));
    }
    // What was answered by rule was not counted, and what was held is held.
    let peeked = first.post("/v1/peek", r#"{"limit_id": "lenient"}"#).is(200);
    assert_eq!(peeked["readings"][0]["used"], 3);
    assert_eq!(second.post("/v1/release", &lease).is(200)["released"], true);
    assert_eq!(second.post("/v1/activity/ada", "").status, 201);
}

/// Whoever balances load asks `/readyz`, and asks nothing else of a server that is idle.
#[test]
fn a_server_that_nobody_asks_notices_too() {
    let cluster = Cluster::start(&[]);
    let fleet = Fleet::at(cluster.url(), 1, "limits: []");
    let mut wire = fleet.wire(0);
    assert_eq!(wire.get("/readyz").status, 200);
    // Nobody ever sends, so that receiving is waiting.
    let (_nobody, silence) = std::sync::mpsc::channel::<()>();
    for (order, status) in [("stop", 503), ("start", 200)] {
        cluster.run(order);
        let noticed = (0..LOOKS).any(|_| {
            let _in_vain = silence.recv_timeout(LOOK_EVERY);
            wire.get("/readyz").status == status
        });
        assert!(noticed, "after {order}");
    }
}

/// A database that can be asked and changes nothing is no use to anybody, and whoever balances load has to know.
#[test]
fn a_database_that_may_only_be_read_is_not_ready() {
    let cluster = Cluster::start(&[]);
    let fleet = Fleet::at(cluster.url(), 1, LIMITS);
    let mut wire = fleet.wire(0);
    let (_nobody, silence) = std::sync::mpsc::channel::<()>();
    for (setting, status) in [("on", 503), ("off", 200)] {
        fleet.sql.rows(&format!("ALTER SYSTEM SET default_transaction_read_only = {setting}"));
        fleet.sql.rows("SELECT pg_reload_conf()");
        let noticed = (0..LOOKS).any(|_| {
            let _in_vain = silence.recv_timeout(LOOK_EVERY);
            wire.get("/readyz").status == status
        });
        assert!(noticed, "{setting}");
        let is_well = status == 200;
        assert_eq!(acquire(&mut wire, "strict"), (is_well, !is_well));
        assert_eq!(wire.get("/readyz").status, status, "a decision changes nothing about that");
    }
}

/// What lapsed while nobody could look is told as such when somebody can.
#[test]
fn what_lapses_during_an_outage_has_expired() {
    let cluster = Cluster::start(&[]);
    let fleet = Fleet::at(cluster.url(), 1, "activity: {}");
    let begun = fleet.wire(0).post("/v1/activity/ada", r#"{"ttl_ms": 4000}"#).is(201);
    let id = begun["active_id"].as_str().expect("a name");
    let mut events = fleet.wire(0).events(&format!("/v1/activity/ada/{id}/events"));
    assert_eq!(events.next().0, "active");
    cluster.run("stop");
    let (_nobody, silence) = std::sync::mpsc::channel::<()>();
    let _in_vain = silence.recv_timeout(Duration::from_millis(5_500));
    cluster.run("start");
    let (event, data) = events.next();
    assert_eq!((event.as_str(), &data["reason"]), ("ended", &"expired".into()));
}
