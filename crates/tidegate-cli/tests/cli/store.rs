//! What a server keeps: what is left of it after a crash, what is refused, and how people look at it and copy it.

mod backups;
mod inspection;
mod refusals;
mod restarts;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::remote::Serving;
use crate::run;

/// What a command that speaks JSON says.
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// How much is used of the first item of a limit.
#[track_caller]
fn used(serving: &Serving, limit: &str) -> u64 {
    let shown = json(&serving.run(&["limit", "get", limit, "--json"]).done());
    shown["usage"]["policy_status"][0]["current_count"].as_u64().expect("a count")
}

/// The bytes of every file in a directory.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("a directory").map(|entry| entry.expect("an entry"));
    entries
        .map(|entry| {
            let bytes = std::fs::read(entry.path()).expect("a file");
            (entry.file_name().to_string_lossy().into_owned(), bytes)
        })
        .collect()
}

/// What a file of a store is made into: for damage.
fn change(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(file).expect("a file of the store");
    change(&mut bytes);
    std::fs::write(file, bytes).expect("a file of the store");
}

/// Where the blocks of the log begin, in their order, by what is in them.
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

/// A store that was killed with a limit and ten charges in its log; where it is.
fn killed(place: &Path) -> std::path::PathBuf {
    let serving = Serving::at(place, &[]);
    serving.fed(&["limit", "add", "-"], SALE).done();
    for _ in 0..10 {
        serving.run(&["acquire", "sale", "ada"]).done();
    }
    serving.kill();
    place.join("tidegate-data")
}

/// Less than 256, so that every charge is written down by itself.
const SALE: &str = r#"{"id": "sale", "items": [{"policy": "total", "limit": 100}]}"#;
