//! The engine: a thread with its own runtime that runs all database work.
//!
//! Callers may be async tasks or threads without a runtime, so connections live in this thread. Workers take jobs from the queue
//! and run one transaction at a time. A listener follows changes of limits, and an expiry task deletes expired data.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::Object;
use tidegate::catalog::{ApplyError, Edit, EditOutcome, Origin};
use tidegate::reply::{Outcome, Replies};
use tidegate::store::Unavailable;
use tidegate_core::LeaseId;

use crate::connections::{DatabaseError, PooledConnection, discard};
use crate::job::{Job, JobTask};
use crate::job_queue::{JobQueue, MAX_QUEUE_TIME, ended, locked_row_hashes};
use crate::limit_editor::LimitEditor;
use crate::read_only::read_without_locks;
use crate::shared_state::SharedState;
use crate::store::ANSWER_MARGIN;
use crate::transaction::{CLOCK, EXPIRED_LEASES_BLOCK, SnapshotSource, decide_in_transaction};

/// The most retries after conflicts.
const MAX_RETRIES: usize = 12;

/// The most reconnects before the database counts as unreachable.
const MAX_RECONNECTS: usize = 2;

/// The number of expired leases that one cleanup handles.
const EXPIRED_LEASE_BATCH: i64 = 256;

/// The least time left for a decision after the wait for a connection.
const MIN_DECISION_TIME: Duration = Duration::from_millis(500);

/// The reason given when the database does not answer.
const NO_ANSWER: &str = "PostgreSQL did not answer in time";

/// The state of the engine's tasks.
pub(crate) struct Engine {
    pub(crate) shared_state: SharedState,
    pub(crate) queue: JobQueue,
    /// The longest time for one round trip with the database.
    pub(crate) round: Duration,
}

impl Engine {
    /// Runs jobs until the store is closed.
    pub(crate) async fn work(self: Arc<Engine>) {
        while let Some(jobs) = self.queue.next().await {
            let row_hashes = locked_row_hashes(&jobs);
            self.run_jobs(jobs).await;
            self.queue.done(&row_hashes);
        }
    }

    async fn run_jobs(&self, mut jobs: Vec<Job>) {
        let (mut tries, mut losses) = (0, 0);
        loop {
            let start = if tries == 0 { SnapshotSource::Cached } else { SnapshotSource::Reloaded };
            let writes = tries > 0 || jobs.iter().any(|job| !job.is_read_only);
            let error = match self.attempt(&mut jobs, start).await {
                Ok(()) => {
                    self.mark_healthy(writes);
                    return self.send_replies(jobs);
                }
                Err(error) => error,
            };
            match &error {
                DatabaseError::Retry(_) if tries < MAX_RETRIES => tries += 1,
                DatabaseError::ConnectionLost(_) | DatabaseError::CannotDecide(_)
                    if losses < MAX_RECONNECTS && self.can_retry(&jobs) =>
                {
                    losses += 1;
                }
                _ => return self.fail_jobs(jobs, &error),
            }
        }
    }

    /// Whether to retry on another connection: not during a known outage, and not if a job has waited too long.
    fn can_retry(&self, jobs: &[Job]) -> bool {
        let now = instant();
        let is_late = |job: &Job| now.saturating_duration_since(job.since) > MAX_QUEUE_TIME;
        self.queue.outage().is_none() && !jobs.iter().any(is_late)
    }

    fn fail_jobs(&self, jobs: Vec<Job>, error: &DatabaseError) {
        let why = error.unavailable();
        // Updates the health state first, so that a caller sees it with the reply.
        match error {
            DatabaseError::ConnectionLost(_) | DatabaseError::CommitUnknown(_) => self.mark_unreachable(&why),
            DatabaseError::CannotDecide(_) => self.mark_cannot_decide(&why),
            DatabaseError::Retry(_) | DatabaseError::Rejected(_) => {
                tracing::warn!(%why, "PostgreSQL could not decide");
            }
        }
        for job in jobs {
            job.fail(&why);
        }
    }

