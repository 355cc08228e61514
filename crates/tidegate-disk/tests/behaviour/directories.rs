//! The real and the simulated directory fulfill the same contract. The simulated one can be crashed.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;

use tidegate_disk::directory::{
    Directory, DirectoryFile, DiskCall, DiskFault, FaultDuration, OpenMode, RealDirectory, SimulatedDirectory,
};

fn folder(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("tidegate-disk-{}-files-{name}", std::process::id()))
}

fn content(file: &dyn DirectoryFile) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.length().expect("it is open")).expect("small")];
    let read = file.read_at(&mut bytes, 0).expect("it is open");
    assert_eq!(read, bytes.len());
    bytes
}

/// The contract of every directory.
fn check_contract(directory: &dyn Directory) {
    assert_eq!(directory.list().expect("it is there"), [""; 0]);
    let file = directory.create("a").expect("there is room");
    file.write_at(b"world", 6).expect("there is room");
    file.write_at(b"hello", 0).expect("there is room");
    assert_eq!(content(&*file), b"hello\0world");
    file.reserve(20).expect("there is room");
    file.reserve(3).expect("it is longer already");
    assert_eq!(content(&*file), [&b"hello\0world"[..], &[0; 9]].concat());
    file.sync().expect("it can be synced");
    let mut end = [9; 8];
    assert_eq!(file.read_at(&mut end, 18).expect("it is open"), 2, "what there is");

    assert_eq!(directory.create("a").expect_err("it is there").kind(), ErrorKind::AlreadyExists);
    assert_eq!(directory.open("b", OpenMode::Read).expect_err("it is not").kind(), ErrorKind::NotFound);
    assert_eq!(directory.remove("b").expect_err("it is not").kind(), ErrorKind::NotFound);
    let reader = directory.open("a", OpenMode::Read).expect("it is there");
    assert!(reader.write_at(b"x", 0).is_err(), "only for reading");

    directory.create("b").expect("there is room").write_at(b"old", 0).expect("there is room");
    directory.rename("a", "b").expect("both are there");
    directory.sync_names().expect("it can be synced");
    assert_eq!(directory.list().expect("it is there"), ["b"]);
    assert_eq!(content(&*directory.open("b", OpenMode::ReadWrite).expect("it is there")).len(), 20);
    directory.remove("b").expect("it is there");
    assert_eq!(content(&*reader).len(), 20, "an open file can still be read");

    let guard = directory.lock("lock").expect("it is free");
    assert_eq!(directory.lock("lock").expect_err("it is taken").kind(), ErrorKind::WouldBlock);
    drop(guard);
    directory.lock("lock").expect("it is free");
    assert_ne!(directory.random().expect("chance"), directory.random().expect("chance"));
}

#[test]
fn simulated_directory_fulfills_contract() {
    check_contract(&SimulatedDirectory::new());
}

#[test]
fn real_directory_fulfills_contract_with_owner_permissions() {
    let folder = folder("behaves");
    check_contract(&RealDirectory::create(&folder).expect("there is a temporary directory"));
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&folder.join("lock"))), (0o700, 0o600));
    std::fs::remove_dir_all(&folder).expect("it was there");
}

#[test]
fn removed_lock_file_keeps_directory_locked() {
    let folder = folder("locked");
    let (directory, other) = (
        RealDirectory::create(&folder).expect("it is made"),
        RealDirectory::create(&folder).expect("it is there"),
    );
    let guard = directory.lock("lock").expect("it is free");
    std::fs::remove_file(folder.join("lock")).expect("it is there");
    assert_eq!(other.lock("lock").expect_err("the directory is locked").kind(), ErrorKind::WouldBlock);
    drop(guard);
    other.lock("lock").expect("it is free");
    std::fs::remove_dir_all(&folder).expect("it was there");
}

