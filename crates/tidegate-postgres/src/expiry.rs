//! Expiry: one server at a time deletes expired data, a batch every second.
//!
//! Nothing depends on a prompt deletion. Expired leases hold nothing, evictable rows count nothing, and removed limits are not
//! found. They only take space.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Object;
use tidegate_core::{LeaseId, Timestamp};

use crate::connections::DatabaseError;
use crate::engine::{Engine, instant as monotonic_now};
use crate::job::{Job, JobTask};
use crate::limit_snapshot::column;
use crate::transaction::CLOCK;

/// The interval between rounds.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// The most entries of each kind in one round.
const EXPIRY_BATCH: i64 = 1000;

/// The most stored request ids. Beyond that the oldest are deleted.
const MAX_REQUESTS: i64 = 1_000_000;

/// The number of rounds between two full rounds.
const FULL_EXPIRY_EVERY: u64 = 60;

/// Evictable rows. Rows of limits that bound their keys are counted, and are deleted when a new key needs room.
const DELETE_EVICTABLE_ROWS: &str = "DELETE FROM states s USING (
        SELECT s.generation, s.key FROM states s JOIN limits l ON l.generation = s.generation AND l.edition = s.edition
        WHERE s.freshens <= $1 AND s.key <> '\\x00' AND NOT EXISTS
            (SELECT FROM states a WHERE a.generation = s.generation AND a.key = '\\x00' AND a.keys IS NOT NULL)
        LIMIT $2 FOR UPDATE OF s SKIP LOCKED
    ) fresh WHERE s.generation = fresh.generation AND s.key = fresh.key";

/// Rows of removed limits. The query goes limit by limit, because other limits may have a million rows.
const DELETE_ROWS_OF_REMOVED_LIMITS: &str = "DELETE FROM states s USING (
        SELECT row.generation, row.key FROM limits l CROSS JOIN LATERAL
            (SELECT s.generation, s.key FROM states s WHERE s.generation = l.generation LIMIT $1 FOR UPDATE SKIP LOCKED) row
        WHERE l.standing = 2 LIMIT $1
    ) gone WHERE s.generation = gone.generation AND s.key = gone.key";

/// Rows of an earlier edition, limit by limit as well.
const FIND_OUTDATED_ROWS: &str = "SELECT row.generation, row.key FROM limits l CROSS JOIN LATERAL
        (SELECT s.generation, s.key FROM states s WHERE s.generation = l.generation AND s.edition < l.edition LIMIT $1) row
    WHERE l.standing < 2 LIMIT $1";

impl Engine {
    /// Runs expiry until the store is closed.
    pub(crate) async fn run_expiry(self: Arc<Engine>) {
        let mut round = 0u64;
        loop {
            tokio::time::sleep(EXPIRY_INTERVAL).await;
            round += 1;
            if self.queue.has_outage() {
                continue;
            }
            if let Err(error) = self.expire_once(round.is_multiple_of(FULL_EXPIRY_EVERY)).await {
                // An idle server must notice that the database is not writable, and this task writes on every server.
                if let DatabaseError::CannotDecide(_) = error {
                    self.mark_cannot_decide(&error.unavailable());
                }
                tracing::debug!(%error, "an expiry round failed; the next round continues");
            }
        }
    }

    pub(crate) async fn expire_once(&self, is_full: bool) -> Result<(), DatabaseError> {
        let connection = self.shared_state.connections.get().await?;
        let expired = tokio::time::timeout(self.round * 2, self.expire_with(&connection, is_full)).await;
        let error = match expired {
            Ok(Ok(None)) => return Ok(()),
            Ok(Ok(Some(jobs))) => {
                self.mark_healthy(true);
                for job in jobs {
                    self.queue.push(job);
                }
                return Ok(());
            }
            Ok(Err(error)) => error,
            Err(_) => DatabaseError::ConnectionLost("expiry took too long".to_owned()),
        };
        // The connection may be inside a transaction.
        crate::connections::discard(connection);
        Err(error)
    }

