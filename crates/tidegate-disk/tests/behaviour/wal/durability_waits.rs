//! Appending and waiting from many threads and tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use tidegate::store::Lsn;
use tidegate_disk::directory::{DiskCall, DiskFault, FaultDuration, SimulatedDirectory};
use tidegate_disk::wal::{MAX_PENDING_BYTES, WriteAheadLog};
use tidegate_testkit::test_scale::scaled;

use super::fixtures::{as_files, commit, open};

/// A task that counts its wake-ups.
#[derive(Default)]
struct WakeCounter {
    woken: AtomicUsize,
}

impl Wake for WakeCounter {
    fn wake(self: Arc<WakeCounter>) {
        self.woken.fetch_add(1, Ordering::SeqCst);
    }
}

impl WakeCounter {
    fn new() -> (Arc<WakeCounter>, Waker) {
        let task = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&task));
        (task, waker)
    }

    fn woken(&self) -> usize {
        self.woken.load(Ordering::SeqCst)
    }
}

fn is_durable(log: &WriteAheadLog, lsn: Lsn, waker: &Waker) -> bool {
    match log.poll_durable(lsn, &mut Context::from_waker(waker)) {
        Poll::Ready(outcome) => outcome.map(|()| true).expect("the log is sound"),
        Poll::Pending => false,
    }
}

#[test]
fn appends_during_a_sync_form_one_block() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _) =
        WriteAheadLog::open(as_files(&directory), tidegate_disk::wal::LogOptions::default(), &mut |_| Ok(()))
            .expect("new");
    let hold = directory.hold(DiskCall::Sync);
    let first = log.append(b"first", 1).expect("the log is sound");
    hold.wait_for_caller();
    let mut last = first;
    for index in 0..1000_u64 {
        let lsn = log.append(b"gathered", index).expect("the log is sound");
        assert!(lsn > last, "places rise");
        last = lsn;
    }
    assert_eq!((log.durable(), log.log_end()), (Lsn(0), last));
    drop(hold);
    log.wait_durable(last).expect("the log is sound");
    drop(log);
    let (_log, opened, replayed) = open(&directory);
    assert_eq!(replayed.blocks.len(), 2, "one sync for a thousand appends");
    assert_eq!(replayed.blocks[1].2.len(), 8000);
    assert_eq!(opened.time, 999, "the latest of them");
}

#[test]
fn empty_append_has_its_own_position() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    let one = log.append(b"", 1).expect("the log is sound");
    let two = log.append(b"", 9).expect("the log is sound");
    assert!(two > one);
    log.wait_durable(two).expect("the log is sound");
    drop(log);
    assert_eq!(open(&directory).1.time, 9);
}

#[test]
fn waiting_task_is_woken_by_its_commit_only() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    let hold = directory.hold(DiskCall::Sync);
    let first = log.append(b"first", 1).expect("the log is sound");
    hold.wait_for_caller();
    let second = log.append(b"second", 1).expect("the log is sound");
    let ((early, early_waker), (late, late_waker)) = (WakeCounter::new(), WakeCounter::new());
    for _ in 0..1000 {
        assert!(!is_durable(&log, first, &early_waker) && !is_durable(&log, second, &late_waker));
    }
    // The task, its waker, and one clone in the log.
    assert_eq!((Arc::strong_count(&early), Arc::strong_count(&late)), (3, 3), "once, however often it asks");
    assert_eq!((early.woken(), late.woken()), (0, 0));
    drop(hold);
    log.wait_durable(second).expect("the log is sound");
    log.stop().expect("the log is sound");
    assert_eq!((early.woken(), late.woken()), (1, 1));
    assert_eq!((Arc::strong_count(&early), Arc::strong_count(&late)), (2, 2), "and nothing is kept");
    assert!(is_durable(&log, second, &late_waker), "also after the stop");
}

#[test]
fn abandoned_waiter_is_removed_by_next_commit() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    let hold = directory.hold(DiskCall::Sync);
    let lsn = log.append(b"x", 1).expect("the log is sound");
    let (task, waker) = WakeCounter::new();
    assert!(!is_durable(&log, lsn, &waker));
    drop(waker);
    assert_eq!(Arc::strong_count(&task), 2, "the log does not know yet");
    drop(hold);
    commit(&log, b"y", 1);
    log.stop().expect("the log is sound");
    assert_eq!(Arc::strong_count(&task), 1);
}

