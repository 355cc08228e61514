//! Crashes at every change: the log contains the durable data in order, and nothing that was not appended.
//!
//! A random run is played on a recorded directory and crashed after each of its changes, several times with
//! different seeds. Each image is opened, compared with the appended and the durable data at that moment,
//! appended to, and crashed again.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_disk::WriteAheadLog;
use tidegate_disk::directory::SimulatedDirectory;
use tidegate_disk::wal::{PreviousRun, verify};
use tidegate_testkit::test_scale::cases;

use super::fixtures::{Replayed, as_files, commit, open, try_open};

/// The number of crash images per change.
const IMAGES: u64 = 4;

/// A step of a run.
#[derive(Debug, Clone)]
enum Step {
    /// Append this many bytes without waiting.
    Append(usize),
    /// Wait until everything is durable.
    Wait,
    Snapshot,
    Stop,
    /// Open the log again after it was dropped or stopped.
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..400_usize).prop_map(Step::Append),
        1 => (900..3000_usize).prop_map(Step::Append),
        4 => Just(Step::Wait),
        1 => Just(Step::Snapshot),
        1 => Just(Step::Stop),
        1 => Just(Step::Reopen),
    ]
}

/// The appended bytes, which depend on their position in the whole history.
fn payload(from: usize, length: usize) -> Vec<u8> {
    // Some long runs of zeros, which look like unwritten space.
    let byte = |index: usize| {
        if index % 4000 < 1200 { 0 } else { u8::try_from(index * 7 % 251).expect("below 251") }
    };
    (from..from + length).map(byte).collect()
}

/// The expected state of a run over time.
#[derive(Debug, Default)]
struct ExpectedState {
    appended: usize,
    /// The number of durable bytes after a number of changes.
    durable: Vec<(usize, usize)>,
    /// The change of each stop, and the change at which the next opening started.
    stops: Vec<(usize, usize)>,
}

impl ExpectedState {
    fn durable_after(&self, changes: usize) -> usize {
        self.durable.iter().filter(|(at, _)| *at <= changes).map(|(_, bytes)| *bytes).max().unwrap_or(0)
    }

    /// Whether the log was stopped after this many changes and not opened since.
    fn is_stopped_after(&self, changes: usize) -> bool {
        self.stops.iter().any(|(stopped, opened)| (*stopped..=*opened).contains(&changes))
    }
}

/// Plays a run. The snapshot contains the number of bytes that it replaces.
fn play(directory: &Arc<SimulatedDirectory>, steps: &[Step]) -> ExpectedState {
    let mut expected = ExpectedState::default();
    let mut log = Some(open(directory).0);
    let mut stopped = false;
    for step in steps {
        if matches!(step, Step::Reopen) || log.is_none() {
            drop(log.take());
            if !stopped {
                expected.durable.push((directory.changes(), expected.appended));
            }
            if let Some(stop) = expected.stops.last_mut().filter(|_| stopped) {
                stop.1 = directory.changes();
            }
            stopped = false;
            log = Some(open(directory).0);
        }
        let open = log.as_ref().expect("it was opened");
        match step {
            Step::Append(length) => {
                open.append(&payload(expected.appended, *length), 5).expect("the log is sound");
                expected.appended += length;
            }
            Step::Wait => {
                open.wait_durable(open.log_end()).expect("the log is sound");
                expected.durable.push((directory.changes(), expected.appended));
            }
            Step::Snapshot => {
                let stands_for = (expected.appended as u64).to_le_bytes();
                open.snapshot(|snapshot| Ok(snapshot.put(&stands_for)?)).expect("there is room");
                expected.durable.push((directory.changes(), expected.appended));
            }
            Step::Stop => {
                open.stop().expect("the log is sound");
                expected.durable.push((directory.changes(), expected.appended));
                expected.stops.push((directory.changes(), usize::MAX));
                stopped = true;
                log = None;
            }
            Step::Reopen => {}
        }
    }
    drop(log);
    expected
}

/// Returns the recovered length after checking that the content is a prefix of the history.
fn recovered(replayed: &Replayed) -> usize {
    let stands_for = |chunk: &Vec<u8>| usize::from_le_bytes(chunk[..].try_into().expect("eight bytes"));
    let before = replayed.chunks.first().map_or(0, stands_for);
    let bytes = replayed.bytes();
    assert!(bytes == payload(before, bytes.len()), "what is replayed is what was appended");
    before + bytes.len()
}

