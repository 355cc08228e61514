//! A file that changes under a server: every way to write it, and every way to spoil it.

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

use crate::resp::stage::START;

/// A directory of its own, the file in it, and who looks at it.
struct Scene {
    directory: PathBuf,
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
    reloader: Arc<SettingsReloader>,
}

static SCENES: AtomicUsize = AtomicUsize::new(0);

impl Scene {
    fn new() -> Scene {
        Scene::of("tidegate.yaml")
    }

    fn of(file: &str) -> Scene {
        let number = SCENES.fetch_add(1, Ordering::Relaxed);
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("reload-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let clock = Arc::new(ManualClock::at(START));
        let store = Arc::new(MemoryStore::new(Arc::clone(&clock), Memory::default()));
        let rules = Arc::new(LiveSettings::new(Arc::clone(&store) as _));
        let reloader = Arc::new(SettingsReloader::new(directory.join(file), rules, Arc::clone(&clock)));
        Scene { directory, clock, store, reloader }
    }

    /// A scene with this file, read.
    fn with(text: &str) -> Scene {
        let scene = Scene::new();
        scene.write(text);
        assert!(scene.reloader.reload_now().result.is_ok());
        scene.settle();
        scene
    }

    fn write(&self, text: &str) {
        fs::write(self.reloader.path(), text).expect("a file");
    }

    /// Looks until nothing has been new for a long while.
    fn settle(&self) {
        for _ in 0..20 {
            assert_eq!(self.reloader.poll(), SettingsPoll::Unchanged);
        }
    }

    /// What is read after something was done to the file: at the second look, because the first may have seen half of it.
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

impl Drop for Scene {
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
fn the_start_is_a_reload() {
    let scene = Scene::new();
    assert_eq!(scene.reloader.last_outcome().last, None);
    let missing = scene.reloader.reload_now().result.expect_err("there is no file");
    assert!(missing.text.contains("tidegate.yaml: ") && missing.summary.contains("cannot be read"));
    scene.write(&file(&["a", "b"]));
    let loaded = scene.reloader.reload_now().result.expect("a good file");
    assert_eq!((loaded.applied.added, loaded.warnings), (2, None));
    assert_eq!(scene.ids(), ["a", "b"]);
    scene.settle();
}

#[test]
fn edits_in_place_are_noticed() {
    let scene = Scene::with(&file(&["a"]));
    scene.write(&file(&["a", "b"]));
    scene.loads(&["a", "b"]);
    scene.settle();
    scene.write("limits: []");
    scene.loads(&[]);
    scene.settle();
}

#[test]
fn an_empty_file_does_not_mean_that_there_are_no_limits() {
    let scene = Scene::with(&file(&["a"]));
    scene.write(" \n");
    let failed = scene.reloader.reload_now().result.expect_err("it is more likely a mistake");
    assert!(failed.text.contains("is empty") && failed.text.contains("limits: []"), "{failed}");
    assert_eq!(scene.ids(), ["a"]);
}

/// A file that was cut off behind `limits:`, or before it, took all limits away.
#[test]
fn a_file_that_is_cut_off_does_not_mean_that_there_are_no_limits() {
    let scene = Scene::with(&file(&["a"]));
    for cut in
        ["limits:\n", "limits: null\n", "limits:\n  # - id: a\n", "server: {}\n", "# nothing yet\n", "{}"]
    {
        scene.write(cut);
        let failed = scene.reloader.reload_now().result.expect_err("it is more likely a mistake");
        assert!(failed.text.contains("lists no `limits` any more; to have no limits"), "{cut}: {failed}");
        assert_eq!(scene.ids(), ["a"], "{cut}");
    }
    scene.write("limits: []");
    scene.reloader.reload_now().result.expect("it is meant");
    assert!(scene.ids().is_empty());
    scene.write("limits:\n");
    scene.reloader.reload_now().result.expect("there was nothing to lose");
}

/// A file that was cut off before its `auth` let everybody in, and nobody was told.
#[test]
fn an_edit_without_auth_lets_nobody_in() {
    let auth = format!("auth: {{tokens: [{{name: ops, sha256: '{}', role: admin}}]}}\n", "a".repeat(64));
    let scene = Scene::with(&(file(&["a"]) + &auth));
    scene.write(&file(&["a", "b"]));
    let failed = scene.reloader.reload_now().result.expect_err("everybody would be let in");
    assert!(
        failed.text.contains("auth: is gone") && failed.text.contains("start the server again"),
        "{failed}"
    );
    assert_eq!(scene.ids(), ["a"], "and nothing else of it is used");
    scene.write(&(file(&["a", "b"]) + &auth));
    assert!(scene.reloader.reload_now().result.is_ok());
    assert_eq!(scene.ids(), ["a", "b"]);
    scene.write(&(file(&["a"]) + "auth: {tokens: []}\n"));
    assert!(scene.reloader.reload_now().result.is_ok(), "with an empty list nobody comes in");
}

/// Caller never asked for tokens need not begin to.
#[test]
fn an_edit_may_add_auth() {
    let scene = Scene::with(&file(&["a"]));
    scene.write(&file(&["b"]));
    assert!(scene.reloader.reload_now().result.is_ok());
    scene.write(&(file(&["b"]) + "auth: {tokens: []}\n"));
    assert!(scene.reloader.reload_now().result.is_ok());
}

#[test]
fn an_edit_that_leaves_size_and_time_as_they_were_is_noticed() {
    let scene = Scene::with(&file(&["a"]));
    let before = fs::metadata(scene.reloader.path()).expect("a file").modified().expect("a time");
    scene.write(&file(&["b"]));
    fs::File::options()
        .write(true)
        .open(scene.reloader.path())
        .expect("a file")
        .set_modified(before)
        .expect("a time that can be set");
    scene.loads(&["b"]);
}

#[test]
fn half_a_file_is_not_taken() {
    let scene = Scene::with(&file(&["a"]));
    let whole = file(&["a", "b", "c"]);
    for end in [10, 40, 41, whole.len() - 1] {
        scene.write(&whole[..end]);
        assert_eq!(scene.reloader.poll(), SettingsPoll::Unsettled, "somebody is writing");
    }
    scene.write(&whole);
    scene.loads(&["a", "b", "c"]);
    let standing = scene.reloader.last_outcome();
    assert_eq!((standing.succeeded, standing.failed), (2, 0));
}

#[test]
fn renames_are_noticed() {
    let scene = Scene::with(&file(&["a"]));
    let other = scene.directory.join("other");
    fs::write(&other, file(&["b"])).expect("a file");
    fs::rename(&other, scene.reloader.path()).expect("a rename");
    scene.loads(&["b"]);
    scene.settle();
}

#[test]
fn a_file_may_vanish_and_come_back() {
    let scene = Scene::with(&file(&["a"]));
    fs::remove_file(scene.reloader.path()).expect("it is there");
    assert_eq!(scene.reloader.poll(), SettingsPoll::Unsettled, "somebody may be about to replace it");
    scene.write(&file(&["a", "b"]));
    scene.loads(&["a", "b"]);
    scene.settle();

    fs::remove_file(scene.reloader.path()).expect("it is there");
    assert!(scene.fails().starts_with("cannot read "), "it is gone for good");
    scene.settle();
    scene.write(&file(&["a", "b"]));
    scene.loads(&["a", "b"]);
    assert_eq!(scene.reloader.last_outcome().failed, 1);
    scene.settle();
}

#[test]
fn links_that_are_swapped_are_noticed() {
    // As Kubernetes mounts a ConfigMap: tidegate.yaml -> ..data/tidegate.yaml, ..data -> a directory for each version.
    let scene = Scene::of("mount/tidegate.yaml");
    let mount = scene.directory.join("mount");
    let version = |number: usize, ids: &[&str]| {
        let name = format!("..version-{number}");
        fs::create_dir_all(mount.join(&name)).expect("a directory");
        fs::write(mount.join(&name).join("tidegate.yaml"), file(ids)).expect("a file");
        symlink(&name, mount.join("..data_tmp")).expect("a link");
        fs::rename(mount.join("..data_tmp"), mount.join("..data")).expect("a rename");
    };
    version(1, &["a"]);
    symlink("..data/tidegate.yaml", mount.join("tidegate.yaml")).expect("a link");
    assert!(scene.reloader.reload_now().result.is_ok());
    scene.settle();
    version(2, &["b"]);
    scene.loads(&["b"]);
    fs::remove_dir_all(mount.join("..version-1")).expect("it is there");
    scene.settle();
}

#[test]
fn a_bad_file_leaves_the_rules_and_is_told_once() {
    let scene = Scene::with(&file(&["a"]));
    let loaded_at = scene.reloader.last_outcome().loaded_at;
    scene.clock.advance(Duration::from_secs(60));
    scene.write("limits:\n  - {id: b, items: [{policy: dya, limit: 1}]}\n");
    let text = scene.fails();
    assert!(text.contains(":2:30: limits[0].items[0].policy"), "{text}");
    scene.settle();

    let standing = scene.reloader.last_outcome();
    let last = standing.last.clone().expect("it was read");
    assert_eq!(last.at, Tick::NANOSECOND.since_epoch(START) + Duration::from_secs(60));
    assert_eq!((standing.succeeded, standing.failed, standing.loaded_at), (1, 1, loaded_at));
    let failed = last.result.expect_err("it failed");
    assert_eq!(failed.summary, "1 error in the settings file, the first on line 2; see the log");
    let counts = scene.reloader.counts();
    assert!(counts.last_failed && counts.last_success == loaded_at);

    scene.write(&file(&["a"]));
    scene.loads(&["a"]);
    let counts = scene.reloader.counts();
    assert_eq!((counts.succeeded, counts.failed, counts.last_failed), (2, 1, false));
    assert_eq!(counts.last_success, Some(last.at));
}

#[test]
fn what_cannot_be_used_together_is_told_too() {
    let scene = Scene::with(&file(&["a"]));
    fs::remove_file(scene.reloader.path()).expect("it is there");
    fs::create_dir(scene.reloader.path()).expect("a directory");
    assert!(scene.fails().ends_with("it is not a file"));
    fs::remove_dir(scene.reloader.path()).expect("it is there");
    scene.write("limits: [{id: cl.throttle/1/1/1, items: [{policy: total, limit: 1}]}]");
    assert!(scene.fails().contains("limits[0].id: limits called cl.throttle belong to"));
}

#[test]
fn a_touch_is_no_reload() {
    let scene = Scene::with(&file(&["a"]));
    scene.write(&file(&["a"]));
    scene.settle();
    assert_eq!(scene.reloader.last_outcome().succeeded, 1);
}

#[test]
fn asking_for_it_reads_at_once() {
    let scene = Scene::with(&file(&["a"]));
    scene.write(&file(&["b"]));
    let loaded = scene.reloader.reload_now().result.expect("a good file");
    assert_eq!((loaded.applied.added, loaded.applied.removed), (1, 1));
    scene.settle();
    assert!(scene.reloader.reload_now().result.is_ok(), "also if nothing has changed");
    scene.write("limits: 5");
    assert!(scene.reloader.reload_now().result.is_err());
    assert_eq!(scene.ids(), ["b"]);
    scene.settle();
}

#[test]
fn what_waits_for_a_restart_is_told() {
    let scene = Scene::with("server: {workers: 1}");
    scene.write("server: {workers: 2}\ntls: {}");
    let loaded = scene.reads().result.expect("a good file");
    assert_eq!(loaded.applied.needs_restart, ["server"]);
    assert!(loaded.warnings.expect("tls has no effect").contains("tls: not read"));
}

#[test]
fn somebody_looks_until_told_to_stop() {
    let scene = Scene::with(&file(&["a"]));
    let (heard, ear) = std::sync::mpsc::channel();
    let heard = std::sync::Mutex::new(heard);
    scene.store.watch(Box::new(move |_| {
        let _somebody = heard.lock().expect("nobody panics in here").send(());
    }));
    let watching = scene.reloader.watch_file().expect("a thread");
    scene.write(&file(&["a", "b"]));
    ear.recv_timeout(Duration::from_secs(60)).expect("somebody looked");
    drop(watching);
    assert_eq!(Arc::strong_count(&scene.reloader), 1, "nobody looks any more");
    assert_eq!(scene.ids(), ["a", "b"]);
}
