//! Torn tails are cut. All other damage is an error that names the file. A shorter history is never accepted
//! silently.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_disk::directory::SimulatedDirectory;
use tidegate_disk::wal::{
    BlockKind, InspectedItem, LogTail, OpenError, PreviousRun, backup, inspect, verify,
};
use tidegate_testkit::test_scale::{cases, scaled};

use super::fixtures::{Replayed, as_files, commit, first_log, open, refusal, segment, try_open};

/// Creates a log with a snapshot, a sealed segment, an active segment and a clean stop. Returns it with its
/// replayed content.
fn sample_log() -> (Arc<SimulatedDirectory>, Replayed) {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    commit(&log, b"superseded", 1);
    log.snapshot(|snapshot| {
        snapshot.put(b"one chunk")?;
        Ok(snapshot.put(b"and another")?)
    })
    .expect("there is room");
    for index in 1..=9_u8 {
        commit(&log, &[index; 120], u64::from(index));
    }
    log.stop().expect("the log is sound");
    drop(log);
    let (log, opened, replayed) = open(&Arc::new(directory.killed()));
    drop(log);
    assert_eq!(
        (opened.previous_run, replayed.chunks.len(), replayed.blocks.len()),
        (PreviousRun::Stopped, 2, 9)
    );
    assert_eq!(
        directory.names().len(),
        5,
        "identity, lock, a snapshot and two segments: {:?}",
        directory.names()
    );
    (directory, replayed)
}

/// The offset at which the trailing zeros begin.
fn end_of_content(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// The offsets of the blocks of a file.
fn blocks(directory: &SimulatedDirectory, name: &str) -> Vec<usize> {
    let mut offsets = Vec::new();
    let mut keep = |found: InspectedItem<'_>| {
        if let InspectedItem::Block { file, offset, .. } = found
            && file == name
        {
            offsets.push(usize::try_from(offset).expect("small"));
        }
    };
    inspect(directory, &mut keep).expect("it can be read");
    offsets
}

#[test]
fn flipped_bit_is_named_error_or_harmless() {
    let (directory, whole) = sample_log();
    let bits = scaled(1).min(8);
    for name in directory.names().into_iter().filter(|name| name != "lock") {
        let bytes = directory.bytes(&name).expect("it was listed");
        let content = end_of_content(&bytes);
        for at in 0..bytes.len() {
            for bit in (0..bits).map(|bit| (bit + at) % 8) {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                let damaged = Arc::new(directory.killed());
                damaged.put(&name, flipped);
                let report = verify(&*damaged).expect("it can be read");
                match try_open(as_files(&damaged)) {
                    Ok((_, opened, replayed)) => {
                        assert!(at >= content, "{name}, byte {at}, bit {bit}: accepted");
                        assert_eq!(
                            (opened.previous_run, replayed),
                            (PreviousRun::Stopped, whole.clone()),
                            "{name}, byte {at}"
                        );
                        assert!(report.is_sound(), "{name}, byte {at}: {:?}", report.problems);
                    }
                    Err(OpenError::Damaged(damage)) => {
                        assert_eq!(damage.file, name, "byte {at}, bit {bit}");
                        assert!(at < content, "{name}, byte {at}, bit {bit}: it was zeros");
                        assert!(!report.is_sound(), "{name}, byte {at}, bit {bit}: verified");
                    }
                    Err(error) => panic!("{name}, byte {at}, bit {bit}: {error}"),
                }
            }
        }
    }
}

#[test]
fn log_cut_at_any_byte_keeps_complete_blocks() {
    let (directory, whole) = sample_log();
    let name = segment(3);
    let bytes = directory.bytes(&name).expect("the last segment");
    let starts = blocks(&directory, &name);
    let content = end_of_content(&bytes);
    let in_last = starts.len() - 1;
    for end in 64..=content {
        let mut torn = bytes.clone();
        torn[end..].fill(0);
        let damaged = Arc::new(directory.killed());
        damaged.put(&name, torn.clone());
        let (log, opened, replayed) = open(&damaged);
        // The stop block is the last block of this segment and has no records.
        let starts = &starts;
        let ends = |index: usize| starts.get(index + 1).copied().unwrap_or(content);
        let kept = (0..starts.len()).filter(|index| ends(*index) <= end).count();
        let lost = in_last.saturating_sub(kept);
        assert_eq!(replayed.blocks, whole.blocks[..whole.blocks.len() - lost], "cut at byte {end}");
        let from = if kept == 0 { 64 } else { ends(kept - 1) };
        assert_eq!(opened.cut_bytes, end_of_content(&torn).saturating_sub(from) as u64, "cut at byte {end}");
        let stopped = if kept > in_last { PreviousRun::Stopped } else { PreviousRun::Crashed };
        assert_eq!(opened.previous_run, stopped, "cut at byte {end}");
        commit(&log, b"and on it goes", 50);
        drop(log);
        let (_log, _, again) = open(&damaged);
        assert_eq!(again.blocks.len(), replayed.blocks.len() + 1, "cut at byte {end}");
    }
}

