//! `cargo xtask bench serve`: the server and its peers over real sockets, in the same run.
//!
//! The server runs on core 0 and the load generator on core 1. Each pair runs several rounds in alternation; the result
//! is the median round. Peers are installed on demand: Redis, nginx and wrk as Debian packages, throttlecrab-server with
//! cargo under `target/bench`.
//!
//! Scopes: `disk` compares the disk store with the memory store; `resp` and `http` compare one protocol with its peers.
//! `--quick` runs a short version of everything as a smoke test.
//!
//! Rates on a shared machine are noisy, so targets are ratios. The table also shows the server's CPU time per request,
//! because the rate alone is meaningless when the load generator is the bottleneck.

use std::path::PathBuf;
use std::process::Command;

use super::figures::{Measurement, median};
use super::load::{self, KEYS, Load};
use super::peers::{BenchPaths, Peer};
use crate::workspace::Workspace;
use crate::{TaskResult, prerequisites, process};

/// How long to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BenchEffort {
    Full,
    /// A smoke test.
    Quick,
}

impl BenchEffort {
    /// Rounds per pair.
    pub(super) const fn rounds(self) -> usize {
        match self {
            BenchEffort::Full => 3,
            BenchEffort::Quick => 1,
        }
    }
}

/// Which comparisons to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BenchScope {
    Everything,
    /// RESP beside Redis.
    Resp,
    /// HTTP beside nginx and throttlecrab-server.
    /// HTTP beside nginx and throttlecrab-server.
    Http,
    /// The disk store beside the memory store.
    Disk,
}

/// Limits of the benchmarked server. They grant every request, because a grant costs more than a refusal. No bucket is full
/// again before its next request, so no row is evicted.
const LIMITS: &str = "\
limits:
  - id: api
    items: [{policy: bucket, limit: 100000000, window: 1h, burst: 1000000000, per: key}]
  - id: hourly
    items: [{policy: bucket, limit: 10, window: 1h, per: key}]
  - id: day
    items: [{policy: day, limit: 1000000000, per: key}]
  - id: sale
    items: [{policy: day, limit: 10000000000}]
  - id: rate
    items: [{policy: bucket, limit: 1000000, window: 1s, per: key}]
  - id: hundred
    items: [{policy: day, limit: 100, per: key}]
";

const ACQUIRE: &[&str] = &["TG.ACQUIRE", "api", "key:__rand_int__"];
/// One shared row. The log reserves a slice ahead, so few replies wait.
const SALE: &[&str] = &["TG.ACQUIRE", "sale", "key:__rand_int__"];
/// Only the first units of each key, which are not logged.
const RATE: &[&str] = &["TG.ACQUIRE", "rate", "key:__rand_int__"];
/// Every decision is one log record, and every reply waits for its sync.
const HUNDRED: &[&str] = &["TG.ACQUIRE", "hundred", "key:__rand_int__"];
const PING: &[&str] = &["PING"];
const INCR: &[&str] = &["INCR", "key:__rand_int__"];

/// Target of a ratio.
struct RatioTarget {
    at_least: f64,
    goal: Option<f64>,
    /// Upper bound of our p99 divided by the peer's p99.
    p99_at_most: Option<f64>,
}

/// Two servers under the same load.
struct Comparison {
    name: &'static str,
    ours: (Peer, Load),
    theirs: (Peer, Load),
    target: RatioTarget,
}

/// Runs the comparisons in `scope` and prints a Markdown table.
pub(crate) fn run(scope: BenchScope, effort: BenchEffort) -> TaskResult {
    let workspace = Workspace::load()?;
    let folder = prepare(&workspace)?;
    std::fs::write(folder.join("serve.yaml"), LIMITS)?;
    let paths = BenchPaths {
        tidegate: workspace.target.join("release/tidegate"),
        throttlecrab: if scope.is_over_http() { throttlecrab(&folder)? } else { PathBuf::new() },
        folder,
    };
    require_real_disk(&paths)?;
    println!("\n| what | server | rate /s | CPU us/request | p50 ms | p99 ms | ratio | bar |");
    println!("|---|---|---|---|---|---|---|---|");
    for pair in protocol_comparisons().iter().chain(&disk_comparisons()).filter(|pair| scope.includes(pair)) {
        measure(pair, effort, &paths)?;
    }
    if scope == BenchScope::Everything { measure_memory(&paths) } else { Ok(()) }
}

