//! A settings file that changes under a server: every way to write it, and every way to break it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::catalog::Catalog;
use tidegate::clock::ManualClock;
use tidegate::model::Tick;
use tidegate::store::{Memory, MemoryStore};
use tidegate_server::live_settings::LiveSettings;
use tidegate_server::metrics::ReloadSource;
use tidegate_server::settings_reloader::{ReloadOutcome, SettingsPoll, SettingsReloader};

use crate::resp::fixture::START;

/// A temporary directory with a settings file and its reloader.
struct SettingsFixture {
    directory: PathBuf,
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
    reloader: Arc<SettingsReloader>,
}

static SCENES: AtomicUsize = AtomicUsize::new(0);

impl SettingsFixture {
    fn new() -> SettingsFixture {
        SettingsFixture::of("tidegate.yaml")
    }

    fn of(file: &str) -> SettingsFixture {
        let number = SCENES.fetch_add(1, Ordering::Relaxed);
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("reload-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let clock = Arc::new(ManualClock::at(START));
        let store = Arc::new(MemoryStore::new(Arc::clone(&clock), Memory::default()));
        let rules = Arc::new(LiveSettings::new(Arc::clone(&store) as _));
        let reloader = Arc::new(SettingsReloader::new(directory.join(file), rules, Arc::clone(&clock)));
        SettingsFixture { directory, clock, store, reloader }
    }

    /// With this file, loaded.
    fn with(text: &str) -> SettingsFixture {
        let fixture = SettingsFixture::new();
        fixture.write(text);
        assert!(fixture.reloader.reload_now().result.is_ok());
        fixture.settle();
        fixture
    }

    fn write(&self, text: &str) {
        fs::write(self.reloader.path(), text).expect("a file");
    }

    /// Polls until the file has been unchanged for several polls.
    fn settle(&self) {
        for _ in 0..20 {
            assert_eq!(self.reloader.poll(), SettingsPoll::Unchanged);
        }
    }

    /// Polls twice after a change: the first poll may have seen half of the file.
    #[track_caller]
    fn reads(&self) -> ReloadOutcome {
        assert_eq!(self.reloader.poll(), SettingsPoll::Unsettled);
        match self.reloader.poll() {
            SettingsPoll::Read(outcome) => outcome,
            other => panic!("it was the same twice: {other:?}"),
        }
    }

    #[track_caller]
    fn loads(&self, ids: &[&str]) {
        let outcome = self.reads();
        assert!(outcome.result.is_ok(), "{outcome:?}");
        assert_eq!(self.ids(), ids);
    }

    #[track_caller]
    fn fails(&self) -> String {
        let before = self.ids();
        let text = self.reads().result.expect_err("the file is of no use").text;
        assert_eq!(self.ids(), before, "the rules stay");
        text
    }

    fn ids(&self) -> Vec<String> {
        self.store.list().iter().map(|limit| limit.id().to_owned()).collect()
    }
}

impl Drop for SettingsFixture {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.directory);
    }
}

fn file(ids: &[&str]) -> String {
    let limits: Vec<_> =
        ids.iter().map(|id| format!("  - {{id: {id}, items: [{{policy: total, limit: 1}}]}}\n")).collect();
    format!("limits:\n{}", limits.concat())
}

#[test]
fn initial_load_counts_as_a_reload() {
    let fixture = SettingsFixture::new();
    assert_eq!(fixture.reloader.last_outcome().last, None);
    let missing = fixture.reloader.reload_now().result.expect_err("there is no file");
    assert!(missing.text.contains("tidegate.yaml: ") && missing.summary.contains("cannot be read"));
    fixture.write(&file(&["a", "b"]));
    let loaded = fixture.reloader.reload_now().result.expect("a good file");
    assert_eq!((loaded.applied.added, loaded.warnings), (2, None));
    assert_eq!(fixture.ids(), ["a", "b"]);
    fixture.settle();
}

#[test]
fn edit_in_place_is_loaded() {
    let fixture = SettingsFixture::with(&file(&["a"]));
    fixture.write(&file(&["a", "b"]));
    fixture.loads(&["a", "b"]);
    fixture.settle();
    fixture.write("limits: []");
    fixture.loads(&[]);
    fixture.settle();
}

#[test]
fn empty_file_is_rejected() {
    let fixture = SettingsFixture::with(&file(&["a"]));
    fixture.write(" \n");
    let failed = fixture.reloader.reload_now().result.expect_err("it is more likely a mistake");
    assert!(failed.text.contains("is empty") && failed.text.contains("limits: []"), "{failed}");
    assert_eq!(fixture.ids(), ["a"]);
}