#[test]
fn cut_tail_never_reappears() {
    // The torn block was long, and the block written over it is short. The rest of the long one must not
    // remain.
    let (directory, _, _) = log_with_torn_tail();
    let (log, opened, _) = open(&directory);
    assert!(opened.cut_bytes > 200, "{opened:?}");
    commit(&log, b"x", 1);
    drop(log);
    let (_log, opened, _) = open(&directory);
    assert_eq!(opened.cut_bytes, 0);
}

/// Returns a log whose last block lacks its last byte, the offset of that block, and the intact bytes.
fn log_with_torn_tail() -> (Arc<SimulatedDirectory>, usize, Vec<u8>) {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    commit(&log, b"whole", 1);
    commit(&log, &[9; 300], 2);
    drop(log);
    let bytes = directory.bytes(&first_log()).expect("the log");
    let starts = blocks(&directory, &first_log());
    let mut torn = bytes.clone();
    torn[end_of_content(&bytes) - 1] = 0;
    directory.put(&first_log(), torn);
    (directory, *starts.last().expect("blocks"), bytes)
}

#[test]
fn verify_reports_torn_tail_without_problem() {
    let (directory, start, bytes) = log_with_torn_tail();
    let report = verify(&*directory).expect("it can be read");
    let (offset, length) = (start as u64, (end_of_content(&bytes) - 1 - start) as u64);
    assert_eq!(report.tail, LogTail::Torn { file: first_log(), offset, bytes: length });
    assert!(report.is_sound(), "{:?}", report.problems);
    assert_eq!((report.blocks, report.segments, report.times), (2, 1, Some((1, 1))));
}

#[test]
fn invalid_block_before_valid_block_is_damage() {
    let (directory, _) = sample_log();
    // In a segment with a successor, and in the last segment.
    for name in [segment(2), segment(3)] {
        let starts = blocks(&directory, &name);
        let bytes = directory.bytes(&name).expect("it is there");
        for pair in starts.windows(2) {
            let (start, end) = (pair[0], pair[1]);
            // The first byte, the whole block, or its end is missing.
            for (from, to) in [(start, start + 1), (start, end), (end - 1, end)] {
                let mut gap = bytes.clone();
                gap[from..to].fill(0);
                let damaged = Arc::new(directory.killed());
                damaged.put(&name, gap);
                match refusal(&damaged) {
                    OpenError::Damaged(damage) => {
                        assert_eq!((damage.file, damage.offset), (name.clone(), start as u64));
                    }
                    error => panic!("{name}, block at {start}: {error}"),
                }
                assert!(!verify(&*damaged).expect("it can be read").is_sound(), "{name}, block at {start}");
            }
        }
    }
}

#[test]
fn missing_seal_between_segments_is_damage() {
    let (directory, _) = sample_log();
    let name = segment(2);
    let seal = *blocks(&directory, &name).last().expect("a seal");
    let mut bytes = directory.bytes(&name).expect("it is there");
    bytes[seal..].fill(0);
    directory.put(&name, bytes);
    let error = refusal(&directory).to_string();
    assert!(error.contains("the next segment has blocks"), "{error}");
}

#[test]
fn shortened_segment_is_damage() {
    let (directory, _) = sample_log();
    let mut bytes = directory.bytes(&segment(3)).expect("it is there");
    bytes.pop();
    directory.put(&segment(3), bytes);
    let OpenError::Damaged(damage) = refusal(&directory) else { panic!("it is damaged") };
    assert_eq!((damage.file.as_str(), damage.expected.as_str()), (&*segment(3), "a file of 1024 bytes"));
}

#[test]
fn truncated_snapshot_is_damage() {
    let (directory, _) = sample_log();
    let name = "snapshot-0000000000000002";
    let bytes = directory.bytes(name).expect("it is there");
    for length in 0..bytes.len() {
        let damaged = Arc::new(directory.killed());
        damaged.put(name, bytes[..length].to_vec());
        match refusal(&damaged) {
            OpenError::Damaged(damage) => assert_eq!(damage.file, name),
            error => panic!("{length} bytes: {error}"),
        }
    }
    directory.put(name, [&bytes[..], b"x"].concat());
    assert!(matches!(refusal(&directory), OpenError::Damaged(_)), "and so is one that goes on");
}

