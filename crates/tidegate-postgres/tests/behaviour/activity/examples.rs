//! V1 to V5, and what else the view has to show.

use tidegate::activity::{ID, Reason};
use tidegate::model::Per;

use super::{BOTH, STRICT, Scene, Shown};
use crate::cluster::{Cluster, server_log_path};
use crate::sql::Sql;

#[test]
fn the_view_has_the_columns_that_were_promised() {
    let scene = Scene::new(STRICT);
    let columns = scene.sql.rows(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute \
         WHERE attrelid = 'session_activity'::regclass AND attnum > 0 ORDER BY attnum",
    );
    let timestamptz = "timestamp with time zone";
    let promised =
        [["id", "text"], ["user_sub", "text"], ["timestamp", timestamptz], ["expires_at", timestamptz]];
    assert_eq!(columns, promised);
}

#[test]
fn v1_five_requests_limit_a_user_until_the_first_leaves_the_closed_window() {
    for rules in BOTH {
        let scene = Scene::new(rules);
        let mut tasks = Vec::new();
        for second in 0..5 {
            scene.until(second * 1000);
            assert_eq!(scene.is_limited("u"), None);
            tasks.push(scene.begins("u"));
            scene.shows(&tasks);
        }
        assert_eq!(scene.view()[4].began, 4_102_444_804_000_000, "in UTC, by the clock that decided");
        scene.until(4500);
        assert_eq!(scene.is_limited("u"), Some(Reason::UserWindow));
        assert_eq!(scene.is_limited("v"), None, "of nobody else");
        scene.until(15_000);
        assert_eq!(scene.is_limited("u"), Some(Reason::UserWindow), "what is 15 s old still counts");
        scene.until(15_001);
        assert_eq!(scene.is_limited("u"), None, "four are left");
        scene.shows(&tasks);
    }
}

#[test]
fn v2_thirty_tasks_are_enough() {
    for rules in BOTH {
        let scene = Scene::new(rules);
        let mut tasks: Vec<_> = (0..29).map(|other| scene.begins(&format!("other-{other}"))).collect();
        assert_eq!(scene.is_limited("u"), None);
        tasks.push(scene.begins("u"));
        scene.shows(&tasks);
        assert_eq!(scene.is_limited("anyone"), Some(Reason::Concurrency));
        let refusal = scene.refuses("anyone");
        assert_eq!((refusal.reason, refusal.per), (Reason::Concurrency, Per::All));
        assert_eq!(scene.running("u"), (30, 1));
        scene.shows(&tasks);
    }
}

#[test]
fn v3_all_tasks_of_a_user_are_removed_and_nobody_elses() {
    for rules in BOTH {
        let scene = Scene::new(rules);
        let of_u = [scene.begins("u"), scene.begins("u"), scene.begins("u")];
        let other = scene.begins("v");
        scene.shows(of_u.iter().chain([&other]));
        assert_eq!(scene.removes("u"), 3);
        assert_eq!(scene.running("u"), (1, 0));
        scene.shows([&other]);
        assert_eq!(scene.removes("u"), 0, "again is no error");
        drop(of_u);
        assert_eq!(scene.running("v"), (1, 1), "whoever had them gives nothing back a second time");
        scene.shows([&other]);
    }
}

#[test]
fn v4_one_statement_says_it_all_and_the_window_is_named_if_both_are_full() {
    let cluster = Cluster::start(&["log_statement=all"]);
    for rules in BOTH {
        let scene = Scene::at(cluster.url(), rules);
        let user = |task| if task < 5 { "u".to_owned() } else { format!("other-{task}") };
        let tasks: Vec<_> = (0..30).map(|task| scene.begins(&user(task))).collect();
        assert_eq!(scene.is_limited("u"), Some(Reason::UserWindow), "and the statement is prepared");
        let log = Log::of(&scene.sql);
        let mut quietest = usize::MAX;
        // Once a second somebody sweeps, and somebody looks whether limits have changed; in between it is quiet.
        for _ in 0..50 {
            let (limited, statements) = log.while_doing(|| scene.is_limited("u"));
            assert_eq!(limited, Some(Reason::UserWindow));
            let counting = statements.iter().filter(|text| text.contains("unnest")).count();
            assert_eq!(counting, 1, "{statements:#?}");
            quietest = quietest.min(statements.len());
        }
        assert_eq!(quietest, 1, "and nothing is said beside it");
        assert_eq!(scene.is_limited("v"), Some(Reason::Concurrency));
        assert_eq!(scene.running("u"), (30, 5));
        // To the letter, whoever sets a task active is refused by the number of tasks only.
        let reason = if rules.compat { Reason::Concurrency } else { Reason::UserWindow };
        assert_eq!(scene.refuses("u").reason, reason);
        scene.shows(&tasks);
    }
}

