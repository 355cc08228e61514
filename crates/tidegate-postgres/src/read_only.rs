//! Reads rows in one statement, without locks.
//!
//! The statement returns the revision of the limits and the rows of one snapshot, so that a row is always decoded with its own
//! edition. Limits that bound their keys are excluded: only a transaction with locks knows whether a new key fits.

use std::sync::Arc;

use deadpool_postgres::Object;
use tidegate::store::map::working_set::{LoadedLimit, UnloadedRows, WorkingSet};
use tidegate_core::{LeaseId, Timestamp};

use crate::connections::DatabaseError;
use crate::job::Job;
use crate::limit_snapshot::instant;
use crate::row_names::{NeededRows, add_rows_of_job, key_of};
use crate::shared_state::SharedState;
use crate::transaction::{CLOCK, limits_of_job, read_leases};

const READ_ROWS: &str = "SELECT (SELECT revision FROM store), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
    wanted.generation, wanted.key, s.edition, s.seen, s.state \
    FROM unnest($1::bigint[], $2::bytea[]) AS wanted (generation, key) \
    LEFT JOIN states s ON s.generation = wanted.generation AND s.key = wanted.key";

/// Runs read-only jobs.
pub(crate) async fn read_without_locks(
    shared_state: &SharedState,
    connection: &Object,
    jobs: &mut [Job],
) -> Result<(), DatabaseError> {
    let limits = shared_state.limits();
    let mut needs = NeededRows::new();
    for job in jobs.iter() {
        add_rows_of_job(job, &limits, &mut needs);
    }
    if needs.is_empty() {
        // The limits may have been added a moment ago, so the revision is read anyway.
        needs.insert((0, Vec::new()), crate::row_names::RowAccess::Read);
    }
    let (generations, keys): (Vec<i64>, Vec<Vec<u8>>) = needs.into_keys().unzip();
    let statement = connection.prepare_cached(READ_ROWS).await?;
    let rows = connection.query(&statement, &[&generations, &keys]).await?;
    let first = rows.first().ok_or_else(|| DatabaseError::Retry("the query returned no row".to_owned()))?;
    if first.get::<_, i64>(0) != limits.revision {
        return Err(DatabaseError::Retry("the limits have changed".to_owned()));
    }
    let seen = rows.iter().filter_map(|row| row.get::<_, Option<i64>>(5)).max().unwrap_or(0);
    let now = shared_state.time.now(first.get(1)).max(instant(seen));
    let mut working_set =
        WorkingSet::new(shared_state.tick, shared_state.secret, shared_state.next_lease_number());
    working_set.advance(now);
    for entry in jobs
        .iter()
        .flat_map(|job| limits_of_job(job, &limits))
        .filter_map(|each| limits.entry_of_generation(each))
    {
        if working_set.fence_of(entry.id()).is_none() {
            let generation = u64::try_from(entry.generation).unwrap_or(0);
            let loaded_limit =
                LoadedLimit { generation, fence: 0, retired_until: None, elsewhere: UnloadedRows::default() };
            working_set.limit(Arc::clone(&entry.limit), loaded_limit);
        }
    }
    for row in &rows {
        let (Some(edition), Some(entry)) =
            (row.get::<_, Option<i32>>(4), limits.entry_of_generation(row.get(2)))
        else {
            continue;
        };
        let key = key_of(row.get(3));
        working_set.row(entry.id(), key, entry.upgrade_row(row.get(6), edition, key)?);
    }
    for job in jobs.iter_mut() {
        job.run(&mut working_set);
    }
    Ok(())
}

/// The expiry times of leases.
pub(crate) async fn held_until(
    shared_state: &SharedState,
    connection: &Object,
    ids: &[LeaseId],
) -> Result<Vec<Option<Timestamp>>, DatabaseError> {
    let leases = read_leases(connection, ids, false).await?;
    let clock = connection.prepare_cached(CLOCK).await?;
    let now = shared_state.time.now(connection.query_one(&clock, &[]).await?.get(0));
    if leases.values().any(|row| !row.is_known(&shared_state.limits())) {
        // The limit was removed, or another server added it a moment ago.
        shared_state.refresh(connection).await?;
    }
    let limits = shared_state.limits();
    let held = |id: &LeaseId| {
        let row = leases.get(id).filter(|row| row.is_known(&limits))?;
        Some(row.lease.expires_at).filter(|end| now < *end)
    };
    Ok(ids.iter().map(held).collect())
}
