//! Writes the changes of a transaction, with at most a few statements for each table.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;

use deadpool_postgres::Object;
use futures_util::future::join_all;
use tidegate::store::codec::leases as lease_codec;
use tidegate::store::codec::primitives::ByteWriter;
use tidegate::store::journal::{LeaseHolding, LeaseRecord};
use tidegate::store::map::working_set::WorkingSet;
use tidegate_core::{LeaseId, Limit, Per, Row, RowScope, Timestamp, row_codec};
use tokio_postgres::types::ToSql;

use super::DecisionTransaction;
use super::load_rows::{ChargeMark, LoadedRow};
use crate::connections::DatabaseError;
use crate::limit_snapshot::{LimitEntry, column};
use crate::row_names::{ALL, RowName, column_of};

/// The time when a row becomes evictable is rounded up to this many seconds. Otherwise every charge would update its index.
const EVICTION_TIME_GRANULARITY_SECONDS: u64 = 64;

/// The limit whose leases the session view shows.
const ACTIVITY: &str = "activity";

const UPDATE_ROWS: &str = "UPDATE states s SET edition = n.edition, seen = n.seen, freshens = n.freshens, \
    held_until = n.held_until, resets = n.resets, fence = n.fence, keys = n.keys, state = n.state \
    FROM unnest($1::bigint[], $2::bytea[], $3::integer[], $4::bigint[], $5::bigint[], $6::bigint[], $7::integer[], $8::bigint[], \
    $9::bigint[], $10::bytea[]) AS n (generation, key, edition, seen, freshens, held_until, resets, fence, keys, state) \
    WHERE s.generation = n.generation AND s.key = n.key";

const DELETE_ROWS: &str = "DELETE FROM states s USING unnest($1::bigint[], $2::bytea[]) AS n (generation, key) \
    WHERE s.generation = n.generation AND s.key = n.key";

const INSERT_LEASES: &str = "INSERT INTO leases (id, generation, holder, granted_at, expires_at, marks, body) \
    SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bytea[])";

const RENEW_LEASES: &str = "UPDATE leases l SET expires_at = n.expires_at, body = n.body \
    FROM unnest($1::bytea[], $2::bigint[], $3::bytea[]) AS n (id, expires_at, body) WHERE l.id = n.id";

const DELETE_LEASES: &str = "DELETE FROM leases WHERE id = ANY ($1::bytea[])";

const UPDATE_REQUESTS: &str = "UPDATE requests r SET until = n.until, body = n.body \
    FROM unnest($1::bytea[], $2::bigint[], $3::bytea[]) AS n (id, until, body) WHERE r.id = n.id";

const DELETE_REQUESTS: &str = "DELETE FROM requests WHERE id = ANY ($1::bytea[])";

const INSERT_SETTLEMENTS: &str = "INSERT INTO settlements (id, until) SELECT * FROM unnest($1::bytea[], $2::bigint[]) \
    ON CONFLICT (id) DO UPDATE SET until = excluded.until";

/// Statements that are pipelined and followed by a commit.
#[derive(Default)]
struct StatementBatch {
    parts: Vec<(&'static str, Vec<SqlColumn>)>,
}

/// A statement in flight.
type PendingStatement<'a> = Pin<Box<dyn Future<Output = Result<(), tokio_postgres::Error>> + Send + 'a>>;

/// The values of a column.
type SqlColumn = Box<dyn ToSql + Sync + Send>;

impl StatementBatch {
    fn add(&mut self, statement: &'static str, columns: Vec<SqlColumn>) {
        self.parts.push((statement, columns));
    }

    /// Sends all statements and the commit at once. If a statement fails, the commit changes nothing, and the first error is the
    /// cause.
    async fn commit(&self, connection: &Object) -> Result<(), DatabaseError> {
        let mut statements = Vec::with_capacity(self.parts.len());
        for (text, _) in &self.parts {
            statements.push(connection.prepare_cached(text).await?);
        }
        let mut sent: Vec<PendingStatement<'_>> = Vec::new();
        for (statement, (_, columns)) in statements.iter().zip(&self.parts) {
            sent.push(Box::pin(async move {
                let values: Vec<&(dyn ToSql + Sync)> =
                    columns.iter().map(|column| &**column as &(dyn ToSql + Sync)).collect();
                connection.execute(statement, &values).await.map(|_| ())
            }));
        }
        sent.push(Box::pin(async move { connection.batch_execute("COMMIT").await }));
        for result in join_all(sent).await {
            result.map_err(|error| DatabaseError::from(error).while_committing())?;
        }
        Ok(())
    }
}

/// Row updates, as columns.
#[derive(Debug, Default)]
pub(super) struct RowUpdates {
    generations: Vec<i64>,
    keys: Vec<Vec<u8>>,
    editions: Vec<i32>,
    seen: Vec<i64>,
    freshens: Vec<Option<i64>>,
    held_until: Vec<Option<i64>>,
    resets: Vec<i32>,
    fences: Vec<i64>,
    counts: Vec<Option<i64>>,
    states: Vec<Vec<u8>>,
    gone: (Vec<i64>, Vec<Vec<u8>>),
}

impl RowUpdates {
    pub(super) fn is_empty(&self) -> bool {
        self.generations.is_empty() && self.gone.0.is_empty()
    }

