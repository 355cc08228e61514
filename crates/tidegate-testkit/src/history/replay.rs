//! Replays a history against a system under test and the reference model, and reports the first difference.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate_core::{Amount, Hold, Intent, LeaseId, LeaseTerm, LimitSpec, Mode, Timestamp, Wait};

use super::{History, HistoryEvent, KEYS, TimeStep};
use crate::reference_model::{
    KeyWithoutRoom, ModelReading, ModelRefusal, OwnedAsk, ReferenceModel, RefundView,
};

/// Reply of the system under test to an order.
#[derive(Debug, Clone)]
pub struct ReplayReply {
    /// Why it was refused; `None` if it was granted.
    pub refusal: Option<ModelRefusal>,
    /// The readings after the decision, in order.
    pub readings: Vec<ModelReading>,
    /// The lease of the grant.
    pub lease: Option<LeaseTerm>,
    /// Whether the order was refused only because there is no room for another key.
    pub degraded: bool,
}

/// Something that keeps limits: the core with a map around it, or a store.
pub trait SystemUnderTest {
    /// Adds or replaces a limit. Returns whether it was accepted.
    fn put(&mut self, spec: &LimitSpec, now: Timestamp) -> bool;
    /// Decides an order.
    fn order(&mut self, intent: Intent, asks: &[OwnedAsk], hold: bool, now: Timestamp) -> ReplayReply;
    /// Settles a hold. Returns whether it was live.
    fn settle(&mut self, lease: LeaseId, actual: Amount, now: Timestamp) -> bool;
    /// Releases a lease. Returns whether it was live.
    fn release(&mut self, lease: LeaseId, now: Timestamp) -> bool;
    /// Moves the expiry of a lease. Returns whether it was live.
    fn renew(&mut self, lease: LeaseId, expires_at: Timestamp, now: Timestamp) -> bool;
    /// Zeroes counts.
    fn reset(&mut self, limit_id: &str, key: Option<&[u8]>, now: Timestamp);
    /// Drops what need not be remembered.
    fn forget(&mut self, now: Timestamp);
}

/// Replays a history and reports the first difference.
pub fn replay(history: &History, subject: &mut dyn SystemUnderTest) -> Result<HistoryTally, String> {
    let mut run = Replay {
        model: ReferenceModel::new(history.tick),
        now: Timestamp::from_ticks(history.begins * history.tick.per_second()),
        begins: history.begins,
        ids: history.limits.iter().map(|spec| spec.id.clone()).collect(),
        leases: Vec::new(),
        leases_of_several_asks: Vec::new(),
        wait: None,
        resets: Vec::new(),
        tally: HistoryTally::default(),
        is_stopped: false,
        transcript: String::new(),
    };
    for spec in &history.limits {
        run.put(subject, spec.clone());
    }
    for event in &history.events {
        if run.is_stopped {
            break;
        }
        run.apply(subject, event).map_err(|what| format!("{what}\nafter\n{}", run.transcript))?;
    }
    run.tally.ended = run.model.clamp(run.now);
    Ok(run.tally)
}

/// What a history contained. Shows that generated histories are not empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct HistoryTally {
    /// Granted orders.
    pub granted: usize,
    /// Refused orders.
    pub refused: usize,
    /// Orders refused because there was no room for another key.
    pub degraded: usize,
    /// Accepted edits.
    pub edits: usize,
    /// Settled holds.
    pub settled: usize,
    /// Final time of the store.
    pub ended: Timestamp,
}

struct Replay {
    model: ReferenceModel,
    now: Timestamp,
    begins: u64,
    ids: Vec<String>,
    leases: Vec<LeaseTerm>,
    /// Leases of several asks. They have no single true cost.
    leases_of_several_asks: Vec<LeaseId>,
    wait: Option<Timestamp>,
    resets: Vec<Timestamp>,
    tally: HistoryTally,
    /// The rest of the history cannot be compared.
    is_stopped: bool,
    transcript: String,
}

impl Replay {
    fn put(&mut self, subject: &mut dyn SystemUnderTest, spec: LimitSpec) {
        let now = self.model.clamp(self.now);
        if subject.put(&spec, now) {
            self.model.put(spec, now);
            self.tally.edits += 1;
        }
    }

