//! `cargo xtask bench serve`: the service beside its peers, over real sockets, in the same run.
//!
//! A server runs on the first core and whoever asks on the second, one pair at a time and several times in turn; a figure is the
//! median of its rounds. Peers are installed here and are dependencies of nothing: Redis, nginx and wrk as Debian packages,
//! throttlecrab-server with cargo, below `target/bench`.
//!
//! Rates on a shared machine are noisy, so bars are ratios. Beside every rate stands what it costs the server in processor time,
//! because a rate says little when whoever asks is the slower one.

mod load;
mod measured;
mod peers;

use std::path::PathBuf;
use std::process::Command;

use crate::workspace::Workspace;
use crate::{Outcome, needs, process};
use load::Load;
use measured::{Figure, median};
use peers::{Peer, Places};

pub(crate) use load::generate;

/// How often every pair is measured.
const ROUNDS: usize = 3;

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
";

const ACQUIRE: &[&str] = &["TG.ACQUIRE", "api", "key:__rand_int__"];
const PING: &[&str] = &["PING"];
const INCR: &[&str] = &["INCR", "key:__rand_int__"];

/// What is asked of a ratio.
struct Bar {
    at_least: f64,
    goal: Option<f64>,
}

/// Two figures that are compared.
struct Pair {
    name: &'static str,
    ours: (Peer, Load),
    theirs: (Peer, Load),
    bar: Bar,
}

/// Measures everything and prints a table.
pub(crate) fn run() -> Outcome {
    let workspace = Workspace::load()?;
    needs::meet_for_bench()?;
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--locked"]).current_dir(&workspace.root);
    if !process::run_shown(build)?.succeeded() {
        return Err("the release build failed".into());
    }
    let folder = workspace.target.join("bench");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("serve.yaml"), LIMITS)?;
    let places = Places {
        tidegate: workspace.target.join("release/tidegate"),
        throttlecrab: throttlecrab(&folder)?,
        folder,
    };
    println!("\n| what | server | rate /s | CPU us/request | p50 ms | p99 ms | ratio | bar |");
    println!("|---|---|---|---|---|---|---|---|");
    for pair in pairs() {
        measure(&pair, &places)?;
    }
    memory(&places)
}

fn pairs() -> Vec<Pair> {
    let resp = |depth, command| Load::RedisBenchmark { connections: 50, depth, command };
    let pipelined = |command| Load::Own { connections: 8, depth: 64, command };
    let bar = |at_least, goal| Bar { at_least, goal };
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
            name: "RESP, 32 connections (bar on p99: at most 3x)",
            ours: (Peer::Tidegate, Load::RedisBenchmark { connections: 32, depth: 1, command: ACQUIRE }),
            theirs: (Peer::Redis, Load::RedisBenchmark { connections: 32, depth: 1, command: PING }),
            bar: bar(0.85, Some(1.0)),
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

fn measure(pair: &Pair, places: &Places) -> Outcome {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for ((peer, load), figures) in [(&pair.ours, &mut ours), (&pair.theirs, &mut theirs)] {
            let running = peer.start(places)?;
            figures.push(load.put(&running, places)?);
        }
    }
    let (ours, theirs) = (median(ours), median(theirs));
    let ratio = ours.rate / theirs.rate;
    let Bar { at_least, goal } = pair.bar;
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
    let slowest = ours.p99.over(theirs.p99).map_or(String::new(), |times| format!(", p99 {times:.2}x"));
    let cost = format!("CPU {:.2}x{slowest} | ", ours.micros / theirs.micros);
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
