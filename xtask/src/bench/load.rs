//! Whoever asks: other people's tools where they are known, and one of our own where theirs are the slower side.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use super::Effort;
use super::measured::{Figure, Latency, of_redis_benchmark, of_wrk, went_well};
use super::peers::{Peer, Places, Running};
use crate::Outcome;

/// Where whoever asks runs.
pub(super) const ASKERS_CORE: &str = "1";
/// How long a load lasts, about.
pub(super) const SECONDS: u64 = 5;
/// How many keys there are.
pub(super) const KEYS: u32 = 100_000;

/// A way to ask.
#[derive(Debug, Clone, Copy)]
pub(super) enum Load {
    RedisBenchmark {
        connections: u32,
        depth: u32,
        keys: u32,
        command: &'static [&'static str],
    },
    /// Requests that are made once and sent again and again; answers are counted and not looked at.
    Own {
        connections: usize,
        depth: usize,
        command: &'static [&'static str],
    },
    Wrk {
        connections: u32,
    },
}

impl Load {
    /// Puts it on a server.
    pub(super) fn put(self, on: &Running, effort: Effort, places: &Places) -> Outcome<Figure> {
        let before = on.processor_time()?;
        let (requests, (rate, p50, p99)) = match self {
            Load::RedisBenchmark { connections, depth, keys, command } => {
                let requests = match effort {
                    Effort::Full => on_redis_benchmark(depth),
                    Effort::Quick => on_redis_benchmark(depth) / 20,
                };
                let text = redis_benchmark(on, requests, [connections, depth, keys], command)?;
                #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
                (requests as f64, of_redis_benchmark(&text).ok_or(text)?)
            }
            Load::Own { connections, depth, command } => {
                let (connections, depth) = (connections.to_string(), depth.to_string());
                let address = on.resp().to_string();
                let mut words = vec!["load", &address, &connections, &depth];
                words.extend(command);
                let text = pinned(&std::env::current_exe()?.display().to_string(), &words)?;
                let rate: f64 = text.trim().parse().map_err(|_| text.clone())?;
                #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
                (rate * SECONDS as f64, (rate, Latency(None), Latency(None)))
            }
            Load::Wrk { connections } => {
                let text = wrk(on, connections, places)?;
                if !went_well(&text) {
                    return Err(
                        format!("{} refused some of what it was asked:\n{text}", on.peer.name()).into()
                    );
                }
                let told = of_wrk(&text).ok_or(text)?;
                #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
                (told.0 * SECONDS as f64, told)
            }
        };
        let micros = (on.processor_time()? - before) / requests;
        Ok(Figure { rate, micros, p50, p99 })
    }
}

/// Enough requests for some seconds.
const fn on_redis_benchmark(depth: u32) -> u64 {
    match depth {
        1 => 300_000,
        2..=16 => 3_000_000,
        _ => 6_000_000,
    }
}

fn redis_benchmark(on: &Running, requests: u64, numbers: [u32; 3], command: &[&str]) -> Outcome<String> {
    let (port, requests) = (on.resp().port().to_string(), requests.to_string());
    let [connections, depth, keys] = numbers.map(|number| number.to_string());
    let mut words =
        vec!["-p", &port, "-n", &requests, "-c", &connections, "-P", &depth, "-r", &keys, "--csv"];
    words.extend(command);
    pinned("redis-benchmark", &words)
}

fn wrk(on: &Running, connections: u32, places: &Places) -> Outcome<String> {
    let script = places.folder.join("wrk.lua");
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

pub(super) fn pinned(program: &str, words: &[&str]) -> Outcome<String> {
    let mut command = Command::new("taskset");
    command.args(["-c", ASKERS_CORE, program]).args(words);
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        Err(format!("{program} failed: {text}{}", String::from_utf8_lossy(&output.stderr)).into())
    }
}

