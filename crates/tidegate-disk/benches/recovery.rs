//! `cargo bench -p tidegate-disk`: measures how long a store with many rows takes to open.
//!
//! ```text
//!   cargo bench -p tidegate-disk -- [KEYS…] [--folder DIR]      default: 1 million keys; DIR: where the stores are created
//! ```
//!
//! Every key has one row with one charge. The store is opened in three ways: from a snapshot, as after a
//! clean stop; from a log, as after a crash; and from a snapshot followed by an equally long log with the
//! same rows. Afterwards some keys are checked, so that a fast result is also correct.

#![allow(clippy::print_stdout, reason = "a benchmark's report is its standard output")]
#![allow(clippy::print_stderr, reason = "a benchmark reports errors to its user")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::SystemClock;
use tidegate::model::{Amount, Ask, ItemSpec, LimitSpec, Order, Policy};
use tidegate::reply::{Detail, Replies};
use tidegate::store::Store;
use tidegate_disk::{DiskOptions, DiskStore, Maintenance, RecoveryReport};

/// An error message for the user.
type Failure = Box<dyn std::error::Error>;

const LIMIT: &str = "each";
/// A day does not end during the run, and the limit is small enough that every charge is logged.
const DAY: Duration = Duration::from_secs(86_400);
const MOST: Amount = 100;
/// The number of orders per batch.
const BATCH: usize = 256;
/// Every key with an index divisible by this number is checked.
const SAMPLE: usize = 97;

/// The targets: the maximum duration for a number of keys.
const TARGETS: [(usize, Duration); 2] =
    [(1_000_000, Duration::from_secs(1)), (10_000_000, Duration::from_secs(10))];

const OPTIONS: DiskOptions = DiskOptions {
    capacity_bytes: 4 << 30,
    segment_bytes: tidegate_disk::wal::SEGMENT_BYTES,
    snapshot_after: u64::MAX,
    maintenance: Maintenance::Manual,
};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("recovery: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let (mut sizes, mut folder) = (Vec::new(), std::env::temp_dir());
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        match word.as_str() {
            "--folder" => folder = PathBuf::from(words.next().ok_or("--folder needs a directory")?),
            keys => sizes.push(keys.replace('_', "").parse::<usize>()?),
        }
    }
    if sizes.is_empty() {
        sizes.push(TARGETS[0].0);
    }
    println!(
        "| read from | keys | MiB read | seconds | of them on a core | keys/s | MiB in memory before | after | target |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for keys in sizes {
        let scratch = Scratch::new(&folder)?;
        measure(&scratch.0, keys)?;
    }
    Ok(())
}

/// A temporary directory that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(folder: &Path) -> Result<Scratch, Failure> {
        let path = folder.join(format!("tidegate-recovery-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Leftovers in a temporary directory are harmless.
        let _left_over = std::fs::remove_dir_all(&self.0);
    }
}

fn measure(folder: &Path, keys: usize) -> Result<(), Failure> {
    let (store, _) = open(folder)?;
    store.put(
        LimitSpec::named(LIMIT).with(ItemSpec::of(Policy::Interval { window: DAY }, MOST).per_key()),
        ExpectedVersion::Absent,
    )?;
    charge(&store, keys)?;
    let before = bytes(&store);
    drop(store);
    let store = reopen(folder, "a log", keys, 1, before)?;
    store.stop()?;
    drop(store);
    let store = reopen(folder, "a snapshot", keys, 1, before)?;
    charge(&store, keys)?;
    drop(store);
    reopen(folder, "a snapshot and a log", keys, 2, before)?;
    Ok(())
}

fn open(folder: &Path) -> Result<(DiskStore, RecoveryReport), Failure> {
    Ok(DiskStore::open(folder, Arc::new(SystemClock::new()), OPTIONS, &mut |_, _| {})?)
}

fn key(index: usize) -> String {
    format!("user:{index}")
}

/// Charges every key once.
fn charge(store: &DiskStore, keys: usize) -> Result<(), Failure> {
    let mut buffer = Replies::new(Detail::Verdicts);
    for first in (0..keys).step_by(BATCH) {
        let names: Vec<String> = (first..keys.min(first + BATCH)).map(key).collect();
        let asks: Vec<[Ask<'_>; 1]> =
            names.iter().map(|name| [Ask::one(LIMIT, Some(name.as_bytes()))]).collect();
        let orders: Vec<Order<'_>> = asks.iter().map(|asks| Order::acquire(asks)).collect();
        buffer = store.submit(&orders, buffer).decided();
        let granted = |answer: &Result<tidegate::reply::OrderReply, _>| {
            answer.as_ref().is_ok_and(tidegate::reply::OrderReply::is_granted)
        };
        if !buffer.iter().all(granted) {
            return Err("a key was refused".into());
        }
        if first % (BATCH * 64) == 0 {
            // Stay below the maximum of pending bytes.
            store.wait_durable(store.log_end().ok_or("it has a log")?)?;
        }
    }
    Ok(store.wait_durable(store.log_end().ok_or("it has a log")?)?)
}

fn bytes(store: &DiskStore) -> usize {
    store.size().map_or(0, |size| size.bytes)
}

/// The CPU time of this thread in seconds. Zero where the system does not provide it.
fn on_a_core() -> f64 {
    let stats = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = stats.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    nanoseconds.unwrap_or_default() / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn reopen(
    folder: &Path,
    from: &str,
    keys: usize,
    charges: Amount,
    before: usize,
) -> Result<DiskStore, Failure> {
    const MEBIBYTE: f64 = 1_048_576.0;
    let began = on_a_core();
    let (store, recovery) = open(folder)?;
    let on_a_core = on_a_core() - began;
    for index in (0..keys).step_by(SAMPLE) {
        let name = key(index);
        let asks = [Ask::one(LIMIT, Some(name.as_bytes()))];
        let answers = store.submit(&[Order::peek(&asks)], Replies::new(Detail::Readings)).decided();
        let answer = answers.get(0).and_then(|answer| answer.as_ref().ok()).ok_or("no answer")?;
        let used = answers.readings(answer)[0].reading.used;
        if used != charges {
            return Err(format!("{name} has used {used}, not {charges}").into());
        }
    }
    let seconds = recovery.took.as_secs_f64();
    let target = TARGETS.iter().find(|(size, _)| *size == keys).map_or(String::new(), |(_, most)| {
        let verdict = if recovery.took < *most { "met" } else { "missed" };
        format!("under {} s, {verdict}", most.as_secs())
    });
    println!(
        "| {from} | {keys} | {:.0} | {seconds:.2} | {on_a_core:.2} | {:.0} | {:.0} | {:.0} | {target} |",
        recovery.read_bytes as f64 / MEBIBYTE,
        keys as f64 / seconds,
        before as f64 / MEBIBYTE,
        bytes(&store) as f64 / MEBIBYTE,
    );
    Ok(store)
}
