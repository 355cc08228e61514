//! What was wrong with the original, and is right here.

use std::collections::HashSet;
use std::sync::Arc;

use tidegate::activity::{Active, Reason, Rules};
use tidegate::limiter::Renewal;
use tidegate::model::{Capacity, Per};
use tokio::sync::Barrier;

use super::{BOTH, LETTER, STRICT, Scene};
use crate::stage::seconds;

/// How many requests of a tenth of a second are admitted in fifteen seconds, one after the other.
async fn admitted(scene: &Scene) -> usize {
    let mut admitted = 0;
    for request in 0..=150 {
        scene.until(request * 100);
        if scene.is_limited("u").await.is_some() {
            continue;
        }
        let task = scene.begins("u").await;
        admitted += 1;
        scene.until(request * 100 + 99);
        task.release().await;
    }
    admitted
}

#[tokio::test]
async fn f1_short_requests_are_counted() {
    assert_eq!(admitted(&Scene::new(STRICT)).await, 5);
    assert_eq!(admitted(&Scene::new(LETTER)).await, 151, "as in the original, to the letter");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn f2_concurrent_requests_get_exactly_thirty_tasks() {
    for rules in BOTH {
        let scene = Arc::new(Scene::new(rules));
        for _round in 0..8 {
            let start = Arc::new(Barrier::new(64));
            let racers: Vec<_> = (0..64)
                .map(|racer| {
                    let (scene, start) = (Arc::clone(&scene), Arc::clone(&start));
                    tokio::spawn(async move {
                        start.wait().await;
                        scene.activity.set_active(&format!("u-{racer}")).await.ok()
                    })
                })
                .collect();
            let mut tasks = Vec::new();
            for racer in racers {
                tasks.extend(racer.await.expect("no panic"));
            }
            assert_eq!(tasks.len(), 30, "all of them, and no more");
            let names: HashSet<_> = tasks.iter().map(Active::active_id).collect();
            assert_eq!((names.len(), scene.running("u-0").await.0), (30, 30));
            drop(tasks);
            assert_eq!(scene.running("u-0").await.0, 0);
            scene.stage.pass(seconds(16));
        }
    }
}

#[tokio::test]
async fn f3_task_of_dead_process_expires() {
    for rules in BOTH {
        let scene = Scene::new(rules);
        for leak in 0..30 {
            scene.begins(&format!("u-{leak}")).await.into_id();
        }
        scene.until(299_999);
        assert_eq!(scene.refuses("v").await.reason, Reason::Concurrency, "not before");
        scene.until(300_000);
        assert_eq!(scene.running("v").await, (0, 0));
        scene.begins("v").await.release().await;
    }
}

#[tokio::test]
async fn f4_ended_task_leaves_other_tasks_active() {
    for rules in BOTH {
        let scene = Scene::new(rules);
        let (one, other) = (scene.begins("u").await, scene.begins("u").await);
        assert!(one.release().await);
        assert_eq!(scene.running("u").await, (1, 1));
        assert!(matches!(other.renew().await.unwrap(), Renewal::Until(_)));
        let id = other.active_id();
        assert_eq!(scene.activity.remove("v", id).await.unwrap(), 0, "it is not theirs");
        assert_eq!(scene.activity.renew("v", id, None).await.unwrap(), Renewal::Gone);
        assert!(scene.activity.watch("v", id).await.unwrap().is_none());
        assert_eq!(scene.running("u").await, (1, 1));
        assert_eq!(scene.activity.remove("u", id).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn f5_refused_request_releases_nothing() {
    let scene = Scene::new(STRICT);
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(scene.begins("u").await);
    }
    for _ in 0..20 {
        drop(scene.refuses("u").await);
    }
    assert_eq!(scene.running("u").await, (5, 5));
    for task in &tasks {
        assert!(matches!(task.renew().await.unwrap(), Renewal::Until(_)), "it runs");
    }
}

#[tokio::test]
async fn f7_user_bound_leaves_room_for_others() {
    let scene = Scene::new(Rules { max_concurrent_per_user: Capacity::AtMost(2), ..STRICT });
    let tasks = [scene.begins("u").await, scene.begins("u").await];
    let refusal = scene.refuses("u").await;
    assert_eq!((refusal.reason, refusal.per), (Reason::Concurrency, Per::Key));
    assert!(refusal.to_string().contains("of this user"), "{refusal}");
    assert_eq!(scene.is_limited("u").await, Some(Reason::Concurrency));
    scene.begins("v").await.release().await;
    drop(tasks);
    scene.begins("u").await.release().await;
}

#[tokio::test]
async fn f8_reported_wait_is_exact() {
    let scene = Scene::new(STRICT);
    for second in 0..5 {
        scene.until(second * 1000);
        scene.begins("u").await.release().await;
    }
    scene.until(10_000);
    let wait = scene.refuses("u").await.retry_after.expect("time helps");
    assert_eq!(scene.activity.is_active("u").await.unwrap().retry_after, Some(wait));
    assert!(wait > seconds(5) && wait < seconds(5) + seconds(1), "{wait:?}");
    let tick = std::time::Duration::from_nanos(1);
    scene.stage.pass(wait.saturating_sub(tick));
    scene.refuses("u").await;
    scene.stage.pass(tick);
    scene.begins("u").await.release().await;
}

#[tokio::test]
async fn f11_expired_task_is_not_released_twice() {
    for rules in BOTH {
        let scene = Scene::new(Rules { max_concurrent_tasks: Capacity::AtMost(1), ..rules });
        let late = scene.begins("u").await;
        let id = late.active_id();
        scene.until(300_000);
        let next = scene.begins("u").await;
        assert_eq!(scene.activity.remove("u", id).await.unwrap(), 0, "it is gone");
        late.release().await;
        assert_eq!(scene.running("u").await, (1, 1), "whoever has the place keeps it");
        assert_eq!(scene.refuses("v").await.reason, Reason::Concurrency);
        assert!(next.is_held());
    }
}
