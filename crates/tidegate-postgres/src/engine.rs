//! The engine: a thread of its own that speaks to the database.
//!
//! Whoever asks may be a task, or a thread without any runtime; so connections do not live where questions come from. Workers take jobs from
//! the queue, one transaction each. A listener hears of changed limits, and looks every second in case it has not; a sweeper clears away
//! what time has made meaningless.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::Object;
use tidegate::catalog::{ApplyError, Edit, EditOutcome, Origin};
use tidegate::reply::{Outcome, Replies};
use tidegate::store::Unavailable;
use tidegate_core::LeaseId;

use crate::connecting::{Connection, Fault, discard};
use crate::editing::Editor;
use crate::house::House;
use crate::job::{Job, Task};
use crate::looking::look;
use crate::queue::{PATIENCE, Queue, ended, touched};
use crate::sitting::{CLOCK, LAPSED, Start, sit};
use crate::store::SLACK;

/// How often something is tried again that somebody was in the way of.
const MOST_TRIES: usize = 12;

/// How often a lost connection is replaced before the database counts as gone.
const MOST_LOSSES: usize = 2;

/// How many leases that have lapsed are cleared away at a time.
const LAPSES_AT_A_TIME: i64 = 256;

/// The least of a round that is left for a decision after a connection was waited for.
const SHORTEST_ROUND: Duration = Duration::from_millis(500);

/// What is said of a database that says nothing.
const SILENT: &str = "PostgreSQL did not answer in time";

/// What the tasks of the thread share.
pub(crate) struct Engine {
    pub(crate) house: House,
    pub(crate) queue: Queue,
    /// The longest that one round with the database may take.
    pub(crate) round: Duration,
}

impl Engine {
    /// Does jobs until the store is closed.
    pub(crate) async fn work(self: Arc<Engine>) {
        while let Some(jobs) = self.queue.next().await {
            let touches = touched(&jobs);
            self.do_all(jobs).await;
            self.queue.done(&touches);
        }
    }

    async fn do_all(&self, mut jobs: Vec<Job>) {
        let (mut tries, mut losses) = (0, 0);
        loop {
            let start = if tries == 0 { Start::Trusting } else { Start::Careful };
            let writes = tries > 0 || jobs.iter().any(|job| !job.only_looks);
            let fault = match self.attempt(&mut jobs, start).await {
                Ok(()) => {
                    self.is_well(writes);
                    return self.tell(jobs);
                }
                Err(fault) => fault,
            };
            match &fault {
                Fault::Again(_) if tries < MOST_TRIES => tries += 1,
                Fault::Lost(_) | Fault::Unable(_) if losses < MOST_LOSSES && self.may_try_again(&jobs) => {
                    losses += 1;
                }
                _ => return self.give_up(jobs, &fault),
            }
        }
    }

    /// Whether another connection is worth a try: not if everybody knows that there is none, nor for those who have waited long enough.
    fn may_try_again(&self, jobs: &[Job]) -> bool {
        let now = instant();
        let is_late = |job: &Job| now.saturating_duration_since(job.since) > PATIENCE;
        self.queue.outage().is_none() && !jobs.iter().any(is_late)
    }

    fn give_up(&self, jobs: Vec<Job>, fault: &Fault) {
        let why = fault.unavailable();
        // Whoever is told may look at once whether that is known.
        match fault {
            Fault::Lost(_) | Fault::Doubtful(_) => self.went_down(&why),
            Fault::Unable(_) => self.cannot(&why),
            Fault::Again(_) | Fault::Refused(_) => tracing::warn!(%why, "PostgreSQL could not decide"),
        }
        for job in jobs {
            job.fail(&why);
        }
    }

