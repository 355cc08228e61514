//! Decision of an order over rows that were taken out of a local store.
//!
//! A store provides the rows of an order as [`AskedRow`]s: one per row, the rows of a limit side by side with its `all`
//! row first, and repeated asks added up. [`decide_rows`] judges them together and charges them or not. [`make_lease`]
//! builds the lease of a grant. Where rows live and how they are locked is up to the store.

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

use super::leases::{HeldAsk, LeaseHolding, LeaseRecord};
use crate::reply::{Detail, GrantedLease, ItemReading, OrderError, OrderRefusal, Replies};

/// Maximum number of rows of one order: the `all` row and the key row of each ask.
pub(super) const MAX_ASKED_ROWS: usize = 2 * MAX_ASKS;

/// A row that takes part in a decision, taken out of its place. Its limit is owned or borrowed.
pub(super) struct AskedRow<L = Arc<Limit>> {
    pub(super) limit: L,
    /// The first ask that it belongs to.
    pub(super) ask: usize,
    pub(super) location: RowLocation,
    pub(super) row: Row,
    pub(super) load: AskTotals,
}

/// Where a row belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowLocation {
    /// The limit's `all` row.
    All,
    /// A key's row in this slot of the store.
    Key(usize),
    /// A new key's row, and whether there is room for it.
    NewKey(RowRoom),
}

/// Whether there is room for another row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowRoom {
    /// There is room.
    Enough,
    /// There is none before this instant, when a row becomes evictable.
    NoneUntil(Timestamp),
    /// There is none until held units are released.
    NoneUntilRelease,
    /// There is none, and time alone makes none.
    None,
}

/// Result of a decision, before it is stored.
pub(super) struct OrderDecision {
    pub(super) decision: Decision,
    /// Refused only because there is no room for another key.
    pub(super) degraded: bool,
    pub(super) shadowed: Vec<Arc<Limit>>,
    pub(super) charges: Vec<ChargeRecord>,
    pub(super) lease_term: Option<(LeaseTerm, Span)>,
    /// When a lease lapses that blocks a refused order.
    pub(super) lapses_at: Option<Timestamp>,
}

/// Time of a decision, and the identity of its lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecisionContext {
    pub(super) now: Timestamp,
    pub(super) tick: Tick,
    /// Secret that makes lease ids hard to guess.
    pub(super) secret: u64,
    /// Number of the next lease.
    pub(super) number: u64,
    /// When the first lease of the store lapses.
    pub(super) next_lapse: Option<Timestamp>,
}

/// A set of row indices. An order has at most as many rows as a word has bits.
#[derive(Debug, Clone, Copy, Default)]
struct RowSet(u64);

impl RowSet {
    fn has(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }

    fn add(&mut self, place: usize) {
        self.0 |= 1 << place;
    }
}

/// Decides an order over its rows and reads their items.
pub(super) fn decide_rows<L: Borrow<Arc<Limit>>>(
    order: &Order<'_>,
    asked_rows: &mut [AskedRow<L>],
    context: DecisionContext,
    answers: &mut Replies,
) -> OrderDecision {
    let now = context.now;
    let enforced = |asked: &AskedRow<L>| asked.limit().mode() == Mode::Enforce;
    let without_room = asked_rows.iter().position(|asked| asked.lacks_room() && enforced(asked));
    let room = without_room.map(|index| asked_rows[index].location);
    let uncharged = shadow_rows_without_room(asked_rows);
    let mut limits: ArrayVec<&Arc<Limit>, MAX_ASKED_ROWS> = ArrayVec::new();
    let mut lines: ArrayVec<DecisionRow<'_>, MAX_ASKED_ROWS> = ArrayVec::new();
    for (place, AskedRow { limit, ask, location, row, load }) in asked_rows.iter_mut().enumerate() {
        let limit: &Arc<Limit> = (*limit).borrow();
        let key = || order.asks[*ask].key.unwrap_or_default();
        let seat = if *location == RowLocation::All {
            RowScope::All
        } else {
            RowScope::from(limit.overrides(key()))
        };
        let load = if uncharged.has(place) { AskTotals::default() } else { *load };
        limits.push(limit);
        lines.push(DecisionRow { limit, scope: seat, row, totals: load });
    }

    let shadowed = shadowed(&lines, &limits, uncharged, now);
    let lease_term = lease_term(order, &lines, context);
    let mut charges: Vec<ChargeRecord> = Vec::new();
    let mut note = |charged| charges.extend(lease_term.is_some().then_some(charged));
    let intent = if without_room.is_some() { Intent::Peek } else { order.intent };
    let lease = lease_term.as_ref().map(|(lease_term, _)| lease_term);
    let mut decision = decide::decide(&mut lines, intent, lease, now, &mut note);
    let degraded = decision == Decision::Granted && without_room.is_some();
    if let (true, Some(line), Some(location)) = (degraded, without_room, room) {
        decision = Decision::Denied(no_room(line, lines[line].limit, location));
    }
    // A lease lists the rows that it was charged to or that it holds. Only those are kept for it.
    let mut known = RowSet(if order.hold == Hold::Yes { u64::MAX } else { 0 });
    charges.iter().filter(|charged| charged.cost > 0).for_each(|charged| known.add(charged.position.row));
    charges.retain(|charged| known.has(charged.position.row) && !uncharged.has(charged.position.row));
    let lapses_at = match decision {
        Decision::Denied(Denial { wait: Wait::OnRelease, .. }) if degraded => context.next_lapse,
        Decision::Denied(Denial { wait: Wait::OnRelease, .. }) => decide::next_blocking_expiry(&lines, now),
        _ => None,
    };
    read_items(&lines, |line| limits[line], now, answers);
    OrderDecision { decision, degraded, shadowed, charges, lease_term, lapses_at }
}

