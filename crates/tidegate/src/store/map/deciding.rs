//! Deciding: rows are taken out, judged together, charged or not, and put back.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::decide::{self, Decision};
use tidegate_core::limit::LONGEST_KEY;
use tidegate_core::order::{LONGEST_PATIENCE, LONGEST_REQUEST_ID, MOST_ASKS, REQUEST_MEMORY};
use tidegate_core::spec::DEFAULT_TTL;
use tidegate_core::time::LONGEST_SPAN;
use tidegate_core::{
    Ask, Charged, Denial, Hold, Intent, LeaseId, Limit, Line, Load, Mode, Order, Per, Place, Row, Seat, Span,
    Tenure, Timestamp, Wait,
};

use super::leases::{HeldAsk, Holding, Lease};
use super::table::Room;
use super::{Inner, LOOK_AHEAD};
use crate::answer::{Answer, Answers, Denied, Detail, Grant, ItemReading, Outcome, Rejection};

/// A row that takes part in a decision, taken out of its place until it is made.
pub(super) struct Entrant {
    pub(super) limit: Arc<Limit>,
    /// The first ask that it is for.
    pub(super) ask: usize,
    pub(super) station: Station,
    pub(super) row: Row,
    pub(super) load: Load,
}

/// Where an entrant's row belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Station {
    /// It is the limit's `all` row.
    All,
    /// It is a key's row, in this slot.
    Key(usize),
    /// It would be a new key's row, and this is the room for it.
    NewKey(Room),
}

/// What came of a decision, before it is written down.
struct Conclusion {
    decision: Decision,
    /// Refused only because there is no room for another key.
    degraded: bool,
    shadowed: Vec<Arc<Limit>>,
    charges: Vec<Charged>,
    tenure: Option<(Tenure, Span)>,
}

impl Inner {
    pub(super) fn decide(&mut self, order: &Order<'_>, answers: &mut Answers) -> Result<Answer, Rejection> {
        check_order(order)?;
        if let Some(repeated) = self.repeated(order, answers)? {
            return Ok(repeated);
        }
        if let ([ask], Hold::No, None) = (order.asks, order.hold, order.request_id)
            && let Some(tenant) = self.limits.get_mut(ask.limit_id)
            && let Some(answer) = tenant.decide_alone(ask, order.intent, self.latest, answers)
        {
            return Ok(answer);
        }
        let mut entrants = self.enter(order)?;
        let first = answers.mark();
        let conclusion = self.conclude(order, &mut entrants, answers);
        let outcome = match conclusion.decision {
            Decision::Denied(denial) => Outcome::Denied(put_in_words(denial, |line| &entrants[line].limit)),
            Decision::Granted => Outcome::Granted(self.grant(order, &mut entrants, &conclusion)),
        };
        self.leave(order, entrants);
        let answer = Answer {
            outcome,
            at: self.latest,
            degraded: conclusion.degraded,
            shadowed: conclusion.shadowed,
            readings: first..answers.mark(),
        };
        if let (Some(id), Intent::Acquire, true) = (order.request_id, order.intent, answer.is_granted()) {
            let until = self.latest.plus(self.tick.span(REQUEST_MEMORY));
            let readings = answers.readings(&answer).to_vec();
            self.requests.remember(id, order, until, answer.clone(), readings);
        }
        Ok(answer)
    }

