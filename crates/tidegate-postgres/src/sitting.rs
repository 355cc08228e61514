//! A sitting: one transaction that does many jobs.
//!
//! ```text
//!   BEGIN · the limits' lock, shared · revision · blank rows · rows, locked · clock      one round trip
//!        the plain store decides on what was brought (`WorkingSet`)
//!   what changed · COMMIT                                                                another
//! ```
//!
//! Everybody locks in the same order: the limits' lock, missing rows made blank, rows, request ids, leases; each by name. So nobody waits in
//! a circle. The clock is read when the last lock is held, so that time does not go back from one sitting to the next on the same row.
//!
//! If nothing changed, nothing is committed: a refusal costs no write, and the blank rows that were made for it never were.

mod bounded;
mod bringing;
mod writing;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use deadpool_postgres::Object;
use futures_util::try_join;
use tidegate::store::map::working_set::WorkingSet;
use tidegate_core::{LeaseId, Timestamp};

use crate::connecting::Fault;
use crate::house::House;
use crate::job::{Job, Task};
use crate::limits::{Limits, instant};
use crate::rows::{ALL, Need, Needs, RowName, needs_of};

pub(crate) use bounded::LAPSED;
pub(crate) use bringing::{LeaseRow, read_leases};
use bringing::{Loaded, Request};

/// What the database says the time is, in microseconds.
pub(crate) const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Who decides shares this with all who do.
const SHARED_LOCK: &str = "SELECT pg_advisory_xact_lock_shared($1)";

/// Makes the rows that are missing, so that they can be locked.
const MAKE_BLANK: &str = "INSERT INTO states (generation, key, edition) \
    SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::integer[]) AS wanted (generation, key, edition) ORDER BY 1, 2 \
    ON CONFLICT DO NOTHING RETURNING generation, key";

/// Locks rows, in the order of their names.
const LOCK_ROWS: &str = "SELECT s.generation, s.key, s.edition, s.seen, s.resets, s.fence, s.keys, s.state \
    FROM unnest($1::bigint[], $2::bytea[]) AS wanted (generation, key) \
    JOIN states s ON s.generation = wanted.generation AND s.key = wanted.key ORDER BY 1, 2 FOR UPDATE OF s";

const MAKE_REQUESTS: &str = "INSERT INTO requests (id, until, body) \
    SELECT id, 0, '' FROM unnest($1::bytea[]) AS wanted (id) ORDER BY 1 ON CONFLICT DO NOTHING RETURNING id";

const LOCK_REQUESTS: &str =
    "SELECT id, until, body FROM requests WHERE id = ANY ($1::bytea[]) ORDER BY id FOR UPDATE";

/// What is in hand when everything is locked.
pub(crate) struct Sitting<'a> {
    house: &'a House,
    connection: &'a Object,
    limits: Arc<Limits>,
    rows: Vec<Loaded>,
    leases: HashMap<LeaseId, LeaseRow>,
    settlements: Vec<(LeaseId, Timestamp)>,
    requests: Vec<Request>,
    /// Leases that were read to be told of, and nothing else.
    looked_at: HashSet<LeaseId>,
    /// The limits that are asked.
    named: HashSet<i64>,
    /// How many rows of a limit are looked at and are not there.
    absent: HashMap<i64, i64>,
    now: Timestamp,
    /// Whether something was written already.
    has_written: bool,
}

/// How a sitting begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// With the limits as they are known here; if they are others by now, it has to begin again.
    Trusting,
    /// The limits are read when nobody can change them any more.
    Careful,
}

/// Does the jobs. After an error nothing is changed, unless it came of the commit itself.
pub(crate) async fn sit(
    house: &House,
    connection: &Object,
    jobs: &mut [Job],
    start: Start,
) -> Result<(), Fault> {
    if start == Start::Careful {
        connection.batch_execute("BEGIN").await?;
        let shared = connection.prepare_cached(SHARED_LOCK).await?;
        connection.query(&shared, &[&house.limits_lock]).await?;
        house.refresh(connection).await?;
    }
    let limits = house.limits();
    let mut needs = Needs::new();
    for job in jobs.iter() {
        needs_of(job, &limits, &mut needs);
    }
    let ids: Vec<LeaseId> = jobs.iter().flat_map(Job::leases).copied().collect();
    if !ids.is_empty() {
        // What leases hold never changes, so it can be read before anything is locked.
        for lease in read_leases(connection, &ids, false).await?.values() {
            lease.needs(&limits, &mut needs);
        }
    }
    let mut sitting = Sitting::begin(house, connection, limits, needs, &ids, jobs, start).await?;
    let mut working_set = sitting.bring().await?;
    for job in jobs.iter_mut() {
        job.perform(&mut working_set);
        if let Task::Reset { limit_id, key, done: Some(Ok(())), .. } = &job.task {
            sitting.was_reset(limit_id, key);
        }
    }
    sitting.write(&mut working_set).await
}

