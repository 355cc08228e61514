//! Decisions per second in PostgreSQL, beside document 000's own transaction, on a throw-away database that syncs every commit.
//!
//! `cargo bench -p tidegate-postgres [-- SECONDS]`
//!
//! 256 clients ask without a pause. The peer counts the user's rows and all rows and inserts one, in a transaction, as document 000 draws it; it
//! begins with an empty table, so that counting costs it as little as it ever will.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark measures time and says so"
)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::model::{Ask, ItemSpec, LimitSpec, Order, Policy};
use tidegate::reply::{Detail, Replies};
use tidegate::store::{Store, StoreReply};
use tidegate_postgres::{PostgresOptions, PostgresStore};
use tokio::task::JoinHandle;
use tokio_postgres::NoTls;

const CLIENTS: usize = 256;
const KEYS: u64 = 10_000;
const STORED: u64 = 1_000_000;

/// How often an open load sends what is due.
const BEAT: Duration = Duration::from_millis(1);

/// How many files of its log the database has before it is measured.
const SEASONED: usize = 24;

/// What was measured.
struct Measured {
    per_second: f64,
    p50: Duration,
    p99: Duration,
}

fn main() {
    let seconds = std::env::args().find_map(|word| word.parse().ok()).unwrap_or(5);
    let time = Duration::from_secs(seconds);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster.sh");
    let settings = [
        "fsync=on",
        "synchronous_commit=on",
        "max_connections=400",
        "shared_buffers=512MB",
        "min_wal_size=1GB",
    ];
    let mut cluster = Command::new("sh")
        .arg(script)
        .args(settings)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(cluster.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let url = line.trim().strip_prefix("ready ").unwrap_or_else(|| panic!("{line}")).to_owned();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();

    runtime.block_on(season(&url));
    let naive = runtime.block_on(document_000(&url, time));
    say("document 000: count and insert", &naive, None);
    let store = Arc::new(PostgresStore::open(PostgresOptions::parse(&url).unwrap()).unwrap());
    store
        .put(
            LimitSpec::named("hot").with(ItemSpec::of(Policy::Total, u64::MAX >> 1)),
            ExpectedVersion::Absent,
        )
        .unwrap();
    let bucket = Policy::Bucket { window: Duration::from_secs(1), burst: None };
    store
        .put(
            LimitSpec::named("keys").with(ItemSpec::of(bucket, 1_000_000).per_key()),
            ExpectedVersion::Absent,
        )
        .unwrap();

    let hot = runtime.block_on(ask(&store, "hot", 1, time));
    say("one hot row", &hot, Some(&naive));
    let half = runtime.block_on(ask_at(&store, "hot", 1, time, hot.per_second / 2.0));
    say("one hot row, at half of that", &half, None);
    let keys = runtime.block_on(ask(&store, "keys", KEYS, time));
    say("10,000 keys", &keys, Some(&naive));
    let half = runtime.block_on(ask_at(&store, "keys", KEYS, time, keys.per_second / 2.0));
    say("10,000 keys, at half of that", &half, None);
    runtime.block_on(fill(&url));
    let stored = runtime.block_on(ask(&store, "keys", KEYS, time));
    say("10,000 of 1,000,000 keys", &stored, Some(&naive));
    println!(
        "with 1,000,000 keys stored: {:.2} of the throughput without",
        stored.per_second / keys.per_second
    );
    drop(store);
    drop(cluster.stdin.take());
    cluster.wait().unwrap();
}

fn say(what: &str, measured: &Measured, beside: Option<&Measured>) {
    let ratio =
        beside.map(|other| format!("{:6.1}x", measured.per_second / other.per_second)).unwrap_or_default();
    println!(
        "{what:32} {:>9.0}/s  p50 {:>7.2} ms  p99 {:>7.2} ms {ratio}",
        measured.per_second,
        measured.p50.as_secs_f64() * 1000.0,
        measured.p99.as_secs_f64() * 1000.0,
    );
}

fn measured(mut latencies: Vec<Duration>, took: Duration) -> Measured {
    latencies.sort_unstable();
    let at = |part: f64| latencies.get((latencies.len() as f64 * part) as usize).copied().unwrap_or_default();
    Measured { per_second: latencies.len() as f64 / took.as_secs_f64(), p50: at(0.5), p99: at(0.99) }
}

/// Makes the database one that has been in use. A new one makes every file of its log when it needs it, which holds up every commit meanwhile; one
/// that has been written to for a while takes files it has had before.
async fn season(url: &str) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("CREATE TABLE season (n bigint)").await.unwrap();
    for _ in 0..SEASONED {
        client.batch_execute("INSERT INTO season VALUES (1)").await.unwrap();
        client.batch_execute("SELECT pg_switch_wal()").await.unwrap();
    }
    client.batch_execute("DROP TABLE season").await.unwrap();
    client.batch_execute("CHECKPOINT").await.unwrap();
}

