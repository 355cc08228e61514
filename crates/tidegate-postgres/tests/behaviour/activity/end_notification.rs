//! The end of a task is reported to its owner when another store ends it or its lease expires.

use std::time::{Duration, Instant};

use tidegate::activity::{ActivityRules, Ended};

use super::{ActivityFixture, RULE_SETS, STRICT};

/// The promised delay is half a second. The test allows more, because the machine may be busy.
const ALLOWED: Duration = Duration::from_secs(5);

#[expect(clippy::disallowed_methods, reason = "the test measures a delay")]
fn monotonic_now() -> Instant {
    Instant::now()
}

#[test]
fn end_is_reported_when_another_store_removes_task() {
    for rules in RULE_SETS {
        let fixture = ActivityFixture::with_database_clock(rules);
        let second = fixture.open_second();
        let (stopped, other) = (fixture.start_task("u"), fixture.start_task("v"));
        let end = fixture.runtime.spawn(stopped.ended());
        let of_other = fixture.runtime.spawn(other.ended());
        fixture.assert_view_shows([&stopped, &other]);
        let began = monotonic_now();
        assert_eq!(fixture.runtime.block_on(second.remove_active("u")).expect("an answer"), 1);
        let ended = fixture.runtime.block_on(end).expect("no panic");
        let took = monotonic_now() - began;
        println!("reported after {} ms", took.as_millis());
        assert_eq!(ended, Ended::Released);
        assert!(took < ALLOWED, "{took:?}");
        assert!(!of_other.is_finished(), "the other task is still running");
        fixture.assert_view_shows([&other]);
        // Removes the task by its id through the other store.
        let removed = fixture.runtime.block_on(second.remove("v", other.active_id()));
        assert_eq!(removed.expect("an answer"), 1);
        assert_eq!(fixture.runtime.block_on(of_other).expect("no panic"), Ended::Released);
        assert_eq!(fixture.running_counts("u"), (0, 0));
    }
}

#[test]
fn unrenewed_task_expires_by_database_clock() {
    let fixture =
        ActivityFixture::with_database_clock(ActivityRules { lease_ttl: Duration::from_secs(1), ..STRICT });
    let watching = fixture.open_second();
    let task = fixture.start_task("u");
    let ends = task.expires_at();
    fixture.assert_view_shows([&task]);
    let id = task.into_id();
    let watched =
        fixture.runtime.block_on(watching.watch("u", id)).expect("an answer").expect("the task is running");
    // The owner no longer renews the task. It is present until its expiry and absent afterwards.
    wait_until(&fixture, ends.ticks() / 1000 - 200_000);
    assert_eq!((fixture.running_counts("u"), fixture.view_rows().len()), ((1, 1), 1));
    wait_until(&fixture, ends.ticks() / 1000 + 1);
    assert_eq!((fixture.running_counts("u"), fixture.view_rows().len()), ((0, 0), 0));
    assert_eq!(fixture.runtime.block_on(watched.ended()), Ended::Expired);
}

/// Waits until the database's clock reaches this many microseconds since 1970.
fn wait_until(fixture: &ActivityFixture, micros: u64) {
    let wait = format!("SELECT pg_sleep_until(timestamptz 'epoch' + {micros} * interval '1 microsecond')");
    fixture.sql.rows(&wait);
}
