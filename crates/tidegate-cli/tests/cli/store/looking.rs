//! `tidegate store verify` and `tidegate store dump`.

use std::path::Path;
use std::sync::Arc;

use tidegate_disk::WriteAheadLog;
use tidegate_disk::directory::RealDirectory;
use tidegate_disk::wal::LogOptions;

use super::{blocks, change, contents, json, killed};
use crate::remote::Serving;
use crate::{Files, Run, run};

fn verify(folder: &Path) -> Run {
    run(&["store", "verify", &folder.display().to_string()], "")
}

fn dump(folder: &Path, args: &[&str]) -> Run {
    run(&[&["store", "dump", &folder.display().to_string()], args].concat(), "")
}

/// A report of something that is wrong, with its place.
#[track_caller]
fn wrong(folder: &Path, file: &str, what: &str) {
    let before = contents(folder);
    let found = verify(folder);
    assert_eq!((found.code, found.err.contains("wrong with the store")), (Some(1), true), "{}", found.err);
    let told = |line: &str| line.starts_with(&format!("WRONG     {file} at byte ")) && line.contains(what);
    assert!(found.out.lines().any(told), "{file}: {what} in {}", found.out);
    assert!(found.out.contains("Restore it from a backup"), "{}", found.out);
    let told = json(&run(&["store", "verify", "--json", &folder.display().to_string()], "").out);
    assert_eq!(told["sound"], false, "{told}");
    let named = told["problems"].as_array().expect("a list").iter().any(|problem| problem["file"] == file);
    assert!(named && told["problem_count"].as_u64() > Some(0), "{told}");
    assert_eq!(dump(folder, &[]).code, Some(1));
    assert!(contents(folder) == before, "something was touched");
}

#[test]
fn a_store_that_is_well_says_what_it_has() {
    let serving = Serving::start();
    let folder = serving.folder();
    serving.run(&["limit", "add", "sale", "--item", "policy=total,limit=100"]).done();
    serving.run(&["acquire", "sale"]).done();
    let running = verify(&folder).done();
    for line in ["snapshot  none yet", "limits    1", "tail      whole", "Nothing is wrong with it."] {
        assert!(running.lines().any(|each| each == line), "{line}: {running}");
    }
    assert!(
        running.contains("1 segment, 3 blocks, ") && running.contains(" bytes, 2 records\n"),
        "{running}"
    );
    assert!(running.contains("left      a server runs on it, or it was not stopped cleanly"), "{running}");
    assert!(running.contains("written   from 20"), "{running}");
    let told = json(&run(&["store", "verify", "--json", &folder.display().to_string()], "").done());
    assert_eq!((&told["sound"], &told["left"]), (&true.into(), &"running_or_crashed".into()));
    assert_eq!((&told["log"]["records"], &told["limits"]), (&2.into(), &1.into()));
    assert_eq!((&told["snapshot"], &told["torn_tail"]), (&().into(), &().into()));
}

#[test]
fn a_store_that_was_stopped_says_so() {
    let files = Files::new();
    let serving = Serving::at(&files.path(""), &[]);
    serving.run(&["limit", "add", "sale", "--item", "policy=total,limit=100"]).done();
    serving.end();
    let stopped = verify(&files.path("tidegate-data")).done();
    assert!(stopped.contains("\nleft      stopped cleanly\n"), "{stopped}");
    assert!(stopped.contains("\nsnapshot  1, before segment 2: 1 chunk, "), "{stopped}");
}

#[test]
fn a_torn_tail_is_no_problem() {
    let files = Files::new();
    let folder = killed(&files.path(""));
    let (file, offset, _) = blocks(&folder).pop().expect("there are some");
    // The last thing that was written did not reach the disk whole.
    change(&folder.join(&file), |bytes| bytes[offset + 40..].fill(0));
    let torn = verify(&folder).done();
    let line =
        format!("tail      40 bytes of {file} from byte {offset} on are not a whole block: nobody was told");
    assert!(torn.contains(&line), "{torn}");
    assert!(torn.ends_with("Nothing is wrong with it.\n"), "{torn}");
    let told = json(&run(&["store", "verify", "--json", &folder.display().to_string()], "").done());
    assert_eq!((&told["torn_tail"]["offset"], &told["torn_tail"]["bytes"]), (&offset.into(), &40.into()));
}

#[test]
fn what_is_damaged_or_missing_has_its_place() {
    let files = Files::new();
    let folder = killed(&files.path(""));
    let log = "log-0000000000000001";
    let kept = std::fs::read(folder.join(log)).expect("it is there");
    let (_, offset, _) = blocks(&folder).into_iter().nth(3).expect("there are more");
    change(&folder.join(log), |bytes| bytes[offset + 44] ^= 1);
    wrong(&folder, log, "damaged");
    let found = verify(&folder);
    assert!(!found.out.contains("the next start recovers"), "it does not: {}", found.out);
    std::fs::remove_file(folder.join(log)).expect("it is there");
    wrong(&folder, log, "missing");
    std::fs::write(folder.join(log), kept).expect("it is ours");
    std::fs::remove_file(folder.join("identity")).expect("it is there");
    wrong(&folder, "identity", "not a store");
    let found = verify(&folder);
    assert!(found.out.contains("left      cannot be told"), "{}", found.out);
}

