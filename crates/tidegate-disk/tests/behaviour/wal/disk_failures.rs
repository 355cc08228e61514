//! Disks that fail, and disks that are full.

use std::sync::Arc;

use proptest::prelude::*;
use tidegate_disk::WriteAheadLog;
use tidegate_disk::directory::{DiskCall, DiskFault, FaultDuration, SimulatedDirectory};
use tidegate_disk::wal::{LogHealth, PreviousRun, SnapshotError, verify};
use tidegate_testkit::test_scale::cases;

use super::fixtures::{commit, open, segment, try_open};

/// What is left after the process was killed, opened.
#[track_caller]
fn reopened(directory: &SimulatedDirectory) -> Vec<u8> {
    open(&Arc::new(directory.killed())).2.bytes()
}

#[test]
fn an_error_of_the_disk_poisons_the_log_for_good() {
    for call in [DiskCall::Write, DiskCall::Sync] {
        let directory = Arc::new(SimulatedDirectory::new());
        let (log, _, _) = open(&directory);
        commit(&log, b"durable", 1);
        directory.fail(call, 0, DiskFault::IoError, FaultDuration::Once);
        let lsn = log.append(b"lost", 1).expect("nobody knows yet");
        let told = log.wait_durable(lsn).expect_err("the disk failed");
        assert!(told.reason.contains("check the disk, then restart"), "{call:?}: {told}");
        // The disk would answer again; nobody asks it.
        let refused = log.append(b"more", 1).expect_err("the log is poisoned");
        assert_eq!(refused, told, "{call:?}");
        assert!(matches!(log.health(), LogHealth::Failed { .. }), "{call:?}");
        assert_eq!(log.wait_durable(lsn), Err(told.clone()), "{call:?}: however often it is asked");
        assert!(log.wait_durable(log.durable()).is_ok(), "{call:?}: what was durable is");
        assert!(log.snapshot(|_| Ok(())).is_err(), "{call:?}: no snapshot either");
        assert_eq!(log.stop(), Err(told), "{call:?}: nor a clean stop");
        drop(log);
        let (_log, opened, replayed) = open(&directory);
        assert_eq!(opened.previous_run, PreviousRun::Crashed, "{call:?}");
        assert!(replayed.bytes().starts_with(b"durable"), "{call:?}");
    }
}

#[test]
fn what_a_failed_sync_left_in_the_cache_is_made_durable_before_it_is_believed() {
    // The block can be read after the process died, because the system still has it; the disk never got it.
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    commit(&log, b"first ", 1);
    directory.fail(DiskCall::Sync, 0, DiskFault::IoError, FaultDuration::Once);
    let lsn = log.append(b"second", 1).expect("nobody knows yet");
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

/// Appends until the log refuses; how much it took.
fn fill(log: &WriteAheadLog) -> Vec<u8> {
    let mut taken = Vec::new();
    while let Ok(lsn) = log.append(&[7; 100], 1) {
        taken.extend_from_slice(&[7; 100]);
        let _ = log.wait_durable(lsn);
    }
    taken
}

/// Waits until the log is well again, which it becomes by itself.
fn wait_until_sound(log: &WriteAheadLog) {
    while log.health() != LogHealth::Healthy {
        std::thread::yield_now();
    }
}

#[test]
fn a_full_disk_refuses_until_there_is_room_and_harms_nothing() {
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

    // The next try finds room, and what had been taken is written.
    directory.set_capacity(None);
    wait_until_sound(&log);
    log.wait_durable(log.tip()).expect("there is room");
    commit(&log, b"after", 2);
    drop(log);
    assert_eq!(reopened(&directory), [&taken[..], b"after"].concat());
}

#[test]
fn a_full_disk_is_tried_again_by_itself() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    directory.set_capacity(Some(directory.used()));
    fill(&log);
    for _ in 0..2 {
        // A hold shows that the writer came by.
        directory.hold(DiskCall::Reserve).wait_for_caller();
    }
    assert!(matches!(log.health(), LogHealth::Full { .. }));
}

#[test]
fn room_that_is_missing_for_a_block_or_a_seal_stops_nothing_for_good() {
    // Writes of a roll: the header of the next segment, the seal of this one, the block.
    for pass in 0..3 {
        let directory = Arc::new(SimulatedDirectory::new());
        let (log, _, _) = open(&directory);
        commit(&log, &[1; 700], 1);
        directory.fail(DiskCall::Write, pass, DiskFault::Full, FaultDuration::Once);
        let lsn = log.append(&[2; 300], 1).expect("nobody knows yet");
        let _ = log.wait_durable(lsn);
        wait_until_sound(&log);
        commit(&log, &[3; 10], 1);
        drop(log);
        assert_eq!(reopened(&directory), [&[1; 700][..], &[2; 300], &[3; 10]].concat(), "pass {pass}");
        assert!(verify(&*directory).expect("it can be read").is_sound(), "pass {pass}");
    }
}

#[test]
fn a_log_that_is_closed_while_the_disk_is_full_says_what_it_could_not_do() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    directory.set_capacity(Some(directory.used()));
    let taken = fill(&log);
    let durable = usize::try_from(log.durable().0).expect("small");
    let told = log.stop().expect_err("it is full");
    assert!(told.reason.contains("the disk is full"), "{told}");
    drop(log);
    directory.set_capacity(None);
    let (_log, opened, replayed) = open(&directory);
    assert_eq!((opened.previous_run, replayed.bytes()), (PreviousRun::Crashed, taken[..durable].to_vec()));
}

#[test]
fn a_log_that_is_dropped_writes_what_it_has_and_does_not_say_that_this_was_all() {
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
fn a_log_that_was_opened_again_is_not_stopped_any_more() {
    // Whoever opened it may have sold something that need not be logged.
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
fn a_snapshot_that_fails_leaves_the_log_as_it_was() {
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
fn a_snapshot_can_be_given_up_and_there_is_one_at_a_time() {
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
fn a_snapshot_stands_for_what_came_before_it_and_only_for_that() {
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

    /// Whichever call fails: what was durable stays, whether the process or the whole machine goes down afterwards.
    #[test]
    fn whatever_fails_what_was_durable_stays(call in call(), pass in 0..30_u64, snapshots in 0..3_usize, seed in any::<u64>()) {
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
