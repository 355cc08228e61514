//! Load generators: redis-benchmark and wrk, and a built-in one for loads where those tools are the bottleneck.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use super::figures::{Latency, Measurement, has_only_successes, parse_redis_benchmark, parse_wrk};
use super::peers::{BenchPaths, Peer, RunningServer};
use super::servers::BenchEffort;
use crate::TaskResult;

/// CPU core of the load generator.
pub(super) const CLIENTS_CORE: &str = "1";
/// Approximate duration of one load.
pub(super) const SECONDS: u64 = 5;
/// Number of distinct keys.
pub(super) const KEYS: u32 = 100_000;

/// A load on a server.
#[derive(Debug, Clone, Copy)]
pub(super) enum Load {
    RedisBenchmark {
        connections: u32,
        depth: u32,
        keys: u32,
        command: &'static [&'static str],
    },
    /// Pre-encoded pipelines that are sent repeatedly. Replies are counted, not parsed.
    Pipelines {
        connections: usize,
        depth: usize,
        command: &'static [&'static str],
    },
    Wrk {
        connections: u32,
    },
}

impl Load {
    /// Runs the load against a server.
    pub(super) fn run(
        self,
        on: &RunningServer,
        effort: BenchEffort,
        paths: &BenchPaths,
    ) -> TaskResult<Measurement> {
        let before = on.processor_time()?;
        let (requests, (rate, p50, p99)) = match self {
            Load::RedisBenchmark { connections, depth, keys, command } => {
                let requests = match effort {
                    BenchEffort::Full => request_count(depth),
                    BenchEffort::Quick => request_count(depth) / 20,
                };
                let text = redis_benchmark(on, requests, [connections, depth, keys], command)?;
                #[expect(clippy::cast_precision_loss, reason = "a measurement for people")]
                (requests as f64, parse_redis_benchmark(&text).ok_or(text)?)
            }
            Load::Pipelines { connections, depth, command } => {
                let (connections, depth) = (connections.to_string(), depth.to_string());
                let address = on.resp().to_string();
                let mut words = vec!["load", &address, &connections, &depth];
                words.extend(command);
                let text = pinned(&std::env::current_exe()?.display().to_string(), &words)?;
                let rate: f64 = text.trim().parse().map_err(|_| text.clone())?;
                #[expect(clippy::cast_precision_loss, reason = "a measurement for people")]
                (rate * SECONDS as f64, (rate, Latency(None), Latency(None)))
            }
            Load::Wrk { connections } => {
                let text = wrk(on, connections, paths)?;
                if !has_only_successes(&text) {
                    return Err(format!("{} returned errors:\n{text}", on.peer.name()).into());
                }
                let parsed = parse_wrk(&text).ok_or(text)?;
                #[expect(clippy::cast_precision_loss, reason = "a measurement for people")]
                (parsed.0 * SECONDS as f64, parsed)
            }
        };
        let micros = (on.processor_time()? - before) / requests;
        Ok(Measurement { rate, micros, p50, p99 })
    }
}

/// Number of requests that take about five seconds at this pipeline depth.
const fn request_count(depth: u32) -> u64 {
    match depth {
        1 => 300_000,
        2..=16 => 3_000_000,
        _ => 6_000_000,
    }
}

fn redis_benchmark(
    on: &RunningServer,
    requests: u64,
    numbers: [u32; 3],
    command: &[&str],
) -> TaskResult<String> {
    let (port, requests) = (on.resp().port().to_string(), requests.to_string());
    let [connections, depth, keys] = numbers.map(|number| number.to_string());
    let mut words =
        vec!["-p", &port, "-n", &requests, "-c", &connections, "-P", &depth, "-r", &keys, "--csv"];
    words.extend(command);
    pinned("redis-benchmark", &words)
}

fn wrk(on: &RunningServer, connections: u32, paths: &BenchPaths) -> TaskResult<String> {
    let script = paths.folder.join("wrk.lua");
    let (path, body) = match on.peer {
        Peer::Tidegate | Peer::OnDisk => ("/v1/acquire", r#"{"limit_id":"api","limit_key":"user-1"}"#),
        Peer::Throttlecrab => (
            "/throttle",
            r#"{"key":"user-1","max_burst":1000000000,"count_per_period":1000000000,"period":1}"#,
        ),
        Peer::Nginx | Peer::Redis => ("/", ""),
    };
    let text = if body.is_empty() {
        String::new()
    } else {
        format!(
            "wrk.method = \"POST\"\nwrk.body = '{body}'\nwrk.headers[\"Content-Type\"] = \"application/json\"\n"
        )
    };
    std::fs::write(&script, text)?;
    let (url, connections) = (format!("http://{}{path}", on.http()), connections.to_string());
    let (script, seconds) = (script.display().to_string(), format!("{SECONDS}s"));
    pinned("wrk", &["-t1", "-c", &connections, "-d", &seconds, "--latency", "-s", &script, &url])
}

pub(super) fn pinned(program: &str, words: &[&str]) -> TaskResult<String> {
    let mut command = Command::new("taskset");
    command.args(["-c", CLIENTS_CORE, program]).args(words);
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        Err(format!("{program} failed: {text}{}", String::from_utf8_lossy(&output.stderr)).into())
    }
}

