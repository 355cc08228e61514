//! A snapshot of the limits in the tables, replaced when their revision rises.
//!
//! ```text
//!   edition   1 ────────── 2 ─────── 3 ──────────▶
//!   text      a            b         b
//!                          put       reset
//! ```
//!
//! Each edit or reset of a limit adds an edition. A row keeps the edition that wrote it until its next use. Then
//! [`LimitEntry::upgrade_row`] applies the later editions one by one, each at its own start, as if the row had been migrated at
//! that time. Expiry deletes editions that no row needs.

use std::collections::HashMap;
use std::sync::Arc;

use deadpool_postgres::Object;
use tidegate::store::codec::limit as limit_codec;
use tidegate::store::codec::primitives::{ByteReader, ByteWriter};
use tidegate_core::{
    ItemLineage, Limit, LimitPhase, LimitSpec, Per, Row, RowScope, Span, Tick, Timestamp, row_codec,
};

use crate::connections::DatabaseError;

/// The status of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitStatus {
    Active,
    RetiredUntil(Timestamp),
}

/// A limit and its editions.
#[derive(Debug)]
pub(crate) struct LimitEntry {
    pub(crate) limit: Arc<Limit>,
    pub(crate) generation: i64,
    pub(crate) status: LimitStatus,
    pub(crate) edition: i32,
    pub(crate) voided: i32,
    pub(crate) unpinned: i32,
    pub(crate) applied: bool,
    /// Every edition that a row may have, the current one last.
    pub(crate) editions: Vec<LimitEdition>,
    /// Whether every decision needs the row of all keys.
    pub(crate) needs_all: bool,
}

/// One edition of a limit.
#[derive(Debug, Clone)]
pub(crate) struct LimitEdition {
    pub(crate) number: i32,
    pub(crate) began: Timestamp,
    pub(crate) is_reset: bool,
    pub(crate) limit: Arc<Limit>,
}

impl LimitEntry {
    pub(crate) fn id(&self) -> &str {
        self.limit.id()
    }

    /// Whether the limit bounds its number of keys, so that its rows are counted.
    pub(crate) fn bounds_keys(&self) -> bool {
        bounds_keys(&self.limit)
    }

    /// Decodes a row written under `edition` and upgrades it to the current edition.
    pub(crate) fn upgrade_row(
        &self,
        bytes: &[u8],
        edition: i32,
        key: Option<&[u8]>,
    ) -> Result<Row, DatabaseError> {
        let per = if key.is_some() { Per::Key } else { Per::All };
        let first = self.editions.iter().position(|each| each.number == edition);
        let first = first.ok_or_else(|| {
            let id = self.id();
            DatabaseError::Retry(format!(
                "a row of '{id}' has edition {edition}, which this server has not read"
            ))
        })?;
        let text = &self.editions[first].limit;
        let mut row = if bytes.is_empty() {
            Row::blank(text, per)
        } else {
            row_codec::decode(bytes, text, per).map_err(|damage| {
                DatabaseError::Rejected(format!("a row of '{}' is damaged: {damage}", self.id()))
            })?
        };
        for pair in self.editions[first..].windows(2) {
            let [former, next] = pair else { continue };
            if next.is_reset {
                row.reset(&next.limit, per);
            } else if former.limit.phase(next.began) == LimitPhase::After {
                row = Row::blank(&next.limit, per);
            } else {
                let old = key.map_or(RowScope::All, |key| RowScope::from(former.limit.overrides(key)));
                let new = key.map_or(RowScope::All, |key| RowScope::from(next.limit.overrides(key)));
                row = row.migrate((&former.limit, old), (&next.limit, new), next.began);
            }
        }
        Ok(row)
    }
}

/// All limits at one revision.
#[derive(Debug, Default)]
pub(crate) struct LimitSnapshot {
    pub(crate) revision: i64,
    by_id: HashMap<Box<str>, Arc<LimitEntry>>,
    by_generation: HashMap<i64, Arc<LimitEntry>>,
}

impl LimitSnapshot {
    /// The active limit with this id.
    pub(crate) fn get(&self, id: &str) -> Option<&Arc<LimitEntry>> {
        self.active_or_retired(id).filter(|entry| entry.status == LimitStatus::Active)
    }

    /// The limit with this id, active or retired.
    pub(crate) fn active_or_retired(&self, id: &str) -> Option<&Arc<LimitEntry>> {
        self.by_id.get(id)
    }

