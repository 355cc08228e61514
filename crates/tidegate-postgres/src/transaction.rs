//! A deciding transaction, which runs many jobs.
//!
//! ```text
//!   BEGIN · shared limits lock · revision · insert missing rows · lock rows · clock       first round trip
//!        the in-memory store decides on the loaded rows (`WorkingSet`)
//!   write changes · COMMIT                                                                second round trip
//! ```
//!
//! All transactions lock in the same order: limits lock, new rows, rows, request ids, leases, each sorted by name. So deadlocks
//! cannot occur. The clock is read after the last lock, so time never goes back between two transactions on one row.
//!
//! If nothing changed, the transaction rolls back. A refusal therefore costs no write, and rows created for it vanish.

mod key_bounds;
mod load_rows;
mod write_changes;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use deadpool_postgres::Object;
use futures_util::try_join;
use tidegate::store::map::working_set::WorkingSet;
use tidegate_core::{LeaseId, Timestamp};

use crate::connections::DatabaseError;
use crate::job::{Job, JobTask};
use crate::limit_snapshot::{LimitSnapshot, instant};
use crate::row_names::{ALL, NeededRows, RowAccess, RowName, add_rows_of_job};
use crate::shared_state::SharedState;

pub(crate) use key_bounds::EXPIRED_LEASES_BLOCK;
pub(crate) use load_rows::{LeaseRow, read_leases};
use load_rows::{LoadedRow, RequestRow};

/// Reads the database's clock, in microseconds.
pub(crate) const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// The limits lock, shared by all deciding transactions.
const SHARED_LOCK: &str = "SELECT pg_advisory_xact_lock_shared($1)";

/// Inserts missing rows, so that they can be locked.
const MAKE_BLANK: &str = "INSERT INTO states (generation, key, edition) \
    SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::integer[]) AS wanted (generation, key, edition) ORDER BY 1, 2 \
    ON CONFLICT DO NOTHING RETURNING generation, key";

/// Locks rows in the order of their names.
const LOCK_ROWS: &str = "SELECT s.generation, s.key, s.edition, s.seen, s.resets, s.fence, s.keys, s.state \
    FROM unnest($1::bigint[], $2::bytea[]) AS wanted (generation, key) \
    JOIN states s ON s.generation = wanted.generation AND s.key = wanted.key ORDER BY 1, 2 FOR UPDATE OF s";

const INSERT_REQUESTS: &str = "INSERT INTO requests (id, until, body) \
    SELECT id, 0, '' FROM unnest($1::bytea[]) AS wanted (id) ORDER BY 1 ON CONFLICT DO NOTHING RETURNING id";

const LOCK_REQUESTS: &str =
    "SELECT id, until, body FROM requests WHERE id = ANY ($1::bytea[]) ORDER BY id FOR UPDATE";

/// A transaction that holds all its locks.
pub(crate) struct DecisionTransaction<'a> {
    shared_state: &'a SharedState,
    connection: &'a Object,
    limits: Arc<LimitSnapshot>,
    rows: Vec<LoadedRow>,
    leases: HashMap<LeaseId, LeaseRow>,
    settlements: Vec<(LeaseId, Timestamp)>,
    requests: Vec<RequestRow>,
    /// Leases that were read only to report them.
    read_only_leases: HashSet<LeaseId>,
    /// The generations of the limits that the jobs name.
    asked_limits: HashSet<i64>,
    /// For each limit, the number of rows to read that do not exist.
    missing_read_rows: HashMap<i64, i64>,
    now: Timestamp,
    /// Whether something was written already.
    has_written: bool,
}

/// Where a transaction gets the limits from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SnapshotSource {
    /// From the snapshot. If the revision has changed, the transaction is retried.
    Cached,
    /// From the tables, under the limits lock.
    Reloaded,
}

/// Runs jobs in one transaction. After an error nothing is changed, unless the commit itself failed.
pub(crate) async fn decide_in_transaction(
    shared_state: &SharedState,
    connection: &Object,
    jobs: &mut [Job],
    start: SnapshotSource,
) -> Result<(), DatabaseError> {
    if start == SnapshotSource::Reloaded {
        connection.batch_execute("BEGIN").await?;
        let shared = connection.prepare_cached(SHARED_LOCK).await?;
        connection.query(&shared, &[&shared_state.limits_lock]).await?;
        shared_state.refresh(connection).await?;
    }
    let limits = shared_state.limits();
    let mut needs = NeededRows::new();
    for job in jobs.iter() {
        add_rows_of_job(job, &limits, &mut needs);
    }
    let ids: Vec<LeaseId> = jobs.iter().flat_map(Job::leases).copied().collect();
    if !ids.is_empty() {
        // The holdings of a lease never change, so they can be read without a lock.
        for lease in read_leases(connection, &ids, false).await?.values() {
            lease.needs(&limits, &mut needs);
        }
    }
    let mut transaction =
        DecisionTransaction::begin(shared_state, connection, limits, needs, &ids, jobs, start).await?;
    let mut working_set = transaction.build_working_set().await?;
    for job in jobs.iter_mut() {
        job.run(&mut working_set);
        if let JobTask::Reset { limit_id, key, done: Some(Ok(())), .. } = &job.task {
            transaction.mark_reset(limit_id, key);
        }
    }
    transaction.write(&mut working_set).await
}

