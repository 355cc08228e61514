//! The bound on keys: who gets no row because too many have one.
//!
//! A key has a row while something is counted or held for it. Where `max_keys` have one, whoever is new and would need
//! another is refused without being judged, and what is answered then is marked as degraded.

use tidegate_core::{AskTotals, Hold, Mode, Per, Policy, Timestamp, Wait};

use super::{ItemAsk, LimitCharges, OwnedAsk, ReferenceModel, RefundView};

/// A key that a limit has no room for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyWithoutRoom {
    /// The limit.
    pub limit_id: String,
    /// The first of its items that counts keys alone: it is named by the refusal.
    pub item: String,
    /// The key.
    pub key: Vec<u8>,
    /// Whether the limit refuses because of it, or only does not charge it.
    pub mode: Mode,
}

impl ReferenceModel {
    /// The keys of these asks that there is no room for, limits as asked, keys as asked.
    pub fn crowded(
        &self,
        asks: &[OwnedAsk],
        hold: Hold,
        now: Timestamp,
        view: RefundView,
    ) -> Vec<KeyWithoutRoom> {
        self.crowded_later(asks, hold, now, now, view)
    }

    /// The same at a later instant, if until then all leases go on that are live `now`.
    fn crowded_later(
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
            let book = &self.books[&ask.limit_id];
            let (Some(most), Some(first)) = (book.spec.max_keys, book.first_of_keys()) else { continue };
            if book.spec.mode == Mode::Off {
                continue;
            }
            let live = self.live_keys(book, now.ticks(), later.ticks(), view);
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
                // Whoever only looks needs no row.
                if live.contains(&key) || (load.count == 0 && hold == Hold::No) {
                    continue;
                }
                if room == 0 {
                    let (limit_id, item) = (ask.limit_id.clone(), first.to_owned());
                    crowded.push(KeyWithoutRoom { limit_id, item, key: key.to_vec(), mode: book.spec.mode });
                } else {
                    room -= 1;
                }
            }
        }
        crowded
    }

    /// Whether the wait of a degraded refusal can be explained. When a row is forgotten is the store's business, and so
    /// `until` is only a bound: before it nothing can have changed by time alone, and asking again then is told the next.
    /// What a store says instead must be the truth: somebody holds something, or time alone makes no room.
    pub fn explains(
        &self,
        wait: Wait,
        asks: &[OwnedAsk],
        hold: Hold,
        limit_id: &str,
        now: Timestamp,
    ) -> bool {
        let (book, at) = (&self.books[limit_id], now.ticks());
        // Whether a refunded bucket still counts is its own business.
        let mut views = [RefundView::Refunded, RefundView::NotRefunded]
            .into_iter()
            .map(|view| self.live_keys(book, at, at, view));
        let held = |live: &[&[u8]]| live.iter().any(|key| self.is_held(book, key, at));
        let frees = |live: &[&[u8]]| live.iter().any(|key| self.is_freed_by_time(book, key, at));
        match wait {
            Wait::Until(until) => {
                let before = Timestamp::from_ticks(until.ticks().saturating_sub(1));
                now < until
                    && !self.crowded_later(asks, hold, now, before, RefundView::NotRefunded).is_empty()
            }
            Wait::OnRelease => views.any(|live| held(&live) && !frees(&live)),
            Wait::Never => views.any(|live| !held(&live) && !frees(&live)),
        }
    }

    /// The keys that something is counted for `later`, or held for `now`.
    fn live_keys<'a>(
        &'a self,
        book: &'a LimitCharges,
        now: u64,
        later: u64,
        view: RefundView,
    ) -> Vec<&'a [u8]> {
        let mut live: Vec<&[u8]> = Vec::new();
        if self.is_over(book, later) {
            return live;
        }
        let counted = book.ledgers.keys().filter_map(|(_, key)| key.as_deref());
        let counted = counted.filter(|key| self.is_counted(book, key, later, view));
        for key in counted.chain(self.pinned(book, now)) {
            if !live.contains(&key) {
                live.push(key);
            }
        }
        live
    }

    /// The keys whose rows leases know of that were not given back.
    fn pinned<'a>(&'a self, book: &'a LimitCharges, at: u64) -> impl Iterator<Item = &'a [u8]> {
        let leases = self.leases.values().filter(move |held| at < held.lapses);
        let pins = leases.flat_map(|held| &held.pins);
        pins.filter(|(id, _)| *id == book.spec.id).map(|(_, key)| key.as_slice())
    }

    fn is_counted(&self, book: &LimitCharges, key: &[u8], at: u64, view: RefundView) -> bool {
        book.articles.iter().filter(|article| article.per == Per::Key).any(|article| {
            let question = ItemAsk { book, article, key: Some(key), cost: 0 };
            match article.policy {
                // A bucket is in use by the tick, not by the whole unit.
                Policy::Bucket { .. } => {
                    self.caught_up(&question, &question.ledger(), at).backlog(at, view) > 0
                }
                _ => self.used_now(&question, at, view) > 0,
            }
        })
    }

    /// Whether somebody holds something of this row that they could give back.
    fn is_held(&self, book: &LimitCharges, key: &[u8], at: u64) -> bool {
        let held = |policy: &Policy| matches!(policy, Policy::Concurrency { .. });
        let mut held =
            book.articles.iter().filter(|article| article.per == Per::Key && held(&article.policy));
        let holds = held.any(|article| {
            self.used_now(&ItemAsk { book, article, key: Some(key), cost: 0 }, at, RefundView::Refunded) > 0
        });
        holds || self.pinned(book, at).any(|pinned| pinned == key)
    }

    /// Whether this row will be as if nobody had ever asked, if nobody asks or gives back.
    fn is_freed_by_time(&self, book: &LimitCharges, key: &[u8], at: u64) -> bool {
        if self.ends(book) < u64::MAX {
            return true;
        }
        let total = book.articles.iter().filter(|article| article.per == Per::Key).any(|article| {
            let question = ItemAsk { book, article, key: Some(key), cost: 0 };
            article.policy == Policy::Total && self.used_now(&question, at, RefundView::Refunded) > 0
        });
        !total && self.pinned(book, at).all(|pinned| pinned != key)
    }
}

impl LimitCharges {
    /// The name of the first item that counts keys alone.
    fn first_of_keys(&self) -> Option<&str> {
        self.articles.iter().find(|article| article.per == Per::Key).map(|article| article.name.as_str())
    }
}
