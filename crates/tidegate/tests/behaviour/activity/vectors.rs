//! Test vectors V1 to V5 of the specification, and its other requirements.

use std::sync::Arc;

use tidegate::Limiter;
use tidegate::activity::{Activity, ActivityRules, Reason, RunningTask, SYSTEM_IS_FULL};
use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::limiter::Renewal;
use tidegate::model::{Capacity, LeaseId, Per};
use tidegate_core::limit::Item;

use super::super::{LimiterFixture, Store};
use super::{ActivityFixture, BOTH, LETTER, STRICT};
use crate::counting_store::CountingStore;
use crate::fixture::{FixtureStore, at, seconds};

#[test]
fn default_rules_match_specification() {
    assert_eq!(ActivityRules::default(), STRICT);
}

#[tokio::test]
async fn v1_sixth_request_is_refused_until_window_moves() {
    for rules in BOTH {
        let activity_fixture = ActivityFixture::new(rules);
        let mut tasks = Vec::new();
        for second in 0..5 {
            activity_fixture.until(second * 1000);
            assert_eq!(activity_fixture.is_limited("u").await, None);
            tasks.push(activity_fixture.begins("u").await);
        }
        activity_fixture.until(4500);
        assert_eq!(activity_fixture.is_limited("u").await, Some(Reason::UserWindow));
        assert_eq!(activity_fixture.is_limited("v").await, None, "other users are not limited");
        activity_fixture.until(15_000);
        assert_eq!(
            activity_fixture.is_limited("u").await,
            Some(Reason::UserWindow),
            "what is 15 s old still counts"
        );
        activity_fixture.until(15_001);
        assert_eq!(activity_fixture.is_limited("u").await, None, "four are left");
    }
}

#[tokio::test]
async fn v2_thirty_first_task_is_refused() {
    for rules in BOTH {
        let activity_fixture = ActivityFixture::new(rules);
        let mut tasks = Vec::new();
        for other in 0..29 {
            tasks.push(activity_fixture.begins(&format!("other-{other}")).await);
        }
        assert_eq!(activity_fixture.is_limited("u").await, None);
        tasks.push(activity_fixture.begins("u").await);
        assert_eq!(activity_fixture.is_limited("anyone").await, Some(Reason::Concurrency));
        let refusal = activity_fixture.refuses("anyone").await;
        assert_eq!((refusal.reason, refusal.per), (Reason::Concurrency, Per::All));
        assert!(refusal.to_string().contains(SYSTEM_IS_FULL), "{refusal}");
        assert_eq!(refusal.retry_after, None, "the end of a task is unknown");
        assert_eq!(activity_fixture.running("u").await, (30, 1), "nothing was written");
    }
}

#[tokio::test]
async fn v3_remove_all_tasks_affects_one_user() {
    for rules in BOTH {
        let activity_fixture = ActivityFixture::new(rules);
        let (a, b, c) = (
            activity_fixture.begins("u").await,
            activity_fixture.begins("u").await,
            activity_fixture.begins("u").await,
        );
        let other = activity_fixture.begins("v").await;
        assert_eq!(activity_fixture.activity.remove_active("u").await.unwrap(), 3);
        assert_eq!(activity_fixture.running("u").await, (1, 0));
        assert_eq!(activity_fixture.activity.remove_active("u").await.unwrap(), 0, "again is no error");
        assert!(!c.release().await || rules.compat, "there is nothing left to give back");
        drop((a, b));
        assert_eq!(activity_fixture.running("v").await, (1, 1));
        drop(other);
        assert_eq!(activity_fixture.running("v").await, (0, 0));
    }
}

#[tokio::test]
async fn v4_refusal_names_window_if_both_are_full() {
    for rules in BOTH {
        let fixture = LimiterFixture::new();
        let store = Arc::new(CountingStore::over(Arc::new(Store::with_clock(Arc::clone(&fixture.clock)))));
        let activity = Activity::new(Limiter::new(Arc::clone(&store) as _), rules).unwrap();
        let mut tasks = Vec::new();
        for task in 0..30 {
            let user = if task < 5 { "u".to_owned() } else { format!("other-{task}") };
            tasks.push(activity.set_active(&user).await.unwrap());
        }
        store.asked();
        let status = activity.is_active("u").await.unwrap();
        assert_eq!(store.asked(), 1, "{rules:?}");
        assert_eq!((status.limited, status.reason), (true, Some(Reason::UserWindow)));
        assert_eq!((status.active, status.user_active), (30, 5));
        assert!(
            status.retry_after.is_some_and(|wait| wait > seconds(14) && wait <= seconds(16)),
            "{status:?}"
        );
        assert_eq!(activity.is_active("v").await.unwrap().reason, Some(Reason::Concurrency));
        let refusal = activity.set_active("u").await.unwrap_err();
        let reason = refusal.refusal().unwrap().reason;
        // With the literal rules only the number of tasks refuses a start.
        assert_eq!(reason, if rules.compat { Reason::Concurrency } else { Reason::UserWindow });
    }
}