    /// Adds the new state of a row.
    pub(super) fn row(&mut self, entry: &LimitEntry, loaded: &LoadedRow, row: &Row, now: Timestamp) {
        let limit = &entry.limit;
        let (per, seat) = match loaded.key() {
            None => (Per::All, RowScope::All),
            Some(key) => (Per::Key, RowScope::from(limit.overrides(key))),
        };
        let mut state = Vec::new();
        row_codec::encode(row, limit, per, &mut state);
        let freshens = if per == Per::All { None } else { row.evictable_at(limit, seat, now) };
        let freshens = freshens.map(|at| if entry.bounds_keys() { at } else { round_up(at, limit) });
        self.generations.push(loaded.name.0);
        self.keys.push(loaded.name.1.clone());
        self.editions.push(entry.edition);
        self.seen.push(column(now));
        self.freshens.push(freshens.map(column));
        self.held_until.push(held_until(row, now));
        self.resets.push(loaded.resets);
        self.fences.push(loaded.fence);
        self.counts.push(loaded.keys);
        self.states.push(state);
    }

    fn gone(&mut self, name: &RowName) {
        self.gone.0.push(name.0);
        self.gone.1.push(name.1.clone());
    }

    /// Writes the rows immediately.
    pub(super) async fn update(self, connection: &Object) -> Result<(), DatabaseError> {
        let statement = connection.prepare_cached(UPDATE_ROWS).await?;
        let columns = self.columns();
        let values: Vec<&(dyn ToSql + Sync)> =
            columns.iter().map(|column| &**column as &(dyn ToSql + Sync)).collect();
        connection.execute(&statement, &values).await?;
        Ok(())
    }

    fn columns(self) -> Vec<SqlColumn> {
        vec![
            Box::new(self.generations),
            Box::new(self.keys),
            Box::new(self.editions),
            Box::new(self.seen),
            Box::new(self.freshens),
            Box::new(self.held_until),
            Box::new(self.resets),
            Box::new(self.fences),
            Box::new(self.counts),
            Box::new(self.states),
        ]
    }

