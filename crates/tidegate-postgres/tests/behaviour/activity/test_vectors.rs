//! The specified examples of the activity limiter, and the rows of the session view.

use tidegate::activity::{ID, Reason};
use tidegate::model::Per;

use super::{ActivityFixture, RULE_SETS, STRICT, ViewRow};
use crate::cluster::{Cluster, server_log_path};
use crate::load_generator::eventually;
use crate::sql::Sql;

#[test]
fn view_has_documented_columns() {
    let fixture = ActivityFixture::new(STRICT);
    let columns = fixture.sql.rows(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute \
         WHERE attrelid = 'session_activity'::regclass AND attnum > 0 ORDER BY attnum",
    );
    let timestamptz = "timestamp with time zone";
    let documented =
        [["id", "text"], ["user_sub", "text"], ["timestamp", timestamptz], ["expires_at", timestamptz]];
    assert_eq!(columns, documented);
}

#[test]
fn five_requests_limit_user_until_first_leaves_closed_window() {
    for rules in RULE_SETS {
        let fixture = ActivityFixture::new(rules);
        let mut tasks = Vec::new();
        for second in 0..5 {
            fixture.set_elapsed_ms(second * 1000);
            assert_eq!(fixture.limit_reason("u"), None);
            tasks.push(fixture.start_task("u"));
            fixture.assert_view_shows(&tasks);
        }
        assert_eq!(
            fixture.view_rows()[4].began,
            4_102_444_804_000_000,
            "the time is in UTC and from the deciding clock"
        );
        fixture.set_elapsed_ms(4500);
        assert_eq!(fixture.limit_reason("u"), Some(Reason::UserWindow));
        assert_eq!(fixture.limit_reason("v"), None, "other users are not limited");
        fixture.set_elapsed_ms(15_000);
        assert_eq!(
            fixture.limit_reason("u"),
            Some(Reason::UserWindow),
            "a request that is exactly 15 s old still counts"
        );
        fixture.set_elapsed_ms(15_001);
        assert_eq!(fixture.limit_reason("u"), None, "four requests are left in the window");
        fixture.assert_view_shows(&tasks);
    }
}

#[test]
fn thirty_running_tasks_limit_every_user() {
    for rules in RULE_SETS {
        let fixture = ActivityFixture::new(rules);
        let mut tasks: Vec<_> = (0..29).map(|other| fixture.start_task(&format!("other-{other}"))).collect();
        assert_eq!(fixture.limit_reason("u"), None);
        tasks.push(fixture.start_task("u"));
        fixture.assert_view_shows(&tasks);
        assert_eq!(fixture.limit_reason("anyone"), Some(Reason::Concurrency));
        let refusal = fixture.expect_refusal("anyone");
        assert_eq!((refusal.reason, refusal.per), (Reason::Concurrency, Per::All));
        assert_eq!(fixture.running_counts("u"), (30, 1));
        fixture.assert_view_shows(&tasks);
    }
}

#[test]
fn remove_active_removes_all_tasks_of_only_one_user() {
    for rules in RULE_SETS {
        let fixture = ActivityFixture::new(rules);
        let of_u = [fixture.start_task("u"), fixture.start_task("u"), fixture.start_task("u")];
        let other = fixture.start_task("v");
        fixture.assert_view_shows(of_u.iter().chain([&other]));
        assert_eq!(fixture.remove_tasks("u"), 3);
        assert_eq!(fixture.running_counts("u"), (1, 0));
        fixture.assert_view_shows([&other]);
        assert_eq!(fixture.remove_tasks("u"), 0, "a repeated removal is no error");
        drop(of_u);
        assert_eq!(fixture.running_counts("v"), (1, 1), "dropping removed tasks releases nothing");
        fixture.assert_view_shows([&other]);
    }
}

#[test]
fn is_active_runs_one_statement_and_names_window_first() {
    let cluster = Cluster::start(&["log_statement=all"]);
    for rules in RULE_SETS {
        let fixture = ActivityFixture::in_database(cluster.url(), rules);
        let user = |task| if task < 5 { "u".to_owned() } else { format!("other-{task}") };
        let tasks: Vec<_> = (0..30).map(|task| fixture.start_task(&user(task))).collect();
        assert_eq!(
            fixture.limit_reason("u"),
            Some(Reason::UserWindow),
            "the statement is prepared by this call"
        );
        let log = StatementLog::of(&fixture.sql);
        let mut fewest_statements = usize::MAX;
        // Expiry and the revision poll run once a second. Between them only the measured statement runs.
        for _ in 0..50 {
            let (limited, statements) = log.statements_during(|| fixture.limit_reason("u"));
            assert_eq!(limited, Some(Reason::UserWindow));
            let counting = statements.iter().filter(|text| text.contains("unnest")).count();
            assert_eq!(counting, 1, "{statements:#?}");
            fewest_statements = fewest_statements.min(statements.len());
        }
        assert_eq!(fewest_statements, 1, "no other statement runs");
        assert_eq!(fixture.limit_reason("v"), Some(Reason::Concurrency));
        assert_eq!(fixture.running_counts("u"), (30, 5));
        // In compatibility mode, set_active checks only the number of tasks.
        let reason = if rules.compat { Reason::Concurrency } else { Reason::UserWindow };
        assert_eq!(fixture.expect_refusal("u").reason, reason);
        fixture.assert_view_shows(&tasks);
    }
}

