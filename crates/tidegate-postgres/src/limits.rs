//! The limits as this server knows them: a copy of the tables, made anew when their revision has risen.
//!
//! ```text
//!   edition   1 ────────── 2 ─────── 3 ──────────▶
//!   text      a            b         b
//!                          put       reset
//! ```
//!
//! A limit is edited and reset in the tables, and its rows follow when somebody comes to them ([`Entry::bring_up`]): first as of the
//! instant at which the next edition began, then the one after, exactly as if they had been carried over then. Texts that no row needs any
//! more are swept away.

use std::collections::HashMap;
use std::sync::Arc;

use deadpool_postgres::Object;
use tidegate::store::written::bytes::{Reader, Writer};
use tidegate::store::written::limit as written;
use tidegate_core::{
    ItemLineage, Limit, LimitPhase, LimitSpec, Per, Row, RowScope, Span, Tick, Timestamp, row_codec,
};

use crate::connecting::Fault;

/// Where a limit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    InForce,
    RetiredUntil(Timestamp),
}

/// A limit, and what its rows may have been written under.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) limit: Arc<Limit>,
    pub(crate) generation: i64,
    pub(crate) standing: Standing,
    pub(crate) edition: i32,
    pub(crate) voided: i32,
    pub(crate) unpinned: i32,
    pub(crate) applied: bool,
    /// Every edition that some row may be of, the present one last.
    pub(crate) editions: Vec<Edition>,
    /// Whether the row of all keys takes part in every decision.
    pub(crate) needs_all: bool,
}

/// What a limit said from when on.
#[derive(Debug, Clone)]
pub(crate) struct Edition {
    pub(crate) number: i32,
    pub(crate) began: Timestamp,
    pub(crate) is_reset: bool,
    pub(crate) limit: Arc<Limit>,
}

impl Entry {
    pub(crate) fn id(&self) -> &str {
        self.limit.id()
    }

    /// Whether it has a bound on how many keys it knows, so that its rows are counted.
    pub(crate) fn bounds_keys(&self) -> bool {
        bounds_keys(&self.limit)
    }