impl<'a> DecisionTransaction<'a> {
    /// Takes all locks and reads the rows.
    async fn begin(
        shared_state: &'a SharedState,
        connection: &'a Object,
        limits: Arc<LimitSnapshot>,
        needs: NeededRows,
        leases: &[LeaseId],
        jobs: &[Job],
        start: SnapshotSource,
    ) -> Result<DecisionTransaction<'a>, DatabaseError> {
        let named = jobs.iter().flat_map(|job| limits_of_job(job, &limits)).collect();
        let settles = jobs.iter().any(|job| matches!(job.task, JobTask::Settle { .. }));
        let mut request_ids: Vec<Vec<u8>> = request_ids(jobs);
        request_ids.sort_unstable();
        request_ids.dedup();
        let wanted = WantedRows::of(&needs, &limits, shared_state, start);
        let (blank, rows, clock) = (
            connection.prepare_cached(MAKE_BLANK),
            connection.prepare_cached(LOCK_ROWS),
            connection.prepare_cached(CLOCK),
        );
        let shared = connection.prepare_cached(SHARED_LOCK);
        let revision = connection.prepare_cached("SELECT revision FROM store");
        let (blank, rows, clock, shared, revision) = try_join!(blank, rows, clock, shared, revision)?;

        // The statements are pipelined; the database runs them in this order.
        let begun = async {
            if start == SnapshotSource::Reloaded {
                return Ok(());
            }
            connection.batch_execute("BEGIN").await.map_err(DatabaseError::from)
        };
        let lock_key: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&shared_state.limits_lock];
        let shared = async { connection.query(&shared, &lock_key).await.map_err(DatabaseError::from) };
        let revision = async { connection.query_one(&revision, &[]).await.map_err(DatabaseError::from) };
        let inserted = async {
            if wanted.blank.0.is_empty() {
                return Ok(Vec::new());
            }
            let (generations, keys, editions) = &wanted.blank;
            connection.query(&blank, &[generations, keys, editions]).await.map_err(DatabaseError::from)
        };
        let locked = async {
            if wanted.all.0.is_empty() {
                return Ok(Vec::new());
            }
            connection.query(&rows, &[&wanted.all.0, &wanted.all.1]).await.map_err(DatabaseError::from)
        };
        // The clock is read last, in the same round trip if nothing else is locked.
        let rest = async {
            let mut rest = LateReads::default();
            if !request_ids.is_empty() {
                rest.requests = lock_requests(connection, &request_ids).await?;
            }
            if !leases.is_empty() {
                rest.leases = read_leases(connection, leases, true).await?;
            }
            if settles {
                rest.settlements = load_rows::read_settlements(connection, leases).await?;
            }
            rest.micros = connection.query_one(&clock, &[]).await?.get(0);
            Ok::<LateReads, DatabaseError>(rest)
        };
        let (begun, shared, revision, inserted, locked, rest) =
            futures_util::join!(begun, shared, revision, inserted, locked, rest);
        // The first error is the cause; later statements fail because of it.
        begun?;
        shared?;
        let revision: i64 = revision?.get(0);
        if revision != limits.revision {
            return Err(DatabaseError::Retry("the limits have changed".to_owned()));
        }
        let inserted = inserted?;
        let mut rows: Vec<LoadedRow> = locked?.iter().map(LoadedRow::read).collect();
        for name in inserted.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, Vec<u8>>(1))) {
            if let Ok(found) = rows.binary_search_by(|row| row.name.cmp(&name)) {
                rows[found].is_new = true;
            }
        }
        let missing = missing(&needs, &rows);
        if !missing.is_empty() {
            shared_state.mark_missing(missing.into_iter());
            return Err(DatabaseError::Retry("a row was deleted in the meantime".to_owned()));
        }
        let mut missing_read_rows: HashMap<i64, i64> = HashMap::new();
        for (generation, _) in needs.keys().filter(|name| !is_loaded(name, &rows)) {
            *missing_read_rows.entry(*generation).or_default() += 1;
        }
        let LateReads { requests, leases, settlements, micros } = rest?;
        let now = shared_state.time.now(micros);
        let seen = rows.iter().map(|row| row.seen).max().unwrap_or_default();
        Ok(DecisionTransaction {
            shared_state,
            connection,
            limits,
            rows,
            leases,
            settlements,
            requests,
            read_only_leases: HashSet::new(),
            asked_limits: named,
            missing_read_rows,
            now: now.max(seen),
            has_written: false,
        })
    }

    /// Builds the working set that the jobs run on.
    async fn build_working_set(&mut self) -> Result<WorkingSet, DatabaseError> {
        let key_counts = self.count_other_rows().await?;
        let read_only_leases = self.leases_of_requests().await?;
        self.fill_working_set(&key_counts, read_only_leases)
    }

    /// Marks the row of a key as reset, so that earlier charges cannot be refunded.
    fn mark_reset(&mut self, limit_id: &str, key: &[u8]) {
        let Some(entry) = self.limits.get(limit_id) else { return };
        let name: RowName = (entry.generation, crate::row_names::column_of(Some(key)));
        if let Some(row) = self.rows.iter_mut().find(|row| row.name == name) {
            row.resets += 1;
            row.was_reset = true;
        }
    }
}

