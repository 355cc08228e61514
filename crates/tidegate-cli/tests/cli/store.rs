//! The data directory of a server: recovery, refusals, verification and backup.

mod backups;
mod inspection;
mod refusals;
mod restarts;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::remote::TestServer;
use crate::run;

/// Parses JSON output.
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Usage of the first item of a limit.
#[track_caller]
fn used(serving: &TestServer, limit: &str) -> u64 {
    let shown = json(&serving.run(&["limit", "get", limit, "--json"]).done());
    shown["usage"]["policy_status"][0]["current_count"].as_u64().expect("a count")
}

/// The content of every file in a directory.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("a directory").map(|entry| entry.expect("an entry"));
    entries
        .map(|entry| {
            let bytes = std::fs::read(entry.path()).expect("a file");
            (entry.file_name().to_string_lossy().into_owned(), bytes)
        })
        .collect()
}

/// Damages a file of a store.
fn damage(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(file).expect("a file of the store");
    change(&mut bytes);
    std::fs::write(file, bytes).expect("a file of the store");
}

/// Offsets of the log blocks in order, by kind.
fn blocks(folder: &Path) -> Vec<(String, usize, String)> {
    let dumped = run(&["store", "dump", "--json", &folder.display().to_string()], "").done();
    let mut found: Vec<(String, usize, String)> = Vec::new();
    for line in dumped.lines().map(json).filter(|line| line.get("block").is_some()) {
        let text = |name: &str| line[name].as_str().expect("text").to_owned();
        let offset = usize::try_from(line["offset"].as_u64().expect("a number")).expect("small");
        if found.last().is_none_or(|last| last.1 != offset) {
            found.push((text("file"), offset, text("kind")));
        }
    }
    found
}

/// The directory of a killed store with a limit and ten charges in its log.
fn killed_store(directory: &Path) -> std::path::PathBuf {
    let serving = TestServer::at(directory, &[]);
    serving.run_with_input(&["limit", "add", "-"], SALE).done();
    for _ in 0..10 {
        serving.run(&["acquire", "sale", "ada"]).done();
    }
    serving.kill();
    directory.join("tidegate-data")
}

/// Below 256, so that every charge is logged by itself.
const SALE: &str = r#"{"id": "sale", "items": [{"policy": "total", "limit": 100}]}"#;
