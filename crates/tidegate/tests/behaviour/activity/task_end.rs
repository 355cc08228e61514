//! Notification of a task's end to the code that runs it.

use std::sync::Arc;
use std::time::Duration;

use tidegate::Limiter;
use tidegate::activity::{Activity, Ended, LOOK_EVERY, TaskState};
use tidegate::limiter::ManualHolderClock;
use tidegate::model::LeaseId;
use tidegate::store::Store as _;
use tokio::task::JoinHandle;

use super::super::{LimiterFixture, Store};
use super::{ActivityFixture, BOTH, STRICT, run_ready_tasks};
use crate::counting_store::CountingStore;
use crate::fixture::{FixtureStore, at, decided, seconds};

/// Maximum delay between the end of a task and its report.
const PROMISED: Duration = Duration::from_millis(500);

const _: () = assert!(LOOK_EVERY.as_millis() * 2 < PROMISED.as_millis());

/// How the task ended, or `None` while it runs.
async fn end_of(waiting: &mut JoinHandle<Ended>) -> Option<Ended> {
    run_ready_tasks().await;
    if waiting.is_finished() { Some(waiting.await.expect("no panic")) } else { None }
}

#[tokio::test]
async fn task_ended_locally_is_reported_at_once() {
    for rules in BOTH {
        let activity_fixture = ActivityFixture::new(rules);
        let (a, b, c, d) = (
            activity_fixture.begins("u").await,
            activity_fixture.begins("u").await,
            activity_fixture.begins("u").await,
            activity_fixture.begins("v").await,
        );
        let mut ends = [&a, &b, &c, &d].map(|task| tokio::spawn(task.ended()));
        run_ready_tasks().await;
        let [of_a, of_b, of_c, of_d] = &mut ends;
        a.release().await;
        assert_eq!(end_of(of_a).await, Some(Ended::Released));
        drop(b);
        assert_eq!(end_of(of_b).await, Some(Ended::Released));
        assert_eq!(end_of(of_c).await, None, "it is running");
        activity_fixture.activity.remove_active("u").await.unwrap();
        assert_eq!(end_of(of_c).await, Some(Ended::Released));
        activity_fixture.activity.remove("v", d.active_id()).await.unwrap();
        assert_eq!(end_of(of_d).await, Some(Ended::Released));
    }
}

#[tokio::test]
async fn task_ended_remotely_is_reported_at_next_poll() {
    let activity_fixture = ActivityFixture::new(STRICT);
    let (stopped, lapsing) = (activity_fixture.begins("u").await, activity_fixture.begins("v").await);
    let mut of_stopped = tokio::spawn(stopped.ended());
    let mut of_lapsing = tokio::spawn(lapsing.ended());
    run_ready_tasks().await;
    // Another process releases it without a notification in this process.
    assert!(decided(activity_fixture.fixture.store.release(stopped.active_id())));
    assert_eq!(end_of(&mut of_stopped).await, None);
    activity_fixture.fixture.holder_clock.advance(LOOK_EVERY);
    assert_eq!(end_of(&mut of_stopped).await, Some(Ended::Released));
    assert_eq!(end_of(&mut of_lapsing).await, None);
    // The task expired by the store's clock, and the holder's clock is behind.
    activity_fixture.fixture.clock.advance(seconds(300));
    activity_fixture.fixture.holder_clock.advance(LOOK_EVERY);
    assert_eq!(end_of(&mut of_lapsing).await, Some(Ended::Expired));
}

#[tokio::test]
async fn expired_task_is_reported_without_store() {
    let activity_fixture = ActivityFixture::new(STRICT);
    let task = activity_fixture.begins("u").await;
    let mut end = tokio::spawn(task.ended());
    run_ready_tasks().await;
    activity_fixture.fixture.holder_clock.advance(seconds(300));
    assert_eq!(end_of(&mut end).await, None, "another caller may have renewed it");
    activity_fixture.fixture.holder_clock.advance(LOOK_EVERY);
    assert_eq!(end_of(&mut end).await, Some(Ended::Expired), "it was not renewed");
}

#[tokio::test]
async fn renewed_task_stays_active_until_stopped() {
    let activity_fixture = ActivityFixture::new(STRICT);
    let task = activity_fixture.begins("u").await;
    task.keep_alive();
    let mut end = tokio::spawn(task.ended());
    for _ in 0..12 {
        run_ready_tasks().await;
        activity_fixture.fixture.pass(seconds(90));
    }
    assert_eq!(end_of(&mut end).await, None);
    activity_fixture.activity.remove_active("u").await.unwrap();
    assert_eq!(end_of(&mut end).await, Some(Ended::Released));
}

