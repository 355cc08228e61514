//! Document 000 on a real PostgreSQL: its vectors through the library, and each step looked at with plain SQL.
//!
//! The clock is moved by hand and begins in the year 2100: whoever reads the view sees what has not lapsed by the database's own clock.

mod end_notification;
mod examples;

use std::sync::Arc;
use std::time::Duration;

use tidegate::Limiter;
use tidegate::activity::{Active, Activity, ActivityError, Reason, Refusal, Rules};
use tidegate::clock::{Clock, ManualClock};
use tidegate::model::Timestamp;
use tidegate_postgres::{PostgresStore, TimeSource};
use tokio::runtime::Runtime;

use crate::cluster::{new_schema, options_at, shared_url};
use crate::sql::Sql;

/// The document's numbers.
const STRICT: Rules = Rules::DOCUMENT;

/// The document to the letter.
const LETTER: Rules = Rules { compat: true, ..STRICT };

const BOTH: [Rules; 2] = [STRICT, LETTER];

/// The first instant of the year 2100.
const START: Timestamp = Timestamp::from_ticks(4_102_444_800_000_000_000);

/// An activity as the view shows it, its times in microseconds after 1970.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Shown {
    began: u64,
    id: String,
    user: String,
    ends: u64,
}

impl Shown {
    fn of(task: &Active) -> Shown {
        Shown {
            began: task.timestamp().ticks() / 1000,
            id: task.active_id().to_string(),
            user: task.user().to_owned(),
            ends: task.expires_at().ticks() / 1000,
        }
    }
}

/// An activity in a schema of its own, and somebody who looks at the tables.
struct Scene {
    runtime: Runtime,
    url: String,
    schema: String,
    clock: Arc<ManualClock>,
    source: TimeSource,
    activity: Activity,
    sql: Sql,
}

impl Scene {
    /// One whose time is moved by hand.
    fn new(rules: Rules) -> Scene {
        Scene::at(shared_url(), rules)
    }

    /// The same in another database.
    fn at(url: &str, rules: Rules) -> Scene {
        let clock = Arc::new(ManualClock::at(START));
        let source = TimeSource::Given(Arc::<ManualClock>::clone(&clock) as Arc<dyn Clock>);
        Scene::going_by(url, rules, clock, source)
    }

    /// One that goes by the database's clock.
    fn in_real_time(rules: Rules) -> Scene {
        Scene::going_by(shared_url(), rules, Arc::new(ManualClock::at(START)), TimeSource::Database)
    }

    fn going_by(url: &str, rules: Rules, clock: Arc<ManualClock>, source: TimeSource) -> Scene {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let (schema, url) = (new_schema(), url.to_owned());
        let activity = activity(&url, &schema, source.clone(), rules);
        let sql = Sql::new(&url);
        sql.rows(&format!("SET search_path = {schema}"));
        Scene { runtime: runtime.expect("a runtime"), url, schema, clock, source, activity, sql }
    }

    /// The same activity as another process knows it.
    fn elsewhere(&self) -> Activity {
        activity(&self.url, &self.schema, self.source.clone(), self.activity.rules())
    }

    /// Lets time pass until so many milliseconds after the beginning.
    fn until(&self, ms: u64) {
        self.clock.set(START);
        self.clock.advance(Duration::from_millis(ms));
    }

    #[track_caller]
    fn is_limited(&self, user: &str) -> Option<Reason> {
        let status = self.runtime.block_on(self.activity.is_active(user)).expect("a status");
        assert_eq!(status.limited, status.reason.is_some());
        status.reason
    }

    #[track_caller]
    fn begins(&self, user: &str) -> Active {
        self.runtime.block_on(self.activity.set_active(user)).expect("there is room")
    }

    #[track_caller]
    fn refuses(&self, user: &str) -> Refusal {
        match self.runtime.block_on(self.activity.set_active(user)) {
            Err(ActivityError::Refused(refusal)) => *refusal,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn removes(&self, user: &str) -> usize {
        self.runtime.block_on(self.activity.remove_active(user)).expect("an answer")
    }

    /// How many run, and how many of them are this user's.
    #[track_caller]
    fn running(&self, user: &str) -> (u64, u64) {
        let status = self.runtime.block_on(self.activity.is_active(user)).expect("a status");
        (status.active, status.user_active)
    }

    /// What the view shows.
    #[track_caller]
    fn view(&self) -> Vec<Shown> {
        let rows = self.sql.rows(
            "SELECT id, user_sub, (extract(epoch FROM timestamp) * 1000000)::bigint, \
             (extract(epoch FROM expires_at) * 1000000)::bigint FROM session_activity",
        );
        let shown = |row: Vec<String>| {
            let [id, user, began, ends] = row.try_into().expect("four columns");
            let micros = |text: String| text.parse().expect("a number");
            Shown { began: micros(began), id, user, ends: micros(ends) }
        };
        let mut rows: Vec<Shown> = rows.into_iter().map(shown).collect();
        rows.sort();
        rows
    }

    /// The view shows these tasks and nothing else.
    #[track_caller]
    fn shows<'t>(&self, tasks: impl IntoIterator<Item = &'t Active>) {
        let mut tasks: Vec<Shown> = tasks.into_iter().map(Shown::of).collect();
        tasks.sort();
        assert_eq!(self.view(), tasks);
    }
}

/// The activity of whoever opens this schema.
fn activity(url: &str, schema: &str, source: TimeSource, rules: Rules) -> Activity {
    let store = PostgresStore::open_with(options_at(url, schema), source);
    let store = store.unwrap_or_else(|error| panic!("{error}"));
    Activity::new(Limiter::new(Arc::new(store)), rules).expect("sensible rules")
}
