//! How whoever runs a task hears that it is over.

use std::sync::Arc;
use std::time::Duration;

use tidegate::Limiter;
use tidegate::activity::{Activity, Ended, LOOK_EVERY, Standing};
use tidegate::limiter::ManualHolderClock;
use tidegate::model::LeaseId;
use tidegate::store::Store as _;
use tokio::task::JoinHandle;

use super::super::{Stage, Store};
use super::{BOTH, STRICT, Scene, breath};
use crate::counting_store::CountingStore;
use crate::stage::{Staged, at, decided, seconds};

/// Whoever runs a task must know of its end within this.
const PROMISED: Duration = Duration::from_millis(500);

const _: () = assert!(LOOK_EVERY.as_millis() * 2 < PROMISED.as_millis());

/// How it ended, if it has.
async fn told(waiting: &mut JoinHandle<Ended>) -> Option<Ended> {
    breath().await;
    if waiting.is_finished() { Some(waiting.await.expect("no panic")) } else { None }
}

#[tokio::test]
async fn task_ended_locally_is_reported_at_once() {
    for rules in BOTH {
        let scene = Scene::new(rules);
        let (a, b, c, d) = (
            scene.begins("u").await,
            scene.begins("u").await,
            scene.begins("u").await,
            scene.begins("v").await,
        );
        let mut ends = [&a, &b, &c, &d].map(|task| tokio::spawn(task.ended()));
        breath().await;
        let [of_a, of_b, of_c, of_d] = &mut ends;
        a.release().await;
        assert_eq!(told(of_a).await, Some(Ended::Released));
        drop(b);
        assert_eq!(told(of_b).await, Some(Ended::Released));
        assert_eq!(told(of_c).await, None, "it is running");
        scene.activity.remove_active("u").await.unwrap();
        assert_eq!(told(of_c).await, Some(Ended::Released));
        scene.activity.remove("v", d.active_id()).await.unwrap();
        assert_eq!(told(of_d).await, Some(Ended::Released));
    }
}

#[tokio::test]
async fn task_ended_remotely_is_reported_at_next_poll() {
    let scene = Scene::new(STRICT);
    let (stopped, lapsing) = (scene.begins("u").await, scene.begins("v").await);
    let mut of_stopped = tokio::spawn(stopped.ended());
    let mut of_lapsing = tokio::spawn(lapsing.ended());
    breath().await;
    // Another process releases it: nobody here is told.
    assert!(decided(scene.stage.store.release(stopped.active_id())));
    assert_eq!(told(&mut of_stopped).await, None);
    scene.stage.pulse.advance(LOOK_EVERY);
    assert_eq!(told(&mut of_stopped).await, Some(Ended::Released));
    assert_eq!(told(&mut of_lapsing).await, None);
    // Its time is over by the store's clock, and its holder's own clock is late.
    scene.stage.clock.advance(seconds(300));
    scene.stage.pulse.advance(LOOK_EVERY);
    assert_eq!(told(&mut of_lapsing).await, Some(Ended::Expired));
}

#[tokio::test]
async fn expired_task_is_reported_without_store() {
    let scene = Scene::new(STRICT);
    let task = scene.begins("u").await;
    let mut end = tokio::spawn(task.ended());
    breath().await;
    scene.stage.pulse.advance(seconds(300));
    assert_eq!(told(&mut end).await, None, "perhaps somebody knows more");
    scene.stage.pulse.advance(LOOK_EVERY);
    assert_eq!(told(&mut end).await, Some(Ended::Expired), "it was not renewed");
}

#[tokio::test]
async fn renewed_task_stays_active_until_stopped() {
    let scene = Scene::new(STRICT);
    let task = scene.begins("u").await;
    task.keep_alive();
    let mut end = tokio::spawn(task.ended());
    for _ in 0..12 {
        breath().await;
        scene.stage.pass(seconds(90));
    }
    assert_eq!(told(&mut end).await, None);
    scene.activity.remove_active("u").await.unwrap();
    assert_eq!(told(&mut end).await, Some(Ended::Released));
}