    /// See [`super::MapStore::look_ahead`].
    pub(super) fn look_ahead<'a>(&self, asks: impl IntoIterator<Item = Ask<'a>>) {
        // Level by level, so that what is fetched for one row does not wait for what another row's points to.
        let mut rows: [Option<&Row>; LOOK_AHEAD] = [None; LOOK_AHEAD];
        for (row, ask) in rows.iter_mut().zip(asks) {
            let tenant = self.limits.get(ask.limit_id);
            *row = tenant.zip(ask.key).and_then(|(tenant, key)| tenant.table.get(key));
        }
        let look = |glance: fn(&Row) -> u64| {
            let all = rows.iter().flatten().map(|row| glance(row)).fold(0, |all, each| all ^ each);
            std::hint::black_box(all);
        };
        look(Row::glance);
        look(Row::glance_further);
    }

    /// The answer that the same request was granted before.
    fn repeated(&mut self, order: &Order<'_>, answers: &mut Answers) -> Result<Option<Answer>, Rejection> {
        let (Some(id), Intent::Acquire) = (order.request_id, order.intent) else { return Ok(None) };
        let Some(remembered) = self.requests.get(id, self.latest) else { return Ok(None) };
        if !remembered.is_for(order) {
            return Err(Rejection::RequestIdReused);
        }
        let first = answers.mark();
        remembered.readings.iter().for_each(|reading| answers.read(reading.clone()));
        Ok(Some(Answer { readings: first..answers.mark(), ..remembered.answer.clone() }))
    }

    /// Takes out the rows an order is about: one entrant per row, those of a limit side by side with its `all` row
    /// first, repeated asks added up. Nothing is taken unless everything can be.
    fn enter(&mut self, order: &Order<'_>) -> Result<Vec<Entrant>, Rejection> {
        for ask in order.asks {
            let tenant = self.limits.get_mut(ask.limit_id);
            let tenant =
                tenant.ok_or_else(|| Rejection::UnknownLimit { limit_id: ask.limit_id.to_owned() })?;
            if ask.key.is_none() && tenant.limit.needs_key() {
                return Err(Rejection::KeyMissing { limit_id: ask.limit_id.to_owned() });
            }
            // Before any slot is found or any row taken out of its own.
            tenant.make_room(order.asks.len() as u64, self.latest);
        }
        let mut entrants: Vec<Entrant> = Vec::with_capacity(2 * order.asks.len());
        for (index, ask) in order.asks.iter().enumerate() {
            let tenant = self.limits.get_mut(ask.limit_id).expect("looked up above");
            tenant.enter(index, ask, order, self.latest, &mut entrants);
        }
        self.find_room(order, &mut entrants);
        Ok(entrants)
    }

    /// Sees whether there is room for the new keys, one after the other. Whoever only looks needs no row.
    fn find_room(&self, order: &Order<'_>, entrants: &mut [Entrant]) {
        let mut before: Option<(Arc<Limit>, u64)> = None;
        for index in 0..entrants.len() {
            let (entrant, limit) = (&entrants[index], Arc::clone(&entrants[index].limit));
            let Some(most) = entrant.limit.spec().max_keys else { continue };
            let needs_row = entrant.load.count > 0 || order.hold == Hold::Yes;
            if matches!(entrant.station, Station::NewKey(_)) && needs_row {
                // Entrants of one limit stand side by side.
                let others = before.filter(|(other, _)| Arc::ptr_eq(other, &limit)).map_or(0, |(_, n)| n);
                let table = &self.limits[limit.id()].table;
                let mut room = table.room(most, others + 1, self.latest);
                // Rows that are out are not seen in their table.
                let holds = |other: &Entrant| {
                    Arc::ptr_eq(&other.limit, &limit)
                        && other.station != Station::All
                        && other.row.is_held(self.latest)
                };
                if room == Room::None && entrants.iter().any(holds) {
                    room = Room::NoneTillRelease;
                }
                entrants[index].station = Station::NewKey(room);
                before = Some((limit, others + 1));
            }
        }
    }

    /// Decides over the entrants and reads what they say afterwards.
    fn conclude(&self, order: &Order<'_>, entrants: &mut [Entrant], answers: &mut Answers) -> Conclusion {
        let now = self.latest;
        let limits: Vec<Arc<Limit>> = entrants.iter().map(|entrant| Arc::clone(&entrant.limit)).collect();
        let crowded =
            entrants.iter().position(|entrant| entrant.is_crowded() && entrant.limit.mode() == Mode::Enforce);
        let room = crowded.map(|index| entrants[index].station);
        // A limit that only watches does not charge where it would refuse.
        let watches_a_crowd = |limit: &Arc<Limit>| {
            let crowds = |entrant: &Entrant| Arc::ptr_eq(&entrant.limit, limit) && entrant.is_crowded();
            limit.mode() == Mode::Shadow && entrants.iter().any(crowds)
        };
        let aside: Vec<bool> = limits.iter().map(watches_a_crowd).collect();
        let mut lines: Vec<Line<'_>> = Vec::with_capacity(entrants.len());
        for ((entrant, limit), aside) in entrants.iter_mut().zip(&limits).zip(&aside) {
            let key = order.asks[entrant.ask].key.unwrap_or_default();
            let seat =
                if entrant.station == Station::All { Seat::All } else { Seat::from(limit.overrides(key)) };
            let load = if *aside { Load::default() } else { entrant.load };
            lines.push(Line { limit, seat, row: &mut entrant.row, load });
        }

        let shadowed = shadowed(&lines, &limits, &aside, now);
        let tenure = self.tenure(order, &lines);
        let mut charges: Vec<Charged> = Vec::new();
        let mut note = |charged| charges.extend(tenure.is_some().then_some(charged));
        let intent = if crowded.is_some() { Intent::Peek } else { order.intent };
        let lease = tenure.as_ref().map(|(tenure, _)| tenure);
        let mut decision = decide::decide(&mut lines, intent, lease, now, &mut note);
        let degraded = decision == Decision::Granted && crowded.is_some();
        if let (true, Some(line), Some(station)) = (degraded, crowded, room) {
            decision = Decision::Denied(no_room(line, lines[line].limit, station));
        }
        // A lease knows of the rows it was charged to or is held for, and no other: they are kept for its sake.
        let mut known: Vec<bool> = vec![order.hold == Hold::Yes; lines.len()];
        for charged in &charges {
            known[charged.place.line] |= charged.cost > 0;
        }
        charges.retain(|charged| known[charged.place.line] && !aside[charged.place.line]);
        read(&lines, |line| &limits[line], now, answers);
        Conclusion { decision, degraded, shadowed, charges, tenure }
    }

    /// The lease that a grant of this order would come with, and its time to live.
    fn tenure(&self, order: &Order<'_>, lines: &[Line<'_>]) -> Option<(Tenure, Span)> {
        let of_items = decide::lease_ttl(lines);
        if order.intent == Intent::Peek || (order.hold == Hold::No && of_items.is_none()) {
            return None;
        }
        let ttl =
            order.ttl.map(|ttl| self.tick.span(ttl)).or(of_items).unwrap_or(self.tick.span(DEFAULT_TTL));
        let number = self.granted_leases + 1;
        let lease = LeaseId(u128::from(number) << 64 | u128::from(scramble(self.secret, number)));
        Some((Tenure { lease, expires_at: self.latest.plus(ttl) }, ttl))
    }

    /// Writes down the lease that a grant comes with.
    fn grant(
        &mut self,
        order: &Order<'_>,
        entrants: &mut [Entrant],
        conclusion: &Conclusion,
    ) -> Option<Grant> {
        // A limit that only watches may have been charged nothing; then there is no lease unless one was asked for.
        let holds = order.hold == Hold::Yes || !conclusion.charges.is_empty();
        let (tenure, ttl) = conclusion.tenure.filter(|_| holds)?;
        self.granted_leases += 1;
        let mut holdings = Vec::new();
        let mut holding_of = vec![None; entrants.len()];
        let mut fences: Vec<(Arc<Limit>, u64)> = Vec::new();
        for (index, entrant) in entrants.iter_mut().enumerate() {
            let charges: Vec<_> =
                conclusion.charges.iter().filter(|charged| charged.place.line == index).collect();
            if charges.is_empty() {
                continue;
            }
            let tenant = self.limits.get_mut(entrant.limit.id()).expect("its row was taken from there");
            if fences.iter().all(|(limit, _)| !Arc::ptr_eq(limit, &entrant.limit)) {
                tenant.fence += 1;
                self.highest_fence = self.highest_fence.max(tenant.fence);
                fences.push((Arc::clone(&entrant.limit), tenant.fence));
            }
            entrant.row.pin();
            holding_of[index] = Some(holdings.len());
            let named =
                |charged: &Charged| (entrant.limit.items()[charged.place.item].name().into(), *charged);
            holdings.push(Holding {
                limit_id: entrant.limit.id().into(),
                generation: tenant.generation,
                version: entrant.limit.version(),
                key: order.asks[entrant.ask].key.filter(|_| entrant.station != Station::All).map(Into::into),
                charges: charges.into_iter().map(named).collect(),
                pins: true,
            });
        }
        let asks = order.asks.iter().map(|ask| held_ask(ask, order, entrants, &holding_of)).collect();
        self.leases.insert(tenure.lease, Lease { expires_at: tenure.expires_at, ttl, holdings, asks });
        Some(Grant { lease: tenure.lease, expires_at: tenure.expires_at, fences })
    }

    /// Puts the rows back, and adds those of new keys that remember something. Adding looks at other rows of the table,
    /// so everything has to be back in its place by then.
    fn leave(&mut self, order: &Order<'_>, entrants: Vec<Entrant>) {
        let now = self.latest;
        let mut new = Vec::new();
        for entrant in entrants {
            let tenant = self.limits.get_mut(entrant.limit.id()).expect("its row was taken from there");
            match entrant.station {
                Station::All => tenant.all = entrant.row,
                Station::Key(slot) => *tenant.table.row(slot) = entrant.row,
                Station::NewKey(_) => new.push(entrant),
            }
        }
        for Entrant { limit, ask, row, .. } in new {
            let key = order.asks[ask].key.unwrap_or_default();
            if !row.is_fresh(&limit, Seat::from(limit.overrides(key)), now) {
                let tenant = self.limits.get_mut(limit.id()).expect("its row was taken from there");
                tenant.table.insert(&limit, key, row, now);
            }
        }
    }
}