    fn apply(&mut self, subject: &mut dyn SystemUnderTest, event: &HistoryEvent) -> Result<(), String> {
        let _infallible = writeln!(self.transcript, "  at {}: {event:?}", self.now.ticks());
        // A store's time never goes back.
        let now = self.model.clamp(self.now);
        match event {
            HistoryEvent::Time(step) => {
                self.advance(*step);
                Ok(())
            }
            HistoryEvent::Order { intent, asks, hold } => self.order(subject, *intent, asks, *hold),
            HistoryEvent::Settle(lease, actual) => {
                let Some(lease_term) = self.lease(*lease) else { return Ok(()) };
                if self.leases_of_several_asks.contains(&lease_term.lease) {
                    return Ok(());
                }
                let ours = self.model.settle(lease_term.lease, *actual, now);
                self.tally.settled += usize::from(ours);
                expect_same("settled", subject.settle(lease_term.lease, *actual, now), ours)
            }
            HistoryEvent::Release(lease) => {
                let Some(lease_term) = self.lease(*lease) else { return Ok(()) };
                let ours = self.model.release(lease_term.lease, now);
                expect_same("released", subject.release(lease_term.lease, now), ours)
            }
            HistoryEvent::Renew(lease, ms) => {
                let Some(lease_term) = self.lease(*lease) else { return Ok(()) };
                let until = now.plus(self.model.tick().span(Duration::from_millis(*ms)));
                let ours = self.model.renew(lease_term.lease, until, now);
                expect_same("renewed", subject.renew(lease_term.lease, until, now), ours)
            }
            HistoryEvent::Reset(limit, key) => {
                let key = key.map(|key| KEYS[key]);
                self.model.reset(&self.ids[*limit], key, now);
                subject.reset(&self.ids[*limit], key, now);
                Ok(())
            }
            HistoryEvent::Edit(limit, limit_edit) => {
                let spec = self.model.spec(&self.ids[*limit]).expect("every limit was put");
                let next = limit_edit.apply(spec, self.begins);
                self.put(subject, next);
                Ok(())
            }
            HistoryEvent::Forget => {
                subject.forget(now);
                Ok(())
            }
        }
    }

    fn lease(&self, index: usize) -> Option<LeaseTerm> {
        // The latest leases are the most likely to be live.
        self.leases.len().checked_sub(1 + index).map(|at| self.leases[at])
    }

    fn advance(&mut self, step: TimeStep) {
        let tick = self.model.tick();
        let moved = |at: Timestamp, by: i64| Timestamp::from_ticks(at.ticks().saturating_add_signed(by));
        let to = match step {
            TimeStep::Ticks(ticks) => Timestamp::from_ticks(self.now.ticks() + ticks),
            TimeStep::Millis(ms) => self.now.plus(tick.span(Duration::from_millis(ms))),
            TimeStep::Back(ticks) => Timestamp::from_ticks(self.now.ticks().saturating_sub(ticks)),
            TimeStep::ToWait(past) => self.wait.map_or(self.now, |at| moved(at, past)),
            TimeStep::ToReset(index, past) => self.resets.get(index).map_or(self.now, |&at| moved(at, past)),
        };
        // A history ends long before time does.
        self.now = to.min(Timestamp::from_ticks(4_000_000_000 * tick.per_second()));
    }

    fn order(
        &mut self,
        subject: &mut dyn SystemUnderTest,
        intent: Intent,
        asks: &[(usize, usize, Amount)],
        hold: bool,
    ) -> Result<(), String> {
        let asks: Vec<OwnedAsk> = asks
            .iter()
            .map(|&(limit, key, count)| OwnedAsk {
                limit_id: self.ids[limit].clone(),
                key: Some(KEYS[key].to_vec()),
                count,
            })
            .collect();
        let now = self.model.clamp(self.now);
        // Only an order of one ask has a single true cost.
        let hold = hold && asks.len() == 1;
        let theirs = subject.order(intent, &asks, hold, now);
        let truth = self.model.refusal(&asks, now, RefundView::Refunded);
        let spent = self.model.refusal(&asks, now, RefundView::NotRefunded);
        let hold = if hold { Hold::Yes } else { Hold::No };
        let refused = [&truth, &spent].map(Option::is_some);
        let [crowded, at_most] = [RefundView::Refunded, RefundView::NotRefunded]
            .map(|view| self.model.keys_without_room(&asks, hold, now, view));
        if crowded != at_most || (!crowded.is_empty() && refused[0] != refused[1]) {
            // When a bucket's row may be forgotten is up to the store, so the rest is ambiguous.
            self.is_stopped = true;
            return Ok(());
        }
        let no_room = crowded.iter().find(|crowded| crowded.mode == Mode::Enforce);
        if let Some(crowded) = no_room.filter(|_| refused == [false, false]) {
            self.expect_degraded(&theirs, crowded, &asks, hold, now)?;
        } else {
            expect_same("degraded", theirs.degraded, false)?;
            expect_between(truth.as_ref(), theirs.refusal.as_ref(), spent.as_ref())?;
        }
        for view in [RefundView::Refunded, RefundView::NotRefunded] {
            self.expect_promise_holds(&asks, now, view)?;
        }
        if self.model.is_shadow_charge_ambiguous(&asks, now) {
            self.is_stopped = true;
            return Ok(());
        }
        if theirs.refusal.is_none() && intent == Intent::Acquire {
            self.model.charge(&asks, hold, theirs.lease, now);
            self.leases.extend(theirs.lease);
            self.leases_of_several_asks
                .extend(theirs.lease.filter(|_| asks.len() > 1).map(|lease_term| lease_term.lease));
        }
        let truth = self.model.readings(&asks, now, RefundView::Refunded);
        let spent = self.model.readings(&asks, now, RefundView::NotRefunded);
        expect_readings_between(&truth, &theirs.readings, &spent)?;
        self.resets = theirs.readings.iter().filter_map(|reading| reading.resets_at).collect();
        match &theirs.refusal {
            Some(ModelRefusal { wait: Wait::Until(until), .. }) => self.wait = Some(*until),
            _ => self.wait = None,
        }
        self.tally.granted += usize::from(theirs.refusal.is_none());
        self.tally.refused += usize::from(theirs.refusal.is_some());
        self.tally.degraded += usize::from(theirs.degraded);
        Ok(())
    }

