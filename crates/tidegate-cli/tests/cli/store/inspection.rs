//! `tidegate store verify` and `tidegate store dump`.

use std::path::Path;
use std::sync::Arc;

use tidegate_disk::WriteAheadLog;
use tidegate_disk::directory::RealDirectory;
use tidegate_disk::wal::LogOptions;

use super::{blocks, contents, damage, json, killed_store};
use crate::remote::TestServer;
use crate::{Files, Run, run};

fn verify(folder: &Path) -> Run {
    run(&["store", "verify", &folder.display().to_string()], "")
}

fn dump(folder: &Path, args: &[&str]) -> Run {
    run(&[&["store", "dump", &folder.display().to_string()], args].concat(), "")
}

/// Checks that a problem is reported with its position and that nothing is changed.
#[track_caller]
fn check_problem(folder: &Path, file: &str, what: &str) {
    let before = contents(folder);
    let found = verify(folder);
    assert_eq!((found.code, found.err.contains(" in the store")), (Some(1), true), "{}", found.err);
    let output = |line: &str| line.starts_with(&format!("DAMAGED   {file} at byte ")) && line.contains(what);
    assert!(found.out.lines().any(output), "{file}: {what} in {}", found.out);
    assert!(found.out.contains("Restore it from a backup"), "{}", found.out);
    let output = json(&run(&["store", "verify", "--json", &folder.display().to_string()], "").out);
    assert_eq!(output["sound"], false, "{output}");
    let named = output["problems"].as_array().expect("a list").iter().any(|problem| problem["file"] == file);
    assert!(named && output["problem_count"].as_u64() > Some(0), "{output}");
    assert_eq!(dump(folder, &[]).code, Some(1));
    assert!(contents(folder) == before, "something was touched");
}

#[test]
fn intact_store_is_described() {
    let serving = TestServer::start();
    let folder = serving.store_directory();
    serving.run(&["limit", "add", "sale", "--item", "policy=total,limit=100"]).done();
    serving.run(&["acquire", "sale"]).done();
    let running = verify(&folder).done();
    for line in ["snapshot  none yet", "limits    1", "tail      whole", "No problems found."] {
        assert!(running.lines().any(|each| each == line), "{line}: {running}");
    }
    assert!(
        running.contains("1 segment, 3 blocks, ") && running.contains(" bytes, 2 records\n"),
        "{running}"
    );
    assert!(running.contains("left      a server is running, or it was not stopped cleanly"), "{running}");
    assert!(running.contains("written   from 20"), "{running}");
    let output = json(&run(&["store", "verify", "--json", &folder.display().to_string()], "").done());
    assert_eq!((&output["sound"], &output["left"]), (&true.into(), &"running_or_crashed".into()));
    assert_eq!((&output["log"]["records"], &output["limits"]), (&2.into(), &1.into()));
    assert_eq!((&output["snapshot"], &output["torn_tail"]), (&().into(), &().into()));
}

#[test]
fn clean_stop_is_shown() {
    let files = Files::new();
    let serving = TestServer::at(&files.path(""), &[]);
    serving.run(&["limit", "add", "sale", "--item", "policy=total,limit=100"]).done();
    serving.end();
    let stopped = verify(&files.path("tidegate-data")).done();
    assert!(stopped.contains("\nleft      stopped cleanly\n"), "{stopped}");
    assert!(stopped.contains("\nsnapshot  1, before segment 2: 1 chunk, "), "{stopped}");
}

#[test]
fn torn_tail_is_no_problem() {
    let files = Files::new();
    let folder = killed_store(&files.path(""));
    let (file, offset, _) = blocks(&folder).pop().expect("there are some");
    // The last write did not reach the disk completely.
    damage(&folder.join(&file), |bytes| bytes[offset + 40..].fill(0));
    let torn = verify(&folder).done();
    let line = format!(
        "tail      40 bytes of {file} from byte {offset} on are an incomplete block: it was never acknowledged"
    );
    assert!(torn.contains(&line), "{torn}");
    assert!(torn.ends_with("No problems found.\n"), "{torn}");
    let output = json(&run(&["store", "verify", "--json", &folder.display().to_string()], "").done());
    assert_eq!((&output["torn_tail"]["offset"], &output["torn_tail"]["bytes"]), (&offset.into(), &40.into()));
}

