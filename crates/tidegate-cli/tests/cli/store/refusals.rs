//! Directories that a server refuses to start from: reason, advice, and no change.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{SALE, blocks, contents, damage, killed_store, used};
use crate::remote::TestServer;
use crate::{Files, feed, tidegate};

/// The message of a refused start.
#[track_caller]
fn refused(folder: &Path) -> String {
    let nowhere = Files::new();
    let store = format!("disk:{}", folder.display());
    let args = ["serve", "--http", "127.0.0.1:0", "--resp", "off", "--store", &store];
    feed(tidegate(&args).current_dir(nowhere.path("")), "").failed(2)
}

/// The same, after checking that the directory is unchanged.
#[track_caller]
fn refused_unchanged(folder: &Path) -> String {
    let before = contents(folder);
    let why = refused(folder);
    assert!(contents(folder) == before, "something was touched");
    why
}

#[test]
fn directory_in_use_is_refused() {
    let serving = TestServer::start();
    serving.run_with_input(&["limit", "add", "-"], SALE).done();
    let why = refused(&serving.store_directory());
    assert!(why.contains("is in use by another process; stop that one"), "{why}");
    serving.run(&["acquire", "sale"]).done();
    assert_eq!(used(&serving, "sale"), 1, "and it goes on");
}

#[test]
fn file_instead_of_directory_is_refused() {
    let files = Files::new();
    files.write("data", "other data");
    for folder in ["data", "data/below"] {
        let why = refused(&files.path(folder));
        assert!(why.contains("is not a directory; choose another path"), "{why}");
    }
    assert_eq!(std::fs::read_to_string(files.path("data")).expect("it is there"), "other data");
}

#[test]
fn foreign_directory_is_refused() {
    let files = Files::new();
    files.write("thesis.txt", "once upon a time");
    let why = refused_unchanged(&files.path(""));
    assert!(
        why.contains("is not a store: it holds 'thesis.txt' and no identity; nothing was touched"),
        "{why}"
    );
}

#[test]
fn unwritable_directory_is_refused() {
    // No user can create a directory here.
    let why = refused(Path::new("/sys/tidegate-data"));
    assert!(why.contains("/sys/tidegate-data"), "{why}");
    assert!(why.contains("no permission") || why.contains("read-only file system"), "{why}");

    let files = Files::new();
    let locked = files.path("locked");
    std::fs::create_dir(&locked).expect("a directory");
    std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o500)).expect("it is ours");
    // A privileged user may write here; the test does not apply.
    if std::fs::write(locked.join("probe"), "").is_err() {
        for folder in [locked.clone(), locked.join("below")] {
            let why = refused(&folder);
            assert!(why.contains("no permission") && why.contains("run as the user who owns"), "{why}");
        }
        assert_eq!(contents(&locked).len(), 0);
    }
    std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o700)).expect("it is ours");
}

#[test]
fn damaged_store_is_refused() {
    let files = Files::new();
    let folder = killed_store(&files.path(""));
    let (file, offset, _) = blocks(&folder).into_iter().nth(3).expect("there are more");
    damage(&folder.join(&file), |bytes| bytes[offset + 44] ^= 1);
    let why = refused_unchanged(&folder);
    assert!(why.contains(&format!("{file} is damaged at byte ")), "{why}");
    assert!(why.contains("restore the directory from a backup; `tidegate store verify` shows"), "{why}");
}

#[test]
fn store_with_missing_file_is_refused() {
    let files = Files::new();
    let folder = killed_store(&files.path(""));
    std::fs::rename(folder.join("log-0000000000000001"), files.path("elsewhere")).expect("it was there");
    let why = refused_unchanged(&folder);
    assert!(why.contains("log-0000000000000001 is missing from the log; restore the directory"), "{why}");
    std::fs::rename(files.path("elsewhere"), folder.join("log-0000000000000001")).expect("it was there");
    let serving = TestServer::at(&files.path(""), &[]);
    assert_eq!(used(&serving, "sale"), 10, "restored");
}

#[test]
fn store_of_newer_version_is_refused() {
    let files = Files::new();
    let folder = killed_store(&files.path(""));
    for file in ["identity", "log-0000000000000001"] {
        let kept = std::fs::read(folder.join(file)).expect("a file of the store");
        damage(&folder.join(file), |bytes| {
            bytes[8..12].copy_from_slice(&2_u32.to_le_bytes());
            let sum = crc32c(&bytes[..12]).to_le_bytes();
            bytes[12..16].copy_from_slice(&sum);
        });
        let why = refused_unchanged(&folder);
        assert!(why.contains(&format!("{file} has format 2, and this version of Tidegate knows 1")), "{why}");
        assert!(why.contains("use the version that wrote it, or a later one"), "{why}");
        std::fs::write(folder.join(file), kept).expect("it is ours");
    }
}

/// The checksum at the start of every file, as documented in `docs/reference/file-formats.md`.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let step = |sum: u32, _| if sum & 1 == 1 { sum >> 1 ^ POLYNOMIAL } else { sum >> 1 };
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), step))
}
