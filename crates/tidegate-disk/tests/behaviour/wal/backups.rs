//! Backups of a log in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_disk::directory::{DiskCall, DiskFault, FaultDuration, RealDirectory, SimulatedDirectory};
use tidegate_disk::wal::{BackupError, OpenError, PreviousRun, backup, verify};
use tidegate_testkit::test_scale::scaled;

use super::fixtures::{commit, first_log, open, segment, try_open};

#[test]
fn backup_of_log_in_use_opens_as_crashed() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, opened, _) = open(&directory);
    for index in 0..20_u8 {
        commit(&log, &[index; 100], u64::from(index));
        if index == 10 {
            log.snapshot(|snapshot| Ok(snapshot.put(b"state")?)).expect("there is room");
        }
    }
    let copy = Arc::new(SimulatedDirectory::new());
    let made = backup(&*directory, &*copy).expect("it can be copied");
    commit(&log, b"later", 99);
    let (copied, found, replayed) = open(&copy);
    assert_eq!(
        (found.store_id, found.secret, found.previous_run),
        (opened.store_id, opened.secret, PreviousRun::Crashed)
    );
    assert_eq!(replayed.chunks, [b"state".to_vec()]);
    assert_eq!(replayed.bytes(), (11..20_u8).flat_map(|index| [index; 100]).collect::<Vec<u8>>());
    assert_eq!(made.last_number, replayed.blocks.last().expect("blocks").0);
    assert_eq!(made.files + 1, copy.names().len() as u64, "and a lock since");
    commit(&copied, b"a life of its own", 100);
    commit(&log, b"undisturbed", 100);
}

#[test]
fn backup_of_stopped_log_opens_as_stopped() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    commit(&log, b"all", 1);
    log.stop().expect("the log is sound");
    let folder = std::env::temp_dir().join(format!("tidegate-disk-{}-backup", std::process::id()));
    let copy = Arc::new(RealDirectory::create(&folder).expect("there is a temporary directory"));
    backup(&*directory, &*copy).expect("it can be copied");
    assert!(verify(&*copy).expect("it can be read").is_sound());
    let (log, opened, replayed) = try_open(copy).expect("it opens");
    assert_eq!((opened.previous_run, replayed.bytes()), (PreviousRun::Stopped, b"all".to_vec()));
    drop(log);
    std::fs::remove_dir_all(&folder).expect("it was there");
}

#[test]
fn backup_into_nonempty_directory_is_refused() {
    let directory = Arc::new(SimulatedDirectory::new());
    drop(open(&directory));
    let copy = SimulatedDirectory::new();
    copy.put("notes", b"mine".to_vec());
    assert!(matches!(backup(&*directory, &copy), Err(BackupError::NotEmpty { .. })));
    assert_eq!(copy.names(), ["notes"]);
}

#[test]
fn backup_of_damaged_log_is_refused() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    commit(&log, &[1; 100], 1);
    commit(&log, &[2; 100], 1);
    drop(log);
    let bytes = directory.bytes(&first_log()).expect("it is there");
    // In the payload of the first and of the last block.
    for at in [160, 112 + 148 + 60] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        directory.put(&first_log(), damaged);
        let copy = SimulatedDirectory::new();
        match backup(&*directory, &copy) {
            Err(BackupError::Source(OpenError::Damaged(damage))) => assert_eq!(damage.file, first_log()),
            outcome => panic!("{outcome:?}"),
        }
        assert_eq!(copy.names(), [""; 0], "and nothing is left that looks like a store, or is in the way");
    }
}

#[test]
fn backup_to_full_disk_returns_error() {
    let directory = Arc::new(SimulatedDirectory::new());
    drop(open(&directory));
    let copy = SimulatedDirectory::new();
    copy.fail(DiskCall::Write, 0, DiskFault::Full, FaultDuration::Permanent);
    let error = backup(&*directory, &copy).expect_err("it is full");
    assert!(error.to_string().contains("remove it and try again"), "{error}");
}

#[test]
fn backups_during_writes_and_snapshots_contain_durable_data() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    let mut copies = 0;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut written = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..7 {
                    written += 1;
                    commit(&log, &written.to_le_bytes(), written);
                }
                let state = written.to_le_bytes();
                log.snapshot(|snapshot| Ok(snapshot.put(&state)?)).expect("there is room");
            }
        });
        for round in 0..scaled(40) {
            let before = log.durable().0 / 8;
            let copy = Arc::new(SimulatedDirectory::new());
            match backup(&*directory, &*copy) {
                Ok(_) => {
                    copies += 1;
                    let (_log, _, replayed) = open(&copy);
                    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
                    let state = replayed.chunks.first().map_or(0, |chunk| number(chunk));
                    let found: Vec<u64> = replayed.bytes().chunks(8).map(number).collect();
                    let expected: Vec<u64> = (state + 1..=state + found.len() as u64).collect();
                    assert_eq!(found, expected, "round {round}");
                    assert!(state + found.len() as u64 >= before, "round {round}: {before} were durable");
                }
                // Snapshots in this test follow each other faster than a copy takes.
                Err(BackupError::Source(OpenError::SegmentMissing { .. } | OpenError::Disk { .. })) => {}
                Err(error) => panic!("round {round}: {error}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(copies > 0, "some were fast enough");
    assert!(directory.names().contains(&"identity".to_owned()) && !directory.names().contains(&segment(1)));
}
