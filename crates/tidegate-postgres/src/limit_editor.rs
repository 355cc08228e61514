//! Edits of limits, under an exclusive lock.
//!
//! Every deciding transaction holds the limits lock shared, and an edit holds it exclusively. So an edit starts after the last
//! charge under the previous version is committed, and its instant is later than all of those charges.

use std::sync::Arc;

use deadpool_postgres::Object;
use futures_util::future::try_join_all;
use tidegate::catalog::{
    ApplyError, Change, Edit, EditOutcome, ExpectedVersion, Origin, PutError, RETIREMENT, RemovalMode,
    check_each,
};
use tidegate_core::{Limit, LimitPhase, LimitSpec, Tick, Timestamp};

use crate::connections::DatabaseError;
use crate::limit_snapshot::{
    LimitEntry, LimitSnapshot, LimitStatus, bounds_keys, column, encode_lineage, encode_spec, read_since,
};

/// The result of edits, and the limits after them.
pub(crate) struct AppliedEdits {
    pub(crate) edited: Result<Vec<EditOutcome>, ApplyError>,
    pub(crate) limits: LimitSnapshot,
}

/// A valid edit.
enum CheckedEdit {
    Put(Arc<Limit>),
    Remove(String, RemovalMode),
}

/// An edit transaction. No other transaction decides or edits until it ends.
pub(crate) struct LimitEditor<'c> {
    pub(crate) connection: &'c Object,
    pub(crate) limits: LimitSnapshot,
    pub(crate) now: Timestamp,
    pub(crate) tick: Tick,
}

