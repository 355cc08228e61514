//! Bringing: from what the tables say to an excerpt.

use std::collections::HashMap;
use std::sync::Arc;

use deadpool_postgres::Object;
use tidegate::reply::Outcome;
use tidegate::store::journal::{Lease, Remembered};
use tidegate::store::map::excerpt::{Elsewhere, Excerpt, Standing as Brought};
use tidegate::store::written::bytes::{Reader, Writer};
use tidegate::store::written::{CodecError, held};
use tidegate_core::{LeaseId, Limit, Timestamp};

use super::Sitting;
use crate::connecting::Fault;
use crate::limits::{Limits, Standing, instant};
use crate::rows::{ALL, Need, Needs, RowName, key_of, need};

const READ_LEASES: &str = "SELECT id, marks, body FROM leases WHERE id = ANY ($1::bytea[])";

const LOCK_LEASES: &str = "SELECT id, marks, body FROM leases \
    WHERE id = ANY ($1::bytea[]) ORDER BY id FOR UPDATE";

/// A row that was read, and is locked.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) name: RowName,
    pub(super) edition: i32,
    pub(super) seen: Timestamp,
    pub(super) resets: i32,
    pub(super) fence: i64,
    pub(super) keys: Option<i64>,
    /// How many there were when it was read.
    pub(super) keys_read: Option<i64>,
    pub(super) state: Vec<u8>,
    /// Whether it was made for us, and nobody has seen it.
    pub(super) is_new: bool,
    pub(super) was_reset: bool,
}

impl Loaded {
    pub(super) fn read(row: &tokio_postgres::Row) -> Loaded {
        Loaded {
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

/// A request id that is locked.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: Vec<u8>,
    pub(super) until: Timestamp,
    pub(super) body: Vec<u8>,
    pub(super) is_new: bool,
}

/// A lease as the table has it.
#[derive(Debug, Clone)]
pub(crate) struct LeaseRow {
    pub(crate) lease: Lease,
    /// One for each holding.
    pub(crate) marks: Vec<Mark>,
}

/// What a holding was charged under.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    pub(crate) generation: i64,
    pub(crate) edition: i32,
    /// How often its row had been reset.
    pub(crate) resets: i32,
}

impl Mark {
    pub(super) fn write(marks: impl ExactSizeIterator<Item = Mark>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut out = Writer(&mut bytes);
        out.number(marks.len() as u64);
        for mark in marks {
            out.number(mark.generation.cast_unsigned());
            out.number(u64::from(mark.edition.cast_unsigned()));
            out.number(u64::from(mark.resets.cast_unsigned()));
        }
        bytes
    }

    fn read(reader: &mut Reader<'_>) -> Result<Mark, CodecError> {
        Ok(Mark {
            generation: reader.number()?.cast_signed(),
            edition: reader.number32()?.cast_signed(),
            resets: reader.number32()?.cast_signed(),
        })
    }
}

impl LeaseRow {
    /// The rows it holds something of.
    pub(crate) fn needs(&self, limits: &Limits, needs: &mut Needs) {
        for (holding, mark) in self.lease.holdings.iter().zip(&self.marks) {
            if let Some(entry) = limits.incarnation(mark.generation) {
                need(entry, holding.key.as_deref(), Need::Change, needs);
            }
        }
    }