#[test]
fn inspect_shows_all_items() {
    let (directory, whole) = sample_log();
    let mut seen = Vec::new();
    let mut show = |found: InspectedItem<'_>| match found {
        InspectedItem::Chunk { payload, .. } => seen.push(("chunk", payload.to_vec())),
        InspectedItem::Block { kind: BlockKind::Records, payload, .. } => {
            seen.push(("records", payload.to_vec()));
        }
        InspectedItem::Block { kind, .. } => {
            seen.push((if kind == BlockKind::Seal { "seal" } else { "stop" }, Vec::new()));
        }
        InspectedItem::Problem(problem) => panic!("{problem}"),
    };
    let report = inspect(&*directory, &mut show).expect("it can be read");
    let words: Vec<&str> = seen.iter().map(|(word, _)| *word).collect();
    assert_eq!(words[..2], ["chunk", "chunk"]);
    assert_eq!(words.iter().filter(|word| **word == "seal").count(), 1);
    assert_eq!(words.last(), Some(&"stop"));
    let records: Vec<Vec<u8>> =
        seen.into_iter().filter(|(word, _)| *word == "records").map(|(_, bytes)| bytes).collect();
    assert_eq!(records, whole.blocks.into_iter().map(|(_, _, bytes)| bytes).collect::<Vec<_>>());
    assert_eq!((report.snapshot, report.chunks, report.segments), (Some(2), 2, 2));
    assert_eq!((report.previous_run, report.times), (PreviousRun::Stopped, Some((1, 9))));
}

/// A random alteration of a file.
#[derive(Debug, Clone)]
enum Alteration {
    Fill { from: usize, length: usize, with: u8 },
    Copy { from: usize, to: usize, length: usize },
    Scribble { at: usize, bytes: Vec<u8> },
    Cut { length: usize },
}

fn alteration() -> impl Strategy<Value = Alteration> {
    let position = || 0..1100_usize;
    prop_oneof![
        (position(), 1..300_usize, any::<u8>()).prop_map(|(from, length, with)| Alteration::Fill {
            from,
            length,
            with
        }),
        (position(), 1..700_usize).prop_map(|(from, length)| Alteration::Fill { from, length, with: 0 }),
        (position(), position(), 1..300_usize).prop_map(|(from, to, length)| Alteration::Copy {
            from,
            to,
            length
        }),
        (position(), vec(any::<u8>(), 1..60)).prop_map(|(at, bytes)| Alteration::Scribble { at, bytes }),
        position().prop_map(|length| Alteration::Cut { length }),
    ]
}

impl Alteration {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let end = bytes.len();
        let range = |from: usize, length: usize| from.min(end)..(from + length).min(end);
        match self {
            Alteration::Fill { from, length, with } => bytes[range(*from, *length)].fill(*with),
            Alteration::Copy { from, to, length } => {
                let copied = bytes[range(*from, *length)].to_vec();
                let position = range(*to, copied.len());
                let length = position.len();
                bytes[position].copy_from_slice(&copied[..length]);
            }
            Alteration::Scribble { at, bytes: scribbled } => {
                let position = range(*at, scribbled.len());
                let length = position.len();
                bytes[position].copy_from_slice(&scribbled[..length]);
            }
            Alteration::Cut { length } => bytes.truncate(*length),
        }
    }
}

proptest! {
    #![proptest_config(cases(400))]

    /// An altered file is either rejected, or its replay is a prefix of the appended data. Nothing panics.
    #[test]
    fn altered_file_never_adds_history(which in 0..4_usize, alterations in vec(alteration(), 1..4)) {
        let (directory, whole) = sample_log();
        let names: Vec<String> = directory.names().into_iter().filter(|name| name != "lock").collect();
        let mut bytes = directory.bytes(&names[which]).expect("it was listed");
        for alteration in &alterations {
            alteration.apply(&mut bytes);
        }
        directory.put(&names[which], bytes);
        let report = verify(&*directory).expect("it can be read");
        let copied = backup(&*directory, &SimulatedDirectory::new());
        if let Ok((_log, _, replayed)) = try_open(as_files(&directory)) {
            prop_assert!(report.is_sound(), "it opens, but: {:?}", report.problems);
            prop_assert!(copied.is_ok(), "it opens, but: {copied:?}");
            prop_assert_eq!(&replayed.chunks, &whole.chunks);
            prop_assert!(whole.blocks.starts_with(&replayed.blocks));
        }
    }
}