#[test]
fn v5_a_user_whose_requests_are_old_may_go_on_and_take_everything() {
    for rules in BOTH {
        let scene = Scene::new(rules);
        let mut tasks = Vec::new();
        for batch in 0..6 {
            scene.until(batch * 15_001);
            assert_eq!(scene.is_limited("u"), None, "their tasks are running, and their requests are old");
            tasks.extend((0..5).map(|_| scene.begins("u")));
            scene.shows(&tasks);
        }
        assert_eq!(scene.running("u"), (30, 30), "in 75.005 s");
        scene.until(75_005 + 15_001);
        assert_eq!(scene.is_limited("u"), Some(Reason::Concurrency));
        assert_eq!(scene.view().len(), 30);
    }
}

#[test]
fn to_the_letter_the_window_forgets_who_is_done_and_strictly_it_does_not() {
    for rules in BOTH {
        let scene = Scene::new(rules);
        for _ in 0..5 {
            let task = scene.begins("u");
            assert!(scene.runtime.block_on(task.release()));
        }
        assert_eq!(scene.view(), []);
        assert_eq!(scene.is_limited("u"), (!rules.compat).then_some(Reason::UserWindow));
    }
}

/// Keys of a limit are any bytes; users are not, but another door may hold places of this limit for whoever it likes.
#[test]
fn the_view_can_be_read_whoever_holds_a_place() {
    let scene = Scene::new(STRICT);
    let store = super::PostgresStore::open_with(crate::cluster::options(&scene.schema), scene.source.clone());
    let limiter = tidegate::Limiter::new(std::sync::Arc::new(store.expect("the same schema")));
    let task = scene.begins("用户 'x\\");
    let held = [&b"a\0b"[..], b"\xff\xfe", b""].map(|key| {
        let permit = scene.runtime.block_on(limiter.ask(ID, key).try_acquire_async()).expect("a permit");
        permit.into_lease().expect("a lease")
    });
    let mut users: Vec<String> = scene.view().into_iter().map(|shown| shown.user).collect();
    users.sort();
    assert_eq!(users, ["", "\\xff\\xfe", "a\\x00b", "用户 'x\\"]);
    for lease in held {
        assert!(scene.runtime.block_on(lease.release_async()));
    }
    scene.shows([&task]);
}

#[test]
fn what_runs_is_found_by_whoever_comes_next() {
    let scene = Scene::new(STRICT);
    let task = scene.begins("u");
    let (shown, id) = (Shown::of(&task), task.into_id());
    let Scene { runtime, url, schema, clock, source, activity, sql } = scene;
    // Nobody is left who knew of it.
    drop(activity);
    let activity = super::activity(&url, &schema, source.clone(), STRICT);
    let scene = Scene { runtime, url, schema, clock, source, activity, sql };
    assert_eq!(scene.view(), [shown]);
    assert_eq!(scene.running("u"), (1, 1));
    let renewed = scene.runtime.block_on(scene.activity.renew("u", id, None)).expect("an answer");
    assert_eq!(renewed, tidegate::limiter::Renewal::Until(super::START.plus(ticks(300))));
    assert_eq!(scene.removes("u"), 1);
    assert_eq!(scene.view(), []);
}

fn ticks(seconds: u64) -> tidegate_core::Span {
    tidegate::model::Tick::NANOSECOND.span(std::time::Duration::from_secs(seconds))
}

/// What a database writes down that logs every statement.
struct Log<'s> {
    sql: &'s Sql,
    path: std::path::PathBuf,
}

impl Log<'_> {
    fn of(sql: &Sql) -> Log<'_> {
        Log { sql, path: server_log_path(&sql.value("SHOW data_directory")) }
    }

    /// What an act came to, and the statements of everybody meanwhile.
    #[track_caller]
    fn while_doing<T>(&self, act: impl FnOnce() -> T) -> (T, Vec<String>) {
        self.sql.rows("SELECT 'it begins'");
        let before = self.text().len();
        let done = act();
        // When this is answered, whatever was said before is written.
        self.sql.rows("SELECT 'it is over'");
        let text = self.text();
        let said = text[before..].split("LOG:  ").skip(1).filter(|text| !text.contains("'it is over'"));
        (done, said.map(str::to_owned).collect())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.path).expect("the log of the database")).into_owned()
    }
}
