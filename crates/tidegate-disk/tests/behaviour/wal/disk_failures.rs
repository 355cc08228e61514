//! Failing disks and full disks.

use std::sync::Arc;

use proptest::prelude::*;
use tidegate_disk::WriteAheadLog;
use tidegate_disk::directory::{DiskCall, DiskFault, FaultDuration, SimulatedDirectory};
use tidegate_disk::wal::{LogHealth, PreviousRun, SnapshotError, verify};
use tidegate_testkit::test_scale::cases;

use super::fixtures::{commit, open, segment, try_open};

/// Reopens the log after a kill and returns the replayed bytes.
#[track_caller]
fn reopened(directory: &SimulatedDirectory) -> Vec<u8> {
    open(&Arc::new(directory.killed())).2.bytes()
}

#[test]
fn disk_error_poisons_the_log() {
    for call in [DiskCall::Write, DiskCall::Sync] {
        let directory = Arc::new(SimulatedDirectory::new());
        let (log, _, _) = open(&directory);
        commit(&log, b"durable", 1);
        directory.fail(call, 0, DiskFault::IoError, FaultDuration::Once);
        let lsn = log.append(b"lost", 1).expect("the failure is not known yet");
        let error = log.wait_durable(lsn).expect_err("the disk failed");
        assert!(error.reason.contains("check the disk, then restart"), "{call:?}: {error}");
        // The disk works again, but the log does not use it.
        let refused = log.append(b"more", 1).expect_err("the log is poisoned");
        assert_eq!(refused, error, "{call:?}");
        assert!(matches!(log.health(), LogHealth::Failed { .. }), "{call:?}");
        assert_eq!(log.wait_durable(lsn), Err(error.clone()), "{call:?}: however often it is asked");
        assert!(log.wait_durable(log.durable()).is_ok(), "{call:?}: what was durable is");
        assert!(log.snapshot(|_| Ok(())).is_err(), "{call:?}: no snapshot either");
        assert_eq!(log.stop(), Err(error), "{call:?}: nor a clean stop");
        drop(log);
        let (_log, opened, replayed) = open(&directory);
        assert_eq!(opened.previous_run, PreviousRun::Crashed, "{call:?}");
        assert!(replayed.bytes().starts_with(b"durable"), "{call:?}");
    }
}

#[test]
fn block_read_from_cache_after_failed_sync_is_made_durable() {
    // The block can be read after the process died, because the page cache has it, and it is not on the disk.
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    commit(&log, b"first ", 1);
    directory.fail(DiskCall::Sync, 0, DiskFault::IoError, FaultDuration::Once);
    let lsn = log.append(b"second", 1).expect("the failure is not known yet");
    log.wait_durable(lsn).expect_err("the disk failed");
    drop(log);
    let survivor = Arc::new(directory.killed());
    let (log, _, replayed) = open(&survivor);
    assert_eq!(replayed.bytes(), b"first second");
    for seed in 0..200 {
        let (_log, _, again) = open(&Arc::new(survivor.crash(seed)));
        assert_eq!(again.bytes(), b"first second", "seed {seed}");
    }
    drop(log);
}

/// Appends until the log refuses. Returns the accepted bytes.
fn fill(log: &WriteAheadLog) -> Vec<u8> {
    let mut taken = Vec::new();
    while let Ok(lsn) = log.append(&[7; 100], 1) {
        taken.extend_from_slice(&[7; 100]);
        let _ = log.wait_durable(lsn);
    }
    taken
}

/// Waits until the log has recovered by itself.
fn wait_until_sound(log: &WriteAheadLog) {
    while log.health() != LogHealth::Healthy {
        std::thread::yield_now();
    }
}

#[test]
fn full_disk_refuses_appends_until_there_is_room() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    directory.set_capacity(Some(directory.used()));
    let taken = fill(&log);
    let LogHealth::Full { reason } = log.health() else { panic!("{:?}", log.health()) };
    assert!(reason.contains(&segment(2)), "{reason}");
    let refused = log.append(b"x", 1).expect_err("it is full");
    assert!(refused.reason.starts_with("the disk is full: "), "{refused}");
    let durable = usize::try_from(log.durable().0).expect("small");
    assert_eq!(reopened(&directory), taken[..durable]);

    // The next attempt finds room and writes what was accepted.
    directory.set_capacity(None);
    wait_until_sound(&log);
    log.wait_durable(log.log_end()).expect("there is room");
    commit(&log, b"after", 2);
    drop(log);
    assert_eq!(reopened(&directory), [&taken[..], b"after"].concat());
}

