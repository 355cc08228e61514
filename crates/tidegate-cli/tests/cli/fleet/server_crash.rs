//! A server that is killed under load: its tasks keep their slots until they expire.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidegate_testkit::postgres_cluster::Cluster;

use super::{Fleet, HttpConnection};

const SERVERS: usize = 3;
const CLIENTS_EACH: usize = 64;
const LIMIT: usize = 30;

/// Tasks of the server that is killed.
const KILLED_SERVER_TASKS: usize = 10;

/// Expiry of a task without renewal.
const TTL_SECONDS: i64 = 6;

/// Duration of the load before the kill.
const LOAD_TIME: Duration = Duration::from_millis(700);

/// A task as observed by its client: from the reply to its start until before its end was sent.
struct ObservedTask {
    began: Instant,
    over: Option<Instant>,
    lapses: String,
}

#[derive(Default)]
struct LoadObservations {
    tasks: Vec<ObservedTask>,
    refused: usize,
    unanswered: usize,
    unexpected: Vec<String>,
}

#[expect(clippy::disallowed_methods, reason = "client observations use this machine's steady clock")]
fn now() -> Instant {
    Instant::now()
}

/// Begins and ends tasks until stopped or until the server is gone.
fn run_tasks(mut wire: HttpConnection, client: usize, stop: &AtomicBool, observed: &Mutex<LoadObservations>) {
    let mut own = LoadObservations::default();
    for round in 0_usize.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let user = format!("user-{client}-{}", round % 4);
        let Ok(output) = wire.try_send(&format!("POST /v1/activity/{user}"), "") else {
            own.unanswered += 1;
            break;
        };
        let began = now();
        match output.problem() {
            (201, _) => {
                let text = |field: &str| output.body[field].as_str().expect("a text").to_owned();
                let over = now();
                let path = format!("DELETE /v1/activity/{user}/{}", text("active_id"));
                own.tasks.push(ObservedTask { began, over: Some(over), lapses: text("expires_at") });
                match wire.try_send(&path, "") {
                    Ok(removed) if removed.status == 200 && removed.body["removed"] == 1 => {}
                    Ok(removed) => own.unexpected.push(format!("{removed:?}")),
                    Err(_) => {
                        own.unanswered += 1;
                        break;
                    }
                }
            }
            (503, "ActivityError") => own.refused += 1,
            _ => own.unexpected.push(format!("{output:?}")),
        }
    }
    let mut observed = observed.lock().expect("no thread panics with it");
    observed.tasks.extend(own.tasks);
    observed.refused += own.refused;
    observed.unanswered += own.unanswered;
    observed.unexpected.extend(own.unexpected);
}

impl Fleet {
    /// The certain running times. A task that was not ended ran until its expiry in the database. `mark` relates the
    /// database's clock to the client's and was taken before the query.
    fn certain_times(
        &self,
        tasks: &[ObservedTask],
        (mark, mark_ms): (Instant, i64),
    ) -> Vec<(Instant, Instant)> {
        let lapses: Vec<String> = tasks.iter().map(|task| format!("'{}'", task.lapses)).collect();
        let rows = self.sql.rows(&format!(
            "SELECT floor(extract(epoch FROM at) * 1000)::bigint FROM unnest(ARRAY[{}]::timestamptz[]) WITH ORDINALITY AS l (at, n) \
             ORDER BY n",
            lapses.join(",")
        ));
        let lapse = |row: &Vec<String>| {
            let ms: i64 = row[0].parse().expect("a number");
            mark + Duration::from_millis(u64::try_from(ms - mark_ms).expect("nothing lapses before the mark"))
        };
        let surely = tasks.iter().zip(&rows).map(|(task, row)| {
            let lapses = lapse(row);
            (task.began, task.over.map_or(lapses, |over| over.min(lapses)).max(task.began))
        });
        surely.collect()
    }
}

#[test]
fn tasks_of_killed_server_keep_their_slots_until_expiry() {
    let cluster = Cluster::start(&[]);
    let rules = format!(
        "activity: {{max_concurrent_tasks: {LIMIT}, window_requests: 1000000, lease_ttl: {TTL_SECONDS}s}}"
    );
    let mut fleet = Fleet::at(cluster.url(), SERVERS, &rules);
    let mark = now();
    let mark = (mark, fleet.sql.now_ms());
    let mut doomed = fleet.connect(0);
    let held: Vec<ObservedTask> = (0..KILLED_SERVER_TASKS)
        .map(|task| {
            let output = doomed.post(&format!("/v1/activity/doomed-{task}"), "").is(201);
            let lapses = output["expires_at"].as_str().expect("an instant").to_owned();
            ObservedTask { began: now(), over: None, lapses }
        })
        .collect();
    let first = fleet.sql.ms_of(&held[0].lapses);
    let (observed, stop) = (Mutex::new(LoadObservations::default()), AtomicBool::new(false));
    // No message is ever sent; receiving only waits.
    let (_nobody, silence) = std::sync::mpsc::channel::<()>();
    let killed_ms = std::thread::scope(|scope| {
        for client in 0..SERVERS * CLIENTS_EACH {
            let wire = fleet.connect(client % SERVERS);
            let (observed, stop) = (&observed, &stop);
            scope.spawn(move || run_tasks(wire, client, stop, observed));
        }
        let _in_vain = silence.recv_timeout(LOAD_TIME);
        fleet.servers.remove(0).kill();
        let killed_ms = fleet.sql.now_ms();
        assert!(killed_ms < first, "this machine is too slow to kill a server within its tasks' time");
        fleet.sql.wait_until(first - 500);
        assert_eq!(
            fleet.tasks().iter().filter(|[user, _]| user.starts_with("doomed-")).count(),
            KILLED_SERVER_TASKS
        );
        assert!(fleet.sql.now_ms() < first, "this machine is too slow to look within half a second");
        // All tasks of the killed server have expired by now.
        fleet.sql.wait_until(killed_ms + TTL_SECONDS * 1000 + 1);
        stop.store(true, Ordering::Relaxed);
        killed_ms
    });
    let mut observed = observed.into_inner().expect("no thread panics with it");
    assert_eq!(observed.unexpected, [""; 0]);
    assert_eq!(observed.unanswered, CLIENTS_EACH, "only clients of the killed server have no reply");
    assert!(observed.refused > 0, "they asked for more than there was");
    let killed = mark.0 + Duration::from_millis(u64::try_from(killed_ms - mark.1).expect("time goes on"));
    let after = observed.tasks.iter().filter(|task| task.began > killed).count();
    println!(
        "{} were admitted, {after} of them after the server died; {} refused",
        observed.tasks.len(),
        observed.refused
    );
    assert!(after > LIMIT, "the others go on");
    observed.tasks.extend(held);
    let most = super::peak(&fleet.certain_times(&observed.tasks, mark));
    assert!((KILLED_SERVER_TASKS + 1..=LIMIT).contains(&most), "{most} ran at once");
    assert_eq!(fleet.tasks(), [[""; 2]; 0], "everything has come back");
    let mut wires: [HttpConnection; SERVERS - 1] = fleet.connect_all();
    for task in 0..LIMIT {
        wires[task % wires.len()].post(&format!("/v1/activity/heir-{task}"), "").is(201);
    }
    for wire in &mut wires {
        assert_eq!(wire.post("/v1/activity/eve", "").problem(), (503, "ActivityError"), "thirty and no more");
    }
}