#[test]
fn all_waiters_get_an_error_when_sync_fails() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    directory.fail(DiskCall::Sync, 0, DiskFault::IoError, FaultDuration::Once);
    let hold = directory.hold(DiskCall::Sync);
    let lsn = log.append(b"x", 1).expect("the failure is not known yet");
    hold.wait_for_caller();
    let tasks: Vec<(Arc<WakeCounter>, Waker)> = (0..10).map(|_| WakeCounter::new()).collect();
    assert!(tasks.iter().all(|(_, waker)| !is_durable(&log, lsn, waker)));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| log.wait_durable(lsn));
        drop(hold);
        assert!(waiting.join().expect("it does not panic").is_err(), "threads");
    });
    drop(log.stop());
    for (task, waker) in &tasks {
        assert_eq!(task.woken(), 1);
        let error = log.poll_durable(lsn, &mut Context::from_waker(waker));
        assert!(matches!(error, Poll::Ready(Err(_))), "tasks");
    }
}

#[test]
fn pending_bytes_are_bounded() {
    let directory = Arc::new(SimulatedDirectory::new());
    let options = tidegate_disk::wal::LogOptions::default();
    let (log, _) = WriteAheadLog::open(as_files(&directory), options, &mut |_| Ok(())).expect("it is new");
    let hold = directory.hold(DiskCall::Write);
    let mebibyte = vec![1; 1 << 20];
    for _ in 0..MAX_PENDING_BYTES >> 20 {
        log.append(&mebibyte, 1).expect("there is room");
    }
    let refused = log.append(b"x", 1).expect_err("no more");
    assert!(refused.reason.contains("the disk is behind"), "{refused}");
    assert!(log.append(&vec![0; MAX_PENDING_BYTES + 1], 1).is_err());
    drop(hold);
    log.wait_durable(log.log_end()).expect("the log is sound");
    log.append(b"x", 1).expect("there is room again");
}

#[test]
fn append_larger_than_segment_gets_larger_segment() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    for length in [1, 5000, 20, 900, 977, 1024, 100_000, 3] {
        commit(&log, &vec![7; length], 1);
    }
    drop(log);
    let lengths: Vec<usize> = open(&directory).2.blocks.iter().map(|(_, _, payload)| payload.len()).collect();
    assert_eq!(lengths, [1, 5000, 20, 900, 977, 1024, 100_000, 3]);
}

/// The payload of one append, which identifies its thread and index.
fn payload(thread: u8, index: u16, length: usize) -> Vec<u8> {
    let mut bytes = vec![thread; length];
    bytes[..2].copy_from_slice(&index.to_le_bytes());
    bytes
}

#[test]
fn concurrent_appends_are_replayed_at_their_positions() {
    const THREADS: u8 = 4;
    let each = u16::try_from(scaled(500)).unwrap_or(u16::MAX);
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    let mut all: Vec<(Lsn, Vec<u8>)> = std::thread::scope(|scope| {
        let append = |thread: u8| {
            let log = &log;
            move || {
                let mut mine: Vec<(Lsn, Vec<u8>)> = Vec::new();
                for index in 0..each {
                    let bytes = payload(thread, index, 2 + usize::from(index) * 31 % 97);
                    let lsn = log.append(&bytes, u64::from(index)).expect("the log is sound");
                    assert!(mine.last().is_none_or(|(before, _)| *before < lsn), "places rise");
                    mine.push((lsn, bytes));
                    if index % 16 == u16::from(thread) {
                        log.wait_durable(lsn).expect("the log is sound");
                        assert!(log.durable() >= lsn);
                    }
                }
                mine
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(append(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    let tip = log.log_end();
    log.wait_durable(tip).expect("the log is sound");
    let (_log, _, replayed) = open(&Arc::new(directory.crash(7)));
    drop(log);

    all.sort_unstable_by_key(|(lsn, _)| *lsn);
    let expected: Vec<u8> = all.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
    assert_eq!(expected.len() as u64, tip.0);
    assert!(replayed.bytes() == expected, "all of it, in the order of the places");
    // No block ends inside an append.
    let mut ends = all.iter().map(|(lsn, _)| lsn.0);
    let mut end = 0;
    for (number, _, payload) in &replayed.blocks {
        end += payload.len() as u64;
        assert!(ends.any(|each| each == end), "block {number} ends at {end}, inside of an append");
    }
}
