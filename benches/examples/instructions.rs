//! The hot paths, to be counted instruction by instruction: `cargo xtask instructions`.
//!
//! Times on a shared machine differ from minute to minute; instructions do not. A run of this program walks one path and
//! only [`walk`] is counted: everything is prepared before it is entered, and the clock stands still, or takes the same step whenever
//! it is read: sliding windows are not what they are if nothing slides. Without an argument the program lists the paths and how many decisions each makes.

#![allow(clippy::print_stdout, reason = "what it says is its standard output")]
#![allow(clippy::print_stderr, reason = "so is what went wrong")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::model::Timestamp;
use tidegate_bench::subjects::submit::{Submit, Together};
use tidegate_bench::subjects::tidegate::Tidegate;
use tidegate_bench::{Asker, Keys, Reach, Rule, Shape, Subject};

/// How many decisions are counted; a multiple of a batch.
const DECISIONS: usize = 16 * 1024;
const MANY: u64 = 100_000;

/// How a store is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    /// Through the handles of the memory store.
    Handle,
    /// By `submit`, as any store.
    Submit,
    /// The same, four limits in one order.
    Together,
}

/// A clock that stands still, and so never goes back. It takes next to no instructions.
struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        // Some time after the epoch, so that no window begins with the clock.
        Timestamp::from_ticks(1_700_000_000_000_000_000)
    }

    fn may_go_back(&self) -> bool {
        false
    }
}

/// A clock that goes so many nanoseconds further whenever it is read.
struct Stepping {
    step: u64,
    now: AtomicU64,
}

impl Stepping {
    fn new(step: Duration) -> Stepping {
        let step = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
        Stepping { step, now: AtomicU64::new(Still.now().ticks()) }
    }
}

impl Clock for Stepping {
    fn now(&self) -> Timestamp {
        Timestamp::from_ticks(self.now.fetch_add(self.step, Ordering::Relaxed))
    }

    fn may_go_back(&self) -> bool {
        false
    }
}

/// A path: what is limited, which keys were there before, which are asked for, and how.
struct Path {
    name: &'static str,
    rules: Vec<(Rule, Reach)>,
    before: Keys,
    keys: Keys,
    shape: Shape,
    door: Door,
    /// How far the clock goes from one decision to the next.
    step: Duration,
    /// How many of them must be granted, or it is not the path it says.
    granted: usize,
}

impl Path {
    /// A path on which everything is granted, one by one, for a key that was there before.
    fn hot(name: &'static str, rules: Vec<(Rule, Reach)>) -> Path {
        let keys = Keys::hot(DECISIONS);
        let (shape, door) = (Shape::Singles, Door::Handle);
        let step = Duration::ZERO;
        Path { name, rules, before: keys.clone(), keys, shape, door, step, granted: DECISIONS }
    }

    /// A path on which four limits are asked in one order, the last of them for each key.
    fn together(name: &'static str, rules: [Rule; 4], step: Duration) -> Path {
        let [server, route, backend, client] = rules;
        let shared = [server, route, backend].map(|rule| (rule, Reach::Shared));
        Path { door: Door::Together, step, ..Path::hot(name, [&shared[..], &per_key(client)].concat()) }
    }

    /// The same for keys out of many.
    fn among_many(name: &'static str, shape: Shape) -> Path {
        let keys = Keys::random(DECISIONS, MANY, 1);
        Path { before: Keys::each(MANY), keys, shape, ..Path::hot(name, per_key(Rule::LIVE)) }
    }
}

fn per_key(rule: Rule) -> Vec<(Rule, Reach)> {
    vec![(rule, Reach::PerKey)]
}

fn paths() -> [Path; 12] {
    let four = [vec![(Rule::FREE, Reach::Shared); 3], per_key(Rule::FREE)].concat();
    let new = Keys::each(DECISIONS as u64);
    let (many, fast) = (Rule::PerSecond(900_000), Duration::from_micros(20));
    let (some, slow) = (Rule::PerSecond(1_000), Duration::from_millis(40));
    [
        Path::hot("hot_granted", per_key(Rule::FREE)),
        Path { granted: 0, ..Path::hot("hot_refused", per_key(Rule::SPENT)) },
        Path::among_many("hit_among_100k", Shape::Singles),
        Path::among_many("batch_of_16", Shape::Batches),
        Path::hot("set_of_four", four),
        Path { door: Door::Submit, ..Path::hot("submit_hot_granted", per_key(Rule::FREE)) },
        Path { door: Door::Submit, ..Path::among_many("submit_batch_of_16", Shape::Batches) },
        Path { before: Keys::default(), keys: new, ..Path::hot("insert_new_key", per_key(Rule::LIVE)) },
        Path::together("order_fixed", [Rule::FREE; 4], fast),
        Path::together("order_sliding", [many; 4], fast),
        Path::together("order_exact", [some, some, some, Rule::PerSecond(30)], slow),
        Path { granted: 0, ..Path::together("order_refused", [many, Rule::PerSecond(1), many, many], fast) },
    ]
}

fn main() -> ExitCode {
    let Some(wanted) = std::env::args().nth(1) else {
        for path in paths() {
            println!("{} {DECISIONS}", path.name);
        }
        return ExitCode::SUCCESS;
    };
    match paths().iter().find(|path| path.name == wanted).map(follow) {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(failure)) => failed(&failure),
        None => failed("no such path"),
    }
}

fn failed(failure: &str) -> ExitCode {
    eprintln!("instructions: {failure}");
    ExitCode::FAILURE
}

/// Prepares a path and walks it.
fn follow(path: &Path) -> Result<(), String> {
    let subject: Box<dyn Subject> = match (path.door, path.rules.as_slice()) {
        (Door::Submit, [(rule, Reach::PerKey)]) => Box::new(Submit::memory(Still, *rule)),
        (Door::Together, rules) => {
            let together = Together::memory(Stepping::new(path.step), rules);
            Box::new(together.ok_or("an order is over four limits")?)
        }
        (Door::Submit, _) => return Err("only one limit is asked by the door".to_owned()),
        (Door::Handle, rules) => Box::new(Tidegate::new(Still, rules)),
    };
    let mut asker = subject.asker();
    asker.singles(&path.before);
    let granted = walk(asker.as_mut(), path);
    if granted == path.granted {
        Ok(())
    } else {
        Err(format!("{}: {granted} were granted in place of {}", path.name, path.granted))
    }
}

/// What is counted.
#[inline(never)]
fn walk(asker: &mut dyn Asker, path: &Path) -> usize {
    match path.shape {
        Shape::Singles => asker.singles(&path.keys),
        Shape::Batches => asker.batches(&path.keys),
    }
}