impl BenchScope {
    const fn is_over_http(self) -> bool {
        matches!(self, BenchScope::Everything | BenchScope::Http)
    }

    fn includes(self, pair: &Comparison) -> bool {
        let is_on_disk = pair.ours.0 == Peer::OnDisk;
        let is_over_http = matches!(pair.ours.1, Load::Wrk { .. });
        match self {
            BenchScope::Everything => true,
            BenchScope::Resp => !is_on_disk && !is_over_http,
            BenchScope::Http => !is_on_disk && is_over_http,
            BenchScope::Disk => is_on_disk,
        }
    }
}

/// Builds the release binary and returns the folder for generated files.
pub(super) fn prepare(workspace: &Workspace) -> TaskResult<PathBuf> {
    prerequisites::ensure_for_bench()?;
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--locked"]).current_dir(&workspace.root);
    if !process::run_shown(build)?.succeeded() {
        return Err("the release build failed".into());
    }
    let folder = workspace.target.join("bench");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Fails if the benchmark folder is on a memory file system.
fn require_real_disk(paths: &BenchPaths) -> TaskResult {
    let mut stat = Command::new("stat");
    stat.args(["-f", "-c", "%T"]).arg(&paths.folder);
    let kind = String::from_utf8(stat.output()?.stdout)?;
    match kind.trim() {
        "tmpfs" | "ramfs" => Err(format!(
            "{} is in memory; set CARGO_TARGET_DIR to a directory on a disk",
            paths.folder.display()
        )
        .into()),
        _ => Ok(()),
    }
}

/// The disk store beside the memory store.
fn disk_comparisons() -> Vec<Comparison> {
    const FEW: u32 = 100_000;
    const MANY: u32 = 1_000_000;
    let pair = |name, command, keys, at_least| {
        let load = Load::RedisBenchmark { connections: 50, depth: 64, keys, command };
        let target = RatioTarget { at_least, goal: None, p99_at_most: Some(3.0) };
        Comparison { name, ours: (Peer::OnDisk, load), theirs: (Peer::Tidegate, load), target }
    };
    vec![
        pair("RESP, 64 deep, on disk: one shared row", SALE, FEW, 0.9),
        pair("RESP, 64 deep, on disk: a million a second for each of 100,000 keys", RATE, FEW, 0.9),
        pair("RESP, 64 deep, on disk: a hundred a day for each of 1,000,000 keys", HUNDRED, MANY, 0.75),
    ]
}

fn protocol_comparisons() -> Vec<Comparison> {
    let resp = |depth, command| Load::RedisBenchmark { connections: 50, depth, keys: KEYS, command };
    let pipelined = |command| Load::Pipelines { connections: 8, depth: 64, command };
    let target = |at_least, goal| RatioTarget { at_least, goal, p99_at_most: None };
    let moderate_load = |command| Load::RedisBenchmark { connections: 32, depth: 1, keys: KEYS, command };
    vec![
        Comparison {
            name: "RESP, not pipelined, 50 connections",
            ours: (Peer::Tidegate, resp(1, ACQUIRE)),
            theirs: (Peer::Redis, resp(1, PING)),
            target: target(0.85, Some(1.0)),
        },
        Comparison {
            name: "RESP, 16 deep",
            ours: (Peer::Tidegate, resp(16, ACQUIRE)),
            theirs: (Peer::Redis, resp(16, INCR)),
            target: target(1.0, None),
        },
        Comparison {
            name: "RESP, 64 deep",
            ours: (Peer::Tidegate, resp(64, ACQUIRE)),
            theirs: (Peer::Redis, resp(64, PING)),
            target: target(0.5, None),
        },
        Comparison {
            name: "RESP, 64 deep, cheaper load",
            ours: (Peer::Tidegate, pipelined(ACQUIRE)),
            theirs: (Peer::Redis, pipelined(PING)),
            target: target(1.0, None),
        },
        Comparison {
            name: "RESP, 32 connections",
            ours: (Peer::Tidegate, moderate_load(ACQUIRE)),
            theirs: (Peer::Redis, moderate_load(PING)),
            target: RatioTarget { p99_at_most: Some(3.0), ..target(0.85, Some(1.0)) },
        },
        Comparison {
            name: "HTTP `POST /v1/acquire`, 32 connections",
            ours: (Peer::Tidegate, Load::Wrk { connections: 32 }),
            theirs: (Peer::Nginx, Load::Wrk { connections: 32 }),
            target: target(0.85, Some(1.0)),
        },
        Comparison {
            name: "HTTP, 32 connections",
            ours: (Peer::Tidegate, Load::Wrk { connections: 32 }),
            theirs: (Peer::Throttlecrab, Load::Wrk { connections: 32 }),
            target: target(1.15, None),
        },
    ]
}

fn measure(pair: &Comparison, effort: BenchEffort, paths: &BenchPaths) -> TaskResult {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds() {
        for ((peer, load), measurements) in [(&pair.ours, &mut ours), (&pair.theirs, &mut theirs)] {
            let running = peer.start(paths)?;
            measurements.push(load.run(&running, effort, paths)?);
        }
    }
    let (ours, theirs) = (median(ours), median(theirs));
    let ratio = ours.rate / theirs.rate;
    let RatioTarget { at_least, goal, p99_at_most } = pair.target;
    let verdict = match goal {
        Some(goal) if ratio >= goal => "met, with its goal",
        _ if ratio >= at_least => "met",
        _ => "missed",
    };
    let row = |what: &str, peer: Peer, measurement: &Measurement, rest: &str| {
        let Measurement { rate, micros, p50, p99 } = measurement;
        println!("| {what} | {} | {rate:.0} | {micros:.2} | {p50} | {p99} | {rest} |", peer.name());
    };
    row(pair.name, pair.ours.0, &ours, &format!("{ratio:.2} | {at_least} {verdict}"));
    let times = ours.p99.over(theirs.p99);
    let slowest = times.map_or(String::new(), |times| format!(", p99 {times:.2}x"));
    let of_slowest = times.zip(p99_at_most).map_or(String::new(), |(times, most)| {
        format!("p99 at most {most}x, {}", if times <= most { "met" } else { "missed" })
    });
    let cost = format!("CPU {:.2}x{slowest} | {of_slowest}", ours.micros / theirs.micros);
    row("", pair.theirs.0, &theirs, &cost);
    Ok(())
}

/// Measures the memory of one million keys.
fn measure_memory(paths: &BenchPaths) -> TaskResult {
    const KEYS: u64 = 1_000_000;
    const MOST_MEBIBYTES: f64 = 48.0;
    println!("\n| limit | live keys | RSS above the empty server, MiB | bar |\n|---|---|---|---|");
    for limit in ["hourly", "day"] {
        let running = Peer::Tidegate.start(paths)?;
        let before = running.resident()?;
        load::acquire_distinct_keys(running.resp(), limit, KEYS)?;
        #[expect(clippy::cast_precision_loss, reason = "a measurement for people")]
        let grown = (running.resident()?.saturating_sub(before)) as f64 / 1_048_576.0;
        let verdict = if grown < MOST_MEBIBYTES { "met" } else { "missed" };
        println!("| {limit} | {KEYS} | {grown:.1} | under {MOST_MEBIBYTES}, {verdict} |");
    }
    Ok(())
}

/// Builds throttlecrab-server once and returns its path.
fn throttlecrab(folder: &std::path::Path) -> TaskResult<PathBuf> {
    let root = folder.join("peers");
    let program = root.join("bin/throttlecrab-server");
    if !program.exists() {
        let mut install = Command::new("cargo");
        install.args(["install", "--locked", "throttlecrab-server", "--root"]).arg(&root);
        if !process::run_shown(install)?.succeeded() {
            return Err(
                "throttlecrab-server cannot be built; it is one of the peers of this benchmark".into()
            );
        }
    }
    Ok(program)
}
