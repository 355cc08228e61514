//! Deciding: what every local store does between taking rows out and putting them back.
//!
//! A store brings the rows an order is about as [`Entrant`]s: one per row, those of a limit side by side with its `all` row first,
//! repeated asks added up. [`conclude`] judges them together and charges them or not, [`grant`] writes down the lease that a grant
//! comes with. Which row is where, and who may touch it, is the store's own business.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use tidegate_core::decide::{self, Decision};
use tidegate_core::limit::MAX_KEY_BYTES;
use tidegate_core::order::{MAX_ASKS, MAX_REQUEST_ID_BYTES, MAX_WAIT};
use tidegate_core::spec::DEFAULT_TTL;
use tidegate_core::time::MAX_SPAN;
use tidegate_core::{
    Ask, AskTotals, ChargeRecord, DecisionRow, Denial, Hold, Intent, ItemPosition, LeaseId, LeaseTerm, Limit,
    Mode, Order, Per, Row, RowScope, Span, Tick, Timestamp, Wait,
};

use super::leases::{HeldAsk, Holding, Lease};
use crate::reply::{Detail, GrantedLease, ItemReading, OrderError, OrderRefusal, Replies};

/// The most rows that one order is about: for each ask that of all keys and that of one.
pub(super) const MOST_ENTRANTS: usize = 2 * MAX_ASKS;

/// A row that takes part in a decision, taken out of its place until it is made. Its limit is held, or borrowed from who holds it.
pub(super) struct Entrant<L = Arc<Limit>> {
    pub(super) limit: L,
    /// The first ask that it is for.
    pub(super) ask: usize,
    pub(super) station: Station,
    pub(super) row: Row,
    pub(super) load: AskTotals,
}

/// Where an entrant's row belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Station {
    /// It is the limit's `all` row.
    All,
    /// It is a key's row, in this place of its store.
    Key(usize),
    /// It would be a new key's row, and this is the room for it.
    NewKey(Room),
}

/// Whether there is room for another row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// There is.
    Enough,
    /// Not before this instant, when a row becomes fresh.
    NoneUntil(Timestamp),
    /// When somebody gives back what they hold.
    NoneTillRelease,
    /// Time alone will not make any.
    None,
}

/// What came of a decision, before it is written down.
pub(super) struct Conclusion {
    pub(super) decision: Decision,
    /// Refused only because there is no room for another key.
    pub(super) degraded: bool,
    pub(super) shadowed: Vec<Arc<Limit>>,
    pub(super) charges: Vec<ChargeRecord>,
    pub(super) tenure: Option<(LeaseTerm, Span)>,
    /// When a lease lapses that is in the way of a refused order.
    pub(super) lapses_at: Option<Timestamp>,
}

/// When an order is decided, and what its lease would be called.
#[derive(Debug, Clone, Copy)]
pub(super) struct Occasion {
    pub(super) now: Timestamp,
    pub(super) tick: Tick,
    /// What makes the ids of the store's leases hard to guess,
    pub(super) secret: u64,
    /// and which of them this would be.
    pub(super) number: u64,
    /// When the first of the store's leases lapses.
    pub(super) next_lapse: Option<Timestamp>,
}

/// Entrants of an order, by their places: there are at most as many as a word has bits.
#[derive(Debug, Clone, Copy, Default)]
struct Some64(u64);

impl Some64 {
    fn has(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }

    fn add(&mut self, place: usize) {
        self.0 |= 1 << place;
    }
}

/// Decides over the entrants and reads what they say afterwards.
pub(super) fn conclude<L: Borrow<Arc<Limit>>>(
    order: &Order<'_>,
    entrants: &mut [Entrant<L>],
    occasion: Occasion,
    answers: &mut Replies,
) -> Conclusion {
    let now = occasion.now;
    let enforced = |entrant: &Entrant<L>| entrant.limit().mode() == Mode::Enforce;
    let crowded = entrants.iter().position(|entrant| entrant.is_crowded() && enforced(entrant));
    let room = crowded.map(|index| entrants[index].station);
    let aside = watch_a_crowd(entrants);
    let mut limits: ArrayVec<&Arc<Limit>, MOST_ENTRANTS> = ArrayVec::new();
    let mut lines: ArrayVec<DecisionRow<'_>, MOST_ENTRANTS> = ArrayVec::new();
    for (place, Entrant { limit, ask, station, row, load }) in entrants.iter_mut().enumerate() {
        let limit: &Arc<Limit> = (*limit).borrow();
        let key = || order.asks[*ask].key.unwrap_or_default();
        let seat =
            if *station == Station::All { RowScope::All } else { RowScope::from(limit.overrides(key())) };
        let load = if aside.has(place) { AskTotals::default() } else { *load };
        limits.push(limit);
        lines.push(DecisionRow { limit, scope: seat, row, totals: load });
    }

    let shadowed = shadowed(&lines, &limits, aside, now);
    let tenure = tenure(order, &lines, occasion);
    let mut charges: Vec<ChargeRecord> = Vec::new();
    let mut note = |charged| charges.extend(tenure.is_some().then_some(charged));
    let intent = if crowded.is_some() { Intent::Peek } else { order.intent };
    let lease = tenure.as_ref().map(|(tenure, _)| tenure);
    let mut decision = decide::decide(&mut lines, intent, lease, now, &mut note);
    let degraded = decision == Decision::Granted && crowded.is_some();
    if let (true, Some(line), Some(station)) = (degraded, crowded, room) {
        decision = Decision::Denied(no_room(line, lines[line].limit, station));
    }
    // A lease knows of the rows it was charged to or is held for, and no other: they are kept for its sake.
    let mut known = Some64(if order.hold == Hold::Yes { u64::MAX } else { 0 });
    charges.iter().filter(|charged| charged.cost > 0).for_each(|charged| known.add(charged.position.row));
    charges.retain(|charged| known.has(charged.position.row) && !aside.has(charged.position.row));
    let lapses_at = match decision {
        Decision::Denied(Denial { wait: Wait::OnRelease, .. }) if degraded => occasion.next_lapse,
        Decision::Denied(Denial { wait: Wait::OnRelease, .. }) => decide::next_blocking_expiry(&lines, now),
        _ => None,
    };
    read(&lines, |line| limits[line], now, answers);
    Conclusion { decision, degraded, shadowed, charges, tenure, lapses_at }
}