/// Regression test: a file truncated at or before `limits:` removed all limits.
#[test]
fn truncated_file_is_rejected() {
    let fixture = SettingsFixture::with(&file(&["a"]));
    for cut in
        ["limits:\n", "limits: null\n", "limits:\n  # - id: a\n", "server: {}\n", "# nothing yet\n", "{}"]
    {
        fixture.write(cut);
        let failed = fixture.reloader.reload_now().result.expect_err("it is more likely a mistake");
        assert!(failed.text.contains("lists no `limits` any more; to have no limits"), "{cut}: {failed}");
        assert_eq!(fixture.ids(), ["a"], "{cut}");
    }
    fixture.write("limits: []");
    fixture.reloader.reload_now().result.expect("it is meant");
    assert!(fixture.ids().is_empty());
    fixture.write("limits:\n");
    fixture.reloader.reload_now().result.expect("there was nothing to lose");
}

/// Regression test: a file truncated before `auth` disabled authentication silently.
#[test]
fn edit_that_drops_auth_is_rejected() {
    let auth = format!("auth: {{tokens: [{{name: ops, sha256: '{}', role: admin}}]}}\n", "a".repeat(64));
    let fixture = SettingsFixture::with(&(file(&["a"]) + &auth));
    fixture.write(&file(&["a", "b"]));
    let failed = fixture.reloader.reload_now().result.expect_err("auth is missing");
    assert!(
        failed.text.contains("auth: is missing") && failed.text.contains("restart the server"),
        "{failed}"
    );
    assert_eq!(fixture.ids(), ["a"], "and nothing else of it is used");
    fixture.write(&(file(&["a", "b"]) + &auth));
    assert!(fixture.reloader.reload_now().result.is_ok());
    assert_eq!(fixture.ids(), ["a", "b"]);
    fixture.write(&(file(&["a"]) + "auth: {tokens: []}\n"));
    assert!(fixture.reloader.reload_now().result.is_ok(), "an empty token list is valid");
}

/// A server that started without tokens may reload settings without them.
#[test]
fn edit_may_add_auth() {
    let fixture = SettingsFixture::with(&file(&["a"]));
    fixture.write(&file(&["b"]));
    assert!(fixture.reloader.reload_now().result.is_ok());
    fixture.write(&(file(&["b"]) + "auth: {tokens: []}\n"));
    assert!(fixture.reloader.reload_now().result.is_ok());
}

#[test]
fn edit_with_unchanged_size_and_time_is_loaded() {
    let fixture = SettingsFixture::with(&file(&["a"]));
    let before = fs::metadata(fixture.reloader.path()).expect("a file").modified().expect("a time");
    fixture.write(&file(&["b"]));
    fs::File::options()
        .write(true)
        .open(fixture.reloader.path())
        .expect("a file")
        .set_modified(before)
        .expect("a time that can be set");
    fixture.loads(&["b"]);
}

#[test]
fn half_written_file_is_not_loaded() {
    let fixture = SettingsFixture::with(&file(&["a"]));
    let whole = file(&["a", "b", "c"]);
    for end in [10, 40, 41, whole.len() - 1] {
        fixture.write(&whole[..end]);
        assert_eq!(fixture.reloader.poll(), SettingsPoll::Unsettled, "the file is being written");
    }
    fixture.write(&whole);
    fixture.loads(&["a", "b", "c"]);
    let standing = fixture.reloader.last_outcome();
    assert_eq!((standing.succeeded, standing.failed), (2, 0));
}

#[test]
fn renamed_file_is_loaded() {
    let fixture = SettingsFixture::with(&file(&["a"]));
    let other = fixture.directory.join("other");
    fs::write(&other, file(&["b"])).expect("a file");
    fs::rename(&other, fixture.reloader.path()).expect("a rename");
    fixture.loads(&["b"]);
    fixture.settle();
}

#[test]
fn file_that_vanishes_and_returns_is_loaded() {
    let fixture = SettingsFixture::with(&file(&["a"]));
    fs::remove_file(fixture.reloader.path()).expect("it is there");
    assert_eq!(fixture.reloader.poll(), SettingsPoll::Unsettled, "the file may be about to be replaced");
    fixture.write(&file(&["a", "b"]));
    fixture.loads(&["a", "b"]);
    fixture.settle();

    fs::remove_file(fixture.reloader.path()).expect("it is there");
    assert!(fixture.fails().starts_with("cannot read "), "it is gone for good");
    fixture.settle();
    fixture.write(&file(&["a", "b"]));
    fixture.loads(&["a", "b"]);
    assert_eq!(fixture.reloader.last_outcome().failed, 1);
    fixture.settle();
}

