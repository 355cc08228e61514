//! Appended data is replayed.

use std::sync::Arc;

use tidegate_disk::WriteAheadLog;
use tidegate_disk::directory::{RealDirectory, SimulatedDirectory};
use tidegate_disk::wal::{LogOptions, PreviousRun, ReplayEntry};

use super::fixtures::{commit, open, try_open};

#[test]
fn appends_are_replayed_in_order() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, opened, replayed) = open(&directory);
    assert_eq!((opened.previous_run, replayed.blocks.len()), (PreviousRun::Created, 0));
    for index in 0..50_u8 {
        commit(&log, &[index; 100], 1000 + u64::from(index));
    }
    log.stop().expect("nothing is wrong");
    drop(log);
    assert!(directory.names().len() > 5, "several segments: {:?}", directory.names());

    let (_log, again, replayed) = open(&directory);
    assert_eq!((again.previous_run, again.time, again.cut_bytes), (PreviousRun::Stopped, 1049, 0));
    assert_eq!((again.store_id, again.secret), (opened.store_id, opened.secret));
    let expected: Vec<(u64, Vec<u8>)> =
        (0..50_u8).map(|index| (1000 + u64::from(index), vec![index; 100])).collect();
    let found: Vec<(u64, Vec<u8>)> =
        replayed.blocks.into_iter().map(|(_, time, payload)| (time, payload)).collect();
    assert_eq!(found, expected);
}

#[test]
fn real_directory_replays_appends_and_snapshot() {
    let folder = std::env::temp_dir().join(format!("tidegate-disk-{}-round-trip", std::process::id()));
    let directory = || Arc::new(RealDirectory::create(&folder).expect("there is a temporary directory"));
    let (log, _, _) = try_open(directory()).expect("it is created");
    for index in 0..50_u8 {
        commit(&log, &[index; 100], u64::from(index));
    }
    log.snapshot(|snapshot| Ok(snapshot.put(b"everything")?)).expect("there is room");
    commit(&log, b"after", 99);
    drop(log);
    let (_log, opened, replayed) = try_open(directory()).expect("it is there");
    assert_eq!(opened.previous_run, PreviousRun::Crashed);
    assert_eq!(
        (replayed.chunks.clone(), replayed.bytes()),
        (vec![b"everything".to_vec()], b"after".to_vec())
    );
    std::fs::remove_dir_all(&folder).expect("it was there");
}

/// Segments of production length, with direct I/O and preallocation where the file system supports them.
#[test]
fn long_segments_in_real_directory_are_replayed() {
    const SEGMENT: u64 = 1 << 20;
    let folder = std::env::temp_dir().join(format!("tidegate-disk-{}-long-segments", std::process::id()));
    let mut expected = Vec::new();
    for life in 0..3_u8 {
        let directory = Arc::new(RealDirectory::create(&folder).expect("there is a temporary directory"));
        let mut found = Vec::new();
        let mut replay = |entry: ReplayEntry<'_>| {
            if let ReplayEntry::Block { payload, .. } = entry {
                found.extend_from_slice(payload);
            }
            Ok(())
        };
        let options = LogOptions { segment_bytes: SEGMENT };
        let (log, _) = WriteAheadLog::open(directory, options, &mut replay).expect("it is sound");
        assert!(found == expected, "in life {life}");
        for index in 0..40_u8 {
            let payload = vec![index + life + 1; 70_001 + usize::from(index)];
            commit(&log, &payload, 1);
            expected.extend_from_slice(&payload);
        }
        assert!(log.segments() > 2);
    }
    std::fs::remove_dir_all(&folder).expect("it was there");
}