    /// Whether one of its limits is still there, if it holds something of any.
    pub(crate) fn is_known(&self, limits: &Limits) -> bool {
        self.marks.is_empty() || self.marks.iter().any(|mark| limits.incarnation(mark.generation).is_some())
    }
}

/// Reads leases, and locks them if they are to be changed.
pub(crate) async fn read_leases(
    connection: &Object,
    ids: &[LeaseId],
    lock: bool,
) -> Result<HashMap<LeaseId, LeaseRow>, Fault> {
    let statement = connection.prepare_cached(if lock { LOCK_LEASES } else { READ_LEASES }).await?;
    let ids: Vec<Vec<u8>> = ids.iter().map(|id| id.0.to_be_bytes().to_vec()).collect();
    let rows = connection.query(&statement, &[&ids]).await?;
    rows.iter().map(read_lease).collect()
}

fn read_lease(row: &tokio_postgres::Row) -> Result<(LeaseId, LeaseRow), Fault> {
    let damaged = |why: String| Fault::Refused(format!("a lease in the tables is not understood: {why}"));
    let id: &[u8] = row.get(0);
    let id = id.try_into().map_err(|_| damaged("its id".to_owned()))?;
    let lease = held::read_lease(&mut Reader::new(row.get(2))).map_err(|why| damaged(why.to_string()))?;
    let marks = Reader::new(row.get(1)).many(3, Mark::read).map_err(|why| damaged(why.to_string()))?;
    if marks.len() != lease.holdings.len() {
        return Err(damaged("its marks".to_owned()));
    }
    Ok((LeaseId(u128::from_be_bytes(id)), LeaseRow { lease, marks }))
}

/// The settlements of these leases that are remembered.
pub(super) async fn read_settlements(
    connection: &Object,
    ids: &[LeaseId],
) -> Result<Vec<(LeaseId, Timestamp)>, Fault> {
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

impl Sitting<'_> {
    /// The leases that remembered grants speak of: they are told as they are by now.
    pub(super) async fn leases_of_requests(&self) -> Result<HashMap<LeaseId, LeaseRow>, Fault> {
        let mut ids = Vec::new();
        for request in self.requests.iter().filter(|request| self.now < request.until) {
            if let Outcome::Granted(Some(grant)) = self.remembered(request)?.answer.outcome {
                ids.push(grant.lease);
            }
        }
        ids.retain(|id| !self.leases.contains_key(id));
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        read_leases(self.connection, &ids, false).await
    }

    fn remembered(&self, request: &Request) -> Result<Remembered, Fault> {
        let limit_of = |id: &str| self.limits.get(id).map(|entry| Arc::<Limit>::clone(&entry.limit));
        held::read_grant(&mut Reader::new(&request.body), &limit_of)
            .map_err(|why| Fault::Refused(format!("a grant in the tables is not understood: {why}")))
    }

    /// Everything that was read, as the plain store knows it.
    pub(super) fn excerpt(
        &mut self,
        elsewhere: &super::bounded::Crowds,
        looked_at: HashMap<LeaseId, LeaseRow>,
    ) -> Result<Excerpt, Fault> {
        let mut excerpt = Excerpt::new(self.house.tick, self.house.secret, self.house.number());
        excerpt.advance(self.now);
        excerpt.next_lapse(elsewhere.next_lapse);
        let mut generation = None;
        for row in &self.rows {
            let Some(entry) = self.limits.incarnation(row.name.0) else { continue };
            // Rows of a limit stand side by side, the one of all keys first if it is there.
            if generation != Some(row.name.0) {
                generation = Some(row.name.0);
                let standing = Brought {
                    generation: u64::try_from(row.name.0).unwrap_or(0),
                    fence: if row.name.1 == ALL { u64::try_from(row.fence).unwrap_or(0) } else { 0 },
                    retired_until: match entry.standing {
                        Standing::InForce => None,
                        Standing::RetiredUntil(until) => Some(until),
                    },
                    elsewhere: elsewhere.of(row.name.0),
                };
                excerpt.limit(Arc::clone(&entry.limit), standing);
            }
            if !row.is_new {
                excerpt.row(entry.id(), row.key(), entry.bring_up(&row.state, row.edition, row.key())?);
            }
        }
        self.bring_limits_without_rows(&mut excerpt);
        self.bring_leases(&mut excerpt);
        for (id, row) in looked_at {
            if row.is_known(&self.limits) && self.now < row.lease.expires_at {
                self.looked_at.insert(id);
                excerpt.lease(id, row.lease);
            }
        }
        for &(id, until) in &self.settlements {
            excerpt.settled(id, until);
        }
        for request in self.requests.iter().filter(|request| self.now < request.until) {
            excerpt.request(&request.id, self.remembered(request)?);
        }
        // Leases that have lapsed go.
        excerpt.advance(self.now);
        Ok(excerpt)
    }

    /// Limits that no row was read of: they count each key alone, and whoever asks has none yet.
    fn bring_limits_without_rows(&self, excerpt: &mut Excerpt) {
        for entry in self.named.iter().filter_map(|generation| self.limits.incarnation(*generation)) {
            if excerpt.fence_of(entry.id()).is_none() {
                let generation = u64::try_from(entry.generation).unwrap_or(0);
                let elsewhere = Elsewhere::default();
                excerpt.limit(
                    Arc::clone(&entry.limit),
                    Brought { generation, fence: 0, retired_until: None, elsewhere },
                );
            }
        }
    }

    fn bring_leases(&self, excerpt: &mut Excerpt) {
        for (id, row) in &self.leases {
            if !row.is_known(&self.limits) {
                continue;
            }
            let mut lease = row.lease.clone();
            for (index, holding) in lease.holdings.iter_mut().enumerate() {
                let mark = row.marks[index];
                let Some(entry) = self.limits.incarnation(mark.generation) else {
                    // It went with its limit.
                    holding.generation = 0;
                    continue;
                };
                let name: RowName = (mark.generation, crate::rows::column_of(holding.key.as_deref()));
                let found = self.rows.binary_search_by(|loaded| loaded.name.cmp(&name));
                let resets = found.map_or(0, |found| self.rows[found].resets);
                if mark.edition < entry.voided || mark.resets < resets {
                    holding.version = 0;
                }
                if mark.edition < entry.unpinned {
                    holding.pins = false;
                }
            }
            excerpt.lease(*id, lease);
        }
    }
}
