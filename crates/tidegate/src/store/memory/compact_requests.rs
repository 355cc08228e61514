//! Compact batches: requests of one ask each, on limits with one item, decided in sequence.
//!
//! Each request takes the lock-free path for one row ([`super::single_ask`]). The rows of a group are prefetched before
//! the first decision. Replies report the row as it was observed. Processing stops at the first request that needs another
//! path. That request has no effect yet.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tidegate_core::limit::MAX_KEY_BYTES;
use tidegate_core::{Timestamp, Verdict};

use super::cache_line::{PAYLOAD, Tag};
use super::insert::{self, Begun};
use super::leaf::Near;
use super::limit_table::Tenant;
use super::lockfree::{self, Plea, Single, Told};
use super::order_path::fetch;
use super::row_epoch::Edition;
use super::rule_snapshot::Short;
use super::single_ask::Seen;
use super::{LOOK_AHEAD, Limits, Shared, counters};
use crate::store::compact::{CompactBatch, CompactReplies, CompactReply, CompactRequest, MOST_LIMITS};
use crate::store::journal::Notes;

/// A limit that is bid for.
struct Sought<'a> {
    tenant: &'a Tenant,
    /// As long as it is held, no edition after it is forgotten.
    held: Arc<Edition>,
    /// The edition that bids were decided by last, and where its text is.
    told: Option<(u64, usize)>,
    /// Grants that were not counted yet.
    granted: u64,
}

impl<'a> Sought<'a> {
    /// The limit of this id, if its bids can be decided in short.
    fn find(limits: &'a Limits, limit_id: &str) -> Option<Sought<'a>> {
        let tenant: &Tenant = limits.get(limit_id)?;
        let head = tenant.board.sheet().head();
        if head.has_second() || head.ends() || tenant.lean().is_some() {
            return None;
        }
        Some(Sought { tenant, held: tenant.edition(), told: None, granted: 0 })
    }

    /// Where the text of this edition is.
    #[inline]
    fn text(&mut self, edition: u64, gists: &mut CompactReplies) -> usize {
        match self.told {
            Some((number, text)) if number == edition => text,
            _ => self.add_limit(edition, gists),
        }
    }

    #[cold]
    fn add_limit(&mut self, edition: u64, gists: &mut CompactReplies) -> usize {
        let limit = if self.held.number == edition {
            Arc::clone(&self.held.limit)
        } else {
            let later =
                self.tenant.edition_of(edition).expect("while one is held, none after it is forgotten");
            Arc::clone(&later.limit)
        };
        let text = gists.add_limit(limit);
        self.told = Some((edition, text));
        text
    }
}

/// The limits that a batch is about, looked up when they are first asked.
struct Cast<'a> {
    limits: &'a Limits,
    limit_ids: &'a [&'a str],
    /// `None` for those that are not decided on in short.
    sought: ArrayVec<Option<Sought<'a>>, MOST_LIMITS>,
    /// Where in that each limit is.
    places: [Option<usize>; MOST_LIMITS],
}

