//! Writing: what is different after the jobs, in as few statements as there are tables.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;

use deadpool_postgres::Object;
use futures_util::future::join_all;
use tidegate::store::journal::{Holding, Lease};
use tidegate::store::map::excerpt::Excerpt;
use tidegate::store::written::bytes::Writer;
use tidegate::store::written::held;
use tidegate_core::{LeaseId, Limit, Per, Row, RowScope, Timestamp, row_codec};
use tokio_postgres::types::ToSql;

use super::Sitting;
use super::bringing::{Loaded, Mark};
use crate::connecting::Fault;
use crate::limits::{Entry, column};
use crate::rows::{ALL, RowName, column_of};

/// When a row may be forgotten is written down to this many seconds: an index on it would otherwise be written with every charge.
const COARSE_SECONDS: u64 = 64;

/// The limit whose leases are seen as activities.
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

const MOVE_LEASES: &str = "UPDATE leases l SET expires_at = n.expires_at, body = n.body \
    FROM unnest($1::bytea[], $2::bigint[], $3::bytea[]) AS n (id, expires_at, body) WHERE l.id = n.id";

const DELETE_LEASES: &str = "DELETE FROM leases WHERE id = ANY ($1::bytea[])";

const REMEMBER: &str = "UPDATE requests r SET until = n.until, body = n.body \
    FROM unnest($1::bytea[], $2::bigint[], $3::bytea[]) AS n (id, until, body) WHERE r.id = n.id";

const DELETE_REQUESTS: &str = "DELETE FROM requests WHERE id = ANY ($1::bytea[])";

const SETTLED: &str = "INSERT INTO settlements (id, until) SELECT * FROM unnest($1::bytea[], $2::bigint[]) \
    ON CONFLICT (id) DO UPDATE SET until = excluded.until";

/// Statements that are sent together, with the commit behind them. There are few of them, whatever they are about.
#[derive(Default)]
struct Script {
    parts: Vec<(&'static str, Vec<Column>)>,
}

/// A statement that is on its way.
type Sent<'a> = Pin<Box<dyn Future<Output = Result<(), tokio_postgres::Error>> + Send + 'a>>;

/// A column of values.
type Column = Box<dyn ToSql + Sync + Send>;

impl Script {
    fn say(&mut self, statement: &'static str, columns: Vec<Column>) {
        self.parts.push((statement, columns));
    }

    /// Sends it all in one breath. In a transaction that has failed the commit changes nothing, and the first that failed says why.
    async fn commit(&self, connection: &Object) -> Result<(), Fault> {
        let mut statements = Vec::with_capacity(self.parts.len());
        for (text, _) in &self.parts {
            statements.push(connection.prepare_cached(text).await?);
        }
        let mut sent: Vec<Sent<'_>> = Vec::new();
        for (statement, (_, columns)) in statements.iter().zip(&self.parts) {
            sent.push(Box::pin(async move {
                let values: Vec<&(dyn ToSql + Sync)> =
                    columns.iter().map(|column| &**column as &(dyn ToSql + Sync)).collect();
                connection.execute(statement, &values).await.map(|_| ())
            }));
        }
        sent.push(Box::pin(async move { connection.batch_execute("COMMIT").await }));
        for said in join_all(sent).await {
            said.map_err(|error| Fault::from(error).while_committing())?;
        }
        Ok(())
    }
}

/// Rows as columns.
#[derive(Debug, Default)]
pub(super) struct Written {
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

impl Written {
    pub(super) fn is_empty(&self) -> bool {
        self.generations.is_empty() && self.gone.0.is_empty()
    }

