//! Looking: what rows say, in one statement that locks nothing.
//!
//! The revision of the limits and the rows are of the same moment, so that a row is never read by a text that is not its own. A look at a limit
//! that bounds its keys is not made here: whether there is room for one more is known only to who holds the locks.

use std::sync::Arc;

use deadpool_postgres::Object;
use tidegate::store::map::working_set::{LoadedLimit, UnloadedRows, WorkingSet};
use tidegate_core::{LeaseId, Timestamp};

use crate::connecting::Fault;
use crate::house::House;
use crate::job::Job;
use crate::limits::instant;
use crate::rows::{Needs, key_of, needs_of};
use crate::sitting::{CLOCK, named, read_leases};

const LOOK: &str = "SELECT (SELECT revision FROM store), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
    wanted.generation, wanted.key, s.edition, s.seen, s.state \
    FROM unnest($1::bigint[], $2::bytea[]) AS wanted (generation, key) \
    LEFT JOIN states s ON s.generation = wanted.generation AND s.key = wanted.key";

/// Does jobs that only look.
pub(crate) async fn look(house: &House, connection: &Object, jobs: &mut [Job]) -> Result<(), Fault> {
    let limits = house.limits();
    let mut needs = Needs::new();
    for job in jobs.iter() {
        needs_of(job, &limits, &mut needs);
    }
    if needs.is_empty() {
        // Nothing is known of what they ask for, which may be only because it was added a moment ago.
        needs.insert((0, Vec::new()), crate::rows::Need::Look);
    }
    let (generations, keys): (Vec<i64>, Vec<Vec<u8>>) = needs.into_keys().unzip();
    let statement = connection.prepare_cached(LOOK).await?;
    let rows = connection.query(&statement, &[&generations, &keys]).await?;
    let first = rows.first().ok_or_else(|| Fault::Again("there was no answer".to_owned()))?;
    if first.get::<_, i64>(0) != limits.revision {
        return Err(Fault::Again("the limits have changed".to_owned()));
    }
    let seen = rows.iter().filter_map(|row| row.get::<_, Option<i64>>(5)).max().unwrap_or(0);
    let now = house.time.now(first.get(1)).max(instant(seen));
    let mut working_set = WorkingSet::new(house.tick, house.secret, house.number());
    working_set.advance(now);
    for entry in jobs.iter().flat_map(|job| named(job, &limits)).filter_map(|each| limits.incarnation(each)) {
        if working_set.fence_of(entry.id()).is_none() {
            let generation = u64::try_from(entry.generation).unwrap_or(0);
            let standing =
                LoadedLimit { generation, fence: 0, retired_until: None, elsewhere: UnloadedRows::default() };
            working_set.limit(Arc::clone(&entry.limit), standing);
        }
    }
    for row in &rows {
        let (Some(edition), Some(entry)) = (row.get::<_, Option<i32>>(4), limits.incarnation(row.get(2)))
        else {
            continue;
        };
        let key = key_of(row.get(3));
        working_set.row(entry.id(), key, entry.bring_up(row.get(6), edition, key)?);
    }
    for job in jobs.iter_mut() {
        job.perform(&mut working_set);
    }
    Ok(())
}

/// Until when leases are held.
pub(crate) async fn held_until(
    house: &House,
    connection: &Object,
    ids: &[LeaseId],
) -> Result<Vec<Option<Timestamp>>, Fault> {
    let leases = read_leases(connection, ids, false).await?;
    let clock = connection.prepare_cached(CLOCK).await?;
    let now = house.time.now(connection.query_one(&clock, &[]).await?.get(0));
    if leases.values().any(|row| !row.is_known(&house.limits())) {
        // Its limit is gone, or another server has made it a moment ago.
        house.refresh(connection).await?;
    }
    let limits = house.limits();
    let held = |id: &LeaseId| {
        let row = leases.get(id).filter(|row| row.is_known(&limits))?;
        Some(row.lease.expires_at).filter(|end| now < *end)
    };
    Ok(ids.iter().map(held).collect())
}
