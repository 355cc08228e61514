//! Defects of the original specification that must not occur here.

use std::collections::HashSet;
use std::sync::Arc;

use tidegate::activity::{ActivityRules, Reason, RunningTask};
use tidegate::limiter::Renewal;
use tidegate::model::{Capacity, Per};
use tokio::sync::Barrier;

use super::{ActivityFixture, BOTH, LETTER, STRICT};
use crate::fixture::seconds;

/// The number of admitted requests in fifteen seconds, sent one after the other, each of 0.1 s.
async fn admitted(activity_fixture: &ActivityFixture) -> usize {
    let mut admitted = 0;
    for request in 0..=150 {
        activity_fixture.until(request * 100);
        if activity_fixture.is_limited("u").await.is_some() {
            continue;
        }
        let task = activity_fixture.begins("u").await;
        admitted += 1;
        activity_fixture.until(request * 100 + 99);
        task.release().await;
    }
    admitted
}

#[tokio::test]
async fn f1_short_requests_are_counted() {
    assert_eq!(admitted(&ActivityFixture::new(STRICT)).await, 5);
    assert_eq!(admitted(&ActivityFixture::new(LETTER)).await, 151, "as in the original, to the letter");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn f2_concurrent_requests_get_exactly_thirty_tasks() {
    for rules in BOTH {
        let activity_fixture = Arc::new(ActivityFixture::new(rules));
        for _round in 0..8 {
            let start = Arc::new(Barrier::new(64));
            let racers: Vec<_> = (0..64)
                .map(|racer| {
                    let (activity_fixture, start) = (Arc::clone(&activity_fixture), Arc::clone(&start));
                    tokio::spawn(async move {
                        start.wait().await;
                        activity_fixture.activity.set_active(&format!("u-{racer}")).await.ok()
                    })
                })
                .collect();
            let mut tasks = Vec::new();
            for racer in racers {
                tasks.extend(racer.await.expect("no panic"));
            }
            assert_eq!(tasks.len(), 30, "all of them, and no more");
            let names: HashSet<_> = tasks.iter().map(RunningTask::active_id).collect();
            assert_eq!((names.len(), activity_fixture.running("u-0").await.0), (30, 30));
            drop(tasks);
            assert_eq!(activity_fixture.running("u-0").await.0, 0);
            activity_fixture.fixture.pass(seconds(16));
        }
    }
}

#[tokio::test]
async fn f3_task_of_dead_process_expires() {
    for rules in BOTH {
        let activity_fixture = ActivityFixture::new(rules);
        for leak in 0..30 {
            activity_fixture.begins(&format!("u-{leak}")).await.into_id();
        }
        activity_fixture.until(299_999);
        assert_eq!(activity_fixture.refuses("v").await.reason, Reason::Concurrency, "not before");
        activity_fixture.until(300_000);
        assert_eq!(activity_fixture.running("v").await, (0, 0));
        activity_fixture.begins("v").await.release().await;
    }
}

#[tokio::test]
async fn f4_ended_task_leaves_other_tasks_active() {
    for rules in BOTH {
        let activity_fixture = ActivityFixture::new(rules);
        let (one, other) = (activity_fixture.begins("u").await, activity_fixture.begins("u").await);
        assert!(one.release().await);
        assert_eq!(activity_fixture.running("u").await, (1, 1));
        assert!(matches!(other.renew().await.unwrap(), Renewal::Until(_)));
        let id = other.active_id();
        assert_eq!(activity_fixture.activity.remove("v", id).await.unwrap(), 0, "it is not theirs");
        assert_eq!(activity_fixture.activity.renew("v", id, None).await.unwrap(), Renewal::Gone);
        assert!(activity_fixture.activity.watch("v", id).await.unwrap().is_none());
        assert_eq!(activity_fixture.running("u").await, (1, 1));
        assert_eq!(activity_fixture.activity.remove("u", id).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn f5_refused_request_releases_nothing() {
    let activity_fixture = ActivityFixture::new(STRICT);
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(activity_fixture.begins("u").await);
    }
    for _ in 0..20 {
        drop(activity_fixture.refuses("u").await);
    }
    assert_eq!(activity_fixture.running("u").await, (5, 5));
    for task in &tasks {
        assert!(matches!(task.renew().await.unwrap(), Renewal::Until(_)), "it runs");
    }
}

#[tokio::test]
async fn f7_user_bound_leaves_room_for_others() {
    let activity_fixture =
        ActivityFixture::new(ActivityRules { max_concurrent_per_user: Capacity::AtMost(2), ..STRICT });
    let tasks = [activity_fixture.begins("u").await, activity_fixture.begins("u").await];
    let refusal = activity_fixture.refuses("u").await;
    assert_eq!((refusal.reason, refusal.per), (Reason::Concurrency, Per::Key));
    assert!(refusal.to_string().contains("of this user"), "{refusal}");
    assert_eq!(activity_fixture.is_limited("u").await, Some(Reason::Concurrency));
    activity_fixture.begins("v").await.release().await;
    drop(tasks);
    activity_fixture.begins("u").await.release().await;
}

#[tokio::test]
async fn f8_reported_wait_is_exact() {
    let activity_fixture = ActivityFixture::new(STRICT);
    for second in 0..5 {
        activity_fixture.until(second * 1000);
        activity_fixture.begins("u").await.release().await;
    }
    activity_fixture.until(10_000);
    let wait = activity_fixture.refuses("u").await.retry_after.expect("time helps");
    assert_eq!(activity_fixture.activity.is_active("u").await.unwrap().retry_after, Some(wait));
    assert!(wait > seconds(5) && wait < seconds(5) + seconds(1), "{wait:?}");
    let tick = std::time::Duration::from_nanos(1);
    activity_fixture.fixture.pass(wait.saturating_sub(tick));
    activity_fixture.refuses("u").await;
    activity_fixture.fixture.pass(tick);
    activity_fixture.begins("u").await.release().await;
}

#[tokio::test]
async fn f11_expired_task_is_not_released_twice() {
    for rules in BOTH {
        let activity_fixture =
            ActivityFixture::new(ActivityRules { max_concurrent_tasks: Capacity::AtMost(1), ..rules });
        let late = activity_fixture.begins("u").await;
        let id = late.active_id();
        activity_fixture.until(300_000);
        let next = activity_fixture.begins("u").await;
        assert_eq!(activity_fixture.activity.remove("u", id).await.unwrap(), 0, "it is gone");
        late.release().await;
        assert_eq!(activity_fixture.running("u").await, (1, 1), "the running task keeps its slot");
        assert_eq!(activity_fixture.refuses("v").await.reason, Reason::Concurrency);
        assert!(next.is_held());
    }
}
