//! A server that dies in a crowd: what it had given away is not given to others before its time is over.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidegate_testkit::postgres_cluster::Cluster;

use super::{Fleet, Wire};

const SERVERS: usize = 3;
const CLIENTS_EACH: usize = 64;
const LIMIT: usize = 30;

/// How many tasks the server surely has that dies.
const DOOMED: usize = 10;

/// How long a task lasts that nobody renews.
const TTL_SECONDS: i64 = 6;

/// How long a crowd asks before the server dies.
const BEFORE: Duration = Duration::from_millis(700);

/// A task as its client saw it: from the answer that it runs until before the word that it is over, if that was said.
struct Task {
    began: Instant,
    over: Option<Instant>,
    lapses: String,
}

#[derive(Default)]
struct Seen {
    tasks: Vec<Task>,
    refused: usize,
    unanswered: usize,
    unexpected: Vec<String>,
}

#[expect(clippy::disallowed_methods, reason = "an outside history is told by this machine's steady clock")]
fn now() -> Instant {
    Instant::now()
}

/// Begins a task and ends it, again and again, until told to stop or until nobody answers.
fn keep_asking(mut wire: Wire, client: usize, stop: &AtomicBool, seen: &Mutex<Seen>) {
    let mut own = Seen::default();
    for round in 0_usize.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let user = format!("user-{client}-{}", round % 4);
        let Ok(told) = wire.try_ask(&format!("POST /v1/activity/{user}"), "") else {
            own.unanswered += 1;
            break;
        };
        let began = now();
        match told.problem() {
            (201, _) => {
                let text = |field: &str| told.body[field].as_str().expect("a text").to_owned();
                let over = now();
                let path = format!("DELETE /v1/activity/{user}/{}", text("active_id"));
                own.tasks.push(Task { began, over: Some(over), lapses: text("expires_at") });
                match wire.try_ask(&path, "") {
                    Ok(removed) if removed.status == 200 && removed.body["removed"] == 1 => {}
                    Ok(removed) => own.unexpected.push(format!("{removed:?}")),
                    Err(_) => {
                        own.unanswered += 1;
                        break;
                    }
                }
            }
            (503, "ActivityError") => own.refused += 1,
            _ => own.unexpected.push(format!("{told:?}")),
        }
    }
    let mut seen = seen.lock().expect("nobody panics with it");
    seen.tasks.extend(own.tasks);
    seen.refused += own.refused;
    seen.unanswered += own.unanswered;
    seen.unexpected.extend(own.unexpected);
}

impl Fleet {
    /// When tasks surely ran. One that nobody ended ran until it lapsed, which the database knows; its clock and ours were compared at
    /// `mark`, before the database was asked.
    fn surely(&self, tasks: &[Task], (mark, mark_ms): (Instant, i64)) -> Vec<(Instant, Instant)> {
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
fn a_server_that_is_killed_in_a_crowd_keeps_its_places_until_their_time_is_over() {
    let cluster = Cluster::start(&[]);
    let rules = format!(
        "activity: {{max_concurrent_tasks: {LIMIT}, window_requests: 1000000, lease_ttl: {TTL_SECONDS}s}}"
    );
    let mut fleet = Fleet::at(cluster.url(), SERVERS, &rules);
    let mark = now();
    let mark = (mark, fleet.sql.now_ms());
    let mut doomed = fleet.wire(0);
    let held: Vec<Task> = (0..DOOMED)
        .map(|task| {
            let told = doomed.post(&format!("/v1/activity/doomed-{task}"), "").is(201);
            let lapses = told["expires_at"].as_str().expect("an instant").to_owned();
            Task { began: now(), over: None, lapses }
        })
        .collect();
    let first = fleet.sql.ms_of(&held[0].lapses);
    let (seen, stop) = (Mutex::new(Seen::default()), AtomicBool::new(false));
    // Nobody ever sends, so that receiving is waiting.
    let (_nobody, silence) = std::sync::mpsc::channel::<()>();
    let killed_ms = std::thread::scope(|scope| {
        for client in 0..SERVERS * CLIENTS_EACH {
            let wire = fleet.wire(client % SERVERS);
            let (seen, stop) = (&seen, &stop);
            scope.spawn(move || keep_asking(wire, client, stop, seen));
        }
        let _in_vain = silence.recv_timeout(BEFORE);
        fleet.servers.remove(0).kill();
        let killed_ms = fleet.sql.now_ms();
        assert!(killed_ms < first, "this machine is too slow to kill a server within its tasks' time");
        fleet.sql.wait_until(first - 500);
        assert_eq!(fleet.tasks().iter().filter(|[user, _]| user.starts_with("doomed-")).count(), DOOMED);
        assert!(fleet.sql.now_ms() < first, "this machine is too slow to look within half a second");
        // Whatever it had given away, to whomever: by then all of it has lapsed.
        fleet.sql.wait_until(killed_ms + TTL_SECONDS * 1000 + 1);
        stop.store(true, Ordering::Relaxed);
        killed_ms
    });
    let mut seen = seen.into_inner().expect("nobody panics with it");
    assert_eq!(seen.unexpected, [""; 0]);
    assert_eq!(seen.unanswered, CLIENTS_EACH, "nobody but those of the server that died");
    assert!(seen.refused > 0, "they asked for more than there was");
    let killed = mark.0 + Duration::from_millis(u64::try_from(killed_ms - mark.1).expect("time goes on"));
    let after = seen.tasks.iter().filter(|task| task.began > killed).count();
    println!(
        "{} were admitted, {after} of them after the server died; {} refused",
        seen.tasks.len(),
        seen.refused
    );
    assert!(after > LIMIT, "the others go on");
    seen.tasks.extend(held);
    let most = super::peak(&fleet.surely(&seen.tasks, mark));
    assert!((DOOMED + 1..=LIMIT).contains(&most), "{most} ran at once");
    assert_eq!(fleet.tasks(), [[""; 2]; 0], "everything has come back");
    let mut wires: [Wire; SERVERS - 1] = fleet.wires();
    for task in 0..LIMIT {
        wires[task % wires.len()].post(&format!("/v1/activity/heir-{task}"), "").is(201);
    }
    for wire in &mut wires {
        assert_eq!(wire.post("/v1/activity/eve", "").problem(), (503, "ActivityError"), "thirty and no more");
    }
}