    /// A row as it is from now on.
    pub(super) fn row(&mut self, entry: &Entry, loaded: &Loaded, row: &Row, now: Timestamp) {
        let limit = &entry.limit;
        let (per, seat) = match loaded.key() {
            None => (Per::All, RowScope::All),
            Some(key) => (Per::Key, RowScope::from(limit.overrides(key))),
        };
        let mut state = Vec::new();
        row_codec::encode(row, limit, per, &mut state);
        let freshens = if per == Per::All { None } else { row.evictable_at(limit, seat, now) };
        let freshens = freshens.map(|at| if entry.bounds_keys() { at } else { coarse(at, limit) });
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

    /// Writes the rows at once.
    pub(super) async fn update(self, connection: &Object) -> Result<(), Fault> {
        let statement = connection.prepare_cached(UPDATE_ROWS).await?;
        let columns = self.columns();
        let values: Vec<&(dyn ToSql + Sync)> =
            columns.iter().map(|column| &**column as &(dyn ToSql + Sync)).collect();
        connection.execute(&statement, &values).await?;
        Ok(())
    }

    fn columns(self) -> Vec<Column> {
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

    fn script(mut self, script: &mut Script) {
        let (generations, keys) = std::mem::take(&mut self.gone);
        if !generations.is_empty() {
            script.say(DELETE_ROWS, vec![Box::new(generations), Box::new(keys)]);
        }
        if !self.generations.is_empty() {
            script.say(UPDATE_ROWS, self.columns());
        }
    }
}

/// The end of the stretch of time that this instant lies in.
fn coarse(at: Timestamp, limit: &Limit) -> Timestamp {
    let stretch = limit.tick().per_second().saturating_mul(COARSE_SECONDS);
    Timestamp::from_ticks(at.ticks().div_ceil(stretch).saturating_mul(stretch))
}

/// When the last of those lapses who hold something here; the end of time if a hold keeps it.
fn held_until(row: &Row, now: Timestamp) -> Option<i64> {
    if row.is_held(Timestamp::from_ticks(u64::MAX)) {
        return Some(i64::MAX);
    }
    row.live_leases(now).last().map(|tenure| column(tenure.expires_at))
}

/// What became of leases.
#[derive(Debug, Default)]
struct LeaseChanges {
    granted: Granted,
    moved: (Vec<Vec<u8>>, Vec<i64>, Vec<Vec<u8>>),
    gone: Vec<Vec<u8>>,
}

/// New leases, as columns.
#[derive(Debug, Default)]
struct Granted {
    ids: Vec<Vec<u8>>,
    generations: Vec<i64>,
    holders: Vec<String>,
    granted_at: Vec<i64>,
    expires_at: Vec<i64>,
    marks: Vec<Vec<u8>>,
    bodies: Vec<Vec<u8>>,
}

impl LeaseChanges {
    fn script(self, script: &mut Script) {
        let granted = self.granted;
        if !granted.ids.is_empty() {
            script.say(
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
            script.say(MOVE_LEASES, vec![Box::new(ids), Box::new(ends), Box::new(bodies)]);
        }
        if !self.gone.is_empty() {
            script.say(DELETE_LEASES, vec![Box::new(self.gone)]);
        }
    }
}

/// What became of request ids and settlements.
#[derive(Debug, Default)]
struct Memories {
    remembered: (Vec<Vec<u8>>, Vec<i64>, Vec<Vec<u8>>),
    unused: Vec<Vec<u8>>,
    settled: (Vec<Vec<u8>>, Vec<i64>),
}

impl Memories {
    fn script(self, script: &mut Script) {
        let (ids, untils, bodies) = self.remembered;
        if !ids.is_empty() {
            script.say(REMEMBER, vec![Box::new(ids), Box::new(untils), Box::new(bodies)]);
        }
        if !self.unused.is_empty() {
            script.say(DELETE_REQUESTS, vec![Box::new(self.unused)]);
        }
        let (ids, untils) = self.settled;
        if !ids.is_empty() {
            script.say(SETTLED, vec![Box::new(ids), Box::new(untils)]);
        }
    }
}

impl Sitting<'_> {
    /// Writes what has changed and commits it, or ends as if nothing had been.
    pub(super) async fn write(&mut self, excerpt: &mut Excerpt) -> Result<(), Fault> {
        let rows = self.changed_rows(excerpt);
        let leases = self.changed_leases(excerpt);
        let memories = self.changed_memories(excerpt);
        let unseen = rows.gone.0.iter().zip(&rows.gone.1).all(|name| self.is_new(name));
        let same_rows = rows.generations.is_empty() && unseen;
        let same_leases =
            leases.granted.ids.is_empty() && leases.moved.0.is_empty() && leases.gone.is_empty();
        let same_memories = memories.remembered.0.is_empty() && memories.settled.0.is_empty();
        if same_rows && same_leases && same_memories && !self.has_written {
            self.connection.batch_execute("ROLLBACK").await?;
            return Ok(());
        }
        let gone: HashSet<RowName> = rows.gone.0.iter().copied().zip(rows.gone.1.iter().cloned()).collect();
        let mut script = Script::default();
        rows.script(&mut script);
        leases.script(&mut script);
        memories.script(&mut script);
        script.commit(self.connection).await?;
        self.house.lost(gone.iter());
        self.house.found(self.rows.iter().map(|row| &row.name).filter(|name| !gone.contains(*name)));
        Ok(())
    }

    fn is_new(&self, (generation, key): (&i64, &Vec<u8>)) -> bool {
        let found = self.rows.iter().find(|row| row.name.0 == *generation && row.name.1 == *key);
        found.is_some_and(|row| row.is_new)
    }

    fn changed_rows(&mut self, excerpt: &mut Excerpt) -> Written {
        let now = self.now;
        let mut written = Written::default();
        let mut keys: HashMap<i64, i64> = HashMap::new();
        for loaded in self.rows.iter().filter(|row| row.name.1 != ALL) {
            let Some(entry) = self.limits.incarnation(loaded.name.0) else { continue };
            let key = loaded.key().unwrap_or_default();
            let seat = RowScope::from(entry.limit.overrides(key));
            let row = excerpt.row_of(entry.id(), Some(key));
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
            let Some(entry) = self.limits.incarnation(loaded.name.0) else { continue };
            let fence = excerpt.fence_of(entry.id()).and_then(|fence| i64::try_from(fence).ok()).unwrap_or(0);
            let fence = fence.max(loaded.fence);
            let more = keys.get(&loaded.name.0).copied().unwrap_or(0);
            loaded.keys = loaded.keys.map(|keys| keys + more);
            let counts_anew = loaded.keys != loaded.keys_read;
            let Some(row) = excerpt.row_of(entry.id(), None) else { continue };
            if fence != loaded.fence || counts_anew || differs(entry, loaded, row) {
                loaded.fence = fence;
                written.row(entry, loaded, row, now);
            }
        }
        written
    }

    fn changed_leases(&self, excerpt: &Excerpt) -> LeaseChanges {
        let mut changes = LeaseChanges::default();
        for (id, row) in &self.leases {
            match excerpt.lease_of(*id) {
                None => changes.gone.push(id.0.to_be_bytes().to_vec()),
                Some(lease) if lease.expires_at != row.lease.expires_at => {
                    changes.moved.0.push(id.0.to_be_bytes().to_vec());
                    changes.moved.1.push(column(lease.expires_at));
                    changes.moved.2.push(lease_bytes(lease));
                }
                Some(_) => {}
            }
        }
        for (id, lease) in excerpt.leases() {
            if !self.leases.contains_key(&id) && !self.looked_at.contains(&id) {
                self.granted(id, lease, &mut changes.granted);
            }
        }
        changes
    }

    fn granted(&self, id: LeaseId, lease: &Lease, granted: &mut Granted) {
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
                // Reset in the same sitting, before or after: it is not known, so nothing is given back.
                row.resets - i32::from(row.was_reset)
            });
            let edition = self.limits.incarnation(generation).map_or(0, |entry| entry.edition);
            Mark { generation, edition, resets }
        });
        granted.ids.push(id.0.to_be_bytes().to_vec());
        granted.generations.push(main.map_or(0, generation_of));
        granted
            .holders
            .push(main.and_then(|holding| holding.key.as_deref()).map(readable).unwrap_or_default());
        granted.granted_at.push(column(self.now));
        granted.expires_at.push(column(lease.expires_at));
        granted.marks.push(Mark::write(marks));
        granted.bodies.push(lease_bytes(lease));
    }

