//! JSON of tasks: status, started task, time to live.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use tidegate::activity::{Reason, RunningTask, Status};
use tidegate::model::{Amount, Tick};

use super::instant;
use super::number::optional;
use crate::http::problem::in_ms;

/// Whether a task of a user would be refused, and why.
#[derive(Debug, Serialize)]
pub(in crate::http) struct ActivityStatusBody {
    limited: bool,
    reason: Option<&'static str>,
    retry_after_ms: Option<u64>,
    active: Amount,
    user_active: Amount,
}

impl From<Status> for ActivityStatusBody {
    fn from(status: Status) -> ActivityStatusBody {
        ActivityStatusBody {
            limited: status.limited,
            reason: status.reason.map(Reason::word),
            retry_after_ms: status.retry_after.map(in_ms),
            active: status.active,
            user_active: status.user_active,
        }
    }
}

/// A started task.
#[derive(Debug, Serialize)]
pub(in crate::http) struct StartedTaskBody {
    active_id: String,
    timestamp: String,
    expires_at: String,
}

impl StartedTaskBody {
    /// Converts a task and detaches its lease from this process.
    pub(in crate::http) fn of(active: RunningTask, tick: Tick) -> StartedTaskBody {
        let (timestamp, expires_at) = (active.timestamp(), active.expires_at());
        StartedTaskBody {
            active_id: active.into_id().to_string(),
            timestamp: instant::of(timestamp, tick),
            expires_at: instant::of(expires_at, tick),
        }
    }
}

/// The requested time to live.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct TaskTermBody {
    #[serde(default, deserialize_with = "ttl_ms")]
    ttl_ms: Option<u64>,
}

impl TaskTermBody {
    pub(in crate::http) fn ttl(&self) -> Option<Duration> {
        self.ttl_ms.map(Duration::from_millis)
    }
}

fn ttl_ms<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<u64>, D::Error> {
    optional(reader, "ttl_ms")
}