    /// The limit of this generation, active or retired.
    pub(crate) fn entry_of_generation(&self, generation: i64) -> Option<&Arc<LimitEntry>> {
        self.by_generation.get(&generation)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<LimitEntry>> {
        self.by_generation.values()
    }

    /// A copy with these limits changed or removed.
    pub(crate) fn with(&self, revision: i64, changed: Vec<ChangedLimit>) -> LimitSnapshot {
        let mut next =
            LimitSnapshot { revision, by_id: self.by_id.clone(), by_generation: self.by_generation.clone() };
        for found in changed {
            match found {
                ChangedLimit::Removed(generation) => {
                    if let Some(entry) = next.by_generation.remove(&generation) {
                        let still = next.by_id.get(entry.id()).is_some_and(|it| it.generation == generation);
                        if still {
                            next.by_id.remove(entry.id());
                        }
                    }
                }
                ChangedLimit::Present(entry) => {
                    next.by_generation.insert(entry.generation, Arc::clone(&entry));
                    next.by_id.insert(entry.id().into(), entry);
                }
            }
        }
        next
    }
}

/// A limit that changed since an earlier revision.
pub(crate) enum ChangedLimit {
    Removed(i64),
    Present(Arc<LimitEntry>),
}

/// Reads the limits that changed after revision `since`. If the returned revision is the same, none did.
pub(crate) async fn read_since(
    connection: &Object,
    since: i64,
    tick: Tick,
) -> Result<(i64, Vec<ChangedLimit>), DatabaseError> {
    // One statement gives a consistent result.
    let statement = connection
        .prepare_cached(
            "SELECT (SELECT revision FROM store), l.generation, l.standing, l.retired_until, l.edition, l.voided, l.unpinned, \
             l.applied, e.edition, e.began, e.is_reset, e.version, e.text, e.descent \
             FROM (SELECT * FROM limits WHERE revision > $1) l \
             LEFT JOIN editions e ON e.generation = l.generation AND l.standing < 2 \
             UNION ALL SELECT revision, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM store \
             ORDER BY 2 NULLS LAST, 9",
        )
        .await?;
    let rows = connection.query(&statement, &[&since]).await?;
    let revision = rows.last().map_or(since, |row| row.get(0));
    let mut found: Vec<ChangedLimit> = Vec::new();
    let mut rows = rows.iter().peekable();
    while let Some(row) = rows.next() {
        let Some(generation) = row.get::<_, Option<i64>>(1) else { break };
        let standing: i16 = row.get(2);
        if standing == 2 {
            found.push(ChangedLimit::Removed(generation));
            continue;
        }
        let mut editions = vec![read_edition(row, tick)?];
        while let Some(next) = rows.next_if(|next| next.get::<_, Option<i64>>(1) == Some(generation)) {
            editions.push(read_edition(next, tick)?);
        }
        let present = editions.last().ok_or_else(|| damaged("a limit without a definition"))?;
        let limit = Arc::clone(&present.limit);
        let retired: Option<i64> = row.get(3);
        found.push(ChangedLimit::Present(Arc::new(LimitEntry {
            needs_all: needs_all(&limit),
            limit,
            generation,
            status: match retired {
                Some(until) if standing == 1 => LimitStatus::RetiredUntil(instant(until)),
                _ => LimitStatus::Active,
            },
            edition: row.get(4),
            voided: row.get(5),
            unpinned: row.get(6),
            applied: row.get(7),
            editions,
        })));
    }
    Ok((revision, found))
}

fn read_edition(row: &tokio_postgres::Row, tick: Tick) -> Result<LimitEdition, DatabaseError> {
    let (text, descent): (Option<&[u8]>, Option<&[u8]>) = (row.get(12), row.get(13));
    let (Some(text), Some(descent)) = (text, descent) else {
        return Err(damaged("a limit without a definition"));
    };
    let spec = limit_codec::read(&mut ByteReader::new(text)).map_err(|why| damaged(&why.to_string()))?;
    let descent = decode_lineage(descent).ok_or_else(|| damaged("the lineage of a limit"))?;
    let version = u32::try_from(row.get::<_, i32>(11)).map_err(|_| damaged("the version of a limit"))?;
    let limit = Limit::restore(spec, tick, version, &descent).map_err(|_| damaged("an invalid limit"))?;
    Ok(LimitEdition {
        number: row.get(8),
        began: instant(row.get(9)),
        is_reset: row.get(10),
        limit: Arc::new(limit),
    })
}

fn damaged(what: &str) -> DatabaseError {
    DatabaseError::Rejected(format!("the tables contain invalid data: {what}"))
}

/// Whether every decision needs the row of all keys, for its counts, its fence or its number of rows.
pub(crate) fn needs_all(limit: &Limit) -> bool {
    let counts = limit.items().iter().any(|item| item.per() == Per::All);
    counts || bounds_keys(limit) || may_hold(limit)
}

/// Whether a limit bounds its number of keys.
pub(crate) fn bounds_keys(limit: &Limit) -> bool {
    limit.spec().max_keys.is_some()
}

/// Whether a grant has a lease even without a hold.
pub(crate) fn may_hold(limit: &Limit) -> bool {
    use tidegate_core::Law;
    limit.items().iter().any(|item| matches!(item.rule().law, Law::Concurrency(_)))
}

/// Encodes a specification.
pub(crate) fn encode_spec(spec: &LimitSpec) -> Vec<u8> {
    let mut bytes = Vec::new();
    limit_codec::write(&mut ByteWriter(&mut bytes), spec);
    bytes
}

/// Encodes the lineage of each item.
pub(crate) fn encode_lineage(limit: &Limit) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut out = ByteWriter(&mut bytes);
    out.number(limit.items().len() as u64);
    for item in limit.items() {
        let ItemLineage { law_version: reshaped, step } = item.lineage();
        out.number(u64::from(reshaped));
        out.maybe(step, |out, step| out.number(step.ticks()));
    }
    bytes
}

fn decode_lineage(bytes: &[u8]) -> Option<Vec<ItemLineage>> {
    let mut reader = ByteReader::new(bytes);
    let read = reader.many(2, |reader| {
        Ok(ItemLineage {
            law_version: reader.number32()?,
            step: reader.maybe(|reader| Ok(Span::from_ticks(reader.number()?)))?,
        })
    });
    read.ok()
}

/// Converts a column value to an instant.
pub(crate) fn instant(ticks: i64) -> Timestamp {
    Timestamp::from_ticks(u64::try_from(ticks).unwrap_or(0))
}

/// Converts an instant to a column value.
pub(crate) fn column(at: Timestamp) -> i64 {
    i64::try_from(at.ticks()).unwrap_or(i64::MAX)
}
