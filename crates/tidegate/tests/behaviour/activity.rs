//! Document 000 as timelines: its vectors, to the letter and strictly, and the defects of the original that must not be here.

#[path = "activity/defects.rs"]
mod defects;
#[path = "activity/endings.rs"]
mod endings;
#[path = "activity/vectors.rs"]
mod vectors;

use std::time::Duration;

use tidegate::activity::{Active, Activity, ActivityError, Reason, Refusal, Rules};
use tidegate::model::Capacity;

use super::Stage;
use crate::stage::at;

/// The document to the letter.
const LETTER: Rules = Rules { compat: true, ..STRICT };

/// The document's numbers.
const STRICT: Rules = Rules {
    max_concurrent_tasks: Capacity::AtMost(30),
    max_concurrent_per_user: Capacity::Unlimited,
    window_requests: Capacity::AtMost(5),
    window: Duration::from_secs(15),
    lease_ttl: Duration::from_secs(300),
    compat: false,
};

const BOTH: [Rules; 2] = [STRICT, LETTER];

/// An activity whose time is moved by hand.
struct Scene {
    stage: Stage,
    activity: Activity,
}

impl Scene {
    fn new(rules: Rules) -> Scene {
        let stage = Stage::new();
        let activity = Activity::new(stage.limiter.clone(), rules).expect("sensible rules");
        Scene { stage, activity }
    }

    /// Lets time pass until so many milliseconds after the beginning.
    #[track_caller]
    fn until(&self, ms: u64) {
        use tidegate::clock::Clock as _;
        let then = at(Duration::from_millis(ms));
        self.stage.pass(tidegate::model::Tick::NANOSECOND.duration(then.since(self.stage.clock.now())));
    }

    async fn is_limited(&self, user: &str) -> Option<Reason> {
        let status = self.activity.is_active(user).await.expect("a status");
        assert_eq!(status.limited, status.reason.is_some());
        assert_eq!(self.activity.can_active(user).await.expect("a status"), !status.limited);
        status.reason
    }

    async fn begins(&self, user: &str) -> Active {
        self.activity.set_active(user).await.expect("there is room")
    }

    async fn refuses(&self, user: &str) -> Refusal {
        match self.activity.set_active(user).await {
            Err(ActivityError::Refused(refusal)) => *refusal,
            other => panic!("{other:?}"),
        }
    }

    /// How many run, and how many of them are this user's.
    async fn running(&self, user: &str) -> (u64, u64) {
        let status = self.activity.is_active(user).await.expect("a status");
        assert_eq!(status.has_active(), status.user_active > 0);
        (status.active, status.user_active)
    }
}

/// Lets everything run that can.
async fn breath() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}
