//! The engine: a thread of its own that speaks to the database.
//!
//! Whoever asks may be a task, or a thread without any runtime; so connections do not live where questions come from. Workers take jobs from
//! the queue, one transaction each. A listener hears of changed limits, and looks every second in case it has not; a sweeper clears away
//! what time has made meaningless.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::Object;
use tidegate::answer::{Outcome, Replies};
use tidegate::catalog::{ApplyError, Edit, EditOutcome, Origin};
use tidegate::store::Unavailable;
use tidegate_core::LeaseId;

use crate::connections::{DatabaseError, PooledConnection, discard};
use crate::job::{Job, JobTask};
use crate::job_queue::{JobQueue, MAX_QUEUE_TIME, ended, locked_row_hashes};
use crate::limit_editor::LimitEditor;
use crate::read_only::read_without_locks;
use crate::shared_state::SharedState;
use crate::store::ANSWER_MARGIN;
use crate::transaction::{CLOCK, EXPIRED_LEASES_BLOCK, LimitSource, decide_in_transaction};

/// How often something is tried again that somebody was in the way of.
const MAX_RETRIES: usize = 12;

/// How often a lost connection is replaced before the database counts as gone.
const MAX_RECONNECTS: usize = 2;

/// How many leases that have lapsed are cleared away at a time.
const EXPIRED_LEASE_BATCH: i64 = 256;

/// The least of a round that is left for a decision after a connection was waited for.
const MIN_DECISION_TIME: Duration = Duration::from_millis(500);

/// What is said of a database that says nothing.
const NO_ANSWER: &str = "PostgreSQL did not answer in time";

/// What the tasks of the thread share.
pub(crate) struct Engine {
    pub(crate) shared_state: SharedState,
    pub(crate) queue: JobQueue,
    /// The longest that one round with the database may take.
    pub(crate) round: Duration,
}

impl Engine {
    /// Does jobs until the store is closed.
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
            let start = if tries == 0 { LimitSource::Cached } else { LimitSource::Reloaded };
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

    /// Whether another connection is worth a try: not if everybody knows that there is none, nor for those who have waited long enough.
    fn can_retry(&self, jobs: &[Job]) -> bool {
        let now = instant();
        let is_late = |job: &Job| now.saturating_duration_since(job.since) > MAX_QUEUE_TIME;
        self.queue.outage().is_none() && !jobs.iter().any(is_late)
    }

    fn fail_jobs(&self, jobs: Vec<Job>, error: &DatabaseError) {
        let why = error.unavailable();
        // Whoever is told may look at once whether that is known.
        match error {
            DatabaseError::ConnectionLost(_) | DatabaseError::CommitUnknown(_) => self.mark_unreachable(&why),
            DatabaseError::CannotDecide(_) => self.mark_cannot_decide(&why),
            DatabaseError::Retry(_) | DatabaseError::Rejected(_) => {
                tracing::warn!(%why, "PostgreSQL could not decide")
            }
        }
        for job in jobs {
            job.fail(&why);
        }
    }

    /// One transaction, or one look.
    async fn attempt(&self, jobs: &mut [Job], start: LimitSource) -> Result<(), DatabaseError> {
        let silent = |_| Err(DatabaseError::ConnectionLost(NO_ANSWER.to_owned()));
        let began = instant();
        let connection = self.shared_state.connections.get();
        let connection = tokio::time::timeout(self.round, connection).await.unwrap_or_else(silent)?;
        let left = self.round.saturating_sub(instant().saturating_duration_since(began));
        let is_read_only = start == LimitSource::Cached && jobs.iter().all(|job| job.is_read_only);
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
            // Whether it was committed is not known.
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
                    // It may be in the middle of a transaction.
                    discard(connection);
                    return Err(error);
                }
            }
            DatabaseError::Rejected(_) => self.roll_back(connection).await,
        }
        Err(error)
    }

    /// Ends a transaction and sees to what was in its way.
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
            let mut tidy = [crate::expiry::expired_leases(connection, now, EXPIRED_LEASE_BATCH).await?];
            let tidied = Box::pin(decide_in_transaction(
                &self.shared_state,
                connection,
                &mut tidy,
                LimitSource::Reloaded,
            ))
            .await;
            if tidied.is_err() {
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

    /// Tells everybody, counts, and gives back what nobody heard of.
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

    /// The database answers; and if something was written, it can do that too.
    pub(crate) fn mark_healthy(&self, wrote: bool) {
        if self.queue.clear_outage() {
            tracing::info!("PostgreSQL answers again");
        }
        if wrote && self.queue.clear_cannot_decide() {
            tracing::info!("PostgreSQL decides again");
        }
    }

    /// The database answers, and cannot decide for anybody.
    pub(crate) fn mark_cannot_decide(&self, why: &Unavailable) {
        if self.queue.set_cannot_decide(why) {
            tracing::error!(%why, "PostgreSQL cannot decide; limits answer by on_outage");
        }
    }

    /// The database cannot be reached.
    pub(crate) fn mark_unreachable(&self, why: &Unavailable) {
        if !self.queue.has_outage() {
            tracing::error!(%why, "PostgreSQL cannot decide; limits answer by on_outage");
        }
        self.queue.start_outage(why, instant());
    }

    /// Tells those who have waited too long, again and again.
    pub(crate) async fn expire_waiting_jobs(self: Arc<Engine>) {
        let mut beat = tokio::time::interval(Duration::from_millis(100));
        loop {
            beat.tick().await;
            self.queue.expire(instant());
        }
    }

    /// Changes limits.
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

    /// Zeroes a limit; whether there is one.
    pub(crate) async fn reset(&self, id: &str) -> Result<bool, DatabaseError> {
        let acted = self.run_exclusively(&ExclusiveAction::Reset(id.to_owned())).await?;
        Ok(matches!(acted, ExclusiveResult::Reset(true)))
    }

    /// Does something while nobody decides, and tells all servers of it if it is to be kept.
    async fn run_exclusively(&self, act: &ExclusiveAction) -> Result<ExclusiveResult, DatabaseError> {
        let mut tries = 0;
        loop {
            let connection = self.shared_state.connections.get().await?;
            // Edits of many limits take their time; but where nobody answers, nobody waits twice.
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
                    discard(connection)
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

    /// Until when leases are held.
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

/// What is done while nobody decides.
enum ExclusiveAction {
    Edit(Vec<Edit>, Origin),
    Reset(String),
}

/// What came of it.
enum ExclusiveResult {
    EditOutcome(Result<Vec<EditOutcome>, ApplyError>),
    /// Whether there was something to reset.
    Reset(bool),
}

/// Where changes of limits are told.
pub(crate) fn channel(schema: &str) -> String {
    format!("tidegate/{schema}")
}

#[expect(clippy::disallowed_methods, reason = "how long somebody has waited is measured by the steady clock")]
pub(crate) fn instant() -> Instant {
    Instant::now()
}