    fn script(mut self, script: &mut StatementBatch) {
        let (generations, keys) = std::mem::take(&mut self.gone);
        if !generations.is_empty() {
            script.add(DELETE_ROWS, vec![Box::new(generations), Box::new(keys)]);
        }
        if !self.generations.is_empty() {
            script.add(UPDATE_ROWS, self.columns());
        }
    }
}

/// Rounds an instant up to the granularity.
fn round_up(at: Timestamp, limit: &Limit) -> Timestamp {
    let stretch = limit.tick().per_second().saturating_mul(EVICTION_TIME_GRANULARITY_SECONDS);
    Timestamp::from_ticks(at.ticks().div_ceil(stretch).saturating_mul(stretch))
}

/// The last expiry of the leases in a row. The end of time if a hold keeps the row.
fn held_until(row: &Row, now: Timestamp) -> Option<i64> {
    if row.is_held(Timestamp::from_ticks(u64::MAX)) {
        return Some(i64::MAX);
    }
    row.live_leases(now).last().map(|tenure| column(tenure.expires_at))
}

/// Changes of leases.
#[derive(Debug, Default)]
struct LeaseChanges {
    granted: GrantedLeases,
    moved: (Vec<Vec<u8>>, Vec<i64>, Vec<Vec<u8>>),
    gone: Vec<Vec<u8>>,
}

/// New leases, as columns.
#[derive(Debug, Default)]
struct GrantedLeases {
    ids: Vec<Vec<u8>>,
    generations: Vec<i64>,
    holders: Vec<String>,
    granted_at: Vec<i64>,
    expires_at: Vec<i64>,
    marks: Vec<Vec<u8>>,
    bodies: Vec<Vec<u8>>,
}

impl LeaseChanges {
    fn script(self, script: &mut StatementBatch) {
        let granted = self.granted;
        if !granted.ids.is_empty() {
            script.add(
                INSERT_LEASES,
                vec![
                    Box::new(granted.ids),
                    Box::new(granted.generations),
                    Box::new(granted.holders),
                    Box::new(granted.granted_at),
                    Box::new(granted.expires_at),
                    Box::new(granted.marks),
                    Box::new(granted.bodies),
                ],
            );
        }
        let (ids, ends, bodies) = self.moved;
        if !ids.is_empty() {
            script.add(RENEW_LEASES, vec![Box::new(ids), Box::new(ends), Box::new(bodies)]);
        }
        if !self.gone.is_empty() {
            script.add(DELETE_LEASES, vec![Box::new(self.gone)]);
        }
    }
}

/// Changes of request ids and settlements.
#[derive(Debug, Default)]
struct RequestChanges {
    remembered: (Vec<Vec<u8>>, Vec<i64>, Vec<Vec<u8>>),
    unused: Vec<Vec<u8>>,
    settled: (Vec<Vec<u8>>, Vec<i64>),
}

impl RequestChanges {
    fn script(self, script: &mut StatementBatch) {
        let (ids, untils, bodies) = self.remembered;
        if !ids.is_empty() {
            script.add(UPDATE_REQUESTS, vec![Box::new(ids), Box::new(untils), Box::new(bodies)]);
        }
        if !self.unused.is_empty() {
            script.add(DELETE_REQUESTS, vec![Box::new(self.unused)]);
        }
        let (ids, untils) = self.settled;
        if !ids.is_empty() {
            script.add(INSERT_SETTLEMENTS, vec![Box::new(ids), Box::new(untils)]);
        }
    }
}

impl DecisionTransaction<'_> {
    /// Writes the changes and commits, or rolls back if there are none.
    pub(super) async fn write(&mut self, working_set: &mut WorkingSet) -> Result<(), DatabaseError> {
        let rows = self.changed_rows(working_set);
        let leases = self.changed_leases(working_set);
        let request_changes = self.changed_requests(working_set);
        let unseen = rows.gone.0.iter().zip(&rows.gone.1).all(|name| self.is_new(name));
        let same_rows = rows.generations.is_empty() && unseen;
        let same_leases =
            leases.granted.ids.is_empty() && leases.moved.0.is_empty() && leases.gone.is_empty();
        let same_requests = request_changes.remembered.0.is_empty() && request_changes.settled.0.is_empty();
        if same_rows && same_leases && same_requests && !self.has_written {
            self.connection.batch_execute("ROLLBACK").await?;
            return Ok(());
        }
        let gone: HashSet<RowName> = rows.gone.0.iter().copied().zip(rows.gone.1.iter().cloned()).collect();
        let mut script = StatementBatch::default();
        rows.script(&mut script);
        leases.script(&mut script);
        request_changes.script(&mut script);
        script.commit(self.connection).await?;
        self.shared_state.mark_missing(gone.iter());
        self.shared_state
            .mark_found(self.rows.iter().map(|row| &row.name).filter(|name| !gone.contains(*name)));
        Ok(())
    }

    fn is_new(&self, (generation, key): (&i64, &Vec<u8>)) -> bool {
        let found = self.rows.iter().find(|row| row.name.0 == *generation && row.name.1 == *key);
        found.is_some_and(|row| row.is_new)
    }

    fn changed_rows(&mut self, working_set: &mut WorkingSet) -> RowUpdates {
        let now = self.now;
        let mut written = RowUpdates::default();
        let mut keys: HashMap<i64, i64> = HashMap::new();
        for loaded in self.rows.iter().filter(|row| row.name.1 != ALL) {
            let Some(entry) = self.limits.entry_of_generation(loaded.name.0) else { continue };
            let key = loaded.key().unwrap_or_default();
            let seat = RowScope::from(entry.limit.overrides(key));
            let row = working_set.row_of(entry.id(), Some(key));
            match row.filter(|row| !(loaded.is_new && row.is_evictable(&entry.limit, seat, now))) {
                Some(row) if loaded.is_new || differs(entry, loaded, row) => {
                    written.row(entry, loaded, row, now);
                    *keys.entry(loaded.name.0).or_default() += i64::from(loaded.is_new);
                }
                Some(_) => {}
                None => {
                    written.gone(&loaded.name);
                    *keys.entry(loaded.name.0).or_default() -= i64::from(!loaded.is_new);
                }
            }
        }
        for loaded in self.rows.iter_mut().filter(|row| row.name.1 == ALL) {
            let Some(entry) = self.limits.entry_of_generation(loaded.name.0) else { continue };
            let fence =
                working_set.fence_of(entry.id()).and_then(|fence| i64::try_from(fence).ok()).unwrap_or(0);
            let fence = fence.max(loaded.fence);
            let more = keys.get(&loaded.name.0).copied().unwrap_or(0);
            loaded.keys = loaded.keys.map(|keys| keys + more);
            let counts_anew = loaded.keys != loaded.keys_read;
            let Some(row) = working_set.row_of(entry.id(), None) else { continue };
            if fence != loaded.fence || counts_anew || differs(entry, loaded, row) {
                loaded.fence = fence;
                written.row(entry, loaded, row, now);
            }
        }
        written
    }