impl Entrant {
    fn is_crowded(&self) -> bool {
        matches!(self.station, Station::NewKey(room) if room != Room::Enough)
    }
}

/// Reads what every item says, if that is wanted.
pub(super) fn read<'l>(
    lines: &[Line<'_>],
    limit_of: impl Fn(usize) -> &'l Arc<Limit>,
    now: Timestamp,
    answers: &mut Answers,
) {
    if answers.detail() == Detail::Readings {
        decide::each_item(lines, |place, line, item| {
            let reading = line.reading(place.item, item, now);
            answers.read(ItemReading { limit: Arc::clone(limit_of(place.line)), item: place.item, reading });
        });
    }
}

/// A denial that names its limits.
pub(super) fn put_in_words<'l>(denial: Denial, limit_of: impl Fn(usize) -> &'l Arc<Limit>) -> Denied {
    let Denial { binding, wait, first } = denial;
    let limit = Arc::clone(limit_of(binding.line));
    Denied { limit, item: binding.item, wait, first: (Arc::clone(limit_of(first.line)), first.item) }
}

/// The refusal of a limit that has no room for another key.
fn no_room(line: usize, limit: &Limit, station: Station) -> Denial {
    let item = limit.items().iter().position(|item| item.per() == Per::Key).unwrap_or_default();
    let place = Place { line, item };
    let wait = match station {
        Station::NewKey(Room::NoneUntil(until)) => Wait::Until(until),
        Station::NewKey(Room::NoneTillRelease) => Wait::OnRelease,
        _ => Wait::Never,
    };
    Denial { binding: place, wait, first: place }
}

