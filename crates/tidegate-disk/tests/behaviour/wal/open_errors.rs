//! Errors of opening a log name the file and the remedy.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use tidegate_disk::directory::{
    Directory, DiskCall, DiskFault, FaultDuration, RealDirectory, SimulatedDirectory,
};
use tidegate_disk::wal::{OpenError, PreviousRun, ReplayEntry, WriteAheadLog, verify};

use super::fixtures::{TINY, as_files, commit, first_log, open, refusal, segment, try_open};

/// A log with three segments, closed without a stop.
fn three_segments() -> Arc<SimulatedDirectory> {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    for index in 1..=5_u8 {
        commit(&log, &vec![index; 400], 1);
    }
    drop(log);
    assert!(directory.names().contains(&segment(3)), "{:?}", directory.names());
    directory
}

/// A path of its own in the temporary directory.
fn folder(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("tidegate-disk-{}-{name}", std::process::id()))
}

#[test]
fn second_open_is_refused() {
    let directory = Arc::new(SimulatedDirectory::new());
    let (log, _, _) = open(&directory);
    assert!(matches!(refusal(&directory), OpenError::Locked { .. }));
    commit(&log, b"and the first does not notice", 1);
    log.stop().expect("the log is sound");
    let (_second, opened, _) = open(&directory);
    assert_eq!(opened.previous_run, PreviousRun::Stopped, "a stopped log releases the lock");
}

#[test]
fn second_open_of_real_directory_is_refused() {
    let folder = folder("locked");
    let directory = || Arc::new(RealDirectory::create(&folder).expect("there is a temporary directory"));
    let (log, _, _) = try_open(directory()).expect("it is created");
    let error = try_open(directory()).expect_err("it is locked");
    let expected = format!("{} is in use by another process", folder.display());
    assert!(error.to_string().starts_with(&expected), "{error}");
    drop(log);
    drop(try_open(directory()).expect("it was let go"));
    std::fs::remove_dir_all(&folder).expect("it was there");
}

#[test]
fn path_of_a_file_is_not_a_directory_error() {
    let path = folder("file");
    std::fs::write(&path, b"text").expect("there is a temporary directory");
    let error = RealDirectory::create(&path).expect_err("it is a file");
    let error = OpenError::of_disk(&path.display().to_string(), error);
    assert!(matches!(error, OpenError::NotADirectory { .. }), "{error:?}");
    assert!(error.to_string().ends_with("is not a directory; choose another path"), "{error}");
    std::fs::remove_file(&path).expect("it was there");
}

#[test]
fn foreign_directory_is_unchanged() {
    let directory = Arc::new(SimulatedDirectory::new());
    directory.put("holiday.jpg", b"sun".to_vec());
    let error = refusal(&directory);
    assert!(
        matches!(&error, OpenError::NotAStore { found: Some(found), .. } if found == "holiday.jpg"),
        "{error:?}"
    );
    assert_eq!(directory.names(), ["holiday.jpg"], "not even a lock");
}

#[test]
fn store_without_identity_is_unchanged() {
    let directory = three_segments();
    directory.take("identity");
    let before = directory.names();
    let error = refusal(&directory);
    assert!(
        matches!(&error, OpenError::NotAStore { found: Some(found), .. } if *found == first_log()),
        "{error:?}"
    );
    assert_eq!(directory.names(), before);
}

#[test]
fn foreign_files_in_store_are_ignored() {
    let directory = Arc::new(SimulatedDirectory::new());
    directory.put("lost+found", Vec::new());
    drop(open(&directory));
    directory.put("README", b"this is a store".to_vec());
    drop(open(&directory));
    assert!(directory.names().contains(&"README".to_owned()));
}

#[test]
fn unknown_format_version_is_named_error() {
    for (version, word) in [(2_u32, "use the version that wrote it"), (0, "no version of Tidegate writes")] {
        for name in ["identity".to_owned(), first_log()] {
            let directory = three_segments();
            let mut bytes = directory.bytes(&name).expect("it is there");
            bytes[8..12].copy_from_slice(&version.to_le_bytes());
            let sum = crc32c::crc32c(&bytes[..12]);
            bytes[12..16].copy_from_slice(&sum.to_le_bytes());
            directory.put(&name, bytes);
            let error = refusal(&directory);
            let is_named = match &error {
                OpenError::NewerFormat { file, found } => (file, *found, 2) == (&name, version, version),
                OpenError::UnknownFormat { file, found } => (file, *found, 0) == (&name, version, version),
                _ => false,
            };
            assert!(is_named && error.to_string().contains(word), "{error:?}: {error}");
        }
    }
}

