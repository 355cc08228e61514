//! A database that becomes unavailable and returns.

use std::time::Duration;

use tidegate_testkit::postgres_cluster::Cluster;

use super::protocols::RespConnection;
use super::{Fleet, HttpConnection};

const LIMITS: &str = "limits:
  - {id: strict, items: [{policy: total, limit: 100}], on_outage: deny}
  - {id: lenient, items: [{policy: total, limit: 100}], on_outage: admit}
  - {id: workers, items: [{policy: concurrency, limit: 1, ttl: 10m}]}
activity: {}";

/// More attempts than detection takes: a check every second, and a reply.
const MAX_ATTEMPTS: usize = 2_000;

/// Polling interval and maximum number of polls of an idle client.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const MAX_POLLS: usize = 200;

/// Polls `/readyz` until it has this status.
#[track_caller]
fn wait_for_readyz(wire: &mut HttpConnection, status: u16) {
    let found = (0..MAX_ATTEMPTS).any(|_| {
        let is = wire.get("/readyz").status == status;
        if !is {
            // A decision waits for the database, and so paces the loop.
            wire.post("/v1/peek", r#"{"limit_id": "strict"}"#).is(200);
        }
        is
    });
    assert!(found, "/readyz never said {status}");
}

#[track_caller]
fn acquire(wire: &mut HttpConnection, id: &str) -> (bool, bool) {
    let output = wire.post("/v1/acquire", &format!(r#"{{"limit_id": "{id}"}}"#)).is(200);
    (output["allowed"] == true, output["degraded"] == true)
}

#[test]
fn servers_follow_on_outage_and_recover() {
    let cluster = Cluster::start(&[]);
    let fleet = Fleet::at(cluster.url(), 2, LIMITS);
    let [mut first, mut second] = fleet.connect_all();
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
        wait_for_readyz(wire, 503);
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
        for output in others {
            assert_eq!(output.problem(), (503, "store_unavailable"), "{output:?}");
        }
    }
    let mut resp = RespConnection::to(&fleet.servers[0]);
    assert_eq!(resp.call(&[b"TG.ACQUIRE", b"lenient", b"ada"]), "[1 -1 -1 -1 -1  ]");
    let output = resp.call(&[b"TG.ACQUIRE", b"strict", b"ada"]);
    assert!(output.starts_with("UNAVAILABLE "), "{output}");
    cluster.run("start");
    for wire in [&mut first, &mut second] {
        wait_for_readyz(wire, 200);
        assert_eq!(acquire(wire, "lenient"), (true, false));
    }
    // Decisions during the outage were not counted, and leases are kept.
    let peeked = first.post("/v1/peek", r#"{"limit_id": "lenient"}"#).is(200);
    assert_eq!(peeked["readings"][0]["used"], 3);
    assert_eq!(second.post("/v1/release", &lease).is(200)["released"], true);
    assert_eq!(second.post("/v1/activity/ada", "").status, 201);
}

/// Load balancers poll `/readyz` of idle servers too.
#[test]
fn idle_server_detects_outage() {
    let cluster = Cluster::start(&[]);
    let fleet = Fleet::at(cluster.url(), 1, "limits: []");
    let mut wire = fleet.connect(0);
    assert_eq!(wire.get("/readyz").status, 200);
    // No message is ever sent; receiving only waits.
    let (_nobody, silence) = std::sync::mpsc::channel::<()>();
    for (order, status) in [("stop", 503), ("start", 200)] {
        cluster.run(order);
        let noticed = (0..MAX_POLLS).any(|_| {
            let _in_vain = silence.recv_timeout(POLL_INTERVAL);
            wire.get("/readyz").status == status
        });
        assert!(noticed, "after {order}");
    }
}

/// A read-only database makes the server not ready.
#[test]
fn read_only_database_is_not_ready() {
    let cluster = Cluster::start(&[]);
    let fleet = Fleet::at(cluster.url(), 1, LIMITS);
    let mut wire = fleet.connect(0);
    let (_nobody, silence) = std::sync::mpsc::channel::<()>();
    for (setting, status) in [("on", 503), ("off", 200)] {
        fleet.sql.rows(&format!("ALTER SYSTEM SET default_transaction_read_only = {setting}"));
        fleet.sql.rows("SELECT pg_reload_conf()");
        let noticed = (0..MAX_POLLS).any(|_| {
            let _in_vain = silence.recv_timeout(POLL_INTERVAL);
            wire.get("/readyz").status == status
        });
        assert!(noticed, "{setting}");
        let is_well = status == 200;
        assert_eq!(acquire(&mut wire, "strict"), (is_well, !is_well));
        assert_eq!(wire.get("/readyz").status, status, "a decision changes nothing about that");
    }
}

/// A task that expired during an outage is reported as expired.
#[test]
fn task_that_expires_during_outage_is_reported() {
    let cluster = Cluster::start(&[]);
    let fleet = Fleet::at(cluster.url(), 1, "activity: {}");
    let begun = fleet.connect(0).post("/v1/activity/ada", r#"{"ttl_ms": 4000}"#).is(201);
    let id = begun["active_id"].as_str().expect("a name");
    let mut events = fleet.connect(0).events(&format!("/v1/activity/ada/{id}/events"));
    assert_eq!(events.next().0, "active");
    cluster.run("stop");
    let (_nobody, silence) = std::sync::mpsc::channel::<()>();
    let _in_vain = silence.recv_timeout(Duration::from_millis(5_500));
    cluster.run("start");
    let (event, data) = events.next();
    assert_eq!((event.as_str(), &data["reason"]), ("ended", &"expired".into()));
}