/// The entrants of limits that only watch and have no room for another key: such a limit does not charge where it would refuse.
fn watch_a_crowd<L: Borrow<Arc<Limit>>>(entrants: &[Entrant<L>]) -> Some64 {
    let mut aside = Some64::default();
    for crowded in entrants.iter().filter(|entrant| entrant.is_crowded()) {
        let is_of_it = |entrant: &Entrant<L>| Arc::ptr_eq(entrant.limit(), crowded.limit());
        if crowded.limit().mode() == Mode::Shadow {
            let places = entrants.iter().enumerate().filter(|(_, entrant)| is_of_it(entrant));
            places.for_each(|(place, _)| aside.add(place));
        }
    }
    aside
}

/// The lease that a grant of this order would come with, and its time to live.
fn tenure(order: &Order<'_>, lines: &[DecisionRow<'_>], occasion: Occasion) -> Option<(LeaseTerm, Span)> {
    let Occasion { now, tick, secret, number, .. } = occasion;
    let of_items = decide::lease_ttl(lines);
    if order.intent == Intent::Peek || (order.hold == Hold::No && of_items.is_none()) {
        return None;
    }
    let ttl = order.ttl.map(|ttl| tick.span(ttl)).or(of_items).unwrap_or(tick.span(DEFAULT_TTL));
    Some((LeaseTerm { lease: lease_id(secret, number), expires_at: now.plus(ttl) }, ttl))
}

/// The lease that a grant comes with: what its holder is told, and what is written down. `register` says which incarnation of its
/// id a limit is, and gives its next fence.
pub(super) fn grant<L: Borrow<Arc<Limit>>>(
    order: &Order<'_>,
    entrants: &mut [Entrant<L>],
    conclusion: &Conclusion,
    mut register: impl FnMut(&Limit) -> (u64, u64),
) -> Option<(GrantedLease, Lease)> {
    // A limit that only watches may have been charged nothing; then there is no lease unless one was asked for.
    let holds = order.hold == Hold::Yes || !conclusion.charges.is_empty();
    let (tenure, ttl) = conclusion.tenure.filter(|_| holds)?;
    let mut holdings = Vec::new();
    let mut holding_of = vec![None; entrants.len()];
    let mut fences: Vec<(Arc<Limit>, u64)> = Vec::new();
    let mut generation = 0;
    for (index, entrant) in entrants.iter_mut().enumerate() {
        let charges: Vec<_> =
            conclusion.charges.iter().filter(|charged| charged.position.row == index).collect();
        if charges.is_empty() {
            continue;
        }
        entrant.row.add_hold();
        let limit = entrant.limit();
        // Entrants of one limit stand side by side.
        if fences.last().is_none_or(|(last, _)| !Arc::ptr_eq(last, limit)) {
            let (incarnation, fence) = register(limit);
            generation = incarnation;
            fences.push((Arc::clone(limit), fence));
        }
        holding_of[index] = Some(holdings.len());
        let named = |charged: &ChargeRecord| (limit.items()[charged.position.item].name().into(), *charged);
        holdings.push(Holding {
            limit_id: limit.id().into(),
            generation,
            version: limit.version(),
            key: order.asks[entrant.ask].key.filter(|_| entrant.station != Station::All).map(Into::into),
            charges: charges.into_iter().map(named).collect(),
            pins: true,
        });
    }
    let asks = order.asks.iter().map(|ask| held_ask(ask, order, entrants, &holding_of)).collect();
    let grant = GrantedLease { lease: tenure.lease, expires_at: tenure.expires_at, fences };
    Some((grant, Lease { expires_at: tenure.expires_at, ttl, holdings, asks }))
}

impl<L: Borrow<Arc<Limit>>> Entrant<L> {
    /// The limit it is a row of.
    pub(super) fn limit(&self) -> &Arc<Limit> {
        self.limit.borrow()
    }