impl<'a> Sitting<'a> {
    /// Locks everything, and reads it.
    async fn begin(
        house: &'a House,
        connection: &'a Object,
        limits: Arc<Limits>,
        needs: Needs,
        leases: &[LeaseId],
        jobs: &[Job],
        start: Start,
    ) -> Result<Sitting<'a>, Fault> {
        let named = jobs.iter().flat_map(|job| named(job, &limits)).collect();
        let settles = jobs.iter().any(|job| matches!(job.task, Task::Settle { .. }));
        let mut request_ids: Vec<Vec<u8>> = request_ids(jobs);
        request_ids.sort_unstable();
        request_ids.dedup();
        let wanted = Wanted::of(&needs, &limits, house, start);
        let (blank, rows, clock) = (
            connection.prepare_cached(MAKE_BLANK),
            connection.prepare_cached(LOCK_ROWS),
            connection.prepare_cached(CLOCK),
        );
        let shared = connection.prepare_cached(SHARED_LOCK);
        let revision = connection.prepare_cached("SELECT revision FROM store");
        let (blank, rows, clock, shared, revision) = try_join!(blank, rows, clock, shared, revision)?;

        // Everything is sent at once; the database does it in this order.
        let begun = async {
            if start == Start::Careful {
                return Ok(());
            }
            connection.batch_execute("BEGIN").await.map_err(Fault::from)
        };
        let lock_key: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&house.limits_lock];
        let shared = async { connection.query(&shared, &lock_key).await.map_err(Fault::from) };
        let revision = async { connection.query_one(&revision, &[]).await.map_err(Fault::from) };
        let made = async {
            if wanted.blank.0.is_empty() {
                return Ok(Vec::new());
            }
            let (generations, keys, editions) = &wanted.blank;
            connection.query(&blank, &[generations, keys, editions]).await.map_err(Fault::from)
        };
        let locked = async {
            if wanted.all.0.is_empty() {
                return Ok(Vec::new());
            }
            connection.query(&rows, &[&wanted.all.0, &wanted.all.1]).await.map_err(Fault::from)
        };
        // The clock last: where nothing else is locked it is read in the same breath.
        let rest = async {
            let mut rest = Rest::default();
            if !request_ids.is_empty() {
                rest.requests = lock_requests(connection, &request_ids).await?;
            }
            if !leases.is_empty() {
                rest.leases = read_leases(connection, leases, true).await?;
            }
            if settles {
                rest.settlements = bringing::read_settlements(connection, leases).await?;
            }
            rest.micros = connection.query_one(&clock, &[]).await?.get(0);
            Ok::<Rest, Fault>(rest)
        };
        let (begun, shared, revision, made, locked, rest) =
            futures_util::join!(begun, shared, revision, made, locked, rest);
        // The first that failed says why; those behind it only that they could not.
        begun?;
        shared?;
        let revision: i64 = revision?.get(0);
        if revision != limits.revision {
            return Err(Fault::Again("the limits have changed".to_owned()));
        }
        let made = made?;
        let mut rows: Vec<Loaded> = locked?.iter().map(Loaded::read).collect();
        for name in made.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, Vec<u8>>(1))) {
            if let Ok(found) = rows.binary_search_by(|row| row.name.cmp(&name)) {
                rows[found].is_new = true;
            }
        }
        let missing = missing(&needs, &rows);
        if !missing.is_empty() {
            house.lost(missing.into_iter());
            return Err(Fault::Again("a row was forgotten meanwhile".to_owned()));
        }
        let mut absent: HashMap<i64, i64> = HashMap::new();
        for (generation, _) in needs.keys().filter(|name| !is_there(name, &rows)) {
            *absent.entry(*generation).or_default() += 1;
        }
        let Rest { requests, leases, settlements, micros } = rest?;
        let now = house.time.now(micros);
        let seen = rows.iter().map(|row| row.seen).max().unwrap_or_default();
        Ok(Sitting {
            house,
            connection,
            limits,
            rows,
            leases,
            settlements,
            requests,
            looked_at: HashSet::new(),
            named,
            absent,
            now: now.max(seen),
            has_written: false,
        })
    }

    /// What the working_set is asked about.
    async fn bring(&mut self) -> Result<WorkingSet, Fault> {
        let elsewhere = self.count_elsewhere().await?;
        let looked_at = self.leases_of_requests().await?;
        self.working_set(&elsewhere, looked_at)
    }

    /// A key's row was reset; what was charged to it before cannot be given back.
    fn was_reset(&mut self, limit_id: &str, key: &[u8]) {
        let Some(entry) = self.limits.get(limit_id) else { return };
        let name: RowName = (entry.generation, crate::rows::column_of(Some(key)));
        if let Some(row) = self.rows.iter_mut().find(|row| row.name == name) {
            row.resets += 1;
            row.was_reset = true;
        }
    }
}

