//! Loads rows, leases and requests from the tables into a working set.

use std::collections::HashMap;
use std::sync::Arc;

use deadpool_postgres::Object;
use tidegate::reply::Outcome;
use tidegate::store::codec::primitives::{ByteReader, ByteWriter};
use tidegate::store::codec::{CodecError, leases as lease_codec};
use tidegate::store::journal::{LeaseRecord, RememberedGrant};
use tidegate::store::map::working_set::{LoadedLimit, UnloadedRows, WorkingSet};
use tidegate_core::{LeaseId, Limit, Timestamp};

use super::DecisionTransaction;
use crate::connections::DatabaseError;
use crate::limit_snapshot::{LimitSnapshot, LimitStatus, instant};
use crate::row_names::{ALL, NeededRows, RowAccess, RowName, key_of, need};

const READ_LEASES: &str = "SELECT id, marks, body FROM leases WHERE id = ANY ($1::bytea[])";

const LOCK_LEASES: &str = "SELECT id, marks, body FROM leases \
    WHERE id = ANY ($1::bytea[]) ORDER BY id FOR UPDATE";

/// A locked row as it was read.
#[derive(Debug)]
pub(super) struct LoadedRow {
    pub(super) name: RowName,
    pub(super) edition: i32,
    pub(super) seen: Timestamp,
    pub(super) resets: i32,
    pub(super) fence: i64,
    pub(super) keys: Option<i64>,
    /// The number of rows when it was read.
    pub(super) keys_read: Option<i64>,
    pub(super) state: Vec<u8>,
    /// Whether this transaction created the row.
    pub(super) is_new: bool,
    pub(super) was_reset: bool,
}

impl LoadedRow {
    pub(super) fn read(row: &tokio_postgres::Row) -> LoadedRow {
        LoadedRow {
            name: (row.get(0), row.get(1)),
            edition: row.get(2),
            seen: instant(row.get(3)),
            resets: row.get(4),
            fence: row.get(5),
            keys: row.get(6),
            keys_read: row.get(6),
            state: row.get(7),
            is_new: false,
            was_reset: false,
        }
    }

    pub(super) fn key(&self) -> Option<&[u8]> {
        key_of(&self.name.1)
    }
}

/// A locked request id.
#[derive(Debug)]
pub(super) struct RequestRow {
    pub(super) id: Vec<u8>,
    pub(super) until: Timestamp,
    pub(super) body: Vec<u8>,
    pub(super) is_new: bool,
}

/// A lease in the table.
#[derive(Debug, Clone)]
pub(crate) struct LeaseRow {
    pub(crate) lease: LeaseRecord,
    /// One mark for each holding.
    pub(crate) marks: Vec<ChargeMark>,
}

/// The state of the row that a holding was charged to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChargeMark {
    pub(crate) generation: i64,
    pub(crate) edition: i32,
    /// The number of resets of the row at that time.
    pub(crate) resets: i32,
}

impl ChargeMark {
    pub(super) fn write(marks: impl ExactSizeIterator<Item = ChargeMark>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut out = ByteWriter(&mut bytes);
        out.number(marks.len() as u64);
        for mark in marks {
            out.number(mark.generation.cast_unsigned());
            out.number(u64::from(mark.edition.cast_unsigned()));
            out.number(u64::from(mark.resets.cast_unsigned()));
        }
        bytes
    }

    fn read(reader: &mut ByteReader<'_>) -> Result<ChargeMark, CodecError> {
        Ok(ChargeMark {
            generation: reader.number()?.cast_signed(),
            edition: reader.number32()?.cast_signed(),
            resets: reader.number32()?.cast_signed(),
        })
    }
}

impl LeaseRow {
    /// Adds the rows of its holdings.
    pub(crate) fn needs(&self, limits: &LimitSnapshot, needs: &mut NeededRows) {
        for (holding, mark) in self.lease.holdings.iter().zip(&self.marks) {
            if let Some(entry) = limits.entry_of_generation(mark.generation) {
                need(entry, holding.key.as_deref(), RowAccess::Write, needs);
            }
        }
    }

    /// Whether at least one of its limits exists. A lease without holdings is always known.
    pub(crate) fn is_known(&self, limits: &LimitSnapshot) -> bool {
        self.marks.is_empty()
            || self.marks.iter().any(|mark| limits.entry_of_generation(mark.generation).is_some())
    }
}

/// Reads leases. Locks them if `lock` is set.
pub(crate) async fn read_leases(
    connection: &Object,
    ids: &[LeaseId],
    lock: bool,
) -> Result<HashMap<LeaseId, LeaseRow>, DatabaseError> {
    let statement = connection.prepare_cached(if lock { LOCK_LEASES } else { READ_LEASES }).await?;
    let ids: Vec<Vec<u8>> = ids.iter().map(|id| id.0.to_be_bytes().to_vec()).collect();
    let rows = connection.query(&statement, &[&ids]).await?;
    rows.iter().map(read_lease).collect()
}

fn read_lease(row: &tokio_postgres::Row) -> Result<(LeaseId, LeaseRow), DatabaseError> {
    let damaged = |why: String| DatabaseError::Rejected(format!("a stored lease is damaged: {why}"));
    let id: &[u8] = row.get(0);
    let id = id.try_into().map_err(|_| damaged("invalid id".to_owned()))?;
    let lease =
        lease_codec::read_lease(&mut ByteReader::new(row.get(2))).map_err(|why| damaged(why.to_string()))?;
    let marks =
        ByteReader::new(row.get(1)).many(3, ChargeMark::read).map_err(|why| damaged(why.to_string()))?;
    if marks.len() != lease.holdings.len() {
        return Err(damaged("wrong number of marks".to_owned()));
    }
    Ok((LeaseId(u128::from_be_bytes(id)), LeaseRow { lease, marks }))
}