#[test]
fn records_that_make_no_sense_are_wrong_and_a_start_says_the_same() {
    for (payload, why) in [
        (&b"\xff\x00"[..], "a record of a kind that this version does not know"),
        // A row of the ninth limit, and there is none.
        (&b"\x05\x04\x09\x01\x00\x00"[..], "which was never written down"),
    ] {
        let files = Files::new();
        let folder = files.path("data");
        let real = Arc::new(RealDirectory::create(&folder).expect("a directory"));
        let (log, _) = WriteAheadLog::open(real, LogOptions::default(), &mut |_| Ok(())).expect("a new log");
        let lsn = log.append(payload, 1).expect("there is room");
        log.wait_durable(lsn).expect("there is room");
        log.stop().expect("it is sound");
        drop(log);
        let found = verify(&folder);
        assert_eq!(found.code, Some(1), "{}", found.out);
        assert!(
            found.out.contains("records that make no sense: ") && found.out.contains(why),
            "{}",
            found.out
        );
        let store = format!("disk:{}", folder.display());
        let refused =
            run(&["serve", "--http", "127.0.0.1:0", "--resp", "off", "--store", &store], "").failed(2);
        assert!(refused.contains("that make no sense: ") && refused.contains(why), "{refused}");
    }
}

#[test]
fn every_record_is_a_line() {
    let serving = Serving::start();
    let limit = r#"{"id": "sale", "items": [{"policy": "total", "limit": 100},
        {"policy": "bucket", "limit": 10, "window": "60s", "per": "key"}]}"#;
    serving.fed(&["limit", "add", "-"], limit).done();
    serving.run(&["limit", "add", "pool", "--item", "policy=concurrency,limit=3,ttl=1h"]).done();
    serving.run(&["acquire", "sale", "ada", "--count", "2"]).done();
    serving.run(&["acquire", "sale", "ada", "--request-id", "order\u{1b}7"]).done();
    let granted = json(&serving.run(&["acquire", "pool", "w", "--json"]).done());
    let lease = granted["lease"]["id"].as_str().expect("a lease");
    serving.run(&["renew", lease, "--ttl", "2h"]).done();
    serving.run(&["release", lease]).done();
    serving.run(&["limit", "reset", "sale", "--key", "ada"]).done();
    serving.run(&["limit", "delete", "pool"]).done();
    let folder = serving.folder();
    let lines = dump(&folder, &[]).done();
    for begins in [
        "opened",
        "limit sale[1] v1 over the API at 20",
        "row sale[1] v1 all/total 2 at 20",
        "row sale[1] v1 key ",
        "remembered request order\\u{1b}7 until 20",
        "granted lease 0000000000000001… until 20",
        "renewed lease 0000000000000001… until 20",
        "released lease 0000000000000001…",
        "reset sale[1] key ada at 20",
        "removed pool[2]",
        "# log-0000000000000001 at byte 64: block 1, ",
    ] {
        assert!(lines.lines().any(|line| line.starts_with(begins)), "{begins}: {lines}");
    }
    assert!(lines.contains(": all/total of 100, key/bucket-60s of 10\n"), "{lines}");
    assert!(lines.contains("key/bucket-60s full at 20"), "{lines}");
    assert!(lines.contains(": pool[2] all/concurrency 1\n"), "{lines}");
    let objects = dump(&folder, &["--json"]).done();
    for told in objects.lines().map(json) {
        assert!(told["kind"].is_string() && told["file"].is_string() && told["offset"].is_u64(), "{told}");
    }
    let kind = |kind: &str| objects.lines().map(json).filter(|told| told["kind"] == kind).count();
    assert_eq!((kind("limit"), kind("granted"), kind("reset"), kind("removed")), (2, 1, 1, 1), "{objects}");
    for shown in [&lines, &objects] {
        assert!(!shown.contains(&lease[16..]), "whoever has a lease's id can give it back: {shown}");
        assert!(!shown.contains('\u{1b}'), "nothing reaches the terminal: {shown}");
    }
}

#[test]
fn only_stores_are_looked_at() {
    let files = Files::new();
    files.write("file", "");
    for command in [&["verify"][..], &["dump"], &["backup"]] {
        for (place, why) in [
            ("nowhere", "there is no directory"),
            ("file", "is not a directory"),
            ("", "is not a store: it has no identity"),
        ] {
            let folder = files.path(place).display().to_string();
            let to = files.path("copy").display().to_string();
            let to = if command == ["backup"] { vec![&*to] } else { vec![] };
            let told = run(&[&["store"], command, &[&folder], &to].concat(), "").failed(2);
            assert!(told.contains(why), "{command:?} {place}: {told}");
        }
    }
    assert_eq!(contents(&files.path("")).len(), 1, "nothing was made");
}