/// `xtask load ADDRESS CONNECTIONS DEPTH COMMAND…`: asks for some seconds; prints how many were answered in each.
pub(crate) fn generate(words: &[&str]) -> Outcome {
    let [address, connections, depth, command @ ..] = words else {
        return Err("load ADDRESS CONNECTIONS DEPTH COMMAND…".into());
    };
    let (connections, depth): (usize, usize) = (connections.parse()?, depth.parse()?);
    let mut lines = Vec::new();
    for number in 0..connections {
        let keys = (0..depth).map(|at| format!("key:{:012}", number * depth + at));
        let batch: Vec<u8> = keys.flat_map(|key| frame(command, &key)).collect();
        lines.push(Line::open(address.parse()?, batch)?);
    }
    let start = Instant::now();
    let mut answered = 0_u64;
    while start.elapsed() < Duration::from_secs(SECONDS) {
        for line in &mut lines {
            line.ask()?;
        }
        for line in &mut lines {
            line.hear(depth, lines_of_answer(command))?;
            answered += depth as u64;
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let rate = answered as f64 / start.elapsed().as_secs_f64();
    println!("{rate}");
    Ok(())
}

/// Asks once for each of so many keys.
pub(super) fn distinct(address: SocketAddr, limit: &str, keys: u64) -> Outcome {
    const DEPTH: u64 = 100;
    let mut line = Line::open(address, Vec::new())?;
    for first in (0..keys).step_by(usize::try_from(DEPTH)?) {
        let batch = first..(first + DEPTH).min(keys);
        let depth = usize::try_from(batch.end - batch.start)?;
        let command = ["TG.ACQUIRE", limit, "key:__rand_int__"];
        line.batch = batch.flat_map(|key| frame(&command, &format!("key:{key:012}"))).collect();
        line.ask()?;
        line.hear(depth, lines_of_answer(&command))?;
    }
    Ok(())
}

/// A command, with this key where there is one.
fn frame(command: &[&str], key: &str) -> Vec<u8> {
    let mut frame = format!("*{}\r\n", command.len());
    for word in command {
        let word = if *word == "key:__rand_int__" { key } else { word };
        frame.extend(["$", &word.len().to_string(), "\r\n", word, "\r\n"]);
    }
    frame.into_bytes()
}

/// A connection and what it says.
struct Line {
    stream: TcpStream,
    batch: Vec<u8>,
    buffer: Vec<u8>,
}

impl Line {
    fn open(address: SocketAddr, batch: Vec<u8>) -> Outcome<Line> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        // An error has fewer lines than an answer; nobody waits for the others for ever.
        stream.set_read_timeout(Some(Duration::from_secs(SECONDS)))?;
        Ok(Line { stream, batch, buffer: vec![0; 64 * 1024] })
    }

    fn ask(&mut self) -> Outcome {
        Ok(self.stream.write_all(&self.batch)?)
    }

    /// Waits for so many answers of so many lines.
    fn hear(&mut self, answers: usize, lines: usize) -> Outcome {
        let mut missing = answers * lines;
        while missing > 0 {
            let length = self.stream.read(&mut self.buffer)?;
            let text = &self.buffer[..length];
            let heard = lines_in(text);
            if length == 0 || heard > missing {
                return Err(format!("not an answer: {}", String::from_utf8_lossy(text)).into());
            }
            missing -= heard;
        }
        Ok(())
    }
}

/// How many lines end in a text. Whoever counts shares a core with nobody, but must not be slower than who is measured: so it is written as
/// the compiler likes it, a few bytes at a time.
fn lines_in(text: &[u8]) -> usize {
    const FEW: usize = 128;
    let lines =
        |few: &[u8]| few.iter().fold(0_u8, |lines, byte| lines.wrapping_add(u8::from(*byte == b'\n')));
    text.chunks(FEW).map(|few| usize::from(lines(few))).sum()
}

/// How many lines an answer has: a word has one, what is said about a decision seven values in a list.
fn lines_of_answer(command: &[&str]) -> usize {
    if command.first() == Some(&"TG.ACQUIRE") { 10 } else { 1 }
}
