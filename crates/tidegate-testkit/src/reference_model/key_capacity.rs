//! The bound on keys (`max_keys`).
//!
//! A key has a row while something is counted or held for it. When `max_keys` keys have one, an order that needs
//! another row is refused without being judged. The reply is marked as degraded.

use tidegate_core::{AskTotals, Hold, Mode, Per, Policy, Timestamp, Wait};

use super::{ItemAsk, ModelLimit, OwnedAsk, ReferenceModel, RefundView};

/// A key that a limit has no room for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyWithoutRoom {
    /// Id of the limit.
    pub limit_id: String,
    /// The first key item of the limit. The refusal names it.
    pub item: String,
    /// The key.
    pub key: Vec<u8>,
    /// An enforcing limit refuses the order; a shadow limit only skips the charge.
    pub mode: Mode,
}

impl ReferenceModel {
    /// The keys of these asks that have no room, in the order of the asks.
    pub fn keys_without_room(
        &self,
        asks: &[OwnedAsk],
        hold: Hold,
        now: Timestamp,
        view: RefundView,
    ) -> Vec<KeyWithoutRoom> {
        self.keys_without_room_at(asks, hold, now, now, view)
    }

    /// The same at a later instant, if all leases that are live at `now` stay live.
    fn keys_without_room_at(
        &self,
        asks: &[OwnedAsk],
        hold: Hold,
        now: Timestamp,
        later: Timestamp,
        view: RefundView,
    ) -> Vec<KeyWithoutRoom> {
        let mut crowded = Vec::new();
        for (index, ask) in asks.iter().enumerate() {
            if asks[..index].iter().any(|before| before.limit_id == ask.limit_id) {
                continue;
            }
            let limit_model = &self.limits[&ask.limit_id];
            let (Some(most), Some(first)) = (limit_model.spec.max_keys, limit_model.first_key_item()) else {
                continue;
            };
            if limit_model.spec.mode == Mode::Off {
                continue;
            }
            let live = self.live_keys(limit_model, now.ticks(), later.ticks(), view);
            let mut room = most.saturating_sub(live.len() as u64);
            let mut seen: Vec<&[u8]> = Vec::new();
            let of_limit = || asks.iter().filter(|other| other.limit_id == ask.limit_id);
            for key in of_limit().filter_map(|other| other.key.as_deref()) {
                if seen.contains(&key) {
                    continue;
                }
                seen.push(key);
                let same = of_limit().filter(|other| other.key.as_deref() == Some(key));
                let load =
                    same.map(|other| AskTotals::of(other.count)).fold(AskTotals::default(), AskTotals::plus);
                // An ask of zero needs no row.
                if live.contains(&key) || (load.count == 0 && hold == Hold::No) {
                    continue;
                }
                if room == 0 {
                    let (limit_id, item) = (ask.limit_id.clone(), first.to_owned());
                    crowded.push(KeyWithoutRoom {
                        limit_id,
                        item,
                        key: key.to_vec(),
                        mode: limit_model.spec.mode,
                    });
                } else {
                    room -= 1;
                }
            }
        }
        crowded
    }

    /// Whether the wait of a degraded refusal can be explained.
    ///
    /// The store decides when to drop a row, so `until` is only a bound: before it, time alone cannot make room.
    /// `OnRelease` and `Never` must be true: units are held, or time alone makes no room.
    pub fn is_wait_explained(
        &self,
        wait: Wait,
        asks: &[OwnedAsk],
        hold: Hold,
        limit_id: &str,
        now: Timestamp,
    ) -> bool {
        let (limit_model, at) = (&self.limits[limit_id], now.ticks());
        // Whether a refunded bucket still counts is up to the store.
        let mut views = [RefundView::Refunded, RefundView::NotRefunded]
            .into_iter()
            .map(|view| self.live_keys(limit_model, at, at, view));
        let held = |live: &[&[u8]]| live.iter().any(|key| self.is_held(limit_model, key, at));
        let frees = |live: &[&[u8]]| live.iter().any(|key| self.is_freed_by_time(limit_model, key, at));
        match wait {
            Wait::Until(until) => {
                let before = Timestamp::from_ticks(until.ticks().saturating_sub(1));
                now < until
                    && !self.keys_without_room_at(asks, hold, now, before, RefundView::NotRefunded).is_empty()
            }
            Wait::OnRelease => views.any(|live| held(&live) && !frees(&live)),
            Wait::Never => views.any(|live| !held(&live) && !frees(&live)),
        }
    }

    /// Keys with counts at `later` or held units at `now`.
    fn live_keys<'a>(
        &'a self,
        limit_model: &'a ModelLimit,
        now: u64,
        later: u64,
        view: RefundView,
    ) -> Vec<&'a [u8]> {
        let mut live: Vec<&[u8]> = Vec::new();
        if self.is_over(limit_model, later) {
            return live;
        }
        let counted = limit_model.ledgers.keys().filter_map(|(_, key)| key.as_deref());
        let counted = counted.filter(|key| self.is_counted(limit_model, key, later, view));
        for key in counted.chain(self.pinned(limit_model, now)) {
            if !live.contains(&key) {
                live.push(key);
            }
        }
        live
    }

    /// Keys whose rows are known to live leases.
    fn pinned<'a>(&'a self, limit_model: &'a ModelLimit, at: u64) -> impl Iterator<Item = &'a [u8]> {
        let leases = self.leases.values().filter(move |held| at < held.lapses);
        let pins = leases.flat_map(|held| &held.pins);
        pins.filter(|(id, _)| *id == limit_model.spec.id).map(|(_, key)| key.as_slice())
    }

    fn is_counted(&self, limit_model: &ModelLimit, key: &[u8], at: u64, view: RefundView) -> bool {
        limit_model.items.iter().filter(|item| item.per == Per::Key).any(|item| {
            let item_ask = ItemAsk { limit_model, item, key: Some(key), cost: 0 };
            match item.policy {
                // A bucket is in use by the tick, not by the whole unit.
                Policy::Bucket { .. } => {
                    self.ledger_at(&item_ask, &item_ask.ledger(), at).backlog(at, view) > 0
                }
                _ => self.used_now(&item_ask, at, view) > 0,
            }
        })
    }

    /// Whether this row has held units that a release could return.
    fn is_held(&self, limit_model: &ModelLimit, key: &[u8], at: u64) -> bool {
        let held = |policy: &Policy| matches!(policy, Policy::Concurrency { .. });
        let mut held = limit_model.items.iter().filter(|item| item.per == Per::Key && held(&item.policy));
        let holds = held.any(|item| {
            self.used_now(&ItemAsk { limit_model, item, key: Some(key), cost: 0 }, at, RefundView::Refunded)
                > 0
        });
        holds || self.pinned(limit_model, at).any(|pinned| pinned == key)
    }

    /// Whether time alone makes this row fresh.
    fn is_freed_by_time(&self, limit_model: &ModelLimit, key: &[u8], at: u64) -> bool {
        if self.ends(limit_model) < u64::MAX {
            return true;
        }
        let total = limit_model.items.iter().filter(|item| item.per == Per::Key).any(|item| {
            let item_ask = ItemAsk { limit_model, item, key: Some(key), cost: 0 };
            item.policy == Policy::Total && self.used_now(&item_ask, at, RefundView::Refunded) > 0
        });
        !total && self.pinned(limit_model, at).all(|pinned| pinned != key)
    }
}

impl ModelLimit {
    /// The name of the first item that counts per key.
    fn first_key_item(&self) -> Option<&str> {
        self.items.iter().find(|item| item.per == Per::Key).map(|item| item.name.as_str())
    }
}