#[test]
fn user_with_old_requests_may_take_all_slots() {
    for rules in RULE_SETS {
        let fixture = ActivityFixture::new(rules);
        let mut tasks = Vec::new();
        for batch in 0..6 {
            fixture.set_elapsed_ms(batch * 15_001);
            assert_eq!(
                fixture.limit_reason("u"),
                None,
                "the tasks are running and the requests have left the window"
            );
            tasks.extend((0..5).map(|_| fixture.start_task("u")));
            fixture.assert_view_shows(&tasks);
        }
        assert_eq!(fixture.running_counts("u"), (30, 30), "all slots are taken after 75.005 s");
        fixture.set_elapsed_ms(75_005 + 15_001);
        assert_eq!(fixture.limit_reason("u"), Some(Reason::Concurrency));
        assert_eq!(fixture.view_rows().len(), 30);
    }
}

#[test]
fn window_counts_released_tasks_except_in_compat_mode() {
    for rules in RULE_SETS {
        let fixture = ActivityFixture::new(rules);
        for _ in 0..5 {
            let task = fixture.start_task("u");
            assert!(fixture.runtime.block_on(task.release()));
        }
        assert_eq!(fixture.view_rows(), []);
        assert_eq!(fixture.limit_reason("u"), (!rules.compat).then_some(Reason::UserWindow));
    }
}

/// Users are text, but other protocols can hold slots of this limit for keys of arbitrary bytes.
#[test]
fn view_escapes_keys_that_are_not_text() {
    let fixture = ActivityFixture::new(STRICT);
    let store =
        super::PostgresStore::open_with(crate::cluster::options(&fixture.schema), fixture.source.clone());
    let limiter = tidegate::Limiter::new(std::sync::Arc::new(store.expect("the same schema")));
    let task = fixture.start_task("用户 'x\\");
    eventually("the other server knows the limit", || limiter.limit(ID).is_ok());
    let held = [&b"a\0b"[..], b"\xff\xfe", b""].map(|key| {
        let permit = fixture
            .runtime
            .block_on(limiter.limit(ID).expect("the limit exists").of(key).try_acquire_async())
            .expect("a permit");
        permit.into_lease().expect("a lease")
    });
    let mut users: Vec<String> = fixture.view_rows().into_iter().map(|shown| shown.user).collect();
    users.sort();
    assert_eq!(users, ["", "\\xff\\xfe", "a\\x00b", "用户 'x\\"]);
    for lease in held {
        assert!(fixture.runtime.block_on(lease.release_async()));
    }
    fixture.assert_view_shows([&task]);
}

#[test]
fn running_tasks_survive_reopening_the_store() {
    let fixture = ActivityFixture::new(STRICT);
    let task = fixture.start_task("u");
    let (shown, id) = (ViewRow::of(&task), task.into_id());
    let ActivityFixture { runtime, url, schema, clock, source, activity, sql } = fixture;
    // Closes the only store that knows the task.
    drop(activity);
    let activity = super::activity(&url, &schema, source.clone(), STRICT);
    let fixture = ActivityFixture { runtime, url, schema, clock, source, activity, sql };
    assert_eq!(fixture.view_rows(), [shown]);
    assert_eq!(fixture.running_counts("u"), (1, 1));
    let renewed = fixture.runtime.block_on(fixture.activity.renew("u", id, None)).expect("an answer");
    assert_eq!(renewed, tidegate::limiter::Renewal::Until(super::START.plus(span_of_seconds(300))));
    assert_eq!(fixture.remove_tasks("u"), 1);
    assert_eq!(fixture.view_rows(), []);
}

fn span_of_seconds(seconds: u64) -> tidegate_core::Span {
    tidegate::model::Tick::NANOSECOND.span(std::time::Duration::from_secs(seconds))
}

/// The server log of a database that logs every statement.
struct StatementLog<'s> {
    sql: &'s Sql,
    path: std::path::PathBuf,
}

impl StatementLog<'_> {
    fn of(sql: &Sql) -> StatementLog<'_> {
        StatementLog { sql, path: server_log_path(&sql.value("SHOW data_directory")) }
    }

    /// Runs a function and returns its result with the statements of all connections in the meantime.
    #[track_caller]
    fn statements_during<T>(&self, act: impl FnOnce() -> T) -> (T, Vec<String>) {
        self.sql.rows("SELECT 'log start'");
        let before = self.text().len();
        let result = act();
        // When this statement is answered, the log contains all earlier statements.
        self.sql.rows("SELECT 'log end'");
        let text = self.text();
        let statements = text[before..].split("LOG:  ").skip(1).filter(|text| !text.contains("'log end'"));
        (result, statements.map(str::to_owned).collect())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.path).expect("the log of the database")).into_owned()
    }
}