/// Reads the stored settlements of leases.
pub(super) async fn read_settlements(
    connection: &Object,
    ids: &[LeaseId],
) -> Result<Vec<(LeaseId, Timestamp)>, DatabaseError> {
    let statement =
        connection.prepare_cached("SELECT id, until FROM settlements WHERE id = ANY ($1::bytea[])").await?;
    let ids: Vec<Vec<u8>> = ids.iter().map(|id| id.0.to_be_bytes().to_vec()).collect();
    let rows = connection.query(&statement, &[&ids]).await?;
    let read = rows.iter().filter_map(|row| {
        let id: [u8; 16] = row.get::<_, &[u8]>(0).try_into().ok()?;
        Some((LeaseId(u128::from_be_bytes(id)), instant(row.get(1))))
    });
    Ok(read.collect())
}

impl DecisionTransaction<'_> {
    /// The leases of stored grants. The reply reports their current expiry.
    pub(super) async fn leases_of_requests(&self) -> Result<HashMap<LeaseId, LeaseRow>, DatabaseError> {
        let mut ids = Vec::new();
        for request in self.requests.iter().filter(|request| self.now < request.until) {
            if let Outcome::Granted(Some(grant)) = self.decode_grant(request)?.answer.outcome {
                ids.push(grant.lease);
            }
        }
        ids.retain(|id| !self.leases.contains_key(id));
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        read_leases(self.connection, &ids, false).await
    }

    fn decode_grant(&self, request: &RequestRow) -> Result<RememberedGrant, DatabaseError> {
        let limit_of = |id: &str| self.limits.get(id).map(|entry| Arc::<Limit>::clone(&entry.limit));
        lease_codec::read_grant(&mut ByteReader::new(&request.body), &limit_of)
            .map_err(|why| DatabaseError::Rejected(format!("a stored grant is damaged: {why}")))
    }

    /// Builds a working set from everything that was read.
    pub(super) fn fill_working_set(
        &mut self,
        key_counts: &super::key_bounds::KeyCounts,
        read_only_leases: HashMap<LeaseId, LeaseRow>,
    ) -> Result<WorkingSet, DatabaseError> {
        let mut working_set = WorkingSet::new(
            self.shared_state.tick,
            self.shared_state.secret,
            self.shared_state.next_lease_number(),
        );
        working_set.advance(self.now);
        working_set.next_lapse(key_counts.next_lease_expiry);
        let mut generation = None;
        for row in &self.rows {
            let Some(entry) = self.limits.entry_of_generation(row.name.0) else { continue };
            // Rows of one limit are adjacent, the row of all keys first if it exists.
            if generation != Some(row.name.0) {
                generation = Some(row.name.0);
                let loaded_limit = LoadedLimit {
                    generation: u64::try_from(row.name.0).unwrap_or(0),
                    fence: if row.name.1 == ALL { u64::try_from(row.fence).unwrap_or(0) } else { 0 },
                    retired_until: match entry.status {
                        LimitStatus::Active => None,
                        LimitStatus::RetiredUntil(until) => Some(until),
                    },
                    elsewhere: key_counts.of(row.name.0),
                };
                working_set.limit(Arc::clone(&entry.limit), loaded_limit);
            }
            if !row.is_new {
                working_set.row(
                    entry.id(),
                    row.key(),
                    entry.upgrade_row(&row.state, row.edition, row.key())?,
                );
            }
        }
        self.add_limits_without_rows(&mut working_set);
        self.add_leases(&mut working_set);
        for (id, row) in read_only_leases {
            if row.is_known(&self.limits) && self.now < row.lease.expires_at {
                self.read_only_leases.insert(id);
                working_set.lease(id, row.lease);
            }
        }
        for &(id, until) in &self.settlements {
            working_set.settled(id, until);
        }
        for request in self.requests.iter().filter(|request| self.now < request.until) {
            working_set.request(&request.id, self.decode_grant(request)?);
        }
        // Removes expired leases.
        working_set.advance(self.now);
        Ok(working_set)
    }

    /// Adds limits without a loaded row. They count each key separately, and the keys have no rows yet.
    fn add_limits_without_rows(&self, working_set: &mut WorkingSet) {
        for entry in
            self.asked_limits.iter().filter_map(|generation| self.limits.entry_of_generation(*generation))
        {
            if working_set.fence_of(entry.id()).is_none() {
                let generation = u64::try_from(entry.generation).unwrap_or(0);
                let elsewhere = UnloadedRows::default();
                working_set.limit(
                    Arc::clone(&entry.limit),
                    LoadedLimit { generation, fence: 0, retired_until: None, elsewhere },
                );
            }
        }
    }

    fn add_leases(&self, working_set: &mut WorkingSet) {
        for (id, row) in &self.leases {
            if !row.is_known(&self.limits) {
                continue;
            }
            let mut lease = row.lease.clone();
            for (index, holding) in lease.holdings.iter_mut().enumerate() {
                let mark = row.marks[index];
                let Some(entry) = self.limits.entry_of_generation(mark.generation) else {
                    // The limit was removed, and the holding with it.
                    holding.generation = 0;
                    continue;
                };
                let name: RowName = (mark.generation, crate::row_names::column_of(holding.key.as_deref()));
                let found = self.rows.binary_search_by(|loaded| loaded.name.cmp(&name));
                let resets = found.map_or(0, |found| self.rows[found].resets);
                if mark.edition < entry.voided || mark.resets < resets {
                    holding.version = 0;
                }
                if mark.edition < entry.unpinned {
                    holding.pins = false;
                }
            }
            working_set.lease(*id, lease);
        }
    }
}