impl<'a> Cast<'a> {
    /// The limit of a bid, if it can be decided in short.
    #[inline]
    fn of(&mut self, bid: &CompactRequest<'_>) -> Option<&mut Sought<'a>> {
        let place = match *self.places.get(bid.limit)? {
            Some(place) => place,
            None => self.look_up(bid.limit)?,
        };
        self.sought.get_mut(place)?.as_mut()
    }

    #[cold]
    fn look_up(&mut self, limit: usize) -> Option<usize> {
        let found = Sought::find(self.limits, self.limit_ids.get(limit)?);
        let place = self.sought.len();
        self.sought.push(found);
        self.places[limit] = Some(place);
        Some(place)
    }
}

/// What was seen of a row when a bid was decided.
struct Decided {
    verdict: Verdict,
    at: Timestamp,
    short: Short,
    edition: u64,
    payload: u64,
}

impl Shared {
    /// Decides bids until one is not for the quick way.
    pub(super) fn submit_compact(&self, bids: &CompactBatch<'_>, gists: &mut CompactReplies) {
        let limits = self.limits();
        let mut cast = Cast {
            limits: &limits,
            limit_ids: bids.limit_ids,
            sought: ArrayVec::new(),
            places: [None; MOST_LIMITS],
        };
        // Whoever is not for us at all is not kept waiting for a look at the clock.
        if bids.list.first().is_none_or(|first| cast.of(first).is_none()) {
            return;
        }
        let mut now = self.now();
        for group in bids.list.chunks(LOOK_AHEAD) {
            if !decide_some(group, &mut cast, &mut now, gists) {
                break;
            }
        }
        for sought in cast.sought.iter().flatten() {
            sought.tenant.counts.granted_on(counters::own(), sought.granted);
        }
    }
}

/// Decides as many as are looked at ahead. `false` if not all of them were.
fn decide_some<'a>(
    group: &[CompactRequest<'_>],
    cast: &mut Cast<'a>,
    now: &mut Timestamp,
    gists: &mut CompactReplies,
) -> bool {
    let found: ArrayVec<Option<(&'a Tenant, Tag)>, LOOK_AHEAD> = group
        .iter()
        .map(|bid| {
            let tenant = cast.of(bid)?.tenant;
            Some((tenant, tenant.printer.print(bid.key)))
        })
        .collect();
    let nears = fetch(found.iter().copied());
    for (bid, (found, near)) in group.iter().zip(found.iter().zip(&nears)) {
        let (Some((_, tag)), Some(sought)) = (found, cast.of(bid)) else { return false };
        let Some(decided) = decide(bid, *tag, *near, sought, *now) else { return false };
        let Decided { verdict, at, short, edition, payload } = decided;
        *now = at;
        let text = sought.text(edition, gists);
        let told = Told { ask: 0, edition, short: &short, payload, ends: NO_END, at };
        let gist = CompactReply { verdict, reading: told.reading(), at, text, item: short.head.item() };
        if verdict == Verdict::Granted && gists.notes().is_some() {
            let version = gists.text(&gist).version();
            if let Some(notes) = gists.notes() {
                note(&told, bid, *tag, sought.tenant, version, notes);
            }
        }
        gists.push(gist);
    }
    true
}

/// The limits here do not end.
const NO_END: Timestamp = Timestamp::from_ticks(u64::MAX);

/// Notes what was charged, for whoever keeps a log.
#[inline(never)]
fn note(
    told: &Told<'_>,
    bid: &CompactRequest<'_>,
    tag: Tag,
    tenant: &Tenant,
    version: u32,
    notes: &mut Notes,
) {
    let plea = Plea { tenant, key: Some(bid.key), tag: Some(tag), count: bid.count };
    notes.charges.extend(told.charge(&plea, version));
}

/// Decides one bid; `None` if it is not that simple, and nothing was done.
#[inline]
fn decide<'a>(
    bid: &CompactRequest<'_>,
    tag: Tag,
    near: Option<Near<'a>>,
    sought: &mut Sought<'a>,
    now: Timestamp,
) -> Option<Decided> {
    let tenant = sought.tenant;
    let head = tenant.board.sheet().head();
    if head.has_second() || head.ends() || bid.key.len() > MAX_KEY_BYTES {
        return None;
    }
    let single = Single { tenant, count: bid.count };
    let mut seen = Seen::default();
    let verdict = if head.is_of_key() {
        // The first row of all may have come since somebody looked.
        lockfree::decide_near(&single, tag, near.or_else(|| tenant.near(tag)), now, &mut seen)
    } else {
        Some(lockfree::decide_all(&single, now, &mut seen)?)
    };
    if let (Some(verdict), Some((short, edition, payload))) = (verdict, seen.0) {
        sought.granted += u64::from(verdict == Verdict::Granted);
        return Some(Decided { verdict, at: now, short, edition, payload });
    }
    begin(bid, tag, tenant, now)
}

/// Decides the first bid of a key that nobody has seen, which counts it.
#[inline(never)]
fn begin(bid: &CompactRequest<'_>, tag: Tag, tenant: &Tenant, now: Timestamp) -> Option<Decided> {
    if tenant.leaf(tag).is_some_and(|leaf| leaf.find(tag).is_some()) {
        return None;
    }
    let plea = Plea { tenant, key: Some(bid.key), tag: Some(tag), count: bid.count };
    let Begun { at, short, edition, word } = insert::begin(&plea, tag, now)?;
    Some(Decided { verdict: Verdict::Granted, at, short, edition, payload: word & PAYLOAD })
}