#[test]
fn full_disk_is_retried_periodically() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    directory.set_capacity(Some(directory.used()));
    fill(&log);
    for _ in 0..2 {
        // The hold shows that the writer tried again.
        directory.hold(DiskCall::Reserve).wait_for_caller();
    }
    assert!(matches!(log.health(), LogHealth::Full { .. }));
}

#[test]
fn full_disk_during_roll_is_recovered() {
    // The writes of a roll: the header of the next segment, the seal of this one, the block.
    for pass in 0..3 {
        let directory = Arc::new(SimulatedDirectory::new());
        let (log, _, _) = open(&directory);
        commit(&log, &[1; 700], 1);
        directory.fail(DiskCall::Write, pass, DiskFault::Full, FaultDuration::Once);
        let lsn = log.append(&[2; 300], 1).expect("the failure is not known yet");
        let _ = log.wait_durable(lsn);
        wait_until_sound(&log);
        commit(&log, &[3; 10], 1);
        drop(log);
        assert_eq!(reopened(&directory), [&[1; 700][..], &[2; 300], &[3; 10]].concat(), "pass {pass}");
        assert!(verify(&*directory).expect("it can be read").is_sound(), "pass {pass}");
    }
}

#[test]
fn stop_on_full_disk_returns_error() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    directory.set_capacity(Some(directory.used()));
    let taken = fill(&log);
    let durable = usize::try_from(log.durable().0).expect("small");
    let error = log.stop().expect_err("it is full");
    assert!(error.reason.contains("the disk is full"), "{error}");
    drop(log);
    directory.set_capacity(None);
    let (_log, opened, replayed) = open(&directory);
    assert_eq!((opened.previous_run, replayed.bytes()), (PreviousRun::Crashed, taken[..durable].to_vec()));
}

#[test]
fn dropped_log_writes_pending_without_stop_block() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    let hold = directory.hold(DiskCall::Sync);
    log.append(b"one ", 1).expect("the log is sound");
    hold.wait_for_caller();
    log.append(b"two ", 1).expect("the log is sound");
    log.append(b"three", 1).expect("the log is sound");
    drop(hold);
    drop(log);
    let (_log, opened, replayed) = open(&directory);
    assert_eq!((opened.previous_run, replayed.bytes()), (PreviousRun::Crashed, b"one two three".to_vec()));
}

#[test]
fn reopened_log_is_not_stopped() {
    // The process that opened it may have granted units without a record.
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    log.stop().expect("the log is sound");
    log.stop().expect("and stays so");
    assert_eq!(log.append(b"x", 1).expect_err("it is stopped").reason, "the log was stopped");
    let (_log, opened, _) = open(&directory);
    assert_eq!(opened.previous_run, PreviousRun::Stopped);
    let (_log, opened, _) = open(&Arc::new(directory.killed()));
    assert_eq!(opened.previous_run, PreviousRun::Crashed);
    let (_log, opened, _) = open(&Arc::new(directory.crash(1)));
    assert_eq!(opened.previous_run, PreviousRun::Crashed);
}

#[test]
fn failed_snapshot_leaves_log_unchanged() {
    for (call, trouble) in [
        (DiskCall::Create, DiskFault::Full),
        (DiskCall::Reserve, DiskFault::Full),
        (DiskCall::Write, DiskFault::Full),
        (DiskCall::Rename, DiskFault::Full),
    ] {
        for pass in 0..3 {
            let directory = Arc::new(SimulatedDirectory::new());
            let (log, _, _) = open(&directory);
            commit(&log, b"before ", 1);
            directory.fail(call, pass, trouble, FaultDuration::Once);
            let outcome = log.snapshot(|snapshot| Ok(snapshot.put(b"state")?));
            directory.repair();
            commit(&log, b"after", 2);
            assert_eq!(log.health(), LogHealth::Healthy, "{call:?} after {pass}");
            let (_log, _, replayed) = open(&Arc::new(directory.killed()));
            let expected: &[u8] = if outcome.is_ok() { b"after" } else { b"before after" };
            assert_eq!(replayed.bytes(), expected, "{call:?} after {pass}: {outcome:?}");
            log.snapshot(|snapshot| Ok(snapshot.put(b"state")?)).expect("there is room");
            assert!(directory.names().iter().all(|name| !name.contains(".new")), "{:?}", directory.names());
        }
    }
}