#[test]
fn damage_is_reported_with_its_position() {
    let files = Files::new();
    let folder = killed_store(&files.path(""));
    let log = "log-0000000000000001";
    let kept = std::fs::read(folder.join(log)).expect("it is there");
    let (_, offset, _) = blocks(&folder).into_iter().nth(3).expect("there are more");
    damage(&folder.join(log), |bytes| bytes[offset + 44] ^= 1);
    check_problem(&folder, log, "damaged");
    let found = verify(&folder);
    assert!(!found.out.contains("the next start recovers"), "it does not: {}", found.out);
    std::fs::remove_file(folder.join(log)).expect("it is there");
    check_problem(&folder, log, "missing");
    std::fs::write(folder.join(log), kept).expect("it is ours");
    std::fs::remove_file(folder.join("identity")).expect("it is there");
    check_problem(&folder, "identity", "not a store");
    let found = verify(&folder);
    assert!(found.out.contains("left      unknown"), "{}", found.out);
}

#[test]
fn invalid_record_is_refused_by_verify_and_start() {
    for (payload, why) in [
        (&b"\xff\x00"[..], "a record of a kind that this version does not know"),
        // A row of the ninth limit, which does not exist.
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
        assert!(found.out.contains("invalid records: ") && found.out.contains(why), "{}", found.out);
        let store = format!("disk:{}", folder.display());
        let refused =
            run(&["serve", "--http", "127.0.0.1:0", "--resp", "off", "--store", &store], "").failed(2);
        assert!(refused.contains("that make no sense: ") && refused.contains(why), "{refused}");
    }
}

#[test]
fn dump_prints_every_record() {
    let serving = TestServer::start();
    let limit = r#"{"id": "sale", "items": [{"policy": "total", "limit": 100},
        {"policy": "bucket", "limit": 10, "window": "60s", "per": "key"}]}"#;
    serving.run_with_input(&["limit", "add", "-"], limit).done();
    serving.run(&["limit", "add", "pool", "--item", "policy=concurrency,limit=3,ttl=1h"]).done();
    serving.run(&["acquire", "sale", "ada", "--count", "2"]).done();
    serving.run(&["acquire", "sale", "ada", "--request-id", "order\u{1b}7"]).done();
    let granted = json(&serving.run(&["acquire", "pool", "w", "--json"]).done());
    let lease = granted["lease"]["id"].as_str().expect("a lease");
    serving.run(&["renew", lease, "--ttl", "2h"]).done();
    serving.run(&["release", lease]).done();
    serving.run(&["limit", "reset", "sale", "--key", "ada"]).done();
    serving.run(&["limit", "delete", "pool"]).done();
    let folder = serving.store_directory();
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
    for output in objects.lines().map(json) {
        assert!(
            output["kind"].is_string() && output["file"].is_string() && output["offset"].is_u64(),
            "{output}"
        );
    }
    let kind = |kind: &str| objects.lines().map(json).filter(|output| output["kind"] == kind).count();
    assert_eq!((kind("limit"), kind("granted"), kind("reset"), kind("removed")), (2, 1, 1, 1), "{objects}");
    for shown in [&lines, &objects] {
        assert!(!shown.contains(&lease[16..]), "a full lease id permits a release: {shown}");
        assert!(!shown.contains('\u{1b}'), "nothing reaches the terminal: {shown}");
    }
}

#[test]
fn directory_without_store_is_refused() {
    let files = Files::new();
    files.write("file", "");
    for command in [&["verify"][..], &["dump"], &["backup"]] {
        for (directory, why) in [
            ("nowhere", "there is no directory"),
            ("file", "is not a directory"),
            ("", "is not a store: it has no identity"),
        ] {
            let folder = files.path(directory).display().to_string();
            let to = files.path("copy").display().to_string();
            let to = if command == ["backup"] { vec![&*to] } else { vec![] };
            let output = run(&[&["store"], command, &[&folder], &to].concat(), "").failed(2);
            assert!(output.contains(why), "{command:?} {directory}: {output}");
        }
    }
    assert_eq!(contents(&files.path("")).len(), 1, "nothing was made");
}
