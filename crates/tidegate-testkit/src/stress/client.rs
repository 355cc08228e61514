//! An asker: throws orders at the store, keeps what it was granted for a while, and writes everything down.

use std::time::Duration;

use tidegate::{
    Actual, Amount, Answer, Ask, Clock, Detail, Grant, Hold, Intent, ItemSpec, LeaseId, LimitSpec, Order,
    Outcome, Policy, Replies, Settlement, Timestamp, Wait,
};

use super::rng::SeededRng;
use super::watchdog::ThreadAction;
use super::workload::{HOT_KEYS, key};
use super::{DecisionTimes, StressContext, ThreadProgress};
use crate::checker::ObservedOrder;

/// The most leases an asker keeps.
const MOST_LEASES: usize = 6;

/// What one asker saw.
pub(super) struct ClientLog {
    /// Of each limit, every row of every order.
    pub(super) pages: Vec<Vec<ObservedRow>>,
    /// Of each limit, how many orders it refused.
    pub(super) refused: Vec<usize>,
    /// Of each limit, every fence that a lease came with: when it was asked for, when heard, and the fence.
    pub(super) fences: Vec<Vec<(Timestamp, Timestamp, u64)>>,
    pub(super) leases: usize,
    pub(super) faults: Vec<String>,
}

/// One row of one order.
pub(super) struct ObservedRow {
    pub(super) entry: ObservedOrder,
    /// What is counted in the end: settled holds at their true cost.
    pub(super) kept: Amount,
}

/// An order that owns its words.
struct RandomOrder {
    intent: Intent,
    hold: Hold,
    ttl: Option<Duration>,
    /// (limit, key, count)
    asks: Vec<(usize, Vec<u8>, Amount)>,
}

impl RandomOrder {
    fn asks<'a>(&'a self, limits: &'a [LimitSpec]) -> Vec<Ask<'a>> {
        let ask = |(limit, key, count): &'a (usize, Vec<u8>, Amount)| {
            let limit_id = &limits[*limit].id;
            Ask { limit_id, key: Some(key), count: *count }
        };
        self.asks.iter().map(ask).collect()
    }
}

/// A lease, and where its order is written down.
struct OpenLease {
    lease: LeaseId,
    expires_at: Timestamp,
    hold: Hold,
    /// For each ask: its limit, the line of its row, and its count.
    asks: Vec<(usize, usize, Amount)>,
}

/// Throws orders.
pub(super) struct StressClient<'a> {
    context: &'a StressContext,
    rng: SeededRng,
    leases: Vec<OpenLease>,
    log: ClientLog,
}