/// Rows of shadow limits without room for another key. Such a limit charges nothing where it would refuse.
fn shadow_rows_without_room<L: Borrow<Arc<Limit>>>(asked_rows: &[AskedRow<L>]) -> RowSet {
    let mut uncharged = RowSet::default();
    for without_room in asked_rows.iter().filter(|asked| asked.lacks_room()) {
        let is_of_it = |asked: &AskedRow<L>| Arc::ptr_eq(asked.limit(), without_room.limit());
        if without_room.limit().mode() == Mode::Shadow {
            let places = asked_rows.iter().enumerate().filter(|(_, asked)| is_of_it(asked));
            places.for_each(|(place, _)| uncharged.add(place));
        }
    }
    uncharged
}

/// The lease that a grant of this order would get, and its time to live.
fn lease_term(
    order: &Order<'_>,
    lines: &[DecisionRow<'_>],
    context: DecisionContext,
) -> Option<(LeaseTerm, Span)> {
    let DecisionContext { now, tick, secret, number, .. } = context;
    let of_items = decide::lease_ttl(lines);
    if order.intent == Intent::Peek || (order.hold == Hold::No && of_items.is_none()) {
        return None;
    }
    let ttl = order.ttl.map(|ttl| tick.span(ttl)).or(of_items).unwrap_or(tick.span(DEFAULT_TTL));
    Some((LeaseTerm { lease: lease_id(secret, number), expires_at: now.plus(ttl) }, ttl))
}

/// Builds the lease of a grant: what the caller receives and what the store records. `register` returns the generation
/// of a limit and its next fence.
pub(super) fn make_lease<L: Borrow<Arc<Limit>>>(
    order: &Order<'_>,
    asked_rows: &mut [AskedRow<L>],
    decided: &OrderDecision,
    mut register: impl FnMut(&Limit) -> (u64, u64),
) -> Option<(GrantedLease, LeaseRecord)> {
    // A shadow limit may have charged nothing. Then there is no lease unless the order asks for one.
    let holds = order.hold == Hold::Yes || !decided.charges.is_empty();
    let (lease_term, ttl) = decided.lease_term.filter(|_| holds)?;
    let mut holdings = Vec::new();
    let mut holding_of = vec![None; asked_rows.len()];
    let mut fences: Vec<(Arc<Limit>, u64)> = Vec::new();
    let mut generation = 0;
    for (index, asked) in asked_rows.iter_mut().enumerate() {
        let charges: Vec<_> =
            decided.charges.iter().filter(|charged| charged.position.row == index).collect();
        if charges.is_empty() {
            continue;
        }
        asked.row.add_hold();
        let limit = asked.limit();
        // Rows of one limit are side by side.
        if fences.last().is_none_or(|(last, _)| !Arc::ptr_eq(last, limit)) {
            let (incarnation, fence) = register(limit);
            generation = incarnation;
            fences.push((Arc::clone(limit), fence));
        }
        holding_of[index] = Some(holdings.len());
        let named = |charged: &ChargeRecord| (limit.items()[charged.position.item].name().into(), *charged);
        holdings.push(LeaseHolding {
            limit_id: limit.id().into(),
            generation,
            version: limit.version(),
            key: order.asks[asked.ask].key.filter(|_| asked.location != RowLocation::All).map(Into::into),
            charges: charges.into_iter().map(named).collect(),
            pins: true,
        });
    }
    let asks = order.asks.iter().map(|ask| held_ask(ask, order, asked_rows, &holding_of)).collect();
    let grant = GrantedLease { lease: lease_term.lease, expires_at: lease_term.expires_at, fences };
    Some((grant, LeaseRecord { expires_at: lease_term.expires_at, ttl, holdings, asks }))
}

impl<L: Borrow<Arc<Limit>>> AskedRow<L> {
    /// The limit of this row.
    pub(super) fn limit(&self) -> &Arc<Limit> {
        self.limit.borrow()
    }

    /// Whether the row counts all keys or one.
    pub(super) fn per(&self) -> Per {
        if self.location == RowLocation::All { Per::All } else { Per::Key }
    }

    pub(super) fn lacks_room(&self) -> bool {
        matches!(self.location, RowLocation::NewKey(room) if room != RowRoom::Enough)
    }
}

/// Reads every item if the reply wants readings.
pub(super) fn read_items<'l>(
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

/// A refusal with its limits instead of row indices.
pub(super) fn refusal_of<'l>(denial: Denial, limit_of: impl Fn(usize) -> &'l Arc<Limit>) -> OrderRefusal {
    let Denial { binding, wait, first } = denial;
    let limit = Arc::clone(limit_of(binding.row));
    let first = (Arc::clone(limit_of(first.row)), first.item);
    OrderRefusal { limit, item: binding.item, wait, first, lapses_at: None }
}