    /// Runs one transaction, or one read without locks.
    async fn attempt(&self, jobs: &mut [Job], start: SnapshotSource) -> Result<(), DatabaseError> {
        let silent = |_| Err(DatabaseError::ConnectionLost(NO_ANSWER.to_owned()));
        let began = instant();
        let connection = self.shared_state.connections.get();
        let connection = tokio::time::timeout(self.round, connection).await.unwrap_or_else(silent)?;
        let left = self.round.saturating_sub(instant().saturating_duration_since(began));
        let is_read_only = start == SnapshotSource::Cached && jobs.iter().all(|job| job.is_read_only);
        let done = async {
            if is_read_only {
                read_without_locks(&self.shared_state, &connection, jobs).await
            } else {
                decide_in_transaction(&self.shared_state, &connection, jobs, start).await
            }
        };
        let done = tokio::time::timeout(left.max(MIN_DECISION_TIME), done).await;
        let error = match done {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            // The commit may have succeeded.
            Err(_) => DatabaseError::CommitUnknown(NO_ANSWER.to_owned()),
        };
        match &error {
            DatabaseError::ConnectionLost(_)
            | DatabaseError::CommitUnknown(_)
            | DatabaseError::CannotDecide(_) => discard(connection),
            DatabaseError::Retry(why) => {
                let cleared = self.prepare_retry(&connection, why, is_read_only);
                let silent = |_| Err(DatabaseError::ConnectionLost(NO_ANSWER.to_owned()));
                if let Err(error) = tokio::time::timeout(self.round, cleared).await.unwrap_or_else(silent) {
                    // The connection may be inside a transaction.
                    discard(connection);
                    return Err(error);
                }
            }
            DatabaseError::Rejected(_) => self.roll_back(connection).await,
        }
        Err(error)
    }

    /// Rolls back and removes the cause of a conflict.
    async fn prepare_retry(
        &self,
        connection: &Object,
        why: &str,
        is_read_only: bool,
    ) -> Result<(), DatabaseError> {
        if !is_read_only {
            connection.batch_execute("ROLLBACK").await?;
        }
        self.shared_state.refresh(connection).await?;
        if why == EXPIRED_LEASES_BLOCK {
            let statement = connection.prepare_cached(CLOCK).await?;
            let now = self.shared_state.time.now(connection.query_one(&statement, &[]).await?.get(0));
            let mut cleanup = [crate::expiry::expired_leases(connection, now, EXPIRED_LEASE_BATCH).await?];
            let cleaned_up = Box::pin(decide_in_transaction(
                &self.shared_state,
                connection,
                &mut cleanup,
                SnapshotSource::Reloaded,
            ))
            .await;
            if cleaned_up.is_err() {
                connection.batch_execute("ROLLBACK").await?;
            }
        }
        Ok(())
    }

    async fn roll_back(&self, connection: PooledConnection) {
        let rolled = tokio::time::timeout(ANSWER_MARGIN, connection.batch_execute("ROLLBACK")).await;
        if !matches!(rolled, Ok(Ok(()))) {
            discard(connection);
        }
    }

    /// Sends the replies, updates the counters, and releases leases of replies that were not received.
    fn send_replies(&self, jobs: Vec<Job>) {
        for job in jobs {
            if let JobTask::Orders { orders, answers, .. } = &job.task {
                self.shared_state.count(orders, answers);
                self.remember_leases(answers, &job.row_hashes);
            }
            if let Some(id) = ended(&job) {
                self.queue.forget(id);
            }
            for id in job.send_reply() {
                let (sender, _receiver) = tokio::sync::oneshot::channel();
                let task = JobTask::Release { id, done: None, sender };
                self.queue.push(Job { task, since: instant(), row_hashes: Vec::new(), is_read_only: false });
            }
        }
    }

    fn remember_leases(&self, answers: &Replies, row_hashes: &[u64]) {
        for answer in answers.iter().flatten() {
            if let Outcome::Granted(Some(grant)) = &answer.outcome {
                self.queue.remember(grant.lease, row_hashes);
            }
        }
    }

    /// Records that the database answers and, if it wrote, that it can decide.
    pub(crate) fn mark_healthy(&self, wrote: bool) {
        if self.queue.clear_outage() {
            tracing::info!("PostgreSQL answers again");
        }
        if wrote && self.queue.clear_cannot_decide() {
            tracing::info!("PostgreSQL decides again");
        }
    }

    /// Records that the database answers but cannot decide.
    pub(crate) fn mark_cannot_decide(&self, why: &Unavailable) {
        if self.queue.set_cannot_decide(why) {
            tracing::error!(%why, "PostgreSQL cannot decide; limits answer by on_outage");
        }
    }

    /// Records that the database cannot be reached.
    pub(crate) fn mark_unreachable(&self, why: &Unavailable) {
        if !self.queue.has_outage() {
            tracing::error!(%why, "PostgreSQL cannot decide; limits answer by on_outage");
        }
        self.queue.start_outage(why, instant());
    }

    /// Fails jobs that have waited too long, every 100 ms.
    pub(crate) async fn expire_waiting_jobs(self: Arc<Engine>) {
        let mut interval = tokio::time::interval(Duration::from_millis(100));
        loop {
            interval.tick().await;
            self.queue.expire(instant());
        }
    }

    /// Edits limits.
    pub(crate) async fn edit(
        &self,
        edits: Vec<Edit>,
        by: Origin,
    ) -> Result<Result<Vec<EditOutcome>, ApplyError>, DatabaseError> {
        match self.run_exclusively(&ExclusiveAction::Edit(edits, by)).await? {
            ExclusiveResult::EditOutcome(edited) => Ok(edited),
            ExclusiveResult::Reset(_) => Ok(Ok(Vec::new())),
        }
    }

