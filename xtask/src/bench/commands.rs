//! `cargo xtask bench`: benchmarks of `tidegate simulate` and `tidegate pipe`.
//!
//! Input files are generated once under `target/bench` with a fixed seed. Every command reads one of them and writes to
//! `/dev/null`. `pipe` runs pinned to one core. Two baselines run in the same table: `cat`, which only copies, and a
//! direct Python implementation of the two-queue throttle (`benches/original_throttle.py`).
//!
//! Absolute times on a shared machine are noisy. Compare ratios of rows from the same run.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::workspace::Workspace;
use crate::{TaskResult, process};

const LIMITS: &str = "\
limits:
  - id: sale
    time_zone: Asia/Shanghai
    items:
      - {policy: total, limit: 100000000}
      - {policy: day, limit: 50, per: key}
";

const MORE_LIMITS: &str = "      - {policy: sliding, limit: 5, per: key, window: 15s}\n";

/// One benchmark case.
struct CommandCase {
    name: String,
    /// Number of input lines.
    lines: u64,
    input: PathBuf,
    program: String,
    args: Vec<String>,
}

/// Paths of the programs and of the generated inputs.
struct CommandPaths {
    tidegate: PathBuf,
    baseline: PathBuf,
    folder: PathBuf,
}

/// Runs every case and prints a Markdown table.
pub(crate) fn run() -> TaskResult {
    let workspace = Workspace::load()?;
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--locked"]).current_dir(&workspace.root);
    if !process::run_shown(build)?.succeeded() {
        return Err("the release build failed".into());
    }
    let paths = CommandPaths {
        tidegate: workspace.target.join("release/tidegate"),
        baseline: workspace.root.join("benches/original_throttle.py"),
        folder: workspace.target.join("bench"),
    };
    std::fs::create_dir_all(&paths.folder)?;
    println!("\n| case | lines | seconds | lines/s | ns/line |\n|---|---|---|---|---|");
    for case in simulations(&paths)?.into_iter().chain(pipes(&paths)?) {
        let seconds = case.measure()?;
        #[expect(clippy::cast_precision_loss, reason = "display only")]
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

fn simulations(paths: &CommandPaths) -> TaskResult<Vec<CommandCase>> {
    let two = paths.folder.join("two-items.yaml");
    std::fs::write(&two, LIMITS)?;
    let three = paths.folder.join("three-items.yaml");
    std::fs::write(&three, format!("{LIMITS}{MORE_LIMITS}"))?;
    let mut cases = Vec::new();
    for lines in [1_000_000, 10_000_000] {
        let input = paths.generate(&format!("events-{lines}.ndjson"), lines, |line, random| {
            let (at, key) = (event_time(line), random % 100_000);
            format!("{{\"at\":{at},\"limit_id\":\"sale\",\"limit_key\":\"user-{key:06}\",\"count\":1}}\n")
        })?;
        for (items, limits) in [("two", &two), ("three", &three)] {
            cases.push(CommandCase {
                name: format!("`simulate`, {items} items, 100,000 keys"),
                lines,
                input: input.clone(),
                program: paths.tidegate.display().to_string(),
                args: vec!["simulate".to_owned(), "--limits".to_owned(), limits.display().to_string()],
            });
        }
    }
    Ok(cases)
}

fn pipes(paths: &CommandPaths) -> TaskResult<Vec<CommandCase>> {
    let tidegate = paths.tidegate.display().to_string();
    let baseline = paths.baseline.display().to_string();
    let mut cases = Vec::new();
    for (users, lines) in [(1_000, 1_000_000), (1_000, 5_000_000), (1_000_000, 5_000_000)] {
        let input = paths.messages(users, lines)?;
        let wide = ["pipe", "--global", "100000000/60s", "--per-key", "1000000/60s"];
        let narrow = ["pipe", "--global", "1000000/60s", "--per-key", "10/60s", "--time-field", "ts"];
        let mut add =
            |name, program, args| cases.push(on_one_core(name, users, lines, &input, program, args));
        add("`cat`", "cat", &[][..]);
        add("`pipe`, all pass", &tidegate, &wide);
        add("`pipe`, defaults, nearly all refused", &tidegate, &["pipe"]);
        add("`pipe --time-field`, 10 per user", &tidegate, &narrow);
    }
    // The baseline takes time proportional to users times messages, so a short input is enough.
    for users in [100, 10_000] {
        let lines = 20_000;
        let input = paths.messages(users, lines)?;
        let wide = ["pipe", "--global", "1000000/60s", "--per-key", "1000000/60s", "--time-field", "ts"];
        let slow = [baseline.as_str(), "1000000", "1000000", "60"];
        let mut add =
            |name, program, args| cases.push(on_one_core(name, users, lines, &input, program, args));
        add("two queues in Python, all pass", "python3", &slow[..]);
        add("`pipe --time-field`, all pass", &tidegate, &wide);
    }
    Ok(cases)
}

fn on_one_core(
    name: &str,
    users: u64,
    lines: u64,
    input: &Path,
    program: &str,
    args: &[&str],
) -> CommandCase {
    CommandCase {
        name: format!("{name}, {users} users"),
        lines,
        input: input.to_owned(),
        program: "taskset".to_owned(),
        args: ["-c", "0", program].iter().chain(args).map(|&arg| arg.to_owned()).collect(),
    }
}

/// Event time of a line in seconds: 20,000 lines per second.
fn event_time(line: u64) -> String {
    format!("{}.{:06}", 1_700_000_000 + line / 20_000, line % 20_000 * 50)
}

impl CommandPaths {
    /// Generates messages of about 100 bytes from `users` users.
    fn messages(&self, users: u64, lines: u64) -> TaskResult<PathBuf> {
        self.generate(&format!("messages-{users}-{lines}.ndjson"), lines, |line, random| {
            let (at, user, text) =
                (event_time(line), random % users, "hello, this is a message of a hundred");
            format!("{{\"ts\":{at},\"user_id\":\"user-{user:07}\",\"text\":\"{text}\"}}\n")
        })
    }

    /// Generates a file of `lines` lines unless it exists.
    fn generate(&self, name: &str, lines: u64, line: impl Fn(u64, u64) -> String) -> TaskResult<PathBuf> {
        let path = self.folder.join(name);
        if !path.exists() {
            let partial = self.folder.join("partial");
            let mut file = BufWriter::new(File::create(&partial)?);
            let mut random: u64 = 1;
            for number in 0..lines {
                // Knuth's linear congruential generator: the same lines on every machine.
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

impl CommandCase {
    /// Seconds of the faster of two runs.
    fn measure(&self) -> TaskResult<f64> {
        let once = |input: &Path| -> TaskResult<f64> {
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