#[tokio::test]
async fn v5_user_with_old_requests_may_take_all_tasks() {
    for rules in BOTH {
        let activity_fixture = ActivityFixture::new(rules);
        let mut tasks = Vec::new();
        for batch in 0..6 {
            activity_fixture.until(batch * 15_001);
            assert_eq!(
                activity_fixture.is_limited("u").await,
                None,
                "their tasks are running, and their requests are old"
            );
            for _ in 0..5 {
                tasks.push(activity_fixture.begins("u").await);
            }
        }
        assert_eq!(activity_fixture.running("u").await, (30, 30), "in 75.005 s");
        activity_fixture.until(75_005 + 15_001);
        assert_eq!(activity_fixture.is_limited("u").await, Some(Reason::Concurrency));
    }
}

#[tokio::test]
async fn literal_rules_refuse_only_after_is_active() {
    let activity_fixture = ActivityFixture::new(LETTER);
    let mut tasks = Vec::new();
    for _ in 0..12 {
        tasks.push(activity_fixture.begins("u").await);
    }
    assert_eq!(activity_fixture.is_limited("u").await, Some(Reason::UserWindow));
    assert_eq!(activity_fixture.running("u").await, (12, 12), "every call is a row of its own");
    tasks.truncate(4);
    assert_eq!(activity_fixture.is_limited("u").await, None, "the window counts what is running");
    assert_eq!(activity_fixture.running("u").await, (4, 4));
    // The same through task ids.
    tasks.push(activity_fixture.begins("u").await);
    let names: Vec<LeaseId> = tasks.into_iter().map(RunningTask::into_id).collect();
    assert_eq!(activity_fixture.is_limited("u").await, Some(Reason::UserWindow));
    assert_eq!(activity_fixture.activity.remove("u", names[2]).await.unwrap(), 1);
    assert_eq!(activity_fixture.is_limited("u").await, None);
    assert_eq!(activity_fixture.activity.remove("u", names[2]).await.unwrap(), 0);
    assert_eq!(activity_fixture.running("u").await, (4, 4));
}

#[tokio::test]
async fn task_reports_start_and_expiry() {
    let activity_fixture = ActivityFixture::new(STRICT);
    activity_fixture.until(2000);
    let task = activity_fixture.begins("u").await;
    assert_eq!((task.timestamp(), task.expires_at()), (at(seconds(2)), at(seconds(302))));
    assert_eq!((task.user(), task.is_held()), ("u", true));
    activity_fixture.until(100_000);
    assert_eq!(task.renew().await.unwrap(), Renewal::Until(at(seconds(400))));
    let id = task.active_id();
    let renewed = activity_fixture.activity.renew("u", id, Some(seconds(10))).await.unwrap();
    assert_eq!(renewed, Renewal::Until(at(seconds(110))));
    activity_fixture.until(110_000);
    assert_eq!(activity_fixture.activity.renew("u", id, None).await.unwrap(), Renewal::Gone);
    let short = activity_fixture.activity.set_active_for("u", Some(seconds(1))).await.unwrap();
    assert_eq!(short.expires_at(), at(seconds(111)));
}

#[tokio::test]
async fn activity_limit_is_created_on_first_use() {
    let activity_fixture = ActivityFixture::new(STRICT);
    assert!(activity_fixture.fixture.store.get("activity").is_none(), "there was no request yet");
    let task = activity_fixture.begins("u").await;
    let limit = activity_fixture.fixture.store.get("activity").expect("a limit");
    let names: Vec<&str> = limit.items().iter().map(Item::name).collect();
    assert_eq!(names, ["key/sliding-15s", "key/concurrency", "all/concurrency"]);
    // The same rules from another process change nothing. Other rules change the limit and keep the counts.
    let same = Activity::new(activity_fixture.fixture.limiter.clone(), STRICT).unwrap();
    assert_eq!(same.is_active("u").await.unwrap().active, 1);
    assert_eq!(activity_fixture.fixture.store.get("activity").unwrap().version(), limit.version());
    let fewer = ActivityRules { max_concurrent_tasks: Capacity::AtMost(1), ..STRICT };
    let other = Activity::new(activity_fixture.fixture.limiter.clone(), fewer).unwrap();
    assert_eq!(other.is_active("v").await.unwrap().reason, Some(Reason::Concurrency));
    // A deleted limit is created again.
    activity_fixture.fixture.store.remove("activity", tidegate::catalog::RemovalMode::Forget);
    assert_eq!(activity_fixture.is_limited("u").await, None);
    drop(task);
    // Rules may change while tasks run.
    let task = activity_fixture.begins("u").await;
    activity_fixture.activity.set_rules(fewer, tidegate::activity::RulesSource::Activity).unwrap();
    assert_eq!(activity_fixture.activity.rules(), fewer);
    assert_eq!(activity_fixture.is_limited("v").await, Some(Reason::Concurrency));
    drop(task);
    assert_eq!(activity_fixture.is_limited("v").await, None);
}