#[test]
fn crash_keeps_synced_data_and_varies_the_rest() {
    let directory = SimulatedDirectory::new();
    let file = directory.create("a").expect("there is room");
    file.reserve(2048).expect("there is room");
    file.write_at(&[1; 100], 0).expect("there is room");
    file.sync().expect("it can be synced");
    directory.sync_names().expect("it can be synced");
    file.write_at(&[2; 1000], 1000).expect("there is room");
    directory.rename("a", "b").expect("it is there");
    let mut seen = BTreeSet::new();
    for seed in 0..400 {
        let image = directory.crash(seed);
        let names = image.names();
        assert!(names == ["a"] || names == ["b"], "one or the other: {names:?}");
        let bytes = image.bytes(&names[0]).expect("it is there");
        assert_eq!(bytes[..100], [1; 100], "durable");
        assert_eq!(image.bytes(&names[0]), directory.crash(seed).bytes(&names[0]), "a seed says it all");
        let kept: usize = bytes[1000..2000].iter().map(|byte| usize::from(*byte / 2)).sum();
        let first = bytes[1000..2000].iter().take_while(|byte| **byte == 2).count();
        seen.insert(match (kept, first) {
            (0, _) => "dropped",
            (1000, _) => "kept",
            (kept, first) if kept == first && (1000 + kept) % 512 != 0 => "cut at a byte",
            (kept, first) if kept == first => "cut at a sector",
            _ => "with a hole",
        });
        seen.insert(if names == ["a"] { "not renamed" } else { "renamed" });
    }
    let all =
        ["cut at a byte", "cut at a sector", "dropped", "kept", "not renamed", "renamed", "with a hole"];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), all);
}

#[test]
fn data_of_failed_sync_is_not_written_by_next_sync() {
    let directory = SimulatedDirectory::new();
    let file = directory.create("a").expect("there is room");
    directory.sync_names().expect("it can be synced");
    file.write_at(b"lost", 0).expect("there is room");
    directory.fail(DiskCall::Sync, 0, DiskFault::IoError, FaultDuration::Once);
    file.sync().expect_err("it fails");
    file.sync().expect("the next does not");
    assert_eq!(content(&*file), b"lost", "it is still read");
    let survives = |seed| directory.crash(seed).bytes("a").expect("it is there") == b"lost";
    assert!(!(0..100).all(survives), "but not durable");
    file.write_at(b"lost", 0).expect("there is room");
    file.sync().expect("it can be synced");
    assert!(
        (0..100).all(|seed| directory.crash(seed).bytes("a").expect("it is there") == b"lost"),
        "written again, it is"
    );
}

#[test]
fn fault_rules_count_calls_and_capacity_counts_bytes() {
    let directory = SimulatedDirectory::new();
    directory.fail(DiskCall::Create, 1, DiskFault::PermissionDenied, FaultDuration::Permanent);
    let file = directory.create("a").expect("the first passes");
    for _ in 0..3 {
        assert_eq!(directory.create("b").expect_err("the others do not").kind(), ErrorKind::PermissionDenied);
    }
    directory.repair();
    directory.set_capacity(Some(10));
    file.write_at(&[1; 10], 0).expect("it fits");
    assert_eq!(file.write_at(&[1; 4], 9).expect_err("it does not").kind(), ErrorKind::StorageFull);
    assert_eq!(file.reserve(11).expect_err("nor does that").kind(), ErrorKind::StorageFull);
    file.write_at(&[2; 10], 0).expect("what is there can be written over");
    directory.set_capacity(None);
    file.reserve(11).expect("there is room");
    assert_eq!(directory.used(), 11);
}

/// The directory was removed and another one was created under its name. Nothing is written to that one or
/// removed from it.
#[test]
fn replaced_directory_is_unchanged() {
    let folder = folder("replaced");
    let directory = RealDirectory::create(&folder).expect("there is room");
    directory.create("own").expect("there is room");
    std::fs::remove_dir_all(&folder).expect("it is there");
    std::fs::create_dir(&folder).expect("there is room");
    std::fs::write(folder.join("theirs"), b"x").expect("there is room");
    for refused in
        [directory.create("more").map(|_| ()), directory.rename("theirs", "ours"), directory.remove("theirs")]
    {
        let why = refused.expect_err("it is another directory").to_string();
        assert!(why.contains("removed or replaced"), "{why}");
    }
    assert!(folder.join("theirs").exists());
    std::fs::remove_dir_all(&folder).expect("it is there");
}

/// Opening must not block.
#[test]
fn opening_a_non_file_fails() {
    let folder = folder("strange");
    let directory = RealDirectory::create(&folder).expect("there is room");
    std::fs::create_dir(folder.join("a")).expect("there is room");
    let why = directory.open("a", OpenMode::Read).expect_err("it is a directory");
    assert_eq!(why.kind(), ErrorKind::InvalidInput);
    std::fs::remove_dir_all(&folder).expect("it is there");
}