impl LimitEditor<'_> {
    /// Applies all edits or none.
    pub(crate) async fn apply(mut self, edits: Vec<Edit>, by: Origin) -> Result<AppliedEdits, DatabaseError> {
        let checked = check_each(edits, |edit| match edit {
            Edit::Put(spec, expect) => self.next(spec, expect).map(CheckedEdit::Put),
            Edit::Remove(id, parting) => Ok(CheckedEdit::Remove(id, parting)),
        });
        let checked = match checked {
            Ok(checked) => checked,
            Err(error) => return Ok(AppliedEdits { edited: Err(error), limits: self.limits }),
        };
        let revision = self.limits.revision + 1;
        // Runs concurrently, so that many limits do not take as many round trips.
        let each = checked.into_iter().map(|each| self.make(each, by, revision));
        let edited = try_join_all(each).await?;
        let since = self.limits.revision;
        let changed = edited.iter().any(|each| !matches!(each, EditOutcome::Absent));
        if changed {
            self.connection.execute("UPDATE store SET revision = $1", &[&revision]).await?;
            let (revision, found) = read_since(self.connection, since, self.tick).await?;
            self.limits = self.limits.with(revision, found);
        }
        Ok(AppliedEdits { edited: Ok(edited), limits: self.limits })
    }

    async fn make(&self, each: CheckedEdit, by: Origin, revision: i64) -> Result<EditOutcome, DatabaseError> {
        match each {
            CheckedEdit::Put(limit) => self.install(&limit, by, revision).await,
            CheckedEdit::Remove(id, parting) => self.remove(&id, parting, revision).await,
        }
    }

    /// Sets all counts of a limit to zero.
    pub(crate) async fn reset(mut self, id: &str) -> Result<(bool, LimitSnapshot), DatabaseError> {
        let Some(entry) = self.limits.get(id).map(Arc::clone) else { return Ok((false, self.limits)) };
        let (since, revision) = (self.limits.revision, self.limits.revision + 1);
        let edition = entry.edition + 1;
        self.write_edition(entry.generation, edition, &entry.limit, true).await?;
        let update = "UPDATE limits SET edition = $2, voided = $2, revision = $3 WHERE generation = $1";
        self.connection.execute(update, &[&entry.generation, &edition, &revision]).await?;
        self.connection.execute("UPDATE store SET revision = $1", &[&revision]).await?;
        let (revision, found) = read_since(self.connection, since, self.tick).await?;
        self.limits = self.limits.with(revision, found);
        Ok((true, self.limits))
    }

    /// The limit with this id if it is active, or retired and not yet forgotten.
    fn active_or_retired(&self, id: &str) -> Option<&Arc<LimitEntry>> {
        let stands = |entry: &&Arc<LimitEntry>| match entry.status {
            LimitStatus::Active => true,
            LimitStatus::RetiredUntil(until) => self.now < until,
        };
        self.limits.active_or_retired(id).filter(stands)
    }

    fn next(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        expect.meets(self.limits.get(&spec.id).map(|entry| entry.limit.version()))?;
        let next = match self.active_or_retired(&spec.id) {
            None => Limit::new(spec, self.tick),
            Some(entry) if *entry.limit.spec() == spec => return Ok(Arc::clone(&entry.limit)),
            Some(entry) => entry.limit.next_version(spec),
        };
        next.map(Arc::new).map_err(PutError::Invalid)
    }

    async fn install(
        &self,
        limit: &Arc<Limit>,
        by: Origin,
        revision: i64,
    ) -> Result<EditOutcome, DatabaseError> {
        let applied = by == Origin::Applied;
        let Some(entry) = self.active_or_retired(limit.id()).map(Arc::clone) else {
            self.add(limit, applied, revision).await?;
            return Ok(EditOutcome::Added(Arc::clone(limit)));
        };
        let was_there = entry.status == LimitStatus::Active;
        let is_new = entry.limit.version() != limit.version();
        let mut edition = entry.edition;
        let (mut voided, mut unpinned) = (entry.voided, entry.unpinned);
        if is_new {
            edition += 1;
            if entry.limit.phase(self.now) == LimitPhase::After {
                // The ended limit's state was dropped, so its charges cannot be refunded to the new version.
                (voided, unpinned) = (edition, edition);
            }
            self.write_edition(entry.generation, edition, limit, false).await?;
            if bounds_keys(limit) != entry.bounds_keys() {
                self.count_rows(entry.generation, bounds_keys(limit)).await?;
            }
        }
        let update = "UPDATE limits SET standing = 0, retired_until = NULL, edition = $2, voided = $3, unpinned = $4, \
                      applied = $5, revision = $6 WHERE generation = $1";
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
            [&entry.generation, &edition, &voided, &unpinned, &applied, &revision];
        self.connection.execute(update, &values).await?;
        Ok(match (was_there, is_new) {
            (false, _) => EditOutcome::Added(Arc::clone(limit)),
            (true, true) => EditOutcome::Replaced(Arc::clone(limit)),
            (true, false) => EditOutcome::Unchanged(Arc::clone(limit)),
        })
    }

    async fn add(&self, limit: &Arc<Limit>, applied: bool, revision: i64) -> Result<(), DatabaseError> {
        // A limit whose retirement has run out makes room for its successor.
        if let Some(former) = self.limits.active_or_retired(limit.id()) {
            self.forget(former.generation, revision).await?;
        }
        let insert = "INSERT INTO limits (generation, id, applied, revision) VALUES (nextval('generations'), $1, $2, $3) \
                      RETURNING generation";
        let row = self.connection.query_one(insert, &[&limit.id(), &applied, &revision]).await?;
        let generation: i64 = row.get(0);
        self.write_edition(generation, 1, limit, false).await?;
        // A limit that is deleted and added again continues with higher fences.
        let all = "INSERT INTO states (generation, key, edition, keys, fence) \
                   SELECT $1, '\\x00', 1, $2, greatest((SELECT coalesce(max(fence), 0) FROM states WHERE key = '\\x00'), store.fence) \
                   FROM store";
        let keys = bounds_keys(limit).then_some(0i64);
        self.connection.execute(all, &[&generation, &keys]).await?;
        Ok(())
    }

    /// Starts or stops counting the rows of a limit. The locks exclude transactions and expiry, which could add or remove rows.
    async fn count_rows(&self, generation: i64, counted: bool) -> Result<(), DatabaseError> {
        let count = "UPDATE states SET keys = CASE WHEN $2 THEN \
                     (SELECT count(*) FROM states WHERE generation = $1 AND key <> '\\x00') END \
                     WHERE generation = $1 AND key = '\\x00'";
        self.connection.execute(count, &[&generation, &counted]).await?;
        Ok(())
    }

    async fn write_edition(
        &self,
        generation: i64,
        edition: i32,
        limit: &Limit,
        is_reset: bool,
    ) -> Result<(), DatabaseError> {
        let insert = "INSERT INTO editions (generation, edition, began, is_reset, version, text, descent) \
                      VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let version = i32::try_from(limit.version()).unwrap_or(i32::MAX);
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 7] = [
            &generation,
            &edition,
            &column(self.now),
            &is_reset,
            &version,
            &encode_spec(limit.spec()),
            &encode_lineage(limit),
        ];
        self.connection.execute(insert, &values).await?;
        Ok(())
    }

    async fn remove(
        &self,
        id: &str,
        parting: RemovalMode,
        revision: i64,
    ) -> Result<EditOutcome, DatabaseError> {
        let Some(entry) = self.limits.get(id) else { return Ok(EditOutcome::Absent) };
        match parting {
            RemovalMode::Forget => self.forget(entry.generation, revision).await?,
            RemovalMode::Retire => {
                let until = column(self.now.plus(self.tick.span(RETIREMENT)));
                let update =
                    "UPDATE limits SET standing = 1, retired_until = $2, revision = $3 WHERE generation = $1";
                self.connection.execute(update, &[&entry.generation, &until, &revision]).await?;
            }
        }
        Ok(EditOutcome::Removed(Arc::clone(&entry.limit)))
    }

    /// Marks a limit as removed. Expiry deletes its rows later.
    pub(crate) async fn forget(&self, generation: i64, revision: i64) -> Result<(), DatabaseError> {
        let floor = "UPDATE store SET fence = greatest(fence, \
                     (SELECT coalesce(max(fence), 0) FROM states WHERE generation = $1 AND key = '\\x00'))";
        self.connection.execute(floor, &[&generation]).await?;
        let update = "UPDATE limits SET standing = 2, revision = $2 WHERE generation = $1";
        self.connection.execute(update, &[&generation, &revision]).await?;
        Ok(())
    }
}

/// The changes between two snapshots, for watchers.
pub(crate) fn changes(before: &LimitSnapshot, after: &LimitSnapshot) -> Vec<Change> {
    let mut changes = Vec::new();
    for entry in before.all().filter(|entry| entry.status == LimitStatus::Active) {
        if after.get(entry.id()).is_none() {
            changes.push(Change::Removed(Arc::clone(&entry.limit)));
        }
    }
    for entry in after.all().filter(|entry| entry.status == LimitStatus::Active) {
        let known = before.get(entry.id());
        let same = known.is_some_and(|known| {
            known.generation == entry.generation && known.limit.version() == entry.limit.version()
        });
        if !same {
            changes.push(Change::Put(Arc::clone(&entry.limit)));
        }
    }
    changes
}
