//! The activity limiter on PostgreSQL: worked examples through the library, checked with plain SQL.
//!
//! The clock is manual and starts in the year 2100, because the view compares with the database's own clock.

mod end_notification;
mod test_vectors;

use std::sync::Arc;
use std::time::Duration;

use tidegate::Limiter;
use tidegate::activity::{Activity, ActivityError, ActivityRefusal, ActivityRules, Reason, RunningTask};
use tidegate::clock::{Clock, ManualClock};
use tidegate::model::Timestamp;
use tidegate_postgres::{PostgresStore, TimeSource};
use tokio::runtime::Runtime;

use crate::cluster::{new_schema, options_at, shared_url};
use crate::sql::Sql;

/// The default rules.
const STRICT: ActivityRules = ActivityRules::DOCUMENT;

/// The same rules in compatibility mode.
const COMPAT: ActivityRules = ActivityRules { compat: true, ..STRICT };

const RULE_SETS: [ActivityRules; 2] = [STRICT, COMPAT];

/// The first instant of the year 2100.
const START: Timestamp = Timestamp::from_ticks(4_102_444_800_000_000_000);

/// A row of the session view. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ViewRow {
    began: u64,
    id: String,
    user: String,
    ends: u64,
}

impl ViewRow {
    fn of(task: &RunningTask) -> ViewRow {
        ViewRow {
            began: task.timestamp().ticks() / 1000,
            id: task.active_id().to_string(),
            user: task.user().to_owned(),
            ends: task.expires_at().ticks() / 1000,
        }
    }
}

/// An activity limiter in its own schema, and a connection that reads the tables.
struct ActivityFixture {
    runtime: Runtime,
    url: String,
    schema: String,
    clock: Arc<ManualClock>,
    source: TimeSource,
    activity: Activity,
    sql: Sql,
}

impl ActivityFixture {
    /// A fixture with a manual clock.
    fn new(rules: ActivityRules) -> ActivityFixture {
        ActivityFixture::in_database(shared_url(), rules)
    }

    /// A fixture with a manual clock, in another database.
    fn in_database(url: &str, rules: ActivityRules) -> ActivityFixture {
        let clock = Arc::new(ManualClock::at(START));
        let source = TimeSource::Given(Arc::<ManualClock>::clone(&clock) as Arc<dyn Clock>);
        ActivityFixture::with_clock(url, rules, clock, source)
    }

    /// A fixture that uses the database's clock.
    fn with_database_clock(rules: ActivityRules) -> ActivityFixture {
        ActivityFixture::with_clock(
            shared_url(),
            rules,
            Arc::new(ManualClock::at(START)),
            TimeSource::Database,
        )
    }

    fn with_clock(
        url: &str,
        rules: ActivityRules,
        clock: Arc<ManualClock>,
        source: TimeSource,
    ) -> ActivityFixture {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let (schema, url) = (new_schema(), url.to_owned());
        let activity = activity(&url, &schema, source.clone(), rules);
        let sql = Sql::new(&url);
        sql.rows(&format!("SET search_path = {schema}"));
        ActivityFixture { runtime: runtime.expect("a runtime"), url, schema, clock, source, activity, sql }
    }

    /// Opens the same activity with a second store.
    fn open_second(&self) -> Activity {
        activity(&self.url, &self.schema, self.source.clone(), self.activity.rules())
    }

    /// Sets the clock to this many milliseconds after the start.
    fn set_elapsed_ms(&self, ms: u64) {
        self.clock.set(START);
        self.clock.advance(Duration::from_millis(ms));
    }

    #[track_caller]
    fn limit_reason(&self, user: &str) -> Option<Reason> {
        let status = self.runtime.block_on(self.activity.is_active(user)).expect("a status");
        assert_eq!(status.limited, status.reason.is_some());
        status.reason
    }

    #[track_caller]
    fn start_task(&self, user: &str) -> RunningTask {
        self.runtime.block_on(self.activity.set_active(user)).expect("the task is granted")
    }

    #[track_caller]
    fn expect_refusal(&self, user: &str) -> ActivityRefusal {
        match self.runtime.block_on(self.activity.set_active(user)) {
            Err(ActivityError::Refused(refusal)) => *refusal,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn remove_tasks(&self, user: &str) -> usize {
        self.runtime.block_on(self.activity.remove_active(user)).expect("an answer")
    }

    /// The number of running tasks, of all users and of this one.
    #[track_caller]
    fn running_counts(&self, user: &str) -> (u64, u64) {
        let status = self.runtime.block_on(self.activity.is_active(user)).expect("a status");
        (status.active, status.user_active)
    }

    /// The rows of the view, sorted.
    #[track_caller]
    fn view_rows(&self) -> Vec<ViewRow> {
        let rows = self.sql.rows(
            "SELECT id, user_sub, (extract(epoch FROM timestamp) * 1000000)::bigint, \
             (extract(epoch FROM expires_at) * 1000000)::bigint FROM session_activity",
        );
        let shown = |row: Vec<String>| {
            let [id, user, began, ends] = row.try_into().expect("four columns");
            let micros = |text: String| text.parse().expect("a number");
            ViewRow { began: micros(began), id, user, ends: micros(ends) }
        };
        let mut rows: Vec<ViewRow> = rows.into_iter().map(shown).collect();
        rows.sort();
        rows
    }

    /// Asserts that the view shows exactly these tasks.
    #[track_caller]
    fn assert_view_shows<'t>(&self, tasks: impl IntoIterator<Item = &'t RunningTask>) {
        let mut tasks: Vec<ViewRow> = tasks.into_iter().map(ViewRow::of).collect();
        tasks.sort();
        assert_eq!(self.view_rows(), tasks);
    }
}

/// Opens the activity of a schema.
fn activity(url: &str, schema: &str, source: TimeSource, rules: ActivityRules) -> Activity {
    let store = PostgresStore::open_with(options_at(url, schema), source);
    let store = store.unwrap_or_else(|error| panic!("{error}"));
    Activity::new(Limiter::new(Arc::new(store)), rules).expect("the rules are valid")
}