    fn changed_memories(&self, excerpt: &Excerpt) -> Memories {
        let mut memories = Memories::default();
        let grants: HashMap<&[u8], _> = excerpt.requests().collect();
        for request in &self.requests {
            match grants.get(&*request.id) {
                Some(grant) if grant.until != request.until => {
                    let mut body = Vec::new();
                    held::write_grant(&mut Writer(&mut body), grant);
                    memories.remembered.0.push(request.id.clone());
                    memories.remembered.1.push(column(grant.until));
                    memories.remembered.2.push(body);
                }
                None if request.is_new => memories.unused.push(request.id.clone()),
                _ => {}
            }
        }
        for (id, until) in excerpt.settlements() {
            if !self.settlements.iter().any(|(known, _)| *known == id) {
                memories.settled.0.push(id.0.to_be_bytes().to_vec());
                memories.settled.1.push(column(until));
            }
        }
        memories
    }
}

/// Whether a row is not as it was read.
fn differs(entry: &Entry, loaded: &Loaded, row: &Row) -> bool {
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

fn generation_of(holding: &Holding) -> i64 {
    i64::try_from(holding.generation).unwrap_or(0)
}

fn lease_bytes(lease: &Lease) -> Vec<u8> {
    let mut body = Vec::new();
    held::write_lease(&mut Writer(&mut body), lease);
    body
}

/// A key as text: as it is if it can be, else with what cannot be shown escaped.
fn readable(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.contains('\0') => text.to_owned(),
        _ => key.escape_ascii().to_string(),
    }
}