/// What is read after the rows.
#[derive(Default)]
struct LateReads {
    requests: Vec<RequestRow>,
    leases: HashMap<LeaseId, LeaseRow>,
    settlements: Vec<(LeaseId, Timestamp)>,
    micros: i64,
}

/// Row names, as columns.
struct WantedRows {
    all: (Vec<i64>, Vec<Vec<u8>>),
    blank: (Vec<i64>, Vec<Vec<u8>>, Vec<i32>),
}

impl WantedRows {
    fn of(
        needs: &NeededRows,
        limits: &LimitSnapshot,
        shared_state: &SharedState,
        start: SnapshotSource,
    ) -> WantedRows {
        let mut wanted = WantedRows { all: Default::default(), blank: Default::default() };
        for (generation, key) in needs.keys() {
            wanted.all.0.push(*generation);
            wanted.all.1.push(key.clone());
        }
        // The row of all keys always exists.
        let changed = || needs.iter().filter(|(name, need)| **need == RowAccess::Write && name.1 != ALL);
        let names = changed().map(|(name, _)| name);
        // Most rows exist. If a known row is missing, the transaction is retried with reloaded limits.
        let blank =
            if start == SnapshotSource::Cached { shared_state.unknown_rows(names) } else { names.collect() };
        for (generation, key) in blank {
            let edition = limits.entry_of_generation(*generation).map_or(0, |entry| entry.edition);
            wanted.blank.0.push(*generation);
            wanted.blank.1.push(key.clone());
            wanted.blank.2.push(edition);
        }
        wanted
    }
}

/// The rows to change that do not exist.
fn missing<'n>(needs: &'n NeededRows, rows: &[LoadedRow]) -> Vec<&'n RowName> {
    let missing = needs.iter().filter(|(name, need)| **need == RowAccess::Write && !is_loaded(name, rows));
    missing.map(|(name, _)| name).collect()
}

fn is_loaded(name: &RowName, rows: &[LoadedRow]) -> bool {
    rows.binary_search_by(|row| row.name.cmp(name)).is_ok()
}

/// The generations of the limits that a job names.
pub(crate) fn limits_of_job(job: &Job, limits: &LimitSnapshot) -> Vec<i64> {
    let generation = |id: &str| limits.get(id).map(|entry| entry.generation);
    match &job.task {
        JobTask::Orders { orders, .. } => {
            orders.iter().flat_map(|order| &order.asks).filter_map(|ask| generation(&ask.limit_id)).collect()
        }
        JobTask::Reset { limit_id, .. }
        | JobTask::Usage { limit_id, .. }
        | JobTask::Holders { limit_id, .. } => generation(limit_id).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// The request ids that may have a stored grant.
fn request_ids(jobs: &[Job]) -> Vec<Vec<u8>> {
    let mut ids = Vec::new();
    for job in jobs {
        if let JobTask::Orders { orders, .. } = &job.task {
            let asked = orders.iter().filter(|order| crate::row_names::changes(order));
            ids.extend(asked.filter_map(|order| order.request_id.as_deref().map(<[u8]>::to_vec)));
        }
    }
    ids
}

async fn lock_requests(connection: &Object, ids: &[Vec<u8>]) -> Result<Vec<RequestRow>, DatabaseError> {
    // These statements are prepared on first use, because few orders have a request id.
    let insert = connection.prepare_cached(INSERT_REQUESTS).await?;
    let lock = connection.prepare_cached(LOCK_REQUESTS).await?;
    let inserted = connection.query(&insert, &[&ids]).await?;
    let locked = connection.query(&lock, &[&ids]).await?;
    let inserted: Vec<&[u8]> = inserted.iter().map(|row| row.get(0)).collect();
    let read = locked.iter().map(|row| {
        let id: &[u8] = row.get(0);
        RequestRow {
            id: id.to_vec(),
            until: instant(row.get(1)),
            body: row.get(2),
            is_new: inserted.contains(&id),
        }
    });
    Ok(read.collect())
}