impl<'a> StressClient<'a> {
    pub(super) fn new(context: &'a StressContext, index: usize) -> StressClient<'a> {
        let limits = context.limits.len();
        let log = ClientLog {
            pages: (0..limits).map(|_| Vec::new()).collect(),
            refused: vec![0; limits],
            fences: vec![Vec::new(); limits],
            leases: 0,
            faults: Vec::new(),
        };
        let rng = SeededRng::new(context.plan.seed, index as u64);
        StressClient { context, rng, leases: Vec::new(), log }
    }

    /// Throws all orders of the plan, telling `turned` after each batch which order it has come to.
    pub(super) fn work(mut self, progress: &ThreadProgress, turned: &dyn Fn(usize)) -> ClientLog {
        let mut buffer = Replies::new(Detail::Verdicts);
        let mut turn = 0;
        while turn < self.context.plan.orders {
            let size = if self.rng.chance(80) { 1 } else { 2 + self.rng.index(7) };
            progress.set(ThreadAction::Submitting);
            buffer = self.submit(size, buffer);
            (turn..turn + size).for_each(turned);
            turn += size;
            while self.leases.len() > MOST_LEASES || (!self.leases.is_empty() && self.rng.chance(40)) {
                self.touch_a_lease(progress);
            }
        }
        while let Some(kept) = self.leases.pop() {
            progress.set(ThreadAction::Releasing);
            self.release(&kept);
        }
        self.log
    }

    fn fault(&mut self, fault: String) {
        self.log.faults.push(fault);
    }

    fn draft(&mut self) -> RandomOrder {
        let keys = self.context.plan.keys;
        let anybody = |rng: &mut SeededRng| {
            let among = if rng.chance(50) { keys.min(HOT_KEYS) } else { keys };
            key(rng.index(among))
        };
        let rng = &mut self.rng;
        let somebody = anybody(rng);
        let number = if rng.chance(50) { 1 } else { 2 + rng.index(3) };
        let asks = (0..number)
            .map(|_| {
                let key = if rng.chance(75) { somebody.clone() } else { anybody(rng) };
                (rng.index(self.context.limits.len()), key, rng.one_of(&[0, 1, 1, 1, 1, 1, 2, 2, 3, 5]))
            })
            .collect();
        RandomOrder {
            intent: if rng.chance(6) { Intent::Peek } else { Intent::Acquire },
            hold: if rng.chance(25) { Hold::Yes } else { Hold::No },
            ttl: rng.chance(20).then(|| Duration::from_millis(rng.one_of(&[1, 20, 150, 1000]))),
            asks,
        }
    }

    fn submit(&mut self, size: usize, buffer: Replies) -> Replies {
        let drafts: Vec<RandomOrder> = (0..size).map(|_| self.draft()).collect();
        let context = self.context;
        let asks: Vec<Vec<Ask<'_>>> = drafts.iter().map(|draft| draft.asks(&context.limits)).collect();
        let orders: Vec<Order<'_>> = drafts
            .iter()
            .zip(&asks)
            .map(|(draft, asks)| Order {
                intent: draft.intent,
                hold: draft.hold,
                ttl: draft.ttl,
                ..Order::acquire(asks)
            })
            .collect();
        let start = context.clock.now();
        let answers = context.store.submit(&orders, buffer).decided();
        let end = context.clock.now();
        if answers.len() != orders.len() {
            self.fault(format!("{} answers to {} orders", answers.len(), orders.len()));
        }
        let mut instants: Vec<Timestamp> = Vec::new();
        for (draft, answer) in drafts.iter().zip(answers.iter()) {
            match answer {
                Ok(answer) => {
                    instants.push(answer.at);
                    self.write_down(draft, answer, start, end);
                }
                Err(rejection) => self.fault(format!("a sensible order was rejected: {rejection}")),
            }
        }
        if instants.windows(2).any(|pair| pair[0] > pair[1]) {
            self.fault(format!("time went back in a batch: {instants:?}"));
        }
        answers
    }

    fn write_down(&mut self, draft: &RandomOrder, answer: &Answer, start: Timestamp, end: Timestamp) {
        if !(start < answer.at && answer.at < end) {
            self.fault(format!("decided at {:?}, but asked from {start:?} to {end:?}", answer.at));
        }
        if answer.degraded || !answer.shadowed.is_empty() {
            self.fault(format!("nothing is crowded or only watches: {answer:?}"));
        }
        if let Outcome::Denied(denied) = &answer.outcome {
            let limits = &self.context.limits;
            let refused = limits.iter().position(|spec| spec.id == denied.limit.id());
            match refused.filter(|refused| draft.asks.iter().any(|(limit, ..)| limit == refused)) {
                Some(refused) => self.log.refused[refused] += 1,
                None => self.fault(format!("refused by '{}', which was not asked", denied.limit.id())),
            }
            if matches!(denied.wait, Wait::Until(until) if until <= answer.at) {
                self.fault(format!("refused at {:?} until {:?}", answer.at, denied.wait));
            }
        }
        if draft.intent == Intent::Peek {
            return;
        }
        let at = (self.context.plan.times == DecisionTimes::Reported).then_some(answer.at);
        let mut asks: Vec<(usize, usize, Amount)> = Vec::new();
        for (index, (limit, key, count)) in draft.asks.iter().enumerate() {
            let page = &mut self.log.pages[*limit];
            let twin =
                draft.asks[..index].iter().position(|(other, whose, _)| other == limit && whose == key);
            let line = twin.map_or(page.len(), |twin| {
                let (_, line, _) = asks[twin];
                line
            });
            if twin.is_none() {
                let mut entry = ObservedOrder::granted_within(start, end, Some(key), 0);
                (entry.at, entry.granted) = (at, answer.is_granted());
                page.push(ObservedRow { entry, kept: 0 });
            }
            let ObservedRow { entry, kept } = &mut page[line];
            entry.count += count;
            entry.asks += count.min(&1);
            *kept += count;
            asks.push((*limit, line, *count));
        }
        if let Outcome::Granted(Some(grant)) = &answer.outcome {
            self.keep(grant, draft.hold, asks, start, end);
        }
    }

    fn keep(
        &mut self,
        grant: &Grant,
        hold: Hold,
        asks: Vec<(usize, usize, Amount)>,
        start: Timestamp,
        end: Timestamp,
    ) {
        self.log.leases += 1;
        for (limit, fence) in &grant.fences {
            match self.context.limits.iter().position(|spec| spec.id == limit.id()) {
                Some(limit) => self.log.fences[limit].push((start, end, *fence)),
                None => self.fault(format!("a fence of '{}', which nobody put", limit.id())),
            }
        }
        let kept = OpenLease { lease: grant.lease, expires_at: grant.expires_at, hold, asks };
        self.returned(&kept, grant.expires_at);
        self.leases.push(kept);
    }

    /// Writes down when what a lease holds may be back at the earliest.
    fn returned(&mut self, kept: &OpenLease, at: Timestamp) {
        for &(limit, line, _) in &kept.asks {
            self.log.pages[limit][line].entry.returned = Some(at);
        }
    }

    fn touch_a_lease(&mut self, progress: &ThreadProgress) {
        let chosen = self.rng.index(self.leases.len());
        let kept = self.leases.swap_remove(chosen);
        match self.rng.below(10) {
            0 => {} // Lost: it will lapse.
            1..=3 => {
                progress.set(ThreadAction::Renewing);
                self.renew(kept);
            }
            4..=6 if kept.hold == Hold::Yes => {
                progress.set(ThreadAction::Settling);
                self.settle(&kept);
            }
            _ => {
                progress.set(ThreadAction::Releasing);
                self.release(&kept);
            }
        }
    }

    /// Whether a lease may have been live or gone, as the store says, while it was asked.
    fn judge(&mut self, what: &str, live: bool, kept: &OpenLease, start: Timestamp, end: Timestamp) {
        if live && kept.expires_at <= start {
            self.fault(format!("{what} a lease from {start:?} on that lapsed at {:?}", kept.expires_at));
        }
        if !live && end < kept.expires_at {
            self.fault(format!("a lease was gone by {end:?} that lapses at {:?}", kept.expires_at));
        }
    }

    fn release(&mut self, kept: &OpenLease) {
        let (store, clock) = (&self.context.store, &self.context.clock);
        let start = clock.now();
        let released = store.release(kept.lease).decided();
        let end = clock.now();
        self.judge("released", released, kept, start, end);
        self.returned(kept, start.min(kept.expires_at));
        if self.rng.chance(10) && self.context.store.release(kept.lease).decided() {
            self.fault(format!("{:?} was released twice", kept.lease));
        }
    }

    fn renew(&mut self, mut kept: OpenLease) {
        let ttl = self.rng.chance(50).then(|| Duration::from_millis(self.rng.one_of(&[1, 30, 300, 1000])));
        let start = self.context.clock.now();
        let renewed = self.context.store.renew(kept.lease, ttl).decided();
        let end = self.context.clock.now();
        match renewed {
            Ok(renewed) => {
                self.judge("renewed", renewed.is_some(), &kept, start, end);
                if let Some(expires_at) = renewed {
                    kept.expires_at = expires_at;
                    self.returned(&kept, expires_at);
                    self.leases.push(kept);
                }
            }
            Err(rejection) => self.fault(format!("a sensible ttl was rejected: {rejection}")),
        }
    }

    /// Settles a hold, mostly for less than it held. It is never for nothing, and where an interval is asked not
    /// for more either: that would close and open windows that nobody could rebuild.
    fn settle(&mut self, kept: &OpenLease) {
        let hangs = |item: &ItemSpec| matches!(item.policy, Policy::Interval { .. });
        let limits = &self.context.limits;
        let adrift = kept.asks.iter().any(|(limit, ..)| limits[*limit].items.iter().any(hangs));
        // All of it for more or all of it for less: what keys exchange among themselves never left what all share.
        let up = !adrift && self.rng.chance(10);
        let actual: Vec<Amount> = kept
            .asks
            .iter()
            .map(|&(_, _, count)| match count {
                0 => 0,
                _ if up => count + 1,
                _ => 1 + self.rng.below(count),
            })
            .collect();
        let start = self.context.clock.now();
        let settled = self.context.store.settle(kept.lease, Actual::Each(&actual)).decided();
        let end = self.context.clock.now();
        let settled = match settled {
            Ok(settled) => settled,
            Err(rejection) => return self.fault(format!("a cost for each ask was rejected: {rejection}")),
        };
        self.judge("settled", settled == Settlement::Settled, kept, start, end);
        self.returned(kept, start.min(kept.expires_at));
        if settled == Settlement::Gone {
            return;
        }
        for (&(limit, line, count), actual) in kept.asks.iter().zip(&actual) {
            let ObservedRow { kept, .. } = &mut self.log.pages[limit][line];
            *kept = *kept + actual - count;
        }
        for &(limit, line, _) in &kept.asks {
            self.correct(limit, line, start, end);
        }
        if self.rng.chance(10) {
            let again = self.context.store.settle(kept.lease, Actual::Every(0)).decided();
            if again != Ok(Settlement::Settled) {
                self.fault(format!("{:?} was settled, and then it was {again:?}", kept.lease));
            }
        }
    }

    /// Writes down what settling gave back of a row, or took in addition.
    fn correct(&mut self, limit: usize, line: usize, start: Timestamp, end: Timestamp) {
        let page = &mut self.log.pages[limit];
        let ObservedRow { entry, kept } = &mut page[line];
        if *kept > entry.count {
            let more = ObservedOrder {
                forced: Some(entry.at.unwrap_or(entry.start)),
                asks: 0,
                ..ObservedOrder::granted_within(start, end, entry.key.as_deref(), *kept - entry.count)
            };
            *kept = entry.count;
            let kept = more.count;
            page.push(ObservedRow { entry: more, kept });
        } else if *kept < entry.count {
            entry.refunded = Some((start, entry.count - *kept));
        }
    }
}
