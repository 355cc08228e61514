//! Limits that bound their number of keys: counts the rows outside the transaction.
//!
//! The row of all keys stores the count, and every transaction on such a limit locks it. The table is queried only if a new key
//! might not fit. Then rows of earlier editions are upgraded, evictable rows are deleted, and the rest gives the wait.

use std::collections::HashMap;

use tidegate::store::map::working_set::UnloadedRows;
use tidegate_core::{RowScope, Timestamp};

use super::DecisionTransaction;
use super::load_rows::LoadedRow;
use super::write_changes::RowUpdates;
use crate::connections::DatabaseError;
use crate::limit_snapshot::{column, instant};
use crate::row_names::ALL;

/// What is known of the rows outside the transaction.
#[derive(Debug, Default)]
pub(super) struct KeyCounts {
    limits: HashMap<i64, UnloadedRows>,
    /// The first lease expiry, if an order may have to wait for it.
    pub(super) next_lease_expiry: Option<Timestamp>,
}

impl KeyCounts {
    pub(super) fn of(&self, generation: i64) -> UnloadedRows {
        self.limits.get(&generation).copied().unwrap_or_default()
    }
}

impl DecisionTransaction<'_> {
    /// Counts the rows of limits that bound their keys.
    pub(super) async fn count_other_rows(&mut self) -> Result<KeyCounts, DatabaseError> {
        let mut key_counts = KeyCounts::default();
        let mut bounded: Vec<(usize, u64)> = Vec::new();
        for (index, row) in self.rows.iter().enumerate().filter(|(_, row)| row.name.1 == ALL) {
            let entry = self.limits.entry_of_generation(row.name.0);
            if let Some(most) = entry.and_then(|entry| entry.limit.spec().max_keys) {
                bounded.push((index, most));
            }
        }
        for (index, most) in bounded {
            let generation = self.rows[index].name.0;
            let locked_rows = || self.rows.iter().filter(|row| row.name.0 == generation && row.name.1 != ALL);
            let new: i64 = locked_rows().map(|row| i64::from(row.is_new)).sum();
            let known: i64 = locked_rows().map(|row| i64::from(!row.is_new)).sum();
            let Some(mut keys) = self.rows[index].keys else {
                let id = self.limits.entry_of_generation(generation).map_or("", |entry| entry.id());
                return Err(DatabaseError::Rejected(format!(
                    "the limit '{id}' bounds its keys, but its row count is missing"
                )));
            };
            let mut unloaded = UnloadedRows::default();
            // A read-only job has no row created for it. An evictable row may be deleted, and its key is then new.
            let missing_read_rows = self.missing_read_rows.get(&generation).copied().unwrap_or(0);
            let needed = new + missing_read_rows + self.count_evictable_locked_rows(generation)?;
            // A release or refund needs no room.
            let is_asked = self.asked_limits.contains(&generation);
            if is_asked && needed > 0 && u64::try_from(keys + needed).unwrap_or(0) > most {
                self.require_no_expired_leases().await?;
                keys -= self.delete_evictable_rows(generation).await?;
                unloaded = self.summarize_other_rows(generation).await?;
                key_counts.next_lease_expiry = self.next_lease_expiry().await?;
            }
            self.rows[index].keys = Some(keys);
            unloaded.rows = u64::try_from(keys - known).unwrap_or(0);
            key_counts.limits.insert(generation, unloaded);
        }
        Ok(key_counts)
    }

    /// The number of locked rows that are evictable.
    fn count_evictable_locked_rows(&self, generation: i64) -> Result<i64, DatabaseError> {
        let Some(entry) = self.limits.entry_of_generation(generation) else { return Ok(0) };
        let mut evictable = 0;
        for row in self.rows.iter().filter(|row| row.name.0 == generation && !row.is_new) {
            let Some(key) = row.key() else { continue };
            let state = entry.upgrade_row(&row.state, row.edition, Some(key))?;
            let scope = RowScope::from(entry.limit.overrides(key));
            evictable += i64::from(state.is_evictable(&entry.limit, scope, self.now));
        }
        Ok(evictable)
    }

    /// Expired leases keep their rows until they are removed. That locks other rows, so it runs separately and this transaction
    /// is retried.
    async fn require_no_expired_leases(&self) -> Result<(), DatabaseError> {
        let expired = "SELECT EXISTS (SELECT FROM leases WHERE expires_at <= $1)";
        let statement = self.connection.prepare_cached(expired).await?;
        if self.connection.query_one(&statement, &[&column(self.now)]).await?.get(0) {
            return Err(DatabaseError::Retry(EXPIRED_LEASES_BLOCK.to_owned()));
        }
        Ok(())
    }

    async fn next_lease_expiry(&self) -> Result<Option<Timestamp>, DatabaseError> {
        let statement = self.connection.prepare_cached("SELECT min(expires_at) FROM leases").await?;
        let next: Option<i64> = self.connection.query_one(&statement, &[]).await?.get(0);
        Ok(next.map(instant))
    }

    /// Deletes evictable rows outside the transaction. Returns their number.
    async fn delete_evictable_rows(&mut self, generation: i64) -> Result<i64, DatabaseError> {
        self.upgrade_other_rows(generation).await?;
        let delete = "DELETE FROM states WHERE generation = $1 AND key <> '\\x00' AND freshens <= $2 AND key <> ALL ($3)";
        let statement = self.connection.prepare_cached(delete).await?;
        let locked_keys = self.locked_keys(generation);
        let deleted =
            self.connection.execute(&statement, &[&generation, &column(self.now), &locked_keys]).await?;
        self.has_written |= deleted > 0;
        Ok(i64::try_from(deleted).unwrap_or(i64::MAX))
    }

    /// Upgrades rows of earlier editions, so that the current edition tells whether they are evictable.
    async fn upgrade_other_rows(&mut self, generation: i64) -> Result<(), DatabaseError> {
        let Some(entry) = self.limits.entry_of_generation(generation).cloned() else { return Ok(()) };
        let select_outdated = "SELECT generation, key, edition, seen, resets, fence, keys, state FROM states \
                      WHERE generation = $1 AND edition < $2 AND key <> '\\x00' AND key <> ALL ($3) ORDER BY key FOR UPDATE";
        let statement = self.connection.prepare_cached(select_outdated).await?;
        let locked_keys = self.locked_keys(generation);
        let rows = self.connection.query(&statement, &[&generation, &entry.edition, &locked_keys]).await?;
        let mut updates = RowUpdates::default();
        for row in rows.iter().map(LoadedRow::read) {
            let state = entry.upgrade_row(&row.state, row.edition, row.key())?;
            updates.row(&entry, &row, &state, self.now);
        }
        if !updates.is_empty() {
            self.has_written = true;
            updates.update(self.connection).await?;
        }
        Ok(())
    }

    async fn summarize_other_rows(&self, generation: i64) -> Result<UnloadedRows, DatabaseError> {
        let summarize = "SELECT min(freshens), coalesce(bool_or(held_until > $2), false) FROM states \
                    WHERE generation = $1 AND key <> '\\x00' AND key <> ALL ($3)";
        let statement = self.connection.prepare_cached(summarize).await?;
        let locked_keys = self.locked_keys(generation);
        let row =
            self.connection.query_one(&statement, &[&generation, &column(self.now), &locked_keys]).await?;
        let freshens: Option<i64> = row.get(0);
        Ok(UnloadedRows { rows: 0, freshens: freshens.map(instant), is_held: row.get(1) })
    }

    fn locked_keys(&self, generation: i64) -> Vec<Vec<u8>> {
        self.rows.iter().filter(|row| row.name.0 == generation).map(|row| row.name.1.clone()).collect()
    }
}

/// The reason of a retry after the removal of expired leases.
pub(crate) const EXPIRED_LEASES_BLOCK: &str = "expired leases must be removed first";
