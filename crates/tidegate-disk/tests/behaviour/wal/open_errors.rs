//! Why a log does not open: each reason by name, and what to do about it.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use tidegate_disk::directory::{Call, Files, Lasting, Real, Simulated, Trouble};
use tidegate_disk::wal::{Before, Entry, Log, OpenError, verify};

use super::fixtures::{TINY, as_files, commit, first_log, open, refusal, segment, try_open};

/// A store with three segments, closed without a stop.
fn three_segments() -> Arc<Simulated> {
    let files = Arc::new(Simulated::new());
    let (log, _, _) = open(&files);
    for index in 1..=5_u8 {
        commit(&log, &vec![index; 400], 1);
    }
    drop(log);
    assert!(files.names().contains(&segment(3)), "{:?}", files.names());
    files
}

/// A folder of its own below the temporary directory.
fn folder(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("tidegate-disk-{}-{name}", std::process::id()))
}

#[test]
fn one_process_at_a_time() {
    let files = Arc::new(Simulated::new());
    let (log, _, _) = open(&files);
    assert!(matches!(refusal(&files), OpenError::Locked { .. }));
    commit(&log, b"and the first does not notice", 1);
    log.stop().expect("the log is sound");
    let (_second, opened, _) = open(&files);
    assert_eq!(opened.before, Before::Stopped, "who stopped has let go");
}

#[test]
fn one_process_at_a_time_in_a_directory_of_the_file_system() {
    let folder = folder("locked");
    let files = || Arc::new(Real::create(&folder).expect("there is a temporary directory"));
    let (log, _, _) = try_open(files()).expect("it is created");
    let error = try_open(files()).expect_err("it is locked");
    let expected = format!("{} is in use by another process", folder.display());
    assert!(error.to_string().starts_with(&expected), "{error}");
    drop(log);
    drop(try_open(files()).expect("it was let go"));
    std::fs::remove_dir_all(&folder).expect("it was there");
}

#[test]
fn a_file_is_not_a_directory() {
    let path = folder("file");
    std::fs::write(&path, b"text").expect("there is a temporary directory");
    let error = Real::create(&path).expect_err("it is a file");
    let error = OpenError::of_disk(&path.display().to_string(), error);
    assert!(matches!(error, OpenError::NotADirectory { .. }), "{error:?}");
    assert!(error.to_string().ends_with("is not a directory; choose another path"), "{error}");
    std::fs::remove_file(&path).expect("it was there");
}

#[test]
fn a_directory_of_somebody_else_is_not_touched() {
    let files = Arc::new(Simulated::new());
    files.put("holiday.jpg", b"sun".to_vec());
    let error = refusal(&files);
    assert!(
        matches!(&error, OpenError::NotAStore { found: Some(found), .. } if found == "holiday.jpg"),
        "{error:?}"
    );
    assert_eq!(files.names(), ["holiday.jpg"], "not even a lock");
}

#[test]
fn a_store_that_lost_its_identity_is_not_touched_either() {
    let files = three_segments();
    files.take("identity");
    let before = files.names();
    let error = refusal(&files);
    assert!(
        matches!(&error, OpenError::NotAStore { found: Some(found), .. } if *found == first_log()),
        "{error:?}"
    );
    assert_eq!(files.names(), before);
}

#[test]
fn what_file_systems_and_people_leave_beside_a_store_is_left_alone() {
    let files = Arc::new(Simulated::new());
    files.put("lost+found", Vec::new());
    drop(open(&files));
    files.put("README", b"this is a store".to_vec());
    drop(open(&files));
    assert!(files.names().contains(&"README".to_owned()));
}

