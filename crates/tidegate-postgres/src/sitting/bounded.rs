//! Limits that bound their keys: how many rows there are beside those that are in hand.
//!
//! The row of all keys counts them, and is locked by everybody who comes to such a limit. Only when a new key might not fit is the table looked
//! at: rows that are behind are brought up, those that are fresh are forgotten, and the rest says when there will be room.

use std::collections::HashMap;

use tidegate::store::map::excerpt::Elsewhere;
use tidegate_core::{RowScope, Timestamp};

use super::Sitting;
use super::bringing::Loaded;
use super::writing::Written;
use crate::connecting::Fault;
use crate::limits::{column, instant};
use crate::rows::ALL;

/// What is known of rows that are not in hand.
#[derive(Debug, Default)]
pub(super) struct Crowds {
    limits: HashMap<i64, Elsewhere>,
    /// When the first lease lapses, if somebody may have to wait for that.
    pub(super) next_lapse: Option<Timestamp>,
}

impl Crowds {
    pub(super) fn of(&self, generation: i64) -> Elsewhere {
        self.limits.get(&generation).copied().unwrap_or_default()
    }
}

impl Sitting<'_> {
    /// Counts the rows of bounded limits.
    pub(super) async fn count_elsewhere(&mut self) -> Result<Crowds, Fault> {
        let mut crowds = Crowds::default();
        let mut bounded: Vec<(usize, u64)> = Vec::new();
        for (index, row) in self.rows.iter().enumerate().filter(|(_, row)| row.name.1 == ALL) {
            let entry = self.limits.incarnation(row.name.0);
            if let Some(most) = entry.and_then(|entry| entry.limit.spec().max_keys) {
                bounded.push((index, most));
            }
        }
        for (index, most) in bounded {
            let generation = self.rows[index].name.0;
            let own = || self.rows.iter().filter(|row| row.name.0 == generation && row.name.1 != ALL);
            let new: i64 = own().map(|row| i64::from(row.is_new)).sum();
            let known: i64 = own().map(|row| i64::from(!row.is_new)).sum();
            let Some(mut keys) = self.rows[index].keys else {
                let id = self.limits.incarnation(generation).map_or("", |entry| entry.id());
                return Err(Fault::Refused(format!(
                    "the rows of '{id}' are not counted, and it bounds its keys"
                )));
            };
            let mut elsewhere = Elsewhere::default();
            // Who only looks has no row made for them. A row that is fresh may be forgotten, and its key is new then.
            let absent = self.absent.get(&generation).copied().unwrap_or(0);
            let more = new + absent + self.fresh_in_hand(generation)?;
            // What is given back needs no room.
            let is_asked = self.named.contains(&generation);
            if is_asked && more > 0 && u64::try_from(keys + more).unwrap_or(0) > most {
                self.let_lapse().await?;
                keys -= self.forget_fresh(generation).await?;
                elsewhere = self.look_around(generation).await?;
                crowds.next_lapse = self.next_lapse().await?;
            }
            self.rows[index].keys = Some(keys);
            elsewhere.rows = u64::try_from(keys - known).unwrap_or(0);
            crowds.limits.insert(generation, elsewhere);
        }
        Ok(crowds)
    }

    /// How many of the rows in hand are fresh.
    fn fresh_in_hand(&self, generation: i64) -> Result<i64, Fault> {
        let Some(entry) = self.limits.incarnation(generation) else { return Ok(0) };
        let mut fresh = 0;
        for row in self.rows.iter().filter(|row| row.name.0 == generation && !row.is_new) {
            let Some(key) = row.key() else { continue };
            let state = entry.bring_up(&row.state, row.edition, Some(key))?;
            let seat = RowScope::from(entry.limit.overrides(key));
            fresh += i64::from(state.is_evictable(&entry.limit, seat, self.now));
        }
        Ok(fresh)
    }

    /// Rows are kept for leases that have lapsed until those are cleared away, which locks other rows: it is done apart, and we begin again.
    async fn let_lapse(&self) -> Result<(), Fault> {
        let lapsed = "SELECT EXISTS (SELECT FROM leases WHERE expires_at <= $1)";
        let statement = self.connection.prepare_cached(lapsed).await?;
        if self.connection.query_one(&statement, &[&column(self.now)]).await?.get(0) {
            return Err(Fault::Again(LAPSED.to_owned()));
        }
        Ok(())
    }

    async fn next_lapse(&self) -> Result<Option<Timestamp>, Fault> {
        let statement = self.connection.prepare_cached("SELECT min(expires_at) FROM leases").await?;
        let next: Option<i64> = self.connection.query_one(&statement, &[]).await?.get(0);
        Ok(next.map(instant))
    }

    /// Forgets rows that are fresh, and are not in hand; how many.
    async fn forget_fresh(&mut self, generation: i64) -> Result<i64, Fault> {
        self.bring_up_others(generation).await?;
        let delete = "DELETE FROM states WHERE generation = $1 AND key <> '\\x00' AND freshens <= $2 AND key <> ALL ($3)";
        let statement = self.connection.prepare_cached(delete).await?;
        let in_hand = self.in_hand(generation);
        let gone = self.connection.execute(&statement, &[&generation, &column(self.now), &in_hand]).await?;
        self.has_written |= gone > 0;
        Ok(i64::try_from(gone).unwrap_or(i64::MAX))
    }

    /// Brings up the rows of former editions: whether they are fresh is for the present one to say.
    async fn bring_up_others(&mut self, generation: i64) -> Result<(), Fault> {
        let Some(entry) = self.limits.incarnation(generation).cloned() else { return Ok(()) };
        let behind = "SELECT generation, key, edition, seen, resets, fence, keys, state FROM states \
                      WHERE generation = $1 AND edition < $2 AND key <> '\\x00' AND key <> ALL ($3) ORDER BY key FOR UPDATE";
        let statement = self.connection.prepare_cached(behind).await?;
        let in_hand = self.in_hand(generation);
        let rows = self.connection.query(&statement, &[&generation, &entry.edition, &in_hand]).await?;
        let mut written = Written::default();
        for row in rows.iter().map(Loaded::read) {
            let state = entry.bring_up(&row.state, row.edition, row.key())?;
            written.row(&entry, &row, &state, self.now);
        }
        if !written.is_empty() {
            self.has_written = true;
            written.update(self.connection).await?;
        }
        Ok(())
    }

    async fn look_around(&self, generation: i64) -> Result<Elsewhere, Fault> {
        let look = "SELECT min(freshens), coalesce(bool_or(held_until > $2), false) FROM states \
                    WHERE generation = $1 AND key <> '\\x00' AND key <> ALL ($3)";
        let statement = self.connection.prepare_cached(look).await?;
        let in_hand = self.in_hand(generation);
        let row = self.connection.query_one(&statement, &[&generation, &column(self.now), &in_hand]).await?;
        let freshens: Option<i64> = row.get(0);
        Ok(Elsewhere { rows: 0, freshens: freshens.map(instant), is_held: row.get(1) })
    }

    fn in_hand(&self, generation: i64) -> Vec<Vec<u8>> {
        self.rows.iter().filter(|row| row.name.0 == generation).map(|row| row.name.1.clone()).collect()
    }
}

/// What is said when leases that have lapsed are in the way.
pub(crate) const LAPSED: &str = "leases that have lapsed are in the way";