    /// Expects a refusal for lack of room: it names the first key item of the limit, and its wait can be explained.
    fn expect_degraded(
        &self,
        theirs: &ReplayReply,
        crowded: &KeyWithoutRoom,
        asks: &[OwnedAsk],
        hold: Hold,
        now: Timestamp,
    ) -> Result<(), String> {
        expect_same("degraded", theirs.degraded, true)?;
        let explained = theirs.refusal.as_ref().is_some_and(|refusal| {
            (&refusal.limit_id, &refusal.item) == (&crowded.limit_id, &crowded.item)
                && self.model.is_wait_explained(refusal.wait, asks, hold, &crowded.limit_id, now)
        });
        if explained {
            Ok(())
        } else {
            Err(format!("replied {:?}\nwith no room for {crowded:?}", theirs.refusal))
        }
    }

    /// Expects that the model's wait is the first instant at which everything fits, found by trying each one.
    fn expect_promise_holds(
        &self,
        asks: &[OwnedAsk],
        now: Timestamp,
        view: RefundView,
    ) -> Result<(), String> {
        if let Some(ModelRefusal { wait: Wait::Until(until), .. }) = self.model.refusal(asks, now, view) {
            let first = self.model.first_fit(asks, now, view);
            if first != Some(until) {
                return Err(format!("the model promises {until:?}, but the first fit is {first:?}"));
            }
        }
        Ok(())
    }
}

fn expect_same(what: &str, theirs: bool, ours: bool) -> Result<(), String> {
    if theirs == ours { Ok(()) } else { Err(format!("{what}: {theirs}, by definition {ours}")) }
}

/// Expects the reply of the definition. Where a bucket was refunded, expects a reply between the exact refund and no
/// refund.
fn expect_between(
    truth: Option<&ModelRefusal>,
    theirs: Option<&ModelRefusal>,
    spent: Option<&ModelRefusal>,
) -> Result<(), String> {
    let wait = |refusal: Option<&ModelRefusal>| refusal.map(|refusal| refusal.wait);
    let right = if truth == spent {
        theirs == truth
    } else {
        wait(truth) <= wait(theirs) && wait(theirs) <= wait(spent)
    };
    if right {
        Ok(())
    } else {
        Err(format!("replied {theirs:?}\nby definition {truth:?}\nwithout refunds {spent:?}"))
    }
}

fn expect_readings_between(
    truth: &[ModelReading],
    theirs: &[ModelReading],
    spent: &[ModelReading],
) -> Result<(), String> {
    let right = truth.len() == theirs.len()
        && truth.iter().zip(theirs).zip(spent).all(|((truth, theirs), spent)| {
            if truth == spent {
                return theirs == truth;
            }
            let same = (&truth.limit_id, &truth.item, truth.capacity)
                == (&theirs.limit_id, &theirs.item, theirs.capacity);
            same && truth.used <= theirs.used
                && theirs.used <= spent.used
                && truth.resets_at <= theirs.resets_at
                && theirs.resets_at <= spent.resets_at
        });
    if right {
        Ok(())
    } else {
        Err(format!("reads {theirs:?}\nby definition {truth:?}\nwithout refunds {spent:?}"))
    }
}
