//! Crashes at every moment: what was said to be durable is there, in order, and nothing else.
//!
//! A run is invented, played on a recorded directory, and crashed after every change that it made, several times with different luck. Every
//! image is opened, compared with what was appended and with what was said to be durable at that moment, written on, and crashed again.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_disk::WriteAheadLog;
use tidegate_disk::directory::SimulatedDirectory;
use tidegate_disk::wal::{PreviousRun, verify};
use tidegate_testkit::test_scale::cases;

use super::fixtures::{Replayed, as_files, commit, open, try_open};

/// How often every moment of a run is crashed.
const IMAGES: u64 = 4;

/// Something that whoever has the log does.
#[derive(Debug, Clone)]
enum Step {
    /// Append this many bytes, and go on.
    Append(usize),
    /// Wait until everything is durable.
    Wait,
    Snapshot,
    Stop,
    /// Open it again after it was dropped or stopped.
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

/// What was appended, told apart by position: byte `i` of the whole history is made from `i`.
fn payload(from: usize, length: usize) -> Vec<u8> {
    // A few long runs of zeros, which look like nothing on a disk.
    let byte = |index: usize| {
        if index % 4000 < 1200 { 0 } else { u8::try_from(index * 7 % 251).expect("below 251") }
    };
    (from..from + length).map(byte).collect()
}

/// What can be said about a run: how much was appended, and from which change on how much was said to be durable.
#[derive(Debug, Default)]
struct Known {
    appended: usize,
    /// After this many changes, so many bytes were durable, and whether the log was stopped then.
    said: Vec<(usize, usize)>,
    /// After which changes a stop was done, and after which the next opening began.
    stops: Vec<(usize, usize)>,
}

impl Known {
    fn durable_after(&self, changes: usize) -> usize {
        self.said.iter().filter(|(at, _)| *at <= changes).map(|(_, bytes)| *bytes).max().unwrap_or(0)
    }