/// `xtask load ADDRESS CONNECTIONS DEPTH COMMAND…`: runs for about five seconds and prints replies per second.
pub(crate) fn generate(words: &[&str]) -> TaskResult {
    let [address, connections, depth, command @ ..] = words else {
        return Err("load ADDRESS CONNECTIONS DEPTH COMMAND…".into());
    };
    let (connections, depth): (usize, usize) = (connections.parse()?, depth.parse()?);
    let mut pool = Vec::new();
    for number in 0..connections {
        let keys = (0..depth).map(|at| format!("key:{:012}", number * depth + at));
        let batch: Vec<u8> = keys.flat_map(|key| encode_command(command, &key)).collect();
        pool.push(LoadConnection::open(address.parse()?, batch)?);
    }
    let start = Instant::now();
    let mut answered = 0_u64;
    while start.elapsed() < Duration::from_secs(SECONDS) {
        for connection in &mut pool {
            connection.send()?;
        }
        for connection in &mut pool {
            connection.receive(depth, lines_per_reply(command))?;
            answered += depth as u64;
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a measurement for people")]
    let rate = answered as f64 / start.elapsed().as_secs_f64();
    println!("{rate}");
    Ok(())
}

/// Acquires once for each of `keys` distinct keys.
pub(super) fn acquire_distinct_keys(address: SocketAddr, limit: &str, keys: u64) -> TaskResult {
    const DEPTH: u64 = 100;
    let mut connection = LoadConnection::open(address, Vec::new())?;
    for first in (0..keys).step_by(usize::try_from(DEPTH)?) {
        let batch = first..(first + DEPTH).min(keys);
        let depth = usize::try_from(batch.end - batch.start)?;
        let command = ["TG.ACQUIRE", limit, "key:__rand_int__"];
        connection.batch =
            batch.flat_map(|key| encode_command(&command, &format!("key:{key:012}"))).collect();
        connection.send()?;
        connection.receive(depth, lines_per_reply(&command))?;
    }
    Ok(())
}

/// Encodes a command, with `key` in place of the key placeholder.
fn encode_command(command: &[&str], key: &str) -> Vec<u8> {
    let mut frame = format!("*{}\r\n", command.len());
    for word in command {
        let word = if *word == "key:__rand_int__" { key } else { word };
        frame.extend(["$", &word.len().to_string(), "\r\n", word, "\r\n"]);
    }
    frame.into_bytes()
}

/// A connection and its pre-encoded pipeline.
struct LoadConnection {
    stream: TcpStream,
    batch: Vec<u8>,
    buffer: Vec<u8>,
}

impl LoadConnection {
    fn open(address: SocketAddr, batch: Vec<u8>) -> TaskResult<LoadConnection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        // An error reply has fewer lines than expected; the timeout ends the wait for the rest.
        stream.set_read_timeout(Some(Duration::from_secs(SECONDS)))?;
        Ok(LoadConnection { stream, batch, buffer: vec![0; 64 * 1024] })
    }

    fn send(&mut self) -> TaskResult {
        Ok(self.stream.write_all(&self.batch)?)
    }

    /// Reads `replies` replies of `lines` lines each.
    fn receive(&mut self, replies: usize, lines: usize) -> TaskResult {
        let mut missing = replies * lines;
        while missing > 0 {
            let length = self.stream.read(&mut self.buffer)?;
            let text = &self.buffer[..length];
            let received = count_lines(text);
            if length == 0 || received > missing {
                return Err(format!("unexpected reply: {}", String::from_utf8_lossy(text)).into());
            }
            missing -= received;
        }
        Ok(())
    }
}

/// Counts line ends. Written in fixed-size chunks so that the compiler vectorizes it: the load generator must not be the
/// bottleneck.
fn count_lines(text: &[u8]) -> usize {
    const FEW: usize = 128;
    let lines =
        |few: &[u8]| few.iter().fold(0_u8, |lines, byte| lines.wrapping_add(u8::from(*byte == b'\n')));
    text.chunks(FEW).map(|few| usize::from(lines(few))).sum()
}

/// Lines per reply: 1 for a status, 10 for the seven elements of a decision.
fn lines_per_reply(command: &[&str]) -> usize {
    if command.first() == Some(&"TG.ACQUIRE") { 10 } else { 1 }
}
