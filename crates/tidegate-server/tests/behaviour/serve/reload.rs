//! Reloads under load: no request fails, no count is lost, and after an acknowledged reload
//! no decision uses the old settings.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tidegate::clock::ManualClock;
use tidegate_server::live_settings::LiveSettings;
use tidegate_server::settings_reloader::SettingsReloader;

use super::fixture::{Client, ServerFixture, acquire, post, wide};
use crate::resp::fixture::START;

/// Number of edits.
const EDITS: u64 = 1_000;

/// Requests in flight per client.
const DEPTH: usize = 16;

/// The file after this many edits. `sold` is used by all clients and edited every time; `left` and `right` always
/// change together; one limit comes and goes.
fn written(edit: u64) -> String {
    let most = 1_000_000_000 + edit;
    let sometimes =
        if edit.is_multiple_of(2) { "  - {id: sometimes, items: [{policy: total, limit: 1}]}\n" } else { "" };
    format!(
        "limits:\n\
         \x20 - {{id: sold, description: edit {edit}, items: [{{policy: total, limit: {most}}}, {{policy: total, limit: {most}, per: key}}]}}\n\
         \x20 - {{id: left, items: [{{policy: total, limit: {most}}}]}}\n\
         \x20 - {{id: right, items: [{{policy: total, limit: {most}}}]}}\n{sometimes}"
    )
}

/// Edits the file by renaming another over it, and reloads it.
struct FileEditor {
    path: PathBuf,
    reloader: SettingsReloader,
}

impl FileEditor {
    fn of(fixture: &ServerFixture) -> FileEditor {
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("storm-{}.yaml", std::process::id()));
        let rules = Arc::new(LiveSettings::new(Arc::clone(&fixture.store)));
        let reloader = SettingsReloader::new(&path, rules, ManualClock::at(START));
        FileEditor { path, reloader }
    }

    fn edit(&self, edit: u64) {
        let draft = self.path.with_extension("draft");
        fs::write(&draft, written(edit)).expect("a file");
        fs::rename(&draft, &self.path).expect("a file");
        let outcome = self.reloader.reload_now();
        assert!(outcome.result.is_ok(), "edit {edit}: {outcome:?}");
    }
}

/// Acquires over RESP until told to stop; returns the number of grants.
fn takes_by_resp(mut client: Client, name: &str, is_enough: &AtomicBool) -> u64 {
    let mut granted = 0;
    while !is_enough.load(Ordering::Relaxed) {
        let batch: Vec<u8> = (0..DEPTH)
            .flat_map(|_| crate::resp::fixture::words(&format!("TG.ACQUIRE sold {name}")))
            .collect();
        client.say(&batch);
        for _ in 0..DEPTH {
            let reply = client.reply().expect("a reply");
            assert!(reply.starts_with("[1, "), "{reply}");
            granted += 1;
        }
    }
    granted
}

/// The same over HTTP, and checks two limits that always change together.
fn takes_by_http(mut client: Client, name: &str, is_enough: &AtomicBool) -> u64 {
    let both = post("/v1/peek", r#"{"asks":[{"limit_id":"left"},{"limit_id":"right"}]}"#);
    let one = acquire("sold", name);
    let mut granted = 0;
    while !is_enough.load(Ordering::Relaxed) {
        let answer = client.ask(&one);
        assert_eq!((answer.status, answer.json()["allowed"].as_bool()), (200, Some(true)), "{answer:?}");
        granted += 1;
        let json = client.ask(&both).json();
        assert_eq!(
            json["readings"][0]["limit"], json["readings"][1]["limit"],
            "an edit was met by halves: {json}"
        );
    }
    granted
}

#[test]
fn reloads_under_load_lose_no_count_and_fail_no_request() {
    let fixture = ServerFixture::with("limits: []", wide(), tidegate_server::tokens::TokenTable::allow_all());
    let editor = FileEditor::of(&fixture);
    editor.edit(0);
    let (is_enough, granted) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..2 {
            let (by_resp, by_http) = (fixture.resp(), fixture.http());
            let (is_enough, granted) = (&is_enough, &granted);
            scope.spawn(move || {
                granted.fetch_add(takes_by_resp(by_resp, &format!("r{number}"), is_enough), Ordering::Relaxed)
            });
            scope.spawn(move || {
                granted.fetch_add(takes_by_http(by_http, &format!("h{number}"), is_enough), Ordering::Relaxed)
            });
        }
        let (mut resp, mut http) = (fixture.resp(), fixture.http());
        for edit in 1..=EDITS {
            editor.edit(edit);
            // The acknowledged settings are in use for both protocols.
            let most = 1_000_000_000 + edit;
            let reply = resp.command("TG.PEEK left somebody");
            assert!(reply.starts_with(&format!("[1, {most}, ")), "edit {edit}: {reply}");
            let answer = http.ask(&post("/v1/peek", r#"{"limit_id":"sometimes"}"#));
            assert_eq!(answer.status, if edit.is_multiple_of(2) { 200 } else { 404 }, "edit {edit}");
        }
        is_enough.store(true, Ordering::Relaxed);
    });
    let granted = granted.into_inner();
    assert!(granted > 0, "requests were made meanwhile");
    let usage = fixture.http().ask(b"GET /v1/limits/sold/usage HTTP/1.1\r\nHost: h\r\n\r\n").json();
    assert_eq!(usage["policy_status"][0]["current_count"], granted, "{usage}");
    assert_eq!(editor.reloader.last_outcome().succeeded, EDITS + 1);
    fs::remove_file(&editor.path).expect("a file");
    fixture.end();
}