#[test]
fn snapshot_can_be_abandoned_and_is_exclusive() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    commit(&log, b"kept", 1);
    let outcome = log.snapshot(|_| {
        assert!(matches!(log.snapshot(|_| Ok(())), Err(SnapshotError::Busy)));
        Err(SnapshotError::Abandoned("changed my mind".to_owned()))
    });
    assert_eq!(
        outcome.expect_err("it was given up").to_string(),
        "the snapshot was given up: changed my mind"
    );
    assert_eq!(reopened(&directory), b"kept");
}

#[test]
fn snapshot_replaces_earlier_appends_only() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    for _ in 0..20 {
        commit(&log, &[1; 200], 77);
    }
    assert!(log.bytes_since_snapshot() > 4000, "{}", log.bytes_since_snapshot());
    let segments = directory.names().iter().filter(|name| name.starts_with("log-")).count() as u64;
    assert!(segments > 3 && log.segments() == segments, "{segments} {}", log.segments());
    let bytes = log.snapshot(|snapshot| {
        commit(&log, b"while it is taken", 5);
        snapshot.put(b"state")?;
        Ok(snapshot.put(b"")?)
    });
    assert_eq!(bytes.expect("there is room"), 5);
    assert!(log.bytes_since_snapshot() < 100, "{}", log.bytes_since_snapshot());
    assert_eq!(log.segments(), 1);
    drop(log);
    assert_eq!(directory.names().len(), 4, "identity, lock, a segment, a snapshot: {:?}", directory.names());
    let (log, opened, replayed) = open(&directory);
    assert_eq!(replayed.chunks, [b"state".to_vec(), Vec::new()]);
    assert_eq!(replayed.bytes(), b"while it is taken");
    assert_eq!(opened.time, 77, "also of what is gone");
    assert!((17..200).contains(&log.bytes_since_snapshot()), "{}", log.bytes_since_snapshot());
    assert_eq!(log.segments(), 1, "those before it are gone");
}

fn call() -> impl Strategy<Value = DiskCall> {
    prop_oneof![
        3 => Just(DiskCall::Write),
        3 => Just(DiskCall::Sync),
        1 => Just(DiskCall::Create),
        1 => Just(DiskCall::Reserve),
        1 => Just(DiskCall::Rename),
        1 => Just(DiskCall::SyncNames),
        1 => Just(DiskCall::Remove),
    ]
}

proptest! {
    #![proptest_config(cases(150))]

    /// After any failed call, durable data survives a kill and a power failure.
    #[test]
    fn durable_data_survives_any_failed_call(call in call(), pass in 0..30_u64, snapshots in 0..3_usize, seed in any::<u64>()) {
        let directory = Arc::new(SimulatedDirectory::new());
        let (log, _, _) = open(&directory);
        directory.fail(call, pass, DiskFault::IoError, FaultDuration::Once);
        let (mut taken, mut durable) = (Vec::new(), 0);
        for index in 0..24_u8 {
            let Ok(lsn) = log.append(&[index; 150], 1) else { break };
            taken.extend_from_slice(&[index; 150]);
            if log.wait_durable(lsn).is_ok() {
                durable = taken.len();
            }
            if usize::from(index) < snapshots * 5 && index % 5 == 4 {
                let state = taken[..durable].to_vec();
                let _ = log.snapshot(|snapshot| Ok(snapshot.put(&state)?));
            }
        }
        drop(log);
        directory.repair();
        for image in [directory.killed(), directory.crash(seed), directory.crash(seed ^ 1)] {
            let (_log, _, replayed) = try_open(Arc::new(image)).map_err(|error| TestCaseError::fail(error.to_string()))?;
            let bytes = [replayed.chunks.concat(), replayed.bytes()].concat();
            prop_assert!(bytes.len() >= durable, "{} of {durable}", bytes.len());
            prop_assert!(taken.starts_with(&bytes), "nothing else");
        }
    }
}
