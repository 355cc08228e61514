//! How whoever runs a task hears that it is over, when somebody else has ended it.

use std::time::{Duration, Instant};

use tidegate::activity::{Ended, Rules};

use super::{BOTH, STRICT, Scene};

/// Whoever runs a task is to know of its end within half a second. A machine may be busy, so tests allow for more.
const ALLOWED: Duration = Duration::from_secs(5);

#[expect(clippy::disallowed_methods, reason = "how long it takes is the question")]
fn now() -> Instant {
    Instant::now()
}

#[test]
fn a_task_that_another_store_ends_is_known_to_be_over() {
    for rules in BOTH {
        let scene = Scene::in_real_time(rules);
        let elsewhere = scene.elsewhere();
        let (stopped, other) = (scene.begins("u"), scene.begins("v"));
        let end = scene.runtime.spawn(stopped.ended());
        let of_other = scene.runtime.spawn(other.ended());
        scene.shows([&stopped, &other]);
        let began = now();
        assert_eq!(scene.runtime.block_on(elsewhere.remove_active("u")).expect("an answer"), 1);
        let ended = scene.runtime.block_on(end).expect("no panic");
        let took = now() - began;
        println!("told after {} ms", took.as_millis());
        assert_eq!(ended, Ended::Released);
        assert!(took < ALLOWED, "{took:?}");
        assert!(!of_other.is_finished(), "it is running");
        scene.shows([&other]);
        // By its name, through the other store.
        let removed = scene.runtime.block_on(elsewhere.remove("v", other.active_id()));
        assert_eq!(removed.expect("an answer"), 1);
        assert_eq!(scene.runtime.block_on(of_other).expect("no panic"), Ended::Released);
        assert_eq!(scene.running("u"), (0, 0));
    }
}

#[test]
fn a_task_that_nobody_renews_lapses_when_the_database_says_so() {
    let scene = Scene::in_real_time(Rules { lease_ttl: Duration::from_secs(1), ..STRICT });
    let watching = scene.elsewhere();
    let task = scene.begins("u");
    let ends = task.expires_at();
    scene.shows([&task]);
    let id = task.into_id();
    let watched = scene.runtime.block_on(watching.watch("u", id)).expect("an answer").expect("it runs");
    // Whoever had it is gone. A moment before its end it is there, and at its end it is not.
    wait_until(&scene, ends.ticks() / 1000 - 200_000);
    assert_eq!((scene.running("u"), scene.view().len()), ((1, 1), 1));
    wait_until(&scene, ends.ticks() / 1000 + 1);
    assert_eq!((scene.running("u"), scene.view().len()), ((0, 0), 0));
    assert_eq!(scene.runtime.block_on(watched.ended()), Ended::Expired);
}

/// Waits until the database's clock says that it is so many microseconds after 1970.
fn wait_until(scene: &Scene, micros: u64) {
    let wait = format!("SELECT pg_sleep_until(timestamptz 'epoch' + {micros} * interval '1 microsecond')");
    scene.sql.rows(&wait);
}