#[tokio::test]
async fn task_taken_over_by_id_is_watched() {
    let activity_fixture = ActivityFixture::new(STRICT);
    let task = activity_fixture.begins("u").await;
    let mut end = tokio::spawn(task.ended());
    run_ready_tasks().await;
    let id = task.into_id();
    assert_eq!(end_of(&mut end).await, None, "it goes on");
    let mut watching = activity_fixture.activity.watch("u", id).await.unwrap().expect("it is running");
    assert_eq!(watching.state(), TaskState::Until(at(seconds(300))));
    activity_fixture.until(1000);
    activity_fixture.activity.renew("u", id, None).await.unwrap();
    assert_eq!(watching.changed().await, TaskState::Until(at(seconds(301))));
    // Another caller renews it.
    let mut later = tokio::spawn(async move { (watching.changed().await, watching) });
    run_ready_tasks().await;
    decided(activity_fixture.fixture.store.renew(id, Some(seconds(500)))).unwrap();
    activity_fixture.fixture.holder_clock.advance(LOOK_EVERY);
    let (standing, watching) = (&mut later).await.unwrap();
    assert_eq!(standing, TaskState::Until(at(seconds(501))));
    activity_fixture.activity.remove("u", id).await.unwrap();
    assert_eq!(end_of(&mut end).await, Some(Ended::Released));
    assert_eq!(watching.ended().await, Ended::Released, "what is over stays so");
    assert!(activity_fixture.activity.watch("u", id).await.unwrap().is_none());
    assert!(activity_fixture.activity.watch("u", LeaseId(7)).await.unwrap().is_none(), "it never was");
}

#[tokio::test]
async fn watched_tasks_share_one_store_query() {
    let fixture = LimiterFixture::new();
    let holder_clock = ManualHolderClock::new();
    let store = Arc::new(CountingStore::over(Arc::new(Store::with_clock(Arc::clone(&fixture.clock)))));
    let limiter = Limiter::builder()
        .store(Arc::clone(&store) as _)
        .holder_clock(holder_clock.clone())
        .build()
        .expect("valid settings");
    let activity = Activity::new(limiter, STRICT).unwrap();
    let mut tasks = Vec::new();
    for task in 0..30 {
        tasks.push(activity.set_active(&format!("u-{task}")).await.unwrap());
    }
    store.asked();
    holder_clock.advance(seconds(1));
    run_ready_tasks().await;
    assert_eq!(store.asked(), 0, "no task is watched");
    let ends: Vec<_> = tasks.iter().map(|task| tokio::spawn(task.ended())).collect();
    run_ready_tasks().await;
    for _look in 0..5 {
        holder_clock.advance(LOOK_EVERY);
        run_ready_tasks().await;
    }
    assert_eq!((store.asked(), activity.watched()), (5, 30), "once for each look");
    for end in &ends {
        end.abort();
    }
    run_ready_tasks().await;
    assert_eq!(activity.watched(), 0);
    holder_clock.advance(LOOK_EVERY);
    run_ready_tasks().await;
    holder_clock.advance(seconds(10));
    run_ready_tasks().await;
    assert_eq!(store.asked(), 0, "no task is watched any more");
    // A new watcher restarts the queries.
    let mut end = tokio::spawn(tasks[0].ended());
    run_ready_tasks().await;
    decided(store.release(tasks[0].active_id()));
    holder_clock.advance(LOOK_EVERY);
    assert_eq!(end_of(&mut end).await, Some(Ended::Released));
}

#[test]
fn watching_continues_on_second_runtime() {
    let activity_fixture = ActivityFixture::new(STRICT);
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (first, second) = (runtime(), runtime());
    let (one, other) =
        first.block_on(async { (activity_fixture.begins("u").await, activity_fixture.begins("v").await) });
    first.block_on(async {
        let _watching = tokio::spawn(one.ended());
        run_ready_tasks().await;
    });
    let mut end = second.spawn(other.ended());
    second.block_on(run_ready_tasks());
    // The background task ends with its runtime.
    drop(first);
    second.block_on(async {
        run_ready_tasks().await;
        decided(activity_fixture.fixture.store.release(other.active_id()));
        activity_fixture.fixture.holder_clock.advance(LOOK_EVERY);
        assert_eq!(end_of(&mut end).await, Some(Ended::Released));
    });
}
