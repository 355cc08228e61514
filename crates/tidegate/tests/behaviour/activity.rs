//! The activity specification as timelines: its test vectors under literal and strict rules, and known defects.

#[path = "activity/defects.rs"]
mod defects;
#[path = "activity/task_end.rs"]
mod task_end;
#[path = "activity/vectors.rs"]
mod vectors;

use std::time::Duration;

use tidegate::activity::{Activity, ActivityError, ActivityRefusal, ActivityRules, Reason, RunningTask};
use tidegate::model::Capacity;

use super::LimiterFixture;
use crate::fixture::at;

/// The literal rules of the specification.
const LETTER: ActivityRules = ActivityRules { compat: true, ..STRICT };

/// The numbers of the specification.
const STRICT: ActivityRules = ActivityRules {
    max_concurrent_tasks: Capacity::AtMost(30),
    max_concurrent_per_user: Capacity::Unlimited,
    window_requests: Capacity::AtMost(5),
    window: Duration::from_secs(15),
    lease_ttl: Duration::from_secs(300),
    compat: false,
};

const BOTH: [ActivityRules; 2] = [STRICT, LETTER];

/// An activity with manual clocks.
struct ActivityFixture {
    fixture: LimiterFixture,
    activity: Activity,
}

impl ActivityFixture {
    fn new(rules: ActivityRules) -> ActivityFixture {
        let fixture = LimiterFixture::new();
        let activity = Activity::new(fixture.limiter.clone(), rules).expect("valid rules");
        ActivityFixture { fixture, activity }
    }

    /// Advances time to this many milliseconds after the start.
    #[track_caller]
    fn until(&self, ms: u64) {
        use tidegate::clock::Clock as _;
        let then = at(Duration::from_millis(ms));
        self.fixture.pass(tidegate::model::Tick::NANOSECOND.duration(then.since(self.fixture.clock.now())));
    }

    async fn is_limited(&self, user: &str) -> Option<Reason> {
        let status = self.activity.is_active(user).await.expect("a status");
        assert_eq!(status.limited, status.reason.is_some());
        assert_eq!(self.activity.can_active(user).await.expect("a status"), !status.limited);
        status.reason
    }

    async fn begins(&self, user: &str) -> RunningTask {
        self.activity.set_active(user).await.expect("there is room")
    }

    async fn refuses(&self, user: &str) -> ActivityRefusal {
        match self.activity.set_active(user).await {
            Err(ActivityError::Refused(refusal)) => *refusal,
            other => panic!("{other:?}"),
        }
    }

    /// The number of running tasks, in total and of this user.
    async fn running(&self, user: &str) -> (u64, u64) {
        let status = self.activity.is_active(user).await.expect("a status");
        assert_eq!(status.has_active(), status.user_active > 0);
        (status.active, status.user_active)
    }
}

/// Runs all tasks that are ready.
async fn run_ready_tasks() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}
