//! `tidegate store backup`: a copy of a store in use, from which a server can start.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::ScopedJoinHandle;

use super::{blocks, contents, damage, json, killed_store, used};
use crate::remote::TestServer;
use crate::{Files, Run, run};

const LIMIT: u64 = 1_000_000;

fn backup(folder: &Path, to: &Path) -> Run {
    run(&["store", "backup", &folder.display().to_string(), &to.display().to_string()], "")
}

/// Sends requests over RESP until stopped, and counts grants.
fn ask(resp: &str, granted: &AtomicU64, stop: &AtomicBool) {
    let stream = TcpStream::connect(resp.trim_start_matches("redis://")).expect("it listens");
    let mut answers = BufReader::new(stream.try_clone().expect("a socket"));
    let mut asks = stream;
    while !stop.load(SeqCst) {
        asks.write_all(b"*3\r\n$10\r\nTG.ACQUIRE\r\n$4\r\nsale\r\n$3\r\nada\r\n").expect("it listens");
        let mut lines = (&mut answers).lines().map(|line| line.expect("an answer"));
        assert_eq!(lines.next().as_deref(), Some("*7"));
        let allowed = lines.next();
        assert_eq!(allowed.as_deref(), Some(":1"));
        // Four more numbers, and two texts with their lengths.
        assert_eq!(lines.take(8).count(), 8);
        granted.fetch_add(1, SeqCst);
    }
}

#[test]
fn backup_under_load_exceeds_no_limit() {
    let serving = TestServer::start();
    let limit = format!("policy=total,limit={LIMIT}");
    serving.run(&["limit", "add", "sale", "--item", &limit]).done();
    let files = Files::new();
    let (granted, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let copies: Vec<(String, u64)> = std::thread::scope(|scope| {
        let askers: Vec<_> = (0..2).map(|_| scope.spawn(|| ask(serving.resp(), &granted, &stop))).collect();
        let copies = (0..4).map(|number| {
            // A failed client is reported at the end.
            let is_asking = || !askers.iter().any(ScopedJoinHandle::is_finished);
            while granted.load(SeqCst) < 200 * (number + 1) && is_asking() {
                std::thread::yield_now();
            }
            let (before, name) = (granted.load(SeqCst), format!("copy-{number}"));
            let output = backup(&serving.store_directory(), &files.path(&name)).done();
            assert!(output.starts_with("copied 2 files with "), "{output}");
            (name, before)
        });
        let copies = copies.collect();
        stop.store(true, SeqCst);
        copies
    });
    let sold = granted.load(SeqCst);
    for (name, before) in copies {
        let folder = files.path(&name).display().to_string();
        assert!(run(&["store", "verify", &folder], "").done().contains("limits    1\n"));
        let copy = TestServer::at(&files.path(""), &["--store", &format!("disk:{name}")]);
        let counted = used(&copy, "sale");
        // The copy has at least the grants before it began, and at most the grants at the end plus a slice.
        assert!(before <= counted && counted <= sold + LIMIT / 256, "{before} {counted} {sold}");
        let rest = (LIMIT - counted).to_string();
        copy.run(&["acquire", "sale", "ada", "--count", &rest]).done();
        assert_eq!(copy.run(&["acquire", "sale", "ada"]).code, Some(3));
    }
    assert!(used(&serving, "sale") >= sold, "and the server goes on");
}

#[test]
fn backup_prints_json() {
    let files = Files::new();
    let folder = killed_store(&files.path(""));
    let args = ["store", "backup", &folder.display().to_string(), &files.path("copy").display().to_string()];
    let output = json(&run(&[&args[..], &["--json"]].concat(), "").done());
    assert_eq!((&output["files"], &output["last_block"]), (&2.into(), &12.into()), "{output}");
    let serving = TestServer::at(&files.path(""), &["--store", "disk:copy"]);
    assert_eq!(used(&serving, "sale"), 10);
}

#[test]
fn backup_into_nonempty_directory_is_refused() {
    let files = Files::new();
    let folder = killed_store(&files.path(""));
    std::fs::create_dir(files.path("full")).expect("a directory");
    files.write("full/thesis.txt", "once upon a time");
    let output = backup(&folder, &files.path("full")).failed(2);
    assert!(output.contains("is not empty; nothing was touched; choose an empty directory"), "{output}");
    assert!(backup(&folder, &folder).failed(2).contains("is not empty"));
    assert_eq!(contents(&files.path("full")).len(), 1);
    let output = backup(&folder, &files.path("full/thesis.txt")).failed(2);
    assert!(output.contains("is not a directory"), "{output}");
}

#[test]
fn backup_into_the_store_is_refused() {
    let files = Files::new();
    let folder = killed_store(&files.path(""));
    std::os::unix::fs::symlink(&folder, files.path("also")).expect("a link");
    let before = contents(&folder);
    for inside in [folder.join("copy"), folder.join("some/copy"), files.path("also/copy")] {
        let output = backup(&folder, &inside).failed(2);
        assert!(output.contains("is inside ") && output.contains("choose a directory elsewhere"), "{output}");
    }
    assert_eq!(contents(&folder), before, "nothing was touched");
    backup(&folder, &files.path("tidegate-data-copy")).done();
}

#[test]
fn damaged_store_is_not_copied() {
    let files = Files::new();
    let folder = killed_store(&files.path(""));
    let (file, offset, _) = blocks(&folder).into_iter().nth(3).expect("there are more");
    damage(&folder.join(&file), |bytes| bytes[offset + 44] ^= 1);
    let output = backup(&folder, &files.path("copy")).failed(1);
    assert!(output.contains("the store cannot be copied: ") && output.contains(&file), "{output}");
    assert!(!files.path("copy/identity").exists(), "an incomplete copy has no identity");
}