#[tokio::test]
async fn task_taken_over_by_id_is_watched() {
    let scene = Scene::new(STRICT);
    let task = scene.begins("u").await;
    let mut end = tokio::spawn(task.ended());
    breath().await;
    let id = task.into_id();
    assert_eq!(told(&mut end).await, None, "it goes on");
    let mut watching = scene.activity.watch("u", id).await.unwrap().expect("it is running");
    assert_eq!(watching.standing(), Standing::Until(at(seconds(300))));
    scene.until(1000);
    scene.activity.renew("u", id, None).await.unwrap();
    assert_eq!(watching.changed().await, Standing::Until(at(seconds(301))));
    // Somebody else renews it.
    let mut later = tokio::spawn(async move { (watching.changed().await, watching) });
    breath().await;
    decided(scene.stage.store.renew(id, Some(seconds(500)))).unwrap();
    scene.stage.pulse.advance(LOOK_EVERY);
    let (standing, watching) = (&mut later).await.unwrap();
    assert_eq!(standing, Standing::Until(at(seconds(501))));
    scene.activity.remove("u", id).await.unwrap();
    assert_eq!(told(&mut end).await, Some(Ended::Released));
    assert_eq!(watching.ended().await, Ended::Released, "what is over stays so");
    assert!(scene.activity.watch("u", id).await.unwrap().is_none());
    assert!(scene.activity.watch("u", LeaseId(7)).await.unwrap().is_none(), "it never was");
}

#[tokio::test]
async fn watched_tasks_share_one_store_query() {
    let stage = Stage::new();
    let pulse = ManualHolderClock::new();
    let store = Arc::new(CountingStore::over(Arc::new(Store::keeping(Arc::clone(&stage.clock)))));
    let limiter = Limiter::builder()
        .store(Arc::clone(&store) as _)
        .holder_clock(pulse.clone())
        .build()
        .expect("no mistakes");
    let activity = Activity::new(limiter, STRICT).unwrap();
    let mut tasks = Vec::new();
    for task in 0..30 {
        tasks.push(activity.set_active(&format!("u-{task}")).await.unwrap());
    }
    store.asked();
    pulse.advance(seconds(1));
    breath().await;
    assert_eq!(store.asked(), 0, "nobody watches");
    let ends: Vec<_> = tasks.iter().map(|task| tokio::spawn(task.ended())).collect();
    breath().await;
    for _look in 0..5 {
        pulse.advance(LOOK_EVERY);
        breath().await;
    }
    assert_eq!((store.asked(), activity.watched()), (5, 30), "once for each look");
    for end in &ends {
        end.abort();
    }
    breath().await;
    assert_eq!(activity.watched(), 0);
    pulse.advance(LOOK_EVERY);
    breath().await;
    pulse.advance(seconds(10));
    breath().await;
    assert_eq!(store.asked(), 0, "nobody watches any more");
    // And if somebody does again, somebody looks again.
    let mut end = tokio::spawn(tasks[0].ended());
    breath().await;
    decided(store.release(tasks[0].active_id()));
    pulse.advance(LOOK_EVERY);
    assert_eq!(told(&mut end).await, Some(Ended::Released));
}

#[test]
fn watching_continues_on_second_runtime() {
    let scene = Scene::new(STRICT);
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (first, second) = (runtime(), runtime());
    let (one, other) = first.block_on(async { (scene.begins("u").await, scene.begins("v").await) });
    first.block_on(async {
        let _watching = tokio::spawn(one.ended());
        breath().await;
    });
    let mut end = second.spawn(other.ended());
    second.block_on(breath());
    // With its runtime goes the one who looked.
    drop(first);
    second.block_on(async {
        breath().await;
        decided(scene.stage.store.release(other.active_id()));
        scene.stage.pulse.advance(LOOK_EVERY);
        assert_eq!(told(&mut end).await, Some(Ended::Released));
    });
}