    /// Resets a limit. Returns whether it exists.
    pub(crate) async fn reset(&self, id: &str) -> Result<bool, DatabaseError> {
        let acted = self.run_exclusively(&ExclusiveAction::Reset(id.to_owned())).await?;
        Ok(matches!(acted, ExclusiveResult::Reset(true)))
    }

    /// Runs an action while no transaction decides, and notifies all servers if it commits.
    async fn run_exclusively(&self, act: &ExclusiveAction) -> Result<ExclusiveResult, DatabaseError> {
        let mut tries = 0;
        loop {
            let connection = self.shared_state.connections.get().await?;
            // Edits of many limits take longer. During an outage a single round must suffice.
            let most = if self.queue.outage().is_some() { self.round } else { self.round * 2 };
            let error = match tokio::time::timeout(most, self.run_exclusive_action(&connection, act)).await {
                Ok(Ok(done)) => {
                    self.mark_healthy(true);
                    return Ok(done);
                }
                Ok(Err(error)) => error,
                Err(_) => DatabaseError::CommitUnknown(NO_ANSWER.to_owned()),
            };
            match error {
                DatabaseError::Retry(_) if tries < MAX_RETRIES => self.roll_back(connection).await,
                DatabaseError::ConnectionLost(_)
                    if tries < MAX_RECONNECTS && self.queue.outage().is_none() =>
                {
                    discard(connection);
                }
                DatabaseError::Rejected(_) | DatabaseError::Retry(_) => {
                    self.roll_back(connection).await;
                    return Err(error);
                }
                _ => {
                    discard(connection);
                    return Err(error);
                }
            }
            tries += 1;
        }
    }

    async fn run_exclusive_action(
        &self,
        connection: &Object,
        act: &ExclusiveAction,
    ) -> Result<ExclusiveResult, DatabaseError> {
        let shared_state = &self.shared_state;
        connection.batch_execute("BEGIN").await?;
        connection.execute("SELECT pg_advisory_xact_lock($1)", &[&shared_state.limits_lock]).await?;
        let known = shared_state.limits();
        let (revision, found) =
            crate::limit_snapshot::read_since(connection, known.revision, shared_state.tick).await?;
        let limits = known.with(revision, found);
        let clock = connection.prepare_cached(CLOCK).await?;
        let now = shared_state.time.now(connection.query_one(&clock, &[]).await?.get(0));
        let editor = LimitEditor { connection, limits, now, tick: shared_state.tick };
        let (acted, limits, keep) = match act {
            ExclusiveAction::Edit(edits, by) => {
                let done = editor.apply(edits.clone(), *by).await?;
                let keep = done.edited.is_ok();
                (ExclusiveResult::EditOutcome(done.edited), done.limits, keep)
            }
            ExclusiveAction::Reset(id) => {
                let (found, limits) = editor.reset(id).await?;
                (ExclusiveResult::Reset(found), limits, found)
            }
        };
        if keep {
            if let ExclusiveAction::Edit(edits, _) = act {
                shared_state
                    .announce_edit(limits.revision, edits.iter().map(|edit| edit.id().to_owned()).collect());
            }
            let payload = limits.revision.to_string();
            connection
                .execute("SELECT pg_notify($1, $2)", &[&channel(&shared_state.schema), &payload])
                .await?;
            let committed = connection.batch_execute("COMMIT").await;
            committed.map_err(|error| DatabaseError::from(error).while_committing())?;
        } else {
            connection.batch_execute("ROLLBACK").await?;
        }
        shared_state.replace_limits(limits, false);
        Ok(acted)
    }

    /// The expiry times of leases.
    pub(crate) async fn held_until(
        &self,
        ids: &[LeaseId],
    ) -> Result<Vec<Option<tidegate_core::Timestamp>>, DatabaseError> {
        let connection = self.shared_state.connections.get().await?;
        let held = crate::read_only::held_until(&self.shared_state, &connection, ids);
        match tokio::time::timeout(self.round, held).await {
            Ok(Ok(held)) => Ok(held),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                discard(connection);
                Err(DatabaseError::ConnectionLost(NO_ANSWER.to_owned()))
            }
        }
    }
}

/// An action under the exclusive limits lock.
enum ExclusiveAction {
    Edit(Vec<Edit>, Origin),
    Reset(String),
}

/// The result of an exclusive action.
enum ExclusiveResult {
    EditOutcome(Result<Vec<EditOutcome>, ApplyError>),
    /// Whether the limit exists.
    Reset(bool),
}

/// The notification channel for changes of limits.
pub(crate) fn channel(schema: &str) -> String {
    format!("tidegate/{schema}")
}

#[expect(clippy::disallowed_methods, reason = "queue times are measured on the monotonic clock")]
pub(crate) fn instant() -> Instant {
    Instant::now()
}