/// What is locked after the rows, and when.
#[derive(Default)]
struct Rest {
    requests: Vec<Request>,
    leases: HashMap<LeaseId, LeaseRow>,
    settlements: Vec<(LeaseId, Timestamp)>,
    micros: i64,
}

/// The names of rows, as columns.
struct Wanted {
    all: (Vec<i64>, Vec<Vec<u8>>),
    blank: (Vec<i64>, Vec<Vec<u8>>, Vec<i32>),
}

impl Wanted {
    fn of(needs: &Needs, limits: &Limits, house: &House, start: Start) -> Wanted {
        let mut wanted = Wanted { all: Default::default(), blank: Default::default() };
        for (generation, key) in needs.keys() {
            wanted.all.0.push(*generation);
            wanted.all.1.push(key.clone());
        }
        // The row of all keys is there as long as its limit is.
        let changed = || needs.iter().filter(|(name, need)| **need == Need::Change && name.1 != ALL);
        let names = changed().map(|(name, _)| name);
        // Most rows are there. Who finds out otherwise begins again, carefully.
        let blank = if start == Start::Trusting { house.unknown(names) } else { names.collect() };
        for (generation, key) in blank {
            let edition = limits.incarnation(*generation).map_or(0, |entry| entry.edition);
            wanted.blank.0.push(*generation);
            wanted.blank.1.push(key.clone());
            wanted.blank.2.push(edition);
        }
        wanted
    }
}

/// The rows that are to be changed and are not there.
fn missing<'n>(needs: &'n Needs, rows: &[Loaded]) -> Vec<&'n RowName> {
    let missing = needs.iter().filter(|(name, need)| **need == Need::Change && !is_there(name, rows));
    missing.map(|(name, _)| name).collect()
}

fn is_there(name: &RowName, rows: &[Loaded]) -> bool {
    rows.binary_search_by(|row| row.name.cmp(name)).is_ok()
}

/// The limits that a job asks.
pub(crate) fn named(job: &Job, limits: &Limits) -> Vec<i64> {
    let generation = |id: &str| limits.get(id).map(|entry| entry.generation);
    match &job.task {
        Task::Orders { orders, .. } => {
            orders.iter().flat_map(|order| &order.asks).filter_map(|ask| generation(&ask.limit_id)).collect()
        }
        Task::Reset { limit_id, .. } | Task::Usage { limit_id, .. } | Task::Holders { limit_id, .. } => {
            generation(limit_id).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// The request ids that grants may have been remembered for.
fn request_ids(jobs: &[Job]) -> Vec<Vec<u8>> {
    let mut ids = Vec::new();
    for job in jobs {
        if let Task::Orders { orders, .. } = &job.task {
            let asked = orders.iter().filter(|order| crate::rows::changes(order));
            ids.extend(asked.filter_map(|order| order.request_id.as_deref().map(<[u8]>::to_vec)));
        }
    }
    ids
}

async fn lock_requests(connection: &Object, ids: &[Vec<u8>]) -> Result<Vec<Request>, Fault> {
    // Not prepared ahead: few have such an id, and the statements are kept from then on.
    let make = connection.prepare_cached(MAKE_REQUESTS).await?;
    let lock = connection.prepare_cached(LOCK_REQUESTS).await?;
    let made = connection.query(&make, &[&ids]).await?;
    let locked = connection.query(&lock, &[&ids]).await?;
    let made: Vec<&[u8]> = made.iter().map(|row| row.get(0)).collect();
    let read = locked.iter().map(|row| {
        let id: &[u8] = row.get(0);
        Request { id: id.to_vec(), until: instant(row.get(1)), body: row.get(2), is_new: made.contains(&id) }
    });
    Ok(read.collect())
}