#[test]
fn swapped_symlink_is_loaded() {
    // As Kubernetes mounts a ConfigMap: tidegate.yaml -> ..data/tidegate.yaml, ..data -> a directory per version.
    let fixture = SettingsFixture::of("mount/tidegate.yaml");
    let mount = fixture.directory.join("mount");
    let version = |number: usize, ids: &[&str]| {
        let name = format!("..version-{number}");
        fs::create_dir_all(mount.join(&name)).expect("a directory");
        fs::write(mount.join(&name).join("tidegate.yaml"), file(ids)).expect("a file");
        symlink(&name, mount.join("..data_tmp")).expect("a link");
        fs::rename(mount.join("..data_tmp"), mount.join("..data")).expect("a rename");
    };
    version(1, &["a"]);
    symlink("..data/tidegate.yaml", mount.join("tidegate.yaml")).expect("a link");
    assert!(fixture.reloader.reload_now().result.is_ok());
    fixture.settle();
    version(2, &["b"]);
    fixture.loads(&["b"]);
    fs::remove_dir_all(mount.join("..version-1")).expect("it is there");
    fixture.settle();
}

#[test]
fn invalid_file_keeps_settings_and_is_reported_once() {
    let fixture = SettingsFixture::with(&file(&["a"]));
    let loaded_at = fixture.reloader.last_outcome().loaded_at;
    fixture.clock.advance(Duration::from_secs(60));
    fixture.write("limits:\n  - {id: b, items: [{policy: dya, limit: 1}]}\n");
    let text = fixture.fails();
    assert!(text.contains(":2:30: limits[0].items[0].policy"), "{text}");
    fixture.settle();

    let standing = fixture.reloader.last_outcome();
    let last = standing.last.clone().expect("it was read");
    assert_eq!(last.at, Tick::NANOSECOND.since_epoch(START) + Duration::from_secs(60));
    assert_eq!((standing.succeeded, standing.failed, standing.loaded_at), (1, 1, loaded_at));
    let failed = last.result.expect_err("it failed");
    assert_eq!(failed.summary, "1 error in the settings file, the first on line 2; see the log");
    let counts = fixture.reloader.counts();
    assert!(counts.last_failed && counts.last_success == loaded_at);

    fixture.write(&file(&["a"]));
    fixture.loads(&["a"]);
    let counts = fixture.reloader.counts();
    assert_eq!((counts.succeeded, counts.failed, counts.last_failed), (2, 1, false));
    assert_eq!(counts.last_success, Some(last.at));
}

#[test]
fn conflicting_settings_are_reported() {
    let fixture = SettingsFixture::with(&file(&["a"]));
    fs::remove_file(fixture.reloader.path()).expect("it is there");
    fs::create_dir(fixture.reloader.path()).expect("a directory");
    assert!(fixture.fails().ends_with("it is not a file"));
    fs::remove_dir(fixture.reloader.path()).expect("it is there");
    fixture.write("limits: [{id: cl.throttle/1/1/1, items: [{policy: total, limit: 1}]}]");
    assert!(fixture.fails().contains("limits[0].id: limits called cl.throttle belong to"));
}

#[test]
fn touched_file_is_not_reloaded() {
    let fixture = SettingsFixture::with(&file(&["a"]));
    fixture.write(&file(&["a"]));
    fixture.settle();
    assert_eq!(fixture.reloader.last_outcome().succeeded, 1);
}

#[test]
fn reload_now_reads_at_once() {
    let fixture = SettingsFixture::with(&file(&["a"]));
    fixture.write(&file(&["b"]));
    let loaded = fixture.reloader.reload_now().result.expect("a good file");
    assert_eq!((loaded.applied.added, loaded.applied.removed), (1, 1));
    fixture.settle();
    assert!(fixture.reloader.reload_now().result.is_ok(), "also if nothing has changed");
    fixture.write("limits: 5");
    assert!(fixture.reloader.reload_now().result.is_err());
    assert_eq!(fixture.ids(), ["b"]);
    fixture.settle();
}

#[test]
fn sections_that_need_a_restart_are_reported() {
    let fixture = SettingsFixture::with("server: {workers: 1}");
    fixture.write("server: {workers: 2}\ntls: {}");
    let loaded = fixture.reads().result.expect("a good file");
    assert_eq!(loaded.applied.needs_restart, ["server"]);
    assert!(loaded.warnings.expect("tls has no effect").contains("tls: not read"));
}

#[test]
fn watcher_polls_until_dropped() {
    let fixture = SettingsFixture::with(&file(&["a"]));
    let (report, polls) = std::sync::mpsc::channel();
    let report = std::sync::Mutex::new(report);
    fixture.store.watch(Box::new(move |_| {
        let _receiver_gone = report.lock().expect("not poisoned").send(());
    }));
    let watching = fixture.reloader.watch_file().expect("a thread");
    fixture.write(&file(&["a", "b"]));
    polls.recv_timeout(Duration::from_secs(60)).expect("a poll");
    drop(watching);
    assert_eq!(Arc::strong_count(&fixture.reloader), 1, "the watcher has stopped");
    assert_eq!(fixture.ids(), ["a", "b"]);
}