#[test]
fn any_missing_segment_is_named() {
    for (gone, named) in
        [(1, "snapshot-0000000000000002"), (2, "log-0000000000000002"), (3, "log-0000000000000003")]
    {
        let directory = three_segments();
        directory.take(&segment(gone));
        let error = refusal(&directory);
        let (OpenError::SegmentMissing { file } | OpenError::SnapshotMissing { file }) = &error else {
            panic!("segment {gone}: {error}")
        };
        assert_eq!(file, named, "segment {gone}");
        assert!(error.to_string().contains("restore the directory from a backup"), "{error}");
    }
    let directory = three_segments();
    (1..=3).for_each(|number| directory.take(&segment(number)));
    assert!(
        matches!(refusal(&directory), OpenError::SegmentMissing { file } if file == first_log()),
        "all of them"
    );
}

#[test]
fn missing_snapshot_is_named_error() {
    let directory = three_segments();
    let (log, _, _) = open(&directory);
    log.snapshot(|snapshot| Ok(snapshot.put(b"x")?)).expect("there is room");
    drop(log);
    let snapshot =
        directory.names().into_iter().find(|name| name.starts_with("snapshot")).expect("it was taken");
    directory.take(&snapshot);
    assert!(matches!(refusal(&directory), OpenError::SnapshotMissing { file } if file == snapshot));
}

#[test]
fn segment_of_another_store_is_named_error() {
    let (directory, folder) = (three_segments(), folder("other"));
    let other = Arc::new(RealDirectory::create(&folder).expect("there is a temporary directory"));
    drop(try_open(Arc::<RealDirectory>::clone(&other)).expect("it is created"));
    let bytes = std::fs::read(folder.join(first_log())).expect("it is there");
    directory.put(&first_log(), bytes);
    assert!(matches!(refusal(&directory), OpenError::OtherStore { file } if file == first_log()));
    std::fs::remove_dir_all(&folder).expect("it was there");
}

#[test]
fn system_errors_have_clear_messages() {
    for (call, trouble, word) in [
        (DiskCall::List, DiskFault::PermissionDenied, "no permission"),
        (DiskCall::Lock, DiskFault::PermissionDenied, "no permission"),
        (DiskCall::Open, DiskFault::PermissionDenied, "no permission"),
        (DiskCall::Lock, DiskFault::ReadOnly, "read-only file system"),
        (DiskCall::Write, DiskFault::ReadOnly, "read-only file system"),
        (DiskCall::Write, DiskFault::Full, "no room on the disk"),
        (DiskCall::Read, DiskFault::IoError, "the disk failed"),
        (DiskCall::Sync, DiskFault::IoError, "the disk failed"),
        (DiskCall::SyncNames, DiskFault::IoError, "the disk failed"),
    ] {
        let directory = three_segments();
        directory.fail(call, 0, trouble, FaultDuration::Permanent);
        let error = refusal(&directory).to_string();
        assert!(error.contains(word), "{call:?} {trouble:?}: {error}");
        directory.repair();
        let (_log, _, replayed) = open(&directory);
        assert_eq!(replayed.blocks.len(), 5, "{call:?} {trouble:?}: nothing is lost");
    }
}

#[test]
fn unreadable_file_is_not_reported_as_damage() {
    for pass in 0..4 {
        let directory = three_segments();
        directory.fail(DiskCall::Open, pass, DiskFault::PermissionDenied, FaultDuration::Permanent);
        let error = verify(&*directory).expect_err("it may not be read");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{pass}: {error}");
        directory.repair();
        assert!(verify(&*directory).expect("it may").is_sound());
    }
}

#[test]
fn failed_creation_can_be_repeated() {
    for call in [
        DiskCall::Create,
        DiskCall::Write,
        DiskCall::Reserve,
        DiskCall::Sync,
        DiskCall::SyncNames,
        DiskCall::Rename,
    ] {
        for pass in 0..6 {
            let directory = Arc::new(SimulatedDirectory::new());
            directory.fail(call, pass, DiskFault::Full, FaultDuration::Permanent);
            drop(try_open(as_files(&directory)));
            directory.repair();
            let (_log, opened, replayed) = open(&directory);
            // The start block may have been written.
            assert_ne!(opened.previous_run, PreviousRun::Stopped, "{call:?} after {pass}");
            assert_eq!(replayed.blocks.len(), 0, "{call:?} after {pass}");
        }
    }
}

#[test]
fn rejected_record_is_reported_with_offset() {
    let directory = three_segments();
    let mut refuse = |entry: ReplayEntry<'_>| match entry {
        ReplayEntry::Block { time: 1, .. } => Err("an unknown record".to_owned()),
        _ => Ok(()),
    };
    let error = WriteAheadLog::open(as_files(&directory), TINY, &mut refuse).expect_err("it was rejected");
    let message = error.to_string();
    assert!(matches!(error, OpenError::Rejected { offset: 112, .. }), "{error:?}");
    assert!(
        message
            .contains("log-0000000000000001 has records at byte 112 that make no sense: an unknown record"),
        "{message}"
    );
}

#[test]
fn unnamed_system_error_is_passed_through() {
    let error = OpenError::of_disk("log-1", io::Error::other("strange"));
    assert!(error.to_string().contains("strange"), "{error}");
    let simulated = SimulatedDirectory::new();
    assert_eq!(simulated.location(), "simulated directory");
}