    /// A row as it is under the present edition. It was written under this one.
    pub(crate) fn bring_up(&self, bytes: &[u8], edition: i32, key: Option<&[u8]>) -> Result<Row, Fault> {
        let per = if key.is_some() { Per::Key } else { Per::All };
        let first = self.editions.iter().position(|each| each.number == edition);
        let first = first.ok_or_else(|| {
            let id = self.id();
            Fault::Again(format!("a row of '{id}' is of edition {edition}, which is not known here"))
        })?;
        let text = &self.editions[first].limit;
        let mut row = if bytes.is_empty() {
            Row::blank(text, per)
        } else {
            row_codec::decode(bytes, text, per)
                .map_err(|damage| Fault::Refused(format!("a row of '{}' is damaged: {damage}", self.id())))?
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

/// All limits of one revision.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    pub(crate) revision: i64,
    by_id: HashMap<Box<str>, Arc<Entry>>,
    by_generation: HashMap<i64, Arc<Entry>>,
}

impl Limits {
    /// The limit of this id, if it is in force.
    pub(crate) fn get(&self, id: &str) -> Option<&Arc<Entry>> {
        self.standing(id).filter(|entry| entry.standing == Standing::InForce)
    }

    /// The limit of this id, in force or retired.
    pub(crate) fn standing(&self, id: &str) -> Option<&Arc<Entry>> {
        self.by_id.get(id)
    }

    /// This incarnation of a limit, in force or retired.
    pub(crate) fn incarnation(&self, generation: i64) -> Option<&Arc<Entry>> {
        self.by_generation.get(&generation)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.by_generation.values()
    }

    /// The same limits with these put or removed.
    pub(crate) fn with(&self, revision: i64, changed: Vec<Found>) -> Limits {
        let mut next =
            Limits { revision, by_id: self.by_id.clone(), by_generation: self.by_generation.clone() };
        for found in changed {
            match found {
                Found::Gone(generation) => {
                    if let Some(entry) = next.by_generation.remove(&generation) {
                        let still = next.by_id.get(entry.id()).is_some_and(|it| it.generation == generation);
                        if still {
                            next.by_id.remove(entry.id());
                        }
                    }
                }
                Found::There(entry) => {
                    next.by_generation.insert(entry.generation, Arc::clone(&entry));
                    next.by_id.insert(entry.id().into(), entry);
                }
            }
        }
        next
    }
}

/// What a table says of a limit that has changed.
pub(crate) enum Found {
    Gone(i64),
    There(Arc<Entry>),
}

/// Reads what has changed since this revision. Where the revision of the answer is the same, nothing has.
pub(crate) async fn read_since(
    connection: &Object,
    since: i64,
    tick: Tick,
) -> Result<(i64, Vec<Found>), Fault> {
    // In one statement, so that it is of one moment.
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
    let mut found: Vec<Found> = Vec::new();
    let mut rows = rows.iter().peekable();
    while let Some(row) = rows.next() {
        let Some(generation) = row.get::<_, Option<i64>>(1) else { break };
        let standing: i16 = row.get(2);
        if standing == 2 {
            found.push(Found::Gone(generation));
            continue;
        }
        let mut editions = vec![read_edition(row, tick)?];
        while let Some(next) = rows.next_if(|next| next.get::<_, Option<i64>>(1) == Some(generation)) {
            editions.push(read_edition(next, tick)?);
        }
        let present = editions.last().ok_or_else(|| damaged("a limit without a text"))?;
        let limit = Arc::clone(&present.limit);
        let retired: Option<i64> = row.get(3);
        found.push(Found::There(Arc::new(Entry {
            needs_all: needs_all(&limit),
            limit,
            generation,
            standing: match retired {
                Some(until) if standing == 1 => Standing::RetiredUntil(instant(until)),
                _ => Standing::InForce,
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

fn read_edition(row: &tokio_postgres::Row, tick: Tick) -> Result<Edition, Fault> {
    let (text, descent): (Option<&[u8]>, Option<&[u8]>) = (row.get(12), row.get(13));
    let (Some(text), Some(descent)) = (text, descent) else { return Err(damaged("a limit without a text")) };
    let spec = written::read(&mut Reader::new(text)).map_err(|why| damaged(&why.to_string()))?;
    let descent = read_descent(descent).ok_or_else(|| damaged("a limit's descent"))?;
    let version = u32::try_from(row.get::<_, i32>(11)).map_err(|_| damaged("a limit's version"))?;
    let limit =
        Limit::restore(spec, tick, version, &descent).map_err(|_| damaged("a limit that makes no sense"))?;
    Ok(Edition {
        number: row.get(8),
        began: instant(row.get(9)),
        is_reset: row.get(10),
        limit: Arc::new(limit),
    })
}

fn damaged(what: &str) -> Fault {
    Fault::Refused(format!("the tables say something that this program does not understand: {what}"))
}

/// Whether every decision is about the row of all keys: it counts something, gives fences, or knows how many rows there are.
pub(crate) fn needs_all(limit: &Limit) -> bool {
    let counts = limit.items().iter().any(|item| item.per() == Per::All);
    counts || bounds_keys(limit) || may_hold(limit)
}

/// Whether there is a bound on how many keys a limit knows.
pub(crate) fn bounds_keys(limit: &Limit) -> bool {
    limit.spec().max_keys.is_some()
}

/// Whether a grant comes with a lease although nobody asked for one.
pub(crate) fn may_hold(limit: &Limit) -> bool {
    use tidegate_core::Law;
    limit.items().iter().any(|item| matches!(item.rule().law, Law::Concurrency(_)))
}

/// The bytes of a limit's text.
pub(crate) fn text_of(spec: &LimitSpec) -> Vec<u8> {
    let mut bytes = Vec::new();
    written::write(&mut Writer(&mut bytes), spec);
    bytes
}

/// The bytes of what its items have from the versions before.
pub(crate) fn descent_of(limit: &Limit) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut out = Writer(&mut bytes);
    out.number(limit.items().len() as u64);
    for item in limit.items() {
        let ItemLineage { law_version: reshaped, step } = item.lineage();
        out.number(u64::from(reshaped));
        out.maybe(step, |out, step| out.number(step.ticks()));
    }
    bytes
}

fn read_descent(bytes: &[u8]) -> Option<Vec<ItemLineage>> {
    let mut reader = Reader::new(bytes);
    let read = reader.many(2, |reader| {
        Ok(ItemLineage {
            law_version: reader.number32()?,
            step: reader.maybe(|reader| Ok(Span::from_ticks(reader.number()?)))?,
        })
    });
    read.ok()
}

/// An instant as a column says it.
pub(crate) fn instant(ticks: i64) -> Timestamp {
    Timestamp::from_ticks(u64::try_from(ticks).unwrap_or(0))
}

/// An instant for a column.
pub(crate) fn column(at: Timestamp) -> i64 {
    i64::try_from(at.ticks()).unwrap_or(i64::MAX)
}