#[test]
fn formats_that_are_not_known_are_named() {
    for (version, word) in [(2_u32, "use the version that wrote it"), (0, "no version of Tidegate writes")] {
        for name in ["identity".to_owned(), first_log()] {
            let files = three_segments();
            let mut bytes = files.bytes(&name).expect("it is there");
            bytes[8..12].copy_from_slice(&version.to_le_bytes());
            let sum = crc32c::crc32c(&bytes[..12]);
            bytes[12..16].copy_from_slice(&sum.to_le_bytes());
            files.put(&name, bytes);
            let error = refusal(&files);
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
fn a_missing_segment_is_named_whichever_it_is() {
    for (gone, named) in
        [(1, "snapshot-0000000000000002"), (2, "log-0000000000000002"), (3, "log-0000000000000003")]
    {
        let files = three_segments();
        files.take(&segment(gone));
        let error = refusal(&files);
        let (OpenError::SegmentMissing { file } | OpenError::SnapshotMissing { file }) = &error else {
            panic!("segment {gone}: {error}")
        };
        assert_eq!(file, named, "segment {gone}");
        assert!(error.to_string().contains("restore the directory from a backup"), "{error}");
    }
    let files = three_segments();
    (1..=3).for_each(|number| files.take(&segment(number)));
    assert!(
        matches!(refusal(&files), OpenError::SegmentMissing { file } if file == first_log()),
        "all of them"
    );
}

#[test]
fn a_missing_snapshot_is_named() {
    let files = three_segments();
    let (log, _, _) = open(&files);
    log.snapshot(|snapshot| Ok(snapshot.put(b"x")?)).expect("there is room");
    drop(log);
    let snapshot = files.names().into_iter().find(|name| name.starts_with("snapshot")).expect("it was taken");
    files.take(&snapshot);
    assert!(matches!(refusal(&files), OpenError::SnapshotMissing { file } if file == snapshot));
}

#[test]
fn a_segment_of_another_store_is_named() {
    let (files, folder) = (three_segments(), folder("other"));
    let other = Arc::new(Real::create(&folder).expect("there is a temporary directory"));
    drop(try_open(Arc::<Real>::clone(&other)).expect("it is created"));
    let bytes = std::fs::read(folder.join(first_log())).expect("it is there");
    files.put(&first_log(), bytes);
    assert!(matches!(refusal(&files), OpenError::OtherStore { file } if file == first_log()));
    std::fs::remove_dir_all(&folder).expect("it was there");
}

#[test]
fn what_the_system_forbids_is_said_plainly() {
    for (call, trouble, word) in [
        (Call::List, Trouble::Forbidden, "no permission"),
        (Call::Lock, Trouble::Forbidden, "no permission"),
        (Call::Open, Trouble::Forbidden, "no permission"),
        (Call::Lock, Trouble::ReadOnly, "read-only file system"),
        (Call::Write, Trouble::ReadOnly, "read-only file system"),
        (Call::Write, Trouble::Full, "no room on the disk"),
        (Call::Read, Trouble::Broken, "the disk failed"),
        (Call::Sync, Trouble::Broken, "the disk failed"),
        (Call::SyncNames, Trouble::Broken, "the disk failed"),
    ] {
        let files = three_segments();
        files.fail(call, 0, trouble, Lasting::ForGood);
        let error = refusal(&files).to_string();
        assert!(error.contains(word), "{call:?} {trouble:?}: {error}");
        files.repair();
        let (_log, _, replayed) = open(&files);
        assert_eq!(replayed.blocks.len(), 5, "{call:?} {trouble:?}: nothing is lost");
    }
}

#[test]
fn what_may_not_be_read_is_not_called_damaged() {
    for pass in 0..4 {
        let files = three_segments();
        files.fail(Call::Open, pass, Trouble::Forbidden, Lasting::ForGood);
        let error = verify(&*files).expect_err("it may not be read");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{pass}: {error}");
        files.repair();
        assert!(verify(&*files).expect("it may").is_sound());
    }
}

#[test]
fn a_creation_that_fails_anywhere_can_be_begun_again() {
    for call in [Call::Create, Call::Write, Call::Reserve, Call::Sync, Call::SyncNames, Call::Rename] {
        for pass in 0..6 {
            let files = Arc::new(Simulated::new());
            files.fail(call, pass, Trouble::Full, Lasting::ForGood);
            drop(try_open(as_files(&files)));
            files.repair();
            let (_log, opened, replayed) = open(&files);
            // It may have come as far as its first start.
            assert_ne!(opened.before, Before::Stopped, "{call:?} after {pass}");
            assert_eq!(replayed.blocks.len(), 0, "{call:?} after {pass}");
        }
    }
}

#[test]
fn records_that_make_no_sense_are_refused_with_their_place() {
    let files = three_segments();
    let mut refuse = |entry: Entry<'_>| match entry {
        Entry::Block { time: 1, .. } => Err("an unknown record".to_owned()),
        _ => Ok(()),
    };
    let error = Log::open(as_files(&files), TINY, &mut refuse).expect_err("it was rejected");
    let story = error.to_string();
    assert!(matches!(error, OpenError::Rejected { offset: 112, .. }), "{error:?}");
    assert!(
        story.contains("log-0000000000000001 has records at byte 112 that make no sense: an unknown record"),
        "{story}"
    );
}

#[test]
fn an_error_that_is_not_named_is_told_as_the_system_tells_it() {
    let error = OpenError::of_disk("log-1", io::Error::other("strange"));
    assert!(error.to_string().contains("strange"), "{error}");
    let simulated = Simulated::new();
    assert_eq!(simulated.place(), "simulated directory");
}