    /// One transaction, or one look.
    async fn attempt(&self, jobs: &mut [Job], start: Start) -> Result<(), Fault> {
        let silent = |_| Err(Fault::Lost(SILENT.to_owned()));
        let began = instant();
        let connection = self.house.connections.get();
        let connection = tokio::time::timeout(self.round, connection).await.unwrap_or_else(silent)?;
        let left = self.round.saturating_sub(instant().saturating_duration_since(began));
        let only_looks = start == Start::Trusting && jobs.iter().all(|job| job.only_looks);
        let done = async {
            if only_looks {
                look(&self.house, &connection, jobs).await
            } else {
                sit(&self.house, &connection, jobs, start).await
            }
        };
        let done = tokio::time::timeout(left.max(SHORTEST_ROUND), done).await;
        let fault = match done {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(fault)) => fault,
            // Whether it was committed is not known.
            Err(_) => Fault::Doubtful(SILENT.to_owned()),
        };
        match &fault {
            Fault::Lost(_) | Fault::Doubtful(_) | Fault::Unable(_) => discard(connection),
            Fault::Again(why) => {
                let cleared = self.clear_the_way(&connection, why, only_looks);
                let silent = |_| Err(Fault::Lost(SILENT.to_owned()));
                if let Err(fault) = tokio::time::timeout(self.round, cleared).await.unwrap_or_else(silent) {
                    // It may be in the middle of a transaction.
                    discard(connection);
                    return Err(fault);
                }
            }
            Fault::Refused(_) => self.roll_back(connection).await,
        }
        Err(fault)
    }

    /// Ends a transaction and sees to what was in its way.
    async fn clear_the_way(&self, connection: &Object, why: &str, only_looks: bool) -> Result<(), Fault> {
        if !only_looks {
            connection.batch_execute("ROLLBACK").await?;
        }
        self.house.refresh(connection).await?;
        if why == LAPSED {
            let statement = connection.prepare_cached(CLOCK).await?;
            let now = self.house.time.now(connection.query_one(&statement, &[]).await?.get(0));
            let mut tidy = [crate::sweeping::lapsed(connection, now, LAPSES_AT_A_TIME).await?];
            let tidied = Box::pin(sit(&self.house, connection, &mut tidy, Start::Careful)).await;
            if tidied.is_err() {
                connection.batch_execute("ROLLBACK").await?;
            }
        }
        Ok(())
    }

    async fn roll_back(&self, connection: Connection) {
        let rolled = tokio::time::timeout(SLACK, connection.batch_execute("ROLLBACK")).await;
        if !matches!(rolled, Ok(Ok(()))) {
            discard(connection);
        }
    }

    /// Tells everybody, counts, and gives back what nobody heard of.
    fn tell(&self, jobs: Vec<Job>) {
        for job in jobs {
            if let Task::Orders { orders, answers, .. } = &job.task {
                self.house.count(orders, answers);
                self.remember_leases(answers, &job.touches);
            }
            if let Some(id) = ended(&job) {
                self.queue.forget(id);
            }
            for id in job.tell() {
                let (tell, _nobody) = tokio::sync::oneshot::channel();
                let task = Task::Release { id, done: None, tell };
                self.queue.push(Job { task, since: instant(), touches: Vec::new(), only_looks: false });
            }
        }
    }

    fn remember_leases(&self, answers: &Replies, touches: &[u64]) {
        for answer in answers.iter().flatten() {
            if let Outcome::Granted(Some(grant)) = &answer.outcome {
                self.queue.remember(grant.lease, touches);
            }
        }
    }

    /// The database answers; and if something was written, it can do that too.
    pub(crate) fn is_well(&self, wrote: bool) {
        if self.queue.came_up() {
            tracing::info!("PostgreSQL answers again");
        }
        if wrote && self.queue.can_again() {
            tracing::info!("PostgreSQL decides again");
        }
    }

    /// The database answers, and cannot decide for anybody.
    pub(crate) fn cannot(&self, why: &Unavailable) {
        if self.queue.cannot(why) {
            tracing::error!(%why, "PostgreSQL cannot decide; limits answer by on_outage");
        }
    }

    /// The database cannot be reached.
    pub(crate) fn went_down(&self, why: &Unavailable) {
        if !self.queue.is_down() {
            tracing::error!(%why, "PostgreSQL cannot decide; limits answer by on_outage");
        }
        self.queue.went_down(why, instant());
    }

    /// Tells those who have waited too long, again and again.
    pub(crate) async fn mind_the_time(self: Arc<Engine>) {
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
    ) -> Result<Result<Vec<EditOutcome>, ApplyError>, Fault> {
        match self.alone(&Act::Edit(edits, by)).await? {
            Acted::EditOutcome(edited) => Ok(edited),
            Acted::Reset(_) => Ok(Ok(Vec::new())),
        }
    }

    /// Zeroes a limit; whether there is one.
    pub(crate) async fn reset(&self, id: &str) -> Result<bool, Fault> {
        let acted = self.alone(&Act::Reset(id.to_owned())).await?;
        Ok(matches!(acted, Acted::Reset(true)))
    }

    /// Does something while nobody decides, and tells all servers of it if it is to be kept.
    async fn alone(&self, act: &Act) -> Result<Acted, Fault> {
        let mut tries = 0;
        loop {
            let connection = self.house.connections.get().await?;
            // Edits of many limits take their time; but where nobody answers, nobody waits twice.
            let most = if self.queue.outage().is_some() { self.round } else { self.round * 2 };
            let fault = match tokio::time::timeout(most, self.act_alone(&connection, act)).await {
                Ok(Ok(done)) => {
                    self.is_well(true);
                    return Ok(done);
                }
                Ok(Err(fault)) => fault,
                Err(_) => Fault::Doubtful(SILENT.to_owned()),
            };
            match fault {
                Fault::Again(_) if tries < MOST_TRIES => self.roll_back(connection).await,
                Fault::Lost(_) if tries < MOST_LOSSES && self.queue.outage().is_none() => discard(connection),
                Fault::Refused(_) | Fault::Again(_) => {
                    self.roll_back(connection).await;
                    return Err(fault);
                }
                _ => {
                    discard(connection);
                    return Err(fault);
                }
            }
            tries += 1;
        }
    }

    async fn act_alone(&self, connection: &Object, act: &Act) -> Result<Acted, Fault> {
        let house = &self.house;
        connection.batch_execute("BEGIN").await?;
        connection.execute("SELECT pg_advisory_xact_lock($1)", &[&house.limits_lock]).await?;
        let known = house.limits();
        let (revision, found) = crate::limits::read_since(connection, known.revision, house.tick).await?;
        let limits = known.with(revision, found);
        let clock = connection.prepare_cached(CLOCK).await?;
        let now = house.time.now(connection.query_one(&clock, &[]).await?.get(0));
        let editor = Editor { connection, limits, now, tick: house.tick };
        let (acted, limits, keep) = match act {
            Act::Edit(edits, by) => {
                let done = editor.apply(edits.clone(), *by).await?;
                let keep = done.edited.is_ok();
                (Acted::EditOutcome(done.edited), done.limits, keep)
            }
            Act::Reset(id) => {
                let (found, limits) = editor.reset(id).await?;
                (Acted::Reset(found), limits, found)
            }
        };
        if keep {
            if let Act::Edit(edits, _) = act {
                house.announce(limits.revision, edits.iter().map(|edit| edit.id().to_owned()).collect());
            }
            let payload = limits.revision.to_string();
            connection.execute("SELECT pg_notify($1, $2)", &[&channel(&house.schema), &payload]).await?;
            let committed = connection.batch_execute("COMMIT").await;
            committed.map_err(|error| Fault::from(error).while_committing())?;
        } else {
            connection.batch_execute("ROLLBACK").await?;
        }
        house.exchange(limits, false);
        Ok(acted)
    }

    /// Until when leases are held.
    pub(crate) async fn held_until(
        &self,
        ids: &[LeaseId],
    ) -> Result<Vec<Option<tidegate_core::Timestamp>>, Fault> {
        let connection = self.house.connections.get().await?;
        let held = crate::looking::held_until(&self.house, &connection, ids);
        match tokio::time::timeout(self.round, held).await {
            Ok(Ok(held)) => Ok(held),
            Ok(Err(fault)) => Err(fault),
            Err(_) => {
                discard(connection);
                Err(Fault::Lost(SILENT.to_owned()))
            }
        }
    }
}

/// What is done while nobody decides.
enum Act {
    Edit(Vec<Edit>, Origin),
    Reset(String),
}

/// What came of it.
enum Acted {
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