    /// What its row counts.
    pub(super) fn per(&self) -> Per {
        if self.station == Station::All { Per::All } else { Per::Key }
    }

    pub(super) fn is_crowded(&self) -> bool {
        matches!(self.station, Station::NewKey(room) if room != Room::Enough)
    }
}

/// Reads what every item says, if that is wanted.
pub(super) fn read<'l>(
    lines: &[DecisionRow<'_>],
    limit_of: impl Fn(usize) -> &'l Arc<Limit>,
    now: Timestamp,
    answers: &mut Replies,
) {
    if answers.detail() == Detail::Readings {
        decide::for_each_item(lines, |place, line, item| {
            let reading = line.reading(place.item, item, now);
            answers.read(ItemReading { limit: Arc::clone(limit_of(place.row)), item: place.item, reading });
        });
    }
}

/// A denial that names its limits, and waits for no lease.
pub(super) fn put_in_words<'l>(denial: Denial, limit_of: impl Fn(usize) -> &'l Arc<Limit>) -> OrderRefusal {
    let Denial { binding, wait, first } = denial;
    let limit = Arc::clone(limit_of(binding.row));
    let first = (Arc::clone(limit_of(first.row)), first.item);
    OrderRefusal { limit, item: binding.item, wait, first, lapses_at: None }
}

/// The refusal of a limit that has no room for another key.
fn no_room(line: usize, limit: &Limit, station: Station) -> Denial {
    let item = limit.items().iter().position(|item| item.per() == Per::Key).unwrap_or_default();
    let place = ItemPosition { row: line, item };
    let wait = match station {
        Station::NewKey(Room::NoneUntil(until)) => Wait::Until(until),
        Station::NewKey(Room::NoneTillRelease) => Wait::OnRelease,
        _ => Wait::Never,
    };
    Denial { binding: place, wait, first: place }
}

/// The limits that only watch and would have refused: by their items, or because they were put aside.
fn shadowed(
    lines: &[DecisionRow<'_>],
    limits: &[&Arc<Limit>],
    aside: Some64,
    now: Timestamp,
) -> Vec<Arc<Limit>> {
    let mut shadowed: Vec<Arc<Limit>> = Vec::new();
    if limits.iter().any(|limit| limit.mode() == Mode::Shadow) {
        let mut refusing: Vec<&Limit> = Vec::new();
        decide::shadow_refusals(lines, now, |limit| refusing.push(limit));
        for (place, limit) in limits.iter().enumerate() {
            let refuses =
                aside.has(place) || refusing.iter().any(|other| std::ptr::eq(*other, &raw const ***limit));
            if refuses && shadowed.iter().all(|other| !Arc::ptr_eq(other, limit)) {
                shadowed.push(Arc::clone(limit));
            }
        }
    }
    shadowed
}

/// Which holdings an ask of a held order is charged to.
fn held_ask<L: Borrow<Arc<Limit>>>(
    ask: &Ask<'_>,
    order: &Order<'_>,
    entrants: &[Entrant<L>],
    holding_of: &[Option<usize>],
) -> HeldAsk {
    let mut holdings = [None, None];
    for (entrant, holding) in entrants.iter().zip(holding_of) {
        if entrant.limit().id() != ask.limit_id {
            continue;
        }
        if entrant.station == Station::All {
            holdings[0] = *holding;
        } else if order.asks[entrant.ask].key == ask.key {
            holdings[1] = *holding;
        }
    }
    HeldAsk { holdings }
}

pub(super) fn check_order(order: &Order<'_>) -> Result<(), OrderError> {
    if order.asks.is_empty() || order.asks.len() > MAX_ASKS {
        return Err(OrderError::AsksOutOfRange { asks: order.asks.len() });
    }
    if order.max_wait > MAX_WAIT {
        return Err(OrderError::PatienceOutOfRange);
    }
    order.asks.iter().try_for_each(|ask| check_key(ask.key))?;
    match order.request_id {
        Some(id) if id.is_empty() || id.len() > MAX_REQUEST_ID_BYTES => {
            Err(OrderError::RequestIdOutOfRange { bytes: id.len() })
        }
        _ => check_ttl(order.ttl),
    }
}

pub(super) fn check_key(key: Option<&[u8]>) -> Result<(), OrderError> {
    match key {
        Some(key) if key.len() > MAX_KEY_BYTES => Err(OrderError::KeyTooLong { bytes: key.len() }),
        _ => Ok(()),
    }
}

pub(super) fn check_ttl(ttl: Option<Duration>) -> Result<(), OrderError> {
    match ttl {
        Some(ttl) if ttl < Duration::from_millis(1) || ttl > MAX_SPAN => Err(OrderError::TtlOutOfRange),
        _ => Ok(()),
    }
}

/// The id of a store's lease of this number: hard to guess without the secret.
pub(super) fn lease_id(secret: u64, number: u64) -> LeaseId {
    LeaseId(u128::from(number) << 64 | u128::from(scramble(secret, number)))
}

/// A number that only the owner of the secret can foresee.
fn scramble(secret: u64, number: u64) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(secret);
    hasher.write_u64(number);
    hasher.finish()
}