    /// Runs one round and returns the remaining cleanup jobs. `None` if another server runs expiry.
    async fn expire_with(
        &self,
        connection: &Object,
        is_full: bool,
    ) -> Result<Option<Vec<Job>>, DatabaseError> {
        let shared_state = &self.shared_state;
        connection.batch_execute("BEGIN").await?;
        let try_lock = "SELECT pg_try_advisory_xact_lock($1)";
        if !connection.query_one(try_lock, &[&shared_state.expiry_lock]).await?.get::<_, bool>(0) {
            connection.batch_execute("ROLLBACK").await?;
            return Ok(None);
        }
        connection.execute("SELECT pg_advisory_xact_lock_shared($1)", &[&shared_state.limits_lock]).await?;
        let clock = connection.prepare_cached(CLOCK).await?;
        let now = shared_state.time.now(connection.query_one(&clock, &[]).await?.get(0));
        let at = column(now);
        let row = connection
            .query_one("UPDATE store SET latest = greatest(latest, $1) RETURNING latest", &[&at])
            .await?;
        shared_state.time.raise(crate::limit_snapshot::instant(row.get(0)));
        connection.execute(DELETE_EVICTABLE_ROWS, &[&at, &EXPIRY_BATCH]).await?;
        connection.execute(DELETE_ROWS_OF_REMOVED_LIMITS, &[&EXPIRY_BATCH]).await?;
        for table in ["requests", "settlements"] {
            let forget = format!(
                "DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE until <= $1 AND until > 0 LIMIT $2 FOR UPDATE SKIP LOCKED)"
            );
            connection.execute(&forget, &[&at, &EXPIRY_BATCH]).await?;
        }
        if is_full {
            self.expire_slow_growing(connection).await?;
        }
        let jobs =
            vec![expired_leases(connection, now, EXPIRY_BATCH).await?, outdated_rows(connection).await?];
        connection.batch_execute("COMMIT").await?;
        let is_needed = |job: &Job| match &job.task {
            JobTask::CleanUp { leases, rows } => !leases.is_empty() || !rows.is_empty(),
            _ => false,
        };
        Ok(Some(jobs.into_iter().filter(is_needed).collect()))
    }

    /// Deletes data that grows slowly.
    async fn expire_slow_growing(&self, connection: &Object) -> Result<(), DatabaseError> {
        let too_many =
            "DELETE FROM requests WHERE id IN (SELECT id FROM requests ORDER BY until DESC OFFSET $1)";
        connection.execute(too_many, &[&MAX_REQUESTS]).await?;
        // Editions that no row has.
        let texts = "DELETE FROM editions e USING limits l WHERE l.generation = e.generation AND (l.standing = 2 OR e.edition < l.edition \
                     AND NOT EXISTS (SELECT FROM states s WHERE s.generation = e.generation AND s.edition < l.edition))";
        connection.execute(texts, &[]).await?;
        // No server can miss ten thousand changes and continue.
        let gone = "DELETE FROM limits l WHERE standing = 2 AND revision < (SELECT revision FROM store) - 10000 \
                    AND NOT EXISTS (SELECT FROM states s WHERE s.generation = l.generation)";
        connection.execute(gone, &[]).await?;
        Ok(())
    }
}

/// A job that removes expired leases.
pub(crate) async fn expired_leases(
    connection: &Object,
    now: Timestamp,
    most: i64,
) -> Result<Job, DatabaseError> {
    let find = "SELECT id FROM leases WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2";
    let statement = connection.prepare_cached(find).await?;
    let rows = connection.query(&statement, &[&column(now), &most]).await?;
    let id = |row: &tokio_postgres::Row| {
        let bytes: [u8; 16] = row.get::<_, &[u8]>(0).try_into().ok()?;
        Some(LeaseId(u128::from_be_bytes(bytes)))
    };
    Ok(cleanup_job(JobTask::CleanUp { leases: rows.iter().filter_map(id).collect(), rows: Vec::new() }))
}

/// A job that upgrades rows of earlier editions.
async fn outdated_rows(connection: &Object) -> Result<Job, DatabaseError> {
    let rows = connection.query(FIND_OUTDATED_ROWS, &[&EXPIRY_BATCH]).await?;
    let rows = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    Ok(cleanup_job(JobTask::CleanUp { leases: Vec::new(), rows }))
}

fn cleanup_job(task: JobTask) -> Job {
    Job { task, since: monotonic_now(), row_hashes: Vec::new(), is_read_only: false }
}
