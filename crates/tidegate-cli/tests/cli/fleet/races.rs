//! Crowds: never more tasks than there may be, whoever asks whichever server.

use std::sync::{Barrier, Mutex};
use std::time::Instant;

use tidegate_testkit::postgres_cluster::{Cluster, server_log_path};

use super::{Fleet, Wire};

const SERVERS: usize = 3;
const CLIENTS_EACH: usize = 64;
const LIMIT: usize = 30;

/// How often each client asks after everybody has asked once.
const ROUNDS: usize = 12;

/// What happened, as its clients saw it.
#[derive(Default)]
struct Seen {
    /// From when to when each task was surely running.
    held: Vec<(Instant, Instant)>,
    refused: usize,
    unexpected: Vec<String>,
}

impl Seen {
    fn add(&mut self, other: Seen) {
        self.held.extend(other.held);
        self.refused += other.refused;
        self.unexpected.extend(other.unexpected);
    }

    /// The most tasks that were running at one instant.
    fn peak(&self) -> usize {
        super::peak(&self.held)
    }
}

#[expect(clippy::disallowed_methods, reason = "an outside history is told by this machine's steady clock")]
fn now() -> Instant {
    Instant::now()
}

/// Asks once. When the task surely was running: after the answer that it is, until before the word that it is over.
fn ask_once(wire: &mut Wire, user: &str, seen: &mut Seen, meanwhile: impl FnOnce()) {
    let told = wire.post(&format!("/v1/activity/{user}"), "");
    let began = now();
    match told.problem() {
        (201, _) => {
            let id = told.body["active_id"].as_str().expect("a name").to_owned();
            meanwhile();
            let ends = now();
            let removed = wire.delete(&format!("/v1/activity/{user}/{id}"));
            if removed.status != 200 || removed.body["removed"] != 1 {
                seen.unexpected.push(format!("{removed:?}"));
            }
            seen.held.push((began, ends));
        }
        (503, "ActivityError") => {
            meanwhile();
            seen.refused += 1;
        }
        _ => {
            meanwhile();
            seen.unexpected.push(format!("{told:?}"));
        }
    }
}

#[test]
fn never_more_than_thirty_run_at_once() {
    let cluster = Cluster::start(&[]);
    let rules = format!("activity: {{max_concurrent_tasks: {LIMIT}, window_requests: 1000000}}");
    let fleet = Fleet::at(cluster.url(), SERVERS, &rules);
    let seen = Mutex::new(Seen::default());
    let everybody_asked = Barrier::new(SERVERS * CLIENTS_EACH);
    std::thread::scope(|scope| {
        for client in 0..SERVERS * CLIENTS_EACH {
            let mut wire = fleet.wire(client % SERVERS);
            let (seen, everybody_asked) = (&seen, &everybody_asked);
            scope.spawn(move || {
                let mut own = Seen::default();
                // Nobody gives back before everybody was answered, so that all places are taken.
                ask_once(&mut wire, &format!("user-{client}"), &mut own, || {
                    everybody_asked.wait();
                });
                for round in 0..ROUNDS {
                    ask_once(&mut wire, &format!("user-{client}-{}", round % 4), &mut own, || {});
                }
                seen.lock().expect("nobody panics with it").add(own);
            });
        }
    });
    let seen = seen.into_inner().expect("nobody panics with it");
    assert_eq!(seen.unexpected, [""; 0]);
    assert_eq!(seen.peak(), LIMIT, "never more, and all of them are used");
    let asked = SERVERS * CLIENTS_EACH * (ROUNDS + 1);
    assert_eq!(seen.held.len() + seen.refused, asked);
    assert!(seen.held.len() > 2 * LIMIT, "places are given to others: {}", seen.held.len());
    println!("{} of {asked} were admitted", seen.held.len());
    assert_eq!(fleet.tasks(), [[""; 2]; 0], "everybody is done");
    // What they did is in the database's books when they have ended.
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