#[tokio::test]
async fn existing_activity_limit_is_kept() {
    let activity_fixture = ActivityFixture::new(STRICT);
    activity_fixture.activity.set_rules(STRICT, tidegate::activity::RulesSource::LimitsFile).unwrap();
    assert!(activity_fixture.activity.is_active("u").await.is_err(), "it is not there");
    let one = ActivityRules { max_concurrent_tasks: Capacity::AtMost(1), ..STRICT };
    activity_fixture.fixture.store.put(one.spec(), ExpectedVersion::Absent).unwrap();
    let _task = activity_fixture.begins("u").await;
    assert_eq!(activity_fixture.refuses("v").await.reason, Reason::Concurrency);
}

#[tokio::test]
async fn invalid_user_name_is_error() {
    let activity_fixture = ActivityFixture::new(STRICT);
    let long = "x".repeat(1025);
    let longest = "x".repeat(1024);
    for (user, why) in [
        ("", "empty"),
        (long.as_str(), "1025 bytes"),
        ("a\0b", "U+0000"),
        (&"y".repeat(1 << 16), "65536 bytes"),
    ] {
        for error in [
            activity_fixture.activity.is_active(user).await.unwrap_err(),
            activity_fixture.activity.set_active(user).await.unwrap_err(),
            activity_fixture.activity.remove_active(user).await.unwrap_err(),
            activity_fixture.activity.remove(user, LeaseId(1)).await.unwrap_err(),
            activity_fixture.activity.renew(user, LeaseId(1), None).await.unwrap_err(),
            activity_fixture.activity.watch(user, LeaseId(1)).await.map(|_| ()).unwrap_err(),
        ] {
            assert!(error.to_string().contains(why), "{error}");
        }
    }
    for user in ["用户-一", "🌊", " ", "a/b", &longest] {
        let task = activity_fixture.begins(user).await;
        assert_eq!(activity_fixture.activity.remove(user, task.active_id()).await.unwrap(), 1);
    }
}

#[test]
fn invalid_rules_report_every_error() {
    let wrong = ActivityRules {
        window: seconds(0),
        lease_ttl: seconds(0),
        max_concurrent_tasks: Capacity::AtMost(u64::MAX),
        max_concurrent_per_user: Capacity::AtMost(u64::MAX),
        ..STRICT
    };
    let fields =
        |rules: ActivityRules| -> Vec<String> { rules.flaws().into_iter().map(|flaw| flaw.field).collect() };
    assert_eq!(fields(wrong), ["window", "lease_ttl"], "what a limit may be depends on the rest");
    let wrong = ActivityRules { window: seconds(1), lease_ttl: seconds(1), ..wrong };
    assert_eq!(fields(wrong), ["max_concurrent_per_user", "max_concurrent_tasks"]);
    let letter =
        ActivityRules { lease_ttl: seconds(15), window_requests: Capacity::AtMost(1_000_001), ..LETTER };
    assert_eq!(
        fields(letter),
        ["window_requests", "lease_ttl"],
        "the charge of an expired task cannot be refunded"
    );
    let error = Activity::new(LimiterFixture::new().limiter, letter).unwrap_err();
    assert_eq!(error.flaws.len(), 2);
    assert!(error.to_string().contains("longer than the window of 15s"), "{error}");
    let many = ActivityRules { window_requests: Capacity::AtMost(1_000_001), ..STRICT };
    assert_eq!(fields(many), [""; 0], "counted in parts of the window");
    let none = ActivityRules {
        window_requests: Capacity::AtMost(0),
        max_concurrent_tasks: Capacity::Unlimited,
        ..STRICT
    };
    assert_eq!(fields(none), [""; 0]);
}

#[tokio::test]
async fn literal_rules_keep_entries_inside_window() {
    let activity_fixture = ActivityFixture::new(LETTER);
    let short = activity_fixture.activity.set_active_for("u", Some(seconds(15))).await.unwrap_err();
    assert!(short.to_string().contains("longer than the window of 15s"), "{short}");
    let task = activity_fixture.activity.set_active_for("u", Some(seconds(16))).await.unwrap();
    assert!(task.renew_for(seconds(15)).await.is_err());
    assert!(activity_fixture.activity.renew("u", task.active_id(), Some(seconds(15))).await.is_err());
    activity_fixture.until(15_000);
    assert_eq!(task.renew().await.unwrap(), Renewal::Until(at(seconds(315))));
}