    /// Whether the log lay stopped after this many changes, and had not been touched again.
    fn is_stopped_after(&self, changes: usize) -> bool {
        self.stops.iter().any(|(stopped, opened)| (*stopped..=*opened).contains(&changes))
    }
}

/// Plays a run. The snapshot of a test is how many bytes it stands for.
fn play(directory: &Arc<SimulatedDirectory>, steps: &[Step]) -> Known {
    let mut known = Known::default();
    let mut log = Some(open(directory).0);
    let mut stopped = false;
    for step in steps {
        if matches!(step, Step::Reopen) || log.is_none() {
            drop(log.take());
            if !stopped {
                known.said.push((directory.changes(), known.appended));
            }
            if let Some(stop) = known.stops.last_mut().filter(|_| stopped) {
                stop.1 = directory.changes();
            }
            stopped = false;
            log = Some(open(directory).0);
        }
        let open = log.as_ref().expect("it was opened");
        match step {
            Step::Append(length) => {
                open.append(&payload(known.appended, *length), 5).expect("the log is sound");
                known.appended += length;
            }
            Step::Wait => {
                open.wait_durable(open.tip()).expect("the log is sound");
                known.said.push((directory.changes(), known.appended));
            }
            Step::Snapshot => {
                let stands_for = (known.appended as u64).to_le_bytes();
                open.snapshot(|snapshot| Ok(snapshot.put(&stands_for)?)).expect("there is room");
                known.said.push((directory.changes(), known.appended));
            }
            Step::Stop => {
                open.stop().expect("the log is sound");
                known.said.push((directory.changes(), known.appended));
                known.stops.push((directory.changes(), usize::MAX));
                stopped = true;
                log = None;
            }
            Step::Reopen => {}
        }
    }
    drop(log);
    known
}

/// How much of the history was replayed; that it is exactly its beginning is made sure of.
fn recovered(replayed: &Replayed) -> usize {
    let stands_for = |chunk: &Vec<u8>| usize::from_le_bytes(chunk[..].try_into().expect("eight bytes"));
    let before = replayed.chunks.first().map_or(0, stands_for);
    let bytes = replayed.bytes();
    assert!(bytes == payload(before, bytes.len()), "what is replayed is what was appended");
    before + bytes.len()
}

/// Opens an image, and says how much of the history is in it.
fn recover(
    image: &Arc<SimulatedDirectory>,
    story: &dyn Fn() -> String,
) -> (WriteAheadLog, usize, PreviousRun) {
    let sound = verify(&**image).expect("the directory can be read");
    match try_open(as_files(image)) {
        Ok((log, opened, replayed)) => {
            if opened.previous_run != PreviousRun::Created {
                assert!(sound.is_sound(), "{}: it opens, but: {:?}", story(), sound.problems);
            }
            (log, recovered(&replayed), opened.previous_run)
        }
        Err(error) => panic!("{}: {error}; {:?}", story(), image.names()),
    }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn whatever_was_durable_survives_a_crash_at_any_moment(steps in vec(step(), 1..24), luck in any::<u64>()) {
        let directory = Arc::new(SimulatedDirectory::recorded());
        let known = play(&directory, &steps);
        for changes in 0..=directory.changes() {
            for image in 0..IMAGES {
                let seed = luck.wrapping_add(changes as u64 * IMAGES + image);
                let story = || format!("after {changes} changes with seed {seed} of {steps:?}");
                let crashed = Arc::new(directory.crash_after(changes, seed));
                let (log, found, before) = recover(&crashed, &story);
                let durable = known.durable_after(changes);
                prop_assert!(found >= durable, "{}: {found} bytes of {durable}", story());
                prop_assert!(found <= known.appended, "{}: {found} of {}", story(), known.appended);
                if known.is_stopped_after(changes) {
                    prop_assert_eq!(before, PreviousRun::Stopped, "{}", story());
                }
                // The power fails once more, at some moment while the log was opened.
                let later = usize::try_from(seed % (crashed.changes() as u64 + 1)).expect("a few");
                let (_log, again, _) = recover(&Arc::new(crashed.crash_after(later, seed)), &story);
                prop_assert!((durable..=found).contains(&again), "{}, {later} later: {again}", story());
                go_on(&log, &crashed, found, seed, &story);
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(12))]

    /// First the process is killed, and the system still has all that it wrote; then the power fails, while the next process opens the log or just
    /// after. Whatever the second one was shown must be there for the third.
    #[test]
    fn what_was_replayed_after_a_kill_survives_a_crash(steps in vec(step(), 1..16), luck in any::<u64>()) {
        let directory = Arc::new(SimulatedDirectory::recorded());
        let known = play(&directory, &steps);
        for changes in 0..=directory.changes() {
            let story = || format!("killed after {changes} changes of {steps:?}, luck {luck}");
            let killed = Arc::new(directory.killed_after(changes));
            let (log, shown, _) = recover(&killed, &story);
            let opened = killed.changes();
            for later in 0..=opened {
                let crashed = Arc::new(killed.crash_after(later, luck.wrapping_add(later as u64)));
                let (_log, found, _) = recover(&crashed, &story);
                let least = if later == opened { shown } else { known.durable_after(changes) };
                prop_assert!((least..=shown).contains(&found), "{}, {later} later: {found} of {least}", story());
            }
            drop(log);
        }
    }
}

/// A block that was on its way to the disk when its process was killed is written once more by the next. Both writes could be torn, each in its
/// own way, and leave a block with a hole in the middle of its header: neither torn nor whole.
#[test]
fn a_block_is_not_written_over_while_it_is_on_its_way() {
    let directory = Arc::new(SimulatedDirectory::recorded());
    let (log, _, _) = open(&directory);
    // The header of the second block lies across the end of a sector.
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

/// Writes on, crashes again, and reads everything.
fn go_on(
    log: &WriteAheadLog,
    directory: &Arc<SimulatedDirectory>,
    found: usize,
    seed: u64,
    story: &dyn Fn() -> String,
) {
    let more = 300;
    let lsn = log.append(&payload(found, more), 6).expect("the log is sound");
    log.wait_durable(lsn).expect("the log is sound");
    let again = Arc::new(directory.crash(seed));
    let (_log, after, before) = recover(&again, story);
    assert_eq!((after, before), (found + more, PreviousRun::Crashed), "{}, once more", story());
}