/// The refusal of a limit without room for another key.
fn no_room(line: usize, limit: &Limit, location: RowLocation) -> Denial {
    let item = limit.items().iter().position(|item| item.per() == Per::Key).unwrap_or_default();
    let place = ItemPosition { row: line, item };
    let wait = match location {
        RowLocation::NewKey(RowRoom::NoneUntil(until)) => Wait::Until(until),
        RowLocation::NewKey(RowRoom::NoneUntilRelease) => Wait::OnRelease,
        _ => Wait::Never,
    };
    Denial { binding: place, wait, first: place }
}

/// Shadow limits that would have refused, because of an item or for lack of room.
fn shadowed(
    lines: &[DecisionRow<'_>],
    limits: &[&Arc<Limit>],
    uncharged: RowSet,
    now: Timestamp,
) -> Vec<Arc<Limit>> {
    let mut shadowed: Vec<Arc<Limit>> = Vec::new();
    if limits.iter().any(|limit| limit.mode() == Mode::Shadow) {
        let mut refusing: Vec<&Limit> = Vec::new();
        decide::shadow_refusals(lines, now, |limit| refusing.push(limit));
        for (place, limit) in limits.iter().enumerate() {
            let refuses = uncharged.has(place)
                || refusing.iter().any(|other| std::ptr::eq(*other, &raw const ***limit));
            if refuses && shadowed.iter().all(|other| !Arc::ptr_eq(other, limit)) {
                shadowed.push(Arc::clone(limit));
            }
        }
    }
    shadowed
}

/// The holdings that an ask of a held order was charged to.
fn held_ask<L: Borrow<Arc<Limit>>>(
    ask: &Ask<'_>,
    order: &Order<'_>,
    asked_rows: &[AskedRow<L>],
    holding_of: &[Option<usize>],
) -> HeldAsk {
    let mut holdings = [None, None];
    for (asked, holding) in asked_rows.iter().zip(holding_of) {
        if asked.limit().id() != ask.limit_id {
            continue;
        }
        if asked.location == RowLocation::All {
            holdings[0] = *holding;
        } else if order.asks[asked.ask].key == ask.key {
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

/// Id of the lease with this number. It is hard to guess without the secret.
pub(super) fn lease_id(secret: u64, number: u64) -> LeaseId {
    LeaseId(u128::from(number) << 64 | u128::from(lease_suffix(secret, number)))
}

/// A number that cannot be predicted without the secret.
fn lease_suffix(secret: u64, number: u64) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(secret);
    hasher.write_u64(number);
    hasher.finish()
}