/// The transaction of document 000, by as many clients with a connection each.
async fn document_000(url: &str, time: Duration) -> Measured {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
        .batch_execute("CREATE TABLE framework_session_activity (id bigserial PRIMARY KEY, user_sub varchar(50), timestamp timestamptz)")
        .await
        .unwrap();
    let began = Instant::now();
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        clients.push((number, client));
    }
    let began = began.max(Instant::now());
    let tasks = clients.into_iter().map(|(number, client)| {
        tokio::spawn(async move {
            let user = format!("user-{number}");
            let window = client
                .prepare("SELECT count(*) FROM framework_session_activity WHERE user_sub = $1 AND timestamp BETWEEN now() - interval '15 s' AND now()")
                .await
                .unwrap();
            let all = client.prepare("SELECT count(*) FROM framework_session_activity").await.unwrap();
            let insert = client
                .prepare("INSERT INTO framework_session_activity (user_sub, timestamp) VALUES ($1, now())")
                .await
                .unwrap();
            let mut latencies = Vec::new();
            while began.elapsed() < time {
                let asked = Instant::now();
                client.batch_execute("BEGIN").await.unwrap();
                client.query_one(&window, &[&user]).await.unwrap();
                client.query_one(&all, &[]).await.unwrap();
                client.execute(&insert, &[&user]).await.unwrap();
                client.batch_execute("COMMIT").await.unwrap();
                latencies.push(asked.elapsed());
            }
            latencies
        })
    });
    gathered(tasks.collect(), began).await
}

/// What all clients saw.
async fn gathered(tasks: Vec<JoinHandle<Vec<Duration>>>, began: Instant) -> Measured {
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await.unwrap());
    }
    measured(latencies, began.elapsed())
}

/// One unit of a limit, for one of so many keys.
async fn decided(store: &PostgresStore, limit: &str, number: u64, keys: u64) {
    let key = format!("key-{}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % keys);
    let asks = [Ask::one(limit, Some(key.as_bytes()))];
    let StoreReply::Later(later) = store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts))
    else {
        panic!("it is decided elsewhere");
    };
    let answers = later.await.unwrap();
    assert!(answers.get(0).unwrap().as_ref().unwrap().is_granted());
}

/// Asks as often as it goes: each client as soon as it is answered.
async fn ask(store: &Arc<PostgresStore>, limit: &'static str, keys: u64, time: Duration) -> Measured {
    let began = Instant::now();
    let turn = Arc::new(AtomicU64::new(0));
    let tasks = (0..CLIENTS).map(|_| {
        let (store, turn) = (Arc::clone(store), Arc::clone(&turn));
        tokio::spawn(async move {
            let mut latencies = Vec::new();
            while began.elapsed() < time {
                let asked = Instant::now();
                decided(&store, limit, turn.fetch_add(1, Ordering::Relaxed), keys).await;
                latencies.push(asked.elapsed());
            }
            latencies
        })
    });
    gathered(tasks.collect(), began).await
}

/// Asks so many times a second, whether or not those before were answered: clients that are all waiting would hold back the next ones, just when
/// it is slow. Whoever is sent late has waited since they should have been.
async fn ask_at(
    store: &Arc<PostgresStore>,
    limit: &'static str,
    keys: u64,
    time: Duration,
    rate: f64,
) -> Measured {
    let began = Instant::now();
    let all = (rate * time.as_secs_f64()) as u64;
    let mut tasks = Vec::new();
    let mut beat = tokio::time::interval(BEAT);
    while (tasks.len() as u64) < all {
        beat.tick().await;
        let due = ((began.elapsed().as_secs_f64() * rate) as u64).min(all);
        for number in tasks.len() as u64..due {
            let (store, asked) = (Arc::clone(store), began + Duration::from_secs_f64(number as f64 / rate));
            tasks.push(tokio::spawn(async move {
                decided(&store, limit, number, keys).await;
                vec![asked.elapsed()]
            }));
        }
    }
    gathered(tasks, began).await
}

/// Stores many more keys: copies of one that is there.
async fn fill(url: &str) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let copy = format!(
        "SET search_path = tidegate; INSERT INTO states (generation, key, edition, seen, freshens, state) \
         SELECT s.generation, '\\x01'::bytea || convert_to('stored-' || n, 'UTF8'), s.edition, s.seen, NULL, s.state \
         FROM (SELECT * FROM states WHERE key <> '\\x00' LIMIT 1) s, generate_series(1, {STORED}) n; ANALYZE states; CHECKPOINT"
    );
    client.batch_execute(&copy).await.unwrap();
}