/// The limits that only watch and would have refused: by their items, or because they were put aside.
fn shadowed(lines: &[Line<'_>], limits: &[Arc<Limit>], aside: &[bool], now: Timestamp) -> Vec<Arc<Limit>> {
    let mut shadowed: Vec<Arc<Limit>> = Vec::new();
    if limits.iter().any(|limit| limit.mode() == Mode::Shadow) {
        let mut refusing: Vec<&Limit> = Vec::new();
        decide::shadow_refusals(lines, now, |limit| refusing.push(limit));
        for (limit, aside) in limits.iter().zip(aside) {
            let refuses = *aside || refusing.iter().any(|other| std::ptr::eq(*other, &raw const **limit));
            if refuses && shadowed.iter().all(|other| !Arc::ptr_eq(other, limit)) {
                shadowed.push(Arc::clone(limit));
            }
        }
    }
    shadowed
}

/// Which holdings an ask of a held order is charged to.
fn held_ask(ask: &Ask<'_>, order: &Order<'_>, entrants: &[Entrant], holding_of: &[Option<usize>]) -> HeldAsk {
    let mut holdings = [None, None];
    for (entrant, holding) in entrants.iter().zip(holding_of) {
        if entrant.limit.id() != ask.limit_id {
            continue;
        }
        if entrant.station == Station::All {
            holdings[0] = *holding;
        } else if order.asks[entrant.ask].key == ask.key {
            holdings[1] = *holding;
        }
    }
    HeldAsk { holdings, count: ask.count }
}

fn check_order(order: &Order<'_>) -> Result<(), Rejection> {
    if order.asks.is_empty() || order.asks.len() > MOST_ASKS {
        return Err(Rejection::AsksOutOfRange { asks: order.asks.len() });
    }
    if order.patience > LONGEST_PATIENCE {
        return Err(Rejection::PatienceOutOfRange);
    }
    order.asks.iter().try_for_each(|ask| check_key(ask.key))?;
    match order.request_id {
        Some(id) if id.is_empty() || id.len() > LONGEST_REQUEST_ID => {
            Err(Rejection::RequestIdOutOfRange { bytes: id.len() })
        }
        _ => check_ttl(order.ttl),
    }
}

pub(super) fn check_key(key: Option<&[u8]>) -> Result<(), Rejection> {
    match key {
        Some(key) if key.len() > LONGEST_KEY => Err(Rejection::KeyTooLong { bytes: key.len() }),
        _ => Ok(()),
    }
}

pub(super) fn check_ttl(ttl: Option<Duration>) -> Result<(), Rejection> {
    match ttl {
        Some(ttl) if ttl < Duration::from_millis(1) || ttl > LONGEST_SPAN => Err(Rejection::TtlOutOfRange),
        _ => Ok(()),
    }
}

/// A number that only the owner of the secret can foresee.
fn scramble(secret: u64, number: u64) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(secret);
    hasher.write_u64(number);
    hasher.finish()
}