/// Opens an image and returns how much of the history it contains.
fn recover(
    image: &Arc<SimulatedDirectory>,
    context: &dyn Fn() -> String,
) -> (WriteAheadLog, usize, PreviousRun) {
    let sound = verify(&**image).expect("the directory can be read");
    match try_open(as_files(image)) {
        Ok((log, opened, replayed)) => {
            if opened.previous_run != PreviousRun::Created {
                assert!(sound.is_sound(), "{}: it opens, but: {:?}", context(), sound.problems);
            }
            (log, recovered(&replayed), opened.previous_run)
        }
        Err(error) => panic!("{}: {error}; {:?}", context(), image.names()),
    }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn durable_data_survives_crash_at_any_change(steps in vec(step(), 1..24), base_seed in any::<u64>()) {
        let directory = Arc::new(SimulatedDirectory::recorded());
        let expected = play(&directory, &steps);
        for changes in 0..=directory.changes() {
            for image in 0..IMAGES {
                let seed = base_seed.wrapping_add(changes as u64 * IMAGES + image);
                let context = || format!("after {changes} changes with seed {seed} of {steps:?}");
                let crashed = Arc::new(directory.crash_after(changes, seed));
                let (log, found, before) = recover(&crashed, &context);
                let durable = expected.durable_after(changes);
                prop_assert!(found >= durable, "{}: {found} bytes of {durable}", context());
                prop_assert!(found <= expected.appended, "{}: {found} of {}", context(), expected.appended);
                if expected.is_stopped_after(changes) {
                    prop_assert_eq!(before, PreviousRun::Stopped, "{}", context());
                }
                // A second power failure while the log was opened.
                let later = usize::try_from(seed % (crashed.changes() as u64 + 1)).expect("a few");
                let (_log, again, _) = recover(&Arc::new(crashed.crash_after(later, seed)), &context);
                prop_assert!((durable..=found).contains(&again), "{}, {later} later: {again}", context());
                append_and_crash(&log, &crashed, found, seed, &context);
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(12))]

    /// The process is killed while the page cache keeps its writes. Then the power fails while the next
    /// process opens the log, or just after. Everything that the second process replayed must be there for
    /// the third.
    #[test]
    fn data_replayed_after_kill_survives_crash(steps in vec(step(), 1..16), base_seed in any::<u64>()) {
        let directory = Arc::new(SimulatedDirectory::recorded());
        let expected = play(&directory, &steps);
        for changes in 0..=directory.changes() {
            let context = || format!("killed after {changes} changes of {steps:?}, base_seed {base_seed}");
            let killed = Arc::new(directory.killed_after(changes));
            let (log, shown, _) = recover(&killed, &context);
            let opened = killed.changes();
            for later in 0..=opened {
                let crashed = Arc::new(killed.crash_after(later, base_seed.wrapping_add(later as u64)));
                let (_log, found, _) = recover(&crashed, &context);
                let least = if later == opened { shown } else { expected.durable_after(changes) };
                prop_assert!((least..=shown).contains(&found), "{}, {later} later: {found} of {least}", context());
            }
            drop(log);
        }
    }
}

/// The next process rewrites a block that was in flight when its process was killed. If both writes are torn
/// in different ways, the block can have a hole in its header and be neither torn nor complete.
#[test]
fn unsynced_block_is_synced_before_rewrite() {
    let directory = Arc::new(SimulatedDirectory::recorded());
    let (log, _, _) = open(&directory);
    // The header of the second block crosses a sector boundary.
    commit(&log, &[1; 332], 1);
    let before = directory.changes();
    commit(&log, &[2; 100], 2);
    drop(log);
    let killed = Arc::new(directory.killed_after(before + 1));
    let (_log, _, shown) = open(&killed);
    assert_eq!(shown.blocks.len(), 2, "written, and not synced");
    for changes in 0..=killed.changes() {
        for seed in 0..100 {
            let (_log, _, replayed) = open(&Arc::new(killed.crash_after(changes, seed)));
            assert!((1..=2).contains(&replayed.blocks.len()), "after {changes} changes, seed {seed}");
        }
    }
}

/// Appends more, crashes again, and checks everything.
fn append_and_crash(
    log: &WriteAheadLog,
    directory: &Arc<SimulatedDirectory>,
    found: usize,
    seed: u64,
    context: &dyn Fn() -> String,
) {
    let more = 300;
    let lsn = log.append(&payload(found, more), 6).expect("the log is sound");
    log.wait_durable(lsn).expect("the log is sound");
    let again = Arc::new(directory.crash(seed));
    let (_log, after, before) = recover(&again, context);
    assert_eq!((after, before), (found + more, PreviousRun::Crashed), "{}, once more", context());
}
