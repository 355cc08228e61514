//! `cargo xtask bench serve`: the service beside its peers, over real sockets, in the same run.
//!
//! A server runs on the first core and whoever asks on the second, one pair at a time and several times in turn; a figure is the
//! median of its rounds. Peers are installed here and are dependencies of nothing: Redis, nginx and wrk as Debian packages,
//! throttlecrab-server with cargo, below `target/bench`.
//!
//! `cargo xtask bench serve disk` measures only what a store on disk costs beside one in memory: the same server, load and limits, in turn; `resp` and
//! `http` only one door beside its peers. `--quick` does little of everything, to see that it works.
//!
//! Rates on a shared machine are noisy, so bars are ratios. Beside every rate stands what it costs the server in processor time,
//! because a rate says little when whoever asks is the slower one.

mod load;
mod measured;
mod peers;
pub(crate) mod proxies;

use std::path::PathBuf;
use std::process::Command;

use crate::workspace::Workspace;
use crate::{Outcome, needs, process};
use load::{KEYS, Load};
use measured::{Figure, median};
use peers::{Peer, Places};

pub(crate) use load::generate;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    Full,
    /// To see that it works.
    Quick,
}

impl Effort {
    /// How often every pair is measured.
    const fn rounds(self) -> usize {
        match self {
            Effort::Full => 3,
            Effort::Quick => 1,
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Everything,
    /// One door beside its peers.
    Resp,
    Http,
    /// The disk store beside the one in memory.
    Disk,
}

/// What the limits of the server are. They refuse nobody: what is measured is a grant, which costs more than a refusal. A key's
/// bucket is not full again before it is asked the next time, so that rows stay.
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
/// One row for everybody: the log is a slice ahead, and few answers wait.
const SALE: &[&str] = &["TG.ACQUIRE", "sale", "key:__rand_int__"];
/// The first units of a key, which are not written down.
const RATE: &[&str] = &["TG.ACQUIRE", "rate", "key:__rand_int__"];
/// Every decision is a record of its own, and is waited for.
const HUNDRED: &[&str] = &["TG.ACQUIRE", "hundred", "key:__rand_int__"];
const PING: &[&str] = &["PING"];
const INCR: &[&str] = &["INCR", "key:__rand_int__"];

/// What is asked of a ratio.
struct Bar {
    at_least: f64,
    goal: Option<f64>,
    /// How many times theirs our slowest hundredth may be.
    p99_at_most: Option<f64>,
}

/// Two figures that are compared.
struct Pair {
    name: &'static str,
    ours: (Peer, Load),
    theirs: (Peer, Load),
    bar: Bar,
}

/// Measures everything and prints a table.
pub(crate) fn run(what: What, effort: Effort) -> Outcome {
    let workspace = Workspace::load()?;
    let folder = prepare(&workspace)?;
    std::fs::write(folder.join("serve.yaml"), LIMITS)?;
    let places = Places {
        tidegate: workspace.target.join("release/tidegate"),
        throttlecrab: if what.is_over_http() { throttlecrab(&folder)? } else { PathBuf::new() },
        folder,
    };
    refuse_memory(&places)?;
    println!("\n| what | server | rate /s | CPU us/request | p50 ms | p99 ms | ratio | bar |");
    println!("|---|---|---|---|---|---|---|---|");
    for pair in pairs().iter().chain(&on_disk()).filter(|pair| what.is_about(pair)) {
        measure(pair, effort, &places)?;
    }
    if what == What::Everything { memory(&places) } else { Ok(()) }
}

impl What {
    const fn is_over_http(self) -> bool {
        matches!(self, What::Everything | What::Http)
    }

    fn is_about(self, pair: &Pair) -> bool {
        let is_on_disk = pair.ours.0 == Peer::OnDisk;
        let is_over_http = matches!(pair.ours.1, Load::Wrk { .. });
        match self {
            What::Everything => true,
            What::Resp => !is_on_disk && !is_over_http,
            What::Http => !is_on_disk && is_over_http,
            What::Disk => is_on_disk,
        }
    }
}

/// Builds what is measured; where everything else goes.
fn prepare(workspace: &Workspace) -> Outcome<PathBuf> {
    needs::meet_for_bench()?;
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--locked"]).current_dir(&workspace.root);
    if !process::run_shown(build)?.succeeded() {
        return Err("the release build failed".into());
    }
    let folder = workspace.target.join("bench");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// A disk that is memory says nothing about disks.
fn refuse_memory(places: &Places) -> Outcome {
    let mut stat = Command::new("stat");
    stat.args(["-f", "-c", "%T"]).arg(&places.folder);
    let kind = String::from_utf8(stat.output()?.stdout)?;
    match kind.trim() {
        "tmpfs" | "ramfs" => Err(format!(
            "{} is in memory; set CARGO_TARGET_DIR to a directory on a disk",
            places.folder.display()
        )
        .into()),
        _ => Ok(()),
    }
}

/// The disk store beside the one in memory.
fn on_disk() -> Vec<Pair> {
    const FEW: u32 = 100_000;
    const MANY: u32 = 1_000_000;
    let pair = |name, command, keys, at_least| {
        let load = Load::RedisBenchmark { connections: 50, depth: 64, keys, command };
        let bar = Bar { at_least, goal: None, p99_at_most: Some(3.0) };
        Pair { name, ours: (Peer::OnDisk, load), theirs: (Peer::Tidegate, load), bar }
    };
    vec![
        pair("RESP, 64 deep, on disk: one row for all", SALE, FEW, 0.9),
        pair("RESP, 64 deep, on disk: a million a second for each of 100,000 keys", RATE, FEW, 0.9),
        pair("RESP, 64 deep, on disk: a hundred a day for each of 1,000,000 keys", HUNDRED, MANY, 0.75),
    ]
}

fn pairs() -> Vec<Pair> {
    let resp = |depth, command| Load::RedisBenchmark { connections: 50, depth, keys: KEYS, command };
    let pipelined = |command| Load::Own { connections: 8, depth: 64, command };
    let bar = |at_least, goal| Bar { at_least, goal, p99_at_most: None };
    let calm = |command| Load::RedisBenchmark { connections: 32, depth: 1, keys: KEYS, command };
    vec![
        Pair {
            name: "RESP, not pipelined, 50 connections",
            ours: (Peer::Tidegate, resp(1, ACQUIRE)),
            theirs: (Peer::Redis, resp(1, PING)),
            bar: bar(0.85, Some(1.0)),
        },
        Pair {
            name: "RESP, 16 deep",
            ours: (Peer::Tidegate, resp(16, ACQUIRE)),
            theirs: (Peer::Redis, resp(16, INCR)),
            bar: bar(1.0, None),
        },
        Pair {
            name: "RESP, 64 deep",
            ours: (Peer::Tidegate, resp(64, ACQUIRE)),
            theirs: (Peer::Redis, resp(64, PING)),
            bar: bar(0.5, None),
        },
        Pair {
            name: "RESP, 64 deep, cheaper load",
            ours: (Peer::Tidegate, pipelined(ACQUIRE)),
            theirs: (Peer::Redis, pipelined(PING)),
            bar: bar(1.0, None),
        },
        Pair {
            name: "RESP, 32 connections",
            ours: (Peer::Tidegate, calm(ACQUIRE)),
            theirs: (Peer::Redis, calm(PING)),
            bar: Bar { p99_at_most: Some(3.0), ..bar(0.85, Some(1.0)) },
        },
        Pair {
            name: "HTTP `POST /v1/acquire`, 32 connections",
            ours: (Peer::Tidegate, Load::Wrk { connections: 32 }),
            theirs: (Peer::Nginx, Load::Wrk { connections: 32 }),
            bar: bar(0.85, Some(1.0)),
        },
        Pair {
            name: "HTTP, 32 connections",
            ours: (Peer::Tidegate, Load::Wrk { connections: 32 }),
            theirs: (Peer::Throttlecrab, Load::Wrk { connections: 32 }),
            bar: bar(1.15, None),
        },
    ]
}

fn measure(pair: &Pair, effort: Effort, places: &Places) -> Outcome {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds() {
        for ((peer, load), figures) in [(&pair.ours, &mut ours), (&pair.theirs, &mut theirs)] {
            let running = peer.start(places)?;
            figures.push(load.put(&running, effort, places)?);
        }
    }
    let (ours, theirs) = (median(ours), median(theirs));
    let ratio = ours.rate / theirs.rate;
    let Bar { at_least, goal, p99_at_most } = pair.bar;
    let verdict = match goal {
        Some(goal) if ratio >= goal => "met, with its goal",
        _ if ratio >= at_least => "met",
        _ => "missed",
    };
    let row = |what: &str, peer: Peer, figure: &Figure, rest: &str| {
        let Figure { rate, micros, p50, p99 } = figure;
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

/// How much a million keys add to the server.
fn memory(places: &Places) -> Outcome {
    const KEYS: u64 = 1_000_000;
    const MOST_MEBIBYTES: f64 = 48.0;
    println!("\n| limit | live keys | RSS above the empty server, MiB | bar |\n|---|---|---|---|");
    for limit in ["hourly", "day"] {
        let running = Peer::Tidegate.start(places)?;
        let before = running.resident()?;
        load::distinct(running.resp(), limit, KEYS)?;
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let grown = (running.resident()?.saturating_sub(before)) as f64 / 1_048_576.0;
        let verdict = if grown < MOST_MEBIBYTES { "met" } else { "missed" };
        println!("| {limit} | {KEYS} | {grown:.1} | under {MOST_MEBIBYTES}, {verdict} |");
    }
    Ok(())
}

/// throttlecrab's server, built once.
fn throttlecrab(folder: &std::path::Path) -> Outcome<PathBuf> {
    let root = folder.join("peers");
    let program = root.join("bin/throttlecrab-server");
    if !program.exists() {
        let mut install = Command::new("cargo");
        install.args(["install", "--locked", "throttlecrab-server", "--root"]).arg(&root);
        if !process::run_shown(install)?.succeeded() {
            return Err(
                "throttlecrab-server cannot be built; it is one of those that are measured beside".into()
            );
        }
    }
    Ok(program)
}
