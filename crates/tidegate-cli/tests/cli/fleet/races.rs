//! Concurrent clients on several servers never exceed the task limit.

use std::sync::{Barrier, Mutex};
use std::time::Instant;

use tidegate_testkit::postgres_cluster::{Cluster, server_log_path};

use super::{Fleet, HttpConnection};

const SERVERS: usize = 3;
const CLIENTS_EACH: usize = 64;
const LIMIT: usize = 30;

/// Requests per client after the first round.
const ROUNDS: usize = 12;

/// Observations of the clients.
#[derive(Default)]
struct RaceObservations {
    /// The certain running time of each task.
    held: Vec<(Instant, Instant)>,
    refused: usize,
    unexpected: Vec<String>,
}

impl RaceObservations {
    fn add(&mut self, other: RaceObservations) {
        self.held.extend(other.held);
        self.refused += other.refused;
        self.unexpected.extend(other.unexpected);
    }

    /// The most tasks that ran at once.
    fn peak(&self) -> usize {
        super::peak(&self.held)
    }
}

#[expect(clippy::disallowed_methods, reason = "client observations use this machine's steady clock")]
fn now() -> Instant {
    Instant::now()
}

/// Begins and ends one task. It certainly ran from the reply to its start until before its end was sent.
fn run_task(
    wire: &mut HttpConnection,
    user: &str,
    observed: &mut RaceObservations,
    meanwhile: impl FnOnce(),
) {
    let output = wire.post(&format!("/v1/activity/{user}"), "");
    let began = now();
    match output.problem() {
        (201, _) => {
            let id = output.body["active_id"].as_str().expect("a name").to_owned();
            meanwhile();
            let ends = now();
            let removed = wire.delete(&format!("/v1/activity/{user}/{id}"));
            if removed.status != 200 || removed.body["removed"] != 1 {
                observed.unexpected.push(format!("{removed:?}"));
            }
            observed.held.push((began, ends));
        }
        (503, "ActivityError") => {
            meanwhile();
            observed.refused += 1;
        }
        _ => {
            meanwhile();
            observed.unexpected.push(format!("{output:?}"));
        }
    }
}

#[test]
fn concurrent_tasks_never_exceed_the_limit() {
    let cluster = Cluster::start(&[]);
    let rules = format!("activity: {{max_concurrent_tasks: {LIMIT}, window_requests: 1000000}}");
    let fleet = Fleet::at(cluster.url(), SERVERS, &rules);
    let observed = Mutex::new(RaceObservations::default());
    let everybody_asked = Barrier::new(SERVERS * CLIENTS_EACH);
    std::thread::scope(|scope| {
        for client in 0..SERVERS * CLIENTS_EACH {
            let mut wire = fleet.connect(client % SERVERS);
            let (observed, everybody_asked) = (&observed, &everybody_asked);
            scope.spawn(move || {
                let mut own = RaceObservations::default();
                // No task ends before every client has a reply, so that all slots are taken.
                run_task(&mut wire, &format!("user-{client}"), &mut own, || {
                    everybody_asked.wait();
                });
                for round in 0..ROUNDS {
                    run_task(&mut wire, &format!("user-{client}-{}", round % 4), &mut own, || {});
                }
                observed.lock().expect("no thread panics with it").add(own);
            });
        }
    });
    let observed = observed.into_inner().expect("no thread panics with it");
    assert_eq!(observed.unexpected, [""; 0]);
    assert_eq!(observed.peak(), LIMIT, "never more, and all of them are used");
    let asked = SERVERS * CLIENTS_EACH * (ROUNDS + 1);
    assert_eq!(observed.held.len() + observed.refused, asked);
    assert!(observed.held.len() > 2 * LIMIT, "places are given to others: {}", observed.held.len());
    println!("{} of {asked} were admitted", observed.held.len());
    assert_eq!(fleet.tasks(), [[""; 2]; 0], "no task is left");
    // After the end the database has the counts.
    let Fleet { servers, sql, .. } = fleet;
    for server in servers {
        server.end();
    }
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(sql.value(deadlocks), "0");
    let log = std::fs::read(server_log_path(&sql.value("SHOW data_directory"))).expect("the database's log");
    let log = String::from_utf8_lossy(&log);
    assert!(!log.contains("deadlock") && !log.contains("ERROR"), "{log}");
}
