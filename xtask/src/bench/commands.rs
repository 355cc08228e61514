//! Benchmarks of the commands, as the manual tells them: made here, so that anybody can make them again.
//!
//! Inputs are written once under `target/bench`, always the same bytes. Every command reads one of them from a file and
//! writes to nothing. `pipe` is held on one core. Beside it run what can be had on any machine: `cat`, which only copies, and
//! document 001's own algorithm in Python, which cleans every user's queue for every message.
//!
//! Times on a shared machine are noisy; what counts is the ratio of lines that were measured in the same run.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::workspace::Workspace;
use crate::{Outcome, process};

const LIMITS: &str = "\
limits:
  - id: sale
    time_zone: Asia/Shanghai
    items:
      - {policy: total, limit: 100000000}
      - {policy: day, limit: 50, per: key}
";

const MORE_LIMITS: &str = "      - {policy: sliding, limit: 5, per: key, window: 15s}\n";

/// Something that is measured.
struct Case {
    name: String,
    /// How many lines it reads.
    lines: u64,
    input: PathBuf,
    program: String,
    args: Vec<String>,
}

/// Where things are.
struct Place {
    tidegate: PathBuf,
    original: PathBuf,
    folder: PathBuf,
}

/// Measures everything and prints a table.
pub(crate) fn run() -> Outcome {
    let workspace = Workspace::load()?;
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--locked"]).current_dir(&workspace.root);
    if !process::run_shown(build)?.succeeded() {
        return Err("the release build failed".into());
    }
    let place = Place {
        tidegate: workspace.target.join("release/tidegate"),
        original: workspace.root.join("benches/original_throttle.py"),
        folder: workspace.target.join("bench"),
    };
    std::fs::create_dir_all(&place.folder)?;
    println!("\n| case | lines | seconds | lines/s | ns/line |\n|---|---|---|---|---|");
    for case in simulations(&place)?.into_iter().chain(pipes(&place)?) {
        let seconds = case.measure()?;
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let lines = case.lines as f64;
        println!(
            "| {} | {} | {seconds:.2} | {:.0} | {:.0} |",
            case.name,
            case.lines,
            lines / seconds,
            seconds * 1e9 / lines
        );
    }
    Ok(())
}

fn simulations(place: &Place) -> Outcome<Vec<Case>> {
    let two = place.folder.join("two-items.yaml");
    std::fs::write(&two, LIMITS)?;
    let three = place.folder.join("three-items.yaml");
    std::fs::write(&three, format!("{LIMITS}{MORE_LIMITS}"))?;
    let mut cases = Vec::new();
    for lines in [1_000_000, 10_000_000] {
        let input = place.written(&format!("events-{lines}.ndjson"), lines, |line, random| {
            let (at, key) = (at(line), random % 100_000);
            format!("{{\"at\":{at},\"limit_id\":\"sale\",\"limit_key\":\"user-{key:06}\",\"count\":1}}\n")
        })?;
        for (items, limits) in [("two", &two), ("three", &three)] {
            cases.push(Case {
                name: format!("`simulate`, {items} items, 100,000 keys"),
                lines,
                input: input.clone(),
                program: place.tidegate.display().to_string(),
                args: vec!["simulate".to_owned(), "--limits".to_owned(), limits.display().to_string()],
            });
        }
    }
    Ok(cases)
}

fn pipes(place: &Place) -> Outcome<Vec<Case>> {
    let tidegate = place.tidegate.display().to_string();
    let original = place.original.display().to_string();
    let mut cases = Vec::new();
    for (users, lines) in [(1_000, 1_000_000), (1_000, 5_000_000), (1_000_000, 5_000_000)] {
        let input = place.messages(users, lines)?;
        let wide = ["pipe", "--global", "100000000/60s", "--per-key", "1000000/60s"];
        let narrow = ["pipe", "--global", "1000000/60s", "--per-key", "10/60s", "--time-field", "ts"];
        let mut add =
            |name, program, args| cases.push(on_one_core(name, users, lines, &input, program, args));
        add("`cat`", "cat", &[][..]);
        add("`pipe`, all pass", &tidegate, &wide);
        add("`pipe`, defaults, nearly all refused", &tidegate, &["pipe"]);
        add("`pipe --time-field`, 10 per user", &tidegate, &narrow);
    }
    // The original takes its time for each user and message; a short input tells as much as a long one.
    for users in [100, 10_000] {
        let lines = 20_000;
        let input = place.messages(users, lines)?;
        let wide = ["pipe", "--global", "1000000/60s", "--per-key", "1000000/60s", "--time-field", "ts"];
        let slow = [original.as_str(), "1000000", "1000000", "60"];
        let mut add =
            |name, program, args| cases.push(on_one_core(name, users, lines, &input, program, args));
        add("the original's algorithm, all pass", "python3", &slow[..]);
        add("`pipe --time-field`, all pass", &tidegate, &wide);
    }
    Ok(cases)
}

fn on_one_core(name: &str, users: u64, lines: u64, input: &Path, program: &str, args: &[&str]) -> Case {
    Case {
        name: format!("{name}, {users} users"),
        lines,
        input: input.to_owned(),
        program: "taskset".to_owned(),
        args: ["-c", "0", program].iter().chain(args).map(|&arg| arg.to_owned()).collect(),
    }
}

/// Twenty thousand lines a second, as seconds with a fraction.
fn at(line: u64) -> String {
    format!("{}.{:06}", 1_700_000_000 + line / 20_000, line % 20_000 * 50)
}

impl Place {
    /// Messages of a hundred bytes from so many users.
    fn messages(&self, users: u64, lines: u64) -> Outcome<PathBuf> {
        self.written(&format!("messages-{users}-{lines}.ndjson"), lines, |line, random| {
            let (at, user, text) = (at(line), random % users, "hello, this is a message of a hundred");
            format!("{{\"ts\":{at},\"user_id\":\"user-{user:07}\",\"text\":\"{text}\"}}\n")
        })
    }

    /// A file of this many lines, written unless it is there.
    fn written(&self, name: &str, lines: u64, line: impl Fn(u64, u64) -> String) -> Outcome<PathBuf> {
        let path = self.folder.join(name);
        if !path.exists() {
            let partial = self.folder.join("partial");
            let mut file = BufWriter::new(File::create(&partial)?);
            let mut random: u64 = 1;
            for number in 0..lines {
                // Knuth's multiplier: the same lines on every machine.
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                file.write_all(line(number, random >> 33).as_bytes())?;
            }
            file.flush()?;
            std::fs::rename(partial, &path)?;
        }
        Ok(path)
    }
}

impl Case {
    /// How many seconds it takes, the better of two runs.
    fn measure(&self) -> Outcome<f64> {
        let once = |input: &Path| -> Outcome<f64> {
            let mut command = Command::new(&self.program);
            command.args(&self.args).stdin(File::open(input)?).stdout(Stdio::null());
            let start = Instant::now();
            let status = command.status().map_err(|error| format!("{}: {error}", self.program))?;
            let seconds = start.elapsed().as_secs_f64();
            if status.success() { Ok(seconds) } else { Err(format!("{}: {status}", self.name).into()) }
        };
        Ok(once(&self.input)?.min(once(&self.input)?))
    }
}
