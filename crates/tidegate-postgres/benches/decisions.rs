//! Decisions per second in PostgreSQL, compared with a count-and-insert transaction, on a temporary database that syncs every
//! commit.
//!
//! `cargo bench -p tidegate-postgres [-- SECONDS]`
//!
//! 256 clients send requests without pause. The baseline transaction counts the rows of a user and all rows, and inserts one
//! row. Its table is empty at the start, so its counts are as cheap as possible.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark measures time and prints it"
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

/// The number of concurrent clients.
const CLIENTS: usize = 256;
/// The number of keys that clients use.
const KEYS: u64 = 10_000;
/// The number of additional stored keys.
const STORED_KEYS: u64 = 1_000_000;

/// The interval between sends of an open-loop load.
const SEND_INTERVAL: Duration = Duration::from_millis(1);

/// The number of WAL segments that exist before the measurement.
const WARM_WAL_SEGMENTS: usize = 24;

/// Throughput and latency of one run.
struct RunResult {
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

    runtime.block_on(recycle_wal_segments(&url));
    let baseline = runtime.block_on(count_and_insert(&url, time));
    print_run("count and insert (baseline)", &baseline, None);
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

    let hot = runtime.block_on(run_closed_loop(&store, "hot", 1, time));
    print_run("one hot row", &hot, Some(&baseline));
    let half = runtime.block_on(run_open_loop(&store, "hot", 1, time, hot.per_second / 2.0));
    print_run("one hot row, at half this rate", &half, None);
    let keys = runtime.block_on(run_closed_loop(&store, "keys", KEYS, time));
    print_run("10,000 keys", &keys, Some(&baseline));
    let half = runtime.block_on(run_open_loop(&store, "keys", KEYS, time, keys.per_second / 2.0));
    print_run("10,000 keys, at half this rate", &half, None);
    runtime.block_on(insert_stored_keys(&url));
    let stored = runtime.block_on(run_closed_loop(&store, "keys", KEYS, time));
    print_run("10,000 of 1,000,000 keys", &stored, Some(&baseline));
    println!(
        "with 1,000,000 keys stored: {:.2} of the throughput without",
        stored.per_second / keys.per_second
    );
    drop(store);
    drop(cluster.stdin.take());
    cluster.wait().unwrap();
}

fn print_run(name: &str, run: &RunResult, baseline: Option<&RunResult>) {
    let ratio =
        baseline.map(|other| format!("{:6.1}x", run.per_second / other.per_second)).unwrap_or_default();
    println!(
        "{name:32} {:>9.0}/s  p50 {:>7.2} ms  p99 {:>7.2} ms {ratio}",
        run.per_second,
        run.p50.as_secs_f64() * 1000.0,
        run.p99.as_secs_f64() * 1000.0,
    );
}

fn run_result(mut latencies: Vec<Duration>, elapsed: Duration) -> RunResult {
    latencies.sort_unstable();
    let at = |part: f64| latencies.get((latencies.len() as f64 * part) as usize).copied().unwrap_or_default();
    RunResult { per_second: latencies.len() as f64 / elapsed.as_secs_f64(), p50: at(0.5), p99: at(0.99) }
}

/// Fills the WAL so that its segments are recycled. A new database creates each segment when it needs it, which delays all
/// commits. A database in use recycles old segments.
async fn recycle_wal_segments(url: &str) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("CREATE TABLE wal_filler (n bigint)").await.unwrap();
    for _ in 0..WARM_WAL_SEGMENTS {
        client.batch_execute("INSERT INTO wal_filler VALUES (1)").await.unwrap();
        client.batch_execute("SELECT pg_switch_wal()").await.unwrap();
    }
    client.batch_execute("DROP TABLE wal_filler").await.unwrap();
    client.batch_execute("CHECKPOINT").await.unwrap();
}

/// Runs the baseline: each client has its own connection.
async fn count_and_insert(url: &str, time: Duration) -> RunResult {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
        .batch_execute("CREATE TABLE session_activity_log (id bigserial PRIMARY KEY, user_sub varchar(50), timestamp timestamptz)")
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
                .prepare("SELECT count(*) FROM session_activity_log WHERE user_sub = $1 AND timestamp BETWEEN now() - interval '15 s' AND now()")
                .await
                .unwrap();
            let all = client.prepare("SELECT count(*) FROM session_activity_log").await.unwrap();
            let insert = client
                .prepare("INSERT INTO session_activity_log (user_sub, timestamp) VALUES ($1, now())")
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
    collect(tasks.collect(), began).await
}

/// Collects the latencies of all clients.
async fn collect(tasks: Vec<JoinHandle<Vec<Duration>>>, began: Instant) -> RunResult {
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await.unwrap());
    }
    run_result(latencies, began.elapsed())
}

/// Acquires one unit of a limit for one of `keys` keys.
async fn acquire_one(store: &PostgresStore, limit: &str, number: u64, keys: u64) {
    let key = format!("key-{}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % keys);
    let asks = [Ask::one(limit, Some(key.as_bytes()))];
    let StoreReply::Later(later) = store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts))
    else {
        panic!("this store replies later");
    };
    let answers = later.await.unwrap();
    assert!(answers.get(0).unwrap().as_ref().unwrap().is_granted());
}

/// A closed-loop load: each client sends its next request after the reply.
async fn run_closed_loop(
    store: &Arc<PostgresStore>,
    limit: &'static str,
    keys: u64,
    time: Duration,
) -> RunResult {
    let began = Instant::now();
    let turn = Arc::new(AtomicU64::new(0));
    let tasks = (0..CLIENTS).map(|_| {
        let (store, turn) = (Arc::clone(store), Arc::clone(&turn));
        tokio::spawn(async move {
            let mut latencies = Vec::new();
            while began.elapsed() < time {
                let asked = Instant::now();
                acquire_one(&store, limit, turn.fetch_add(1, Ordering::Relaxed), keys).await;
                latencies.push(asked.elapsed());
            }
            latencies
        })
    });
    collect(tasks.collect(), began).await
}

/// An open-loop load at a fixed rate. In a closed loop, waiting clients would send fewer requests just when the store is slow.
/// The latency of a request counts from its scheduled time.
async fn run_open_loop(
    store: &Arc<PostgresStore>,
    limit: &'static str,
    keys: u64,
    time: Duration,
    rate: f64,
) -> RunResult {
    let began = Instant::now();
    let all = (rate * time.as_secs_f64()) as u64;
    let mut tasks = Vec::new();
    let mut interval = tokio::time::interval(SEND_INTERVAL);
    while (tasks.len() as u64) < all {
        interval.tick().await;
        let due = ((began.elapsed().as_secs_f64() * rate) as u64).min(all);
        for number in tasks.len() as u64..due {
            let (store, asked) = (Arc::clone(store), began + Duration::from_secs_f64(number as f64 / rate));
            tasks.push(tokio::spawn(async move {
                acquire_one(&store, limit, number, keys).await;
                vec![asked.elapsed()]
            }));
        }
    }
    collect(tasks, began).await
}

/// Stores many more keys as copies of an existing row.
async fn insert_stored_keys(url: &str) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let copy = format!(
        "SET search_path = tidegate; INSERT INTO states (generation, key, edition, seen, freshens, state) \
         SELECT s.generation, '\\x01'::bytea || convert_to('stored-' || n, 'UTF8'), s.edition, s.seen, NULL, s.state \
         FROM (SELECT * FROM states WHERE key <> '\\x00' LIMIT 1) s, generate_series(1, {STORED_KEYS}) n; ANALYZE states; CHECKPOINT"
    );
    client.batch_execute(&copy).await.unwrap();
}