    fn changed_leases(&self, working_set: &WorkingSet) -> LeaseChanges {
        let mut changes = LeaseChanges::default();
        for (id, row) in &self.leases {
            match working_set.lease_of(*id) {
                None => changes.gone.push(id.0.to_be_bytes().to_vec()),
                Some(lease) if lease.expires_at != row.lease.expires_at => {
                    changes.moved.0.push(id.0.to_be_bytes().to_vec());
                    changes.moved.1.push(column(lease.expires_at));
                    changes.moved.2.push(lease_bytes(lease));
                }
                Some(_) => {}
            }
        }
        for (id, lease) in working_set.leases() {
            if !self.leases.contains_key(&id) && !self.read_only_leases.contains(&id) {
                self.granted(id, lease, &mut changes.granted);
            }
        }
        changes
    }

    fn granted(&self, id: LeaseId, lease: &LeaseRecord, granted: &mut GrantedLeases) {
        let main =
            lease.holdings.iter().find(|holding| *holding.limit_id == *ACTIVITY && holding.key.is_some());
        let main = main.or_else(|| lease.holdings.iter().find(|holding| holding.key.is_some()));
        let main = main.or(lease.holdings.first());
        let marks = lease.holdings.iter().map(|holding| {
            let generation = generation_of(holding);
            let name: RowName = (generation, column_of(holding.key.as_deref()));
            let found = self.rows.binary_search_by(|row| row.name.cmp(&name));
            let resets = found.map_or(0, |found| {
                let row = &self.rows[found];
                // The row was reset in this transaction. The order is unknown, so the charge cannot be refunded.
                row.resets - i32::from(row.was_reset)
            });
            let edition = self.limits.entry_of_generation(generation).map_or(0, |entry| entry.edition);
            ChargeMark { generation, edition, resets }
        });
        granted.ids.push(id.0.to_be_bytes().to_vec());
        granted.generations.push(main.map_or(0, generation_of));
        granted
            .holders
            .push(main.and_then(|holding| holding.key.as_deref()).map(key_text).unwrap_or_default());
        granted.granted_at.push(column(self.now));
        granted.expires_at.push(column(lease.expires_at));
        granted.marks.push(ChargeMark::write(marks));
        granted.bodies.push(lease_bytes(lease));
    }

    fn changed_requests(&self, working_set: &WorkingSet) -> RequestChanges {
        let mut request_changes = RequestChanges::default();
        let grants: HashMap<&[u8], _> = working_set.requests().collect();
        for request in &self.requests {
            match grants.get(&*request.id) {
                Some(grant) if grant.until != request.until => {
                    let mut body = Vec::new();
                    lease_codec::write_grant(&mut ByteWriter(&mut body), grant);
                    request_changes.remembered.0.push(request.id.clone());
                    request_changes.remembered.1.push(column(grant.until));
                    request_changes.remembered.2.push(body);
                }
                None if request.is_new => request_changes.unused.push(request.id.clone()),
                _ => {}
            }
        }
        for (id, until) in working_set.settlements() {
            if !self.settlements.iter().any(|(known, _)| *known == id) {
                request_changes.settled.0.push(id.0.to_be_bytes().to_vec());
                request_changes.settled.1.push(column(until));
            }
        }
        request_changes
    }
}

/// Whether a row differs from what was read.
fn differs(entry: &LimitEntry, loaded: &LoadedRow, row: &Row) -> bool {
    if loaded.edition != entry.edition || loaded.was_reset {
        return true;
    }
    let per = if loaded.key().is_some() { Per::Key } else { Per::All };
    if loaded.state.is_empty() {
        return *row != Row::blank(&entry.limit, per);
    }
    let mut state = Vec::with_capacity(loaded.state.len());
    row_codec::encode(row, &entry.limit, per, &mut state);
    state != loaded.state
}

fn generation_of(holding: &LeaseHolding) -> i64 {
    i64::try_from(holding.generation).unwrap_or(0)
}

fn lease_bytes(lease: &LeaseRecord) -> Vec<u8> {
    let mut body = Vec::new();
    lease_codec::write_lease(&mut ByteWriter(&mut body), lease);
    body
}

/// A key as text, with escapes if it is not printable.
fn key_text(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.contains('\0') => text.to_owned(),
        _ => key.escape_ascii().to_string(),
    }
}
