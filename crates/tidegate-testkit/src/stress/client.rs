//! A client thread: submits random orders, keeps some of the granted leases, and logs every result.

use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::model::{
    Amount, Ask, Hold, Intent, ItemSpec, LeaseId, LimitSpec, Order, Policy, Timestamp, Wait,
};
use tidegate::reply::{Detail, GrantedLease, OrderReply, Outcome, Replies};
use tidegate::store::{Actual, Settlement};

use super::rng::SeededRng;
use super::watchdog::ThreadAction;
use super::workload::{HOT_KEYS, key};
use super::{DecisionTimes, StressContext, ThreadProgress};
use crate::checker::ObservedOrder;

/// Maximum number of leases that a client keeps open.
const MAX_LEASES: usize = 6;

/// What one client observed.
pub(super) struct ClientLog {
    /// Per limit: every row of every order.
    pub(super) rows: Vec<Vec<ObservedRow>>,
    /// Per limit: number of orders that it refused.
    pub(super) refused: Vec<usize>,
    /// Per limit: the fence of every lease, with the times of call and return.
    pub(super) fences: Vec<Vec<(Timestamp, Timestamp, u64)>>,
    pub(super) leases: usize,
    pub(super) faults: Vec<String>,
}

/// One row of one order.
pub(super) struct ObservedRow {
    pub(super) order: ObservedOrder,
    /// Final count: settled holds at their true cost.
    pub(super) counted: Amount,
}

/// A random order with owned keys.
struct RandomOrder {
    intent: Intent,
    hold: Hold,
    ttl: Option<Duration>,
    /// Index of the limit, key, count.
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

/// A lease and the rows that it was charged to.
struct OpenLease {
    lease: LeaseId,
    expires_at: Timestamp,
    hold: Hold,
    /// For each ask: index of the limit, index of the row in the log, count.
    asks: Vec<(usize, usize, Amount)>,
}

/// Submits random orders.
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
            rows: (0..limits).map(|_| Vec::new()).collect(),
            refused: vec![0; limits],
            fences: vec![Vec::new(); limits],
            leases: 0,
            faults: Vec::new(),
        };
        let rng = SeededRng::new(context.plan.seed, index as u64);
        StressClient { context, rng, leases: Vec::new(), log }
    }

    /// Submits all orders of the plan. Calls `on_order` for each order that was submitted.
    pub(super) fn run(mut self, progress: &ThreadProgress, on_order: &dyn Fn(usize)) -> ClientLog {
        let mut buffer = Replies::new(Detail::Verdicts);
        let mut turn = 0;
        while turn < self.context.plan.orders {
            let size = if self.rng.chance(80) { 1 } else { 2 + self.rng.index(7) };
            progress.set(ThreadAction::Submitting);
            buffer = self.submit(size, buffer);
            (turn..turn + size).for_each(on_order);
            turn += size;
            while self.leases.len() > MAX_LEASES || (!self.leases.is_empty() && self.rng.chance(40)) {
                self.use_random_lease(progress);
            }
        }
        while let Some(held) = self.leases.pop() {
            progress.set(ThreadAction::Releasing);
            self.release(&held);
        }
        self.log
    }

    fn fault(&mut self, fault: String) {
        self.log.faults.push(fault);
    }

    fn random_order(&mut self) -> RandomOrder {
        let keys = self.context.plan.keys;
        let random_key = |rng: &mut SeededRng| {
            let among = if rng.chance(50) { keys.min(HOT_KEYS) } else { keys };
            key(rng.index(among))
        };
        let rng = &mut self.rng;
        let main_key = random_key(rng);
        let number = if rng.chance(50) { 1 } else { 2 + rng.index(3) };
        let asks = (0..number)
            .map(|_| {
                let key = if rng.chance(75) { main_key.clone() } else { random_key(rng) };
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
        let drawn: Vec<RandomOrder> = (0..size).map(|_| self.random_order()).collect();
        let context = self.context;
        let asks: Vec<Vec<Ask<'_>>> =
            drawn.iter().map(|drawn_order| drawn_order.asks(&context.limits)).collect();
        let orders: Vec<Order<'_>> = drawn
            .iter()
            .zip(&asks)
            .map(|(drawn_order, asks)| Order {
                intent: drawn_order.intent,
                hold: drawn_order.hold,
                ttl: drawn_order.ttl,
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
        for (drawn_order, answer) in drawn.iter().zip(answers.iter()) {
            match answer {
                Ok(answer) => {
                    instants.push(answer.at);
                    self.record(drawn_order, answer, start, end);
                }
                Err(rejection) => self.fault(format!("a valid order was rejected: {rejection}")),
            }
        }
        if instants.windows(2).any(|pair| pair[0] > pair[1]) {
            self.fault(format!("time went back in a batch: {instants:?}"));
        }
        answers
    }

    fn record(&mut self, drawn_order: &RandomOrder, answer: &OrderReply, start: Timestamp, end: Timestamp) {
        if !(start < answer.at && answer.at < end) {
            self.fault(format!("decided at {:?}, but requested from {start:?} to {end:?}", answer.at));
        }
        if answer.degraded || !answer.shadowed.is_empty() {
            self.fault(format!("degraded or shadowed, but no limit is full or in shadow mode: {answer:?}"));
        }
        if let Outcome::Denied(denied) = &answer.outcome {
            let limits = &self.context.limits;
            let refused = limits.iter().position(|spec| spec.id == denied.limit.id());
            match refused.filter(|refused| drawn_order.asks.iter().any(|(limit, ..)| limit == refused)) {
                Some(refused) => self.log.refused[refused] += 1,
                None => self.fault(format!("refused by '{}', which is not in the order", denied.limit.id())),
            }
            if matches!(denied.wait, Wait::Until(until) if until <= answer.at) {
                self.fault(format!("refused at {:?} until {:?}", answer.at, denied.wait));
            }
        }
        if drawn_order.intent == Intent::Peek {
            return;
        }
        let at = (self.context.plan.times == DecisionTimes::Reported).then_some(answer.at);
        let mut asks: Vec<(usize, usize, Amount)> = Vec::new();
        for (index, (limit, key, count)) in drawn_order.asks.iter().enumerate() {
            let rows = &mut self.log.rows[*limit];
            let earlier =
                drawn_order.asks[..index].iter().position(|(other, whose, _)| other == limit && whose == key);
            let row = earlier.map_or(rows.len(), |earlier| {
                let (_, row, _) = asks[earlier];
                row
            });
            if earlier.is_none() {
                let mut order = ObservedOrder::granted_within(start, end, Some(key), 0);
                (order.at, order.granted) = (at, answer.is_granted());
                rows.push(ObservedRow { order, counted: 0 });
            }
            let ObservedRow { order, counted } = &mut rows[row];
            order.count += count;
            order.asks += count.min(&1);
            *counted += count;
            asks.push((*limit, row, *count));
        }
        if let Outcome::Granted(Some(grant)) = &answer.outcome {
            self.track_lease(grant, drawn_order.hold, asks, start, end);
        }
    }

    fn track_lease(
        &mut self,
        grant: &GrantedLease,
        hold: Hold,
        asks: Vec<(usize, usize, Amount)>,
        start: Timestamp,
        end: Timestamp,
    ) {
        self.log.leases += 1;
        for (limit, fence) in &grant.fences {
            match self.context.limits.iter().position(|spec| spec.id == limit.id()) {
                Some(limit) => self.log.fences[limit].push((start, end, *fence)),
                None => self.fault(format!("a fence of unknown limit '{}'", limit.id())),
            }
        }
        let held = OpenLease { lease: grant.lease, expires_at: grant.expires_at, hold, asks };
        self.record_return(&held, grant.expires_at);
        self.leases.push(held);
    }

    /// Records the earliest instant at which the units of a lease may be back.
    fn record_return(&mut self, held: &OpenLease, at: Timestamp) {
        for &(limit, row, _) in &held.asks {
            self.log.rows[limit][row].order.returned = Some(at);
        }
    }

    fn use_random_lease(&mut self, progress: &ThreadProgress) {
        let chosen = self.rng.index(self.leases.len());
        let held = self.leases.swap_remove(chosen);
        match self.rng.below(10) {
            0 => {} // Lost: it will lapse.
            1..=3 => {
                progress.set(ThreadAction::Renewing);
                self.renew(held);
            }
            4..=6 if held.hold == Hold::Yes => {
                progress.set(ThreadAction::Settling);
                self.settle(&held);
            }
            _ => {
                progress.set(ThreadAction::Releasing);
                self.release(&held);
            }
        }
    }

    /// Checks a store's statement that a lease is live or gone against its expiry and the times of the call.
    fn check_liveness(&mut self, what: &str, live: bool, held: &OpenLease, start: Timestamp, end: Timestamp) {
        if live && held.expires_at <= start {
            self.fault(format!("{what} a lease from {start:?} on that lapsed at {:?}", held.expires_at));
        }
        if !live && end < held.expires_at {
            self.fault(format!("a lease was gone by {end:?} that lapses at {:?}", held.expires_at));
        }
    }

    fn release(&mut self, held: &OpenLease) {
        let (store, clock) = (&self.context.store, &self.context.clock);
        let start = clock.now();
        let released = store.release(held.lease).decided();
        let end = clock.now();
        self.check_liveness("released", released, held, start, end);
        self.record_return(held, start.min(held.expires_at));
        if self.rng.chance(10) && self.context.store.release(held.lease).decided() {
            self.fault(format!("{:?} was released twice", held.lease));
        }
    }

    fn renew(&mut self, mut held: OpenLease) {
        let ttl = self.rng.chance(50).then(|| Duration::from_millis(self.rng.one_of(&[1, 30, 300, 1000])));
        let start = self.context.clock.now();
        let renewed = self.context.store.renew(held.lease, ttl).decided();
        let end = self.context.clock.now();
        match renewed {
            Ok(renewed) => {
                self.check_liveness("renewed", renewed.is_some(), &held, start, end);
                if let Some(expires_at) = renewed {
                    held.expires_at = expires_at;
                    self.record_return(&held, expires_at);
                    self.leases.push(held);
                }
            }
            Err(rejection) => self.fault(format!("a valid ttl was rejected: {rejection}")),
        }
    }

    /// Settles a hold, mostly for less than it held, and never for zero. An order with an `interval` item is never
    /// settled for more: that would close and open windows that the checker cannot rebuild.
    fn settle(&mut self, held: &OpenLease) {
        let is_interval = |item: &ItemSpec| matches!(item.policy, Policy::Interval { .. });
        let limits = &self.context.limits;
        let has_interval = held.asks.iter().any(|(limit, ..)| limits[*limit].items.iter().any(is_interval));
        // All asks settle up or all settle down: units that keys exchange never leave the `all` row.
        let up = !has_interval && self.rng.chance(10);
        let actual: Vec<Amount> = held
            .asks
            .iter()
            .map(|&(_, _, count)| match count {
                0 => 0,
                _ if up => count + 1,
                _ => 1 + self.rng.below(count),
            })
            .collect();
        let start = self.context.clock.now();
        let settled = self.context.store.settle(held.lease, Actual::Each(&actual)).decided();
        let end = self.context.clock.now();
        let settled = match settled {
            Ok(settled) => settled,
            Err(rejection) => return self.fault(format!("a cost for each ask was rejected: {rejection}")),
        };
        self.check_liveness("settled", settled == Settlement::Settled, held, start, end);
        self.record_return(held, start.min(held.expires_at));
        if settled == Settlement::Gone {
            return;
        }
        for (&(limit, row, count), actual) in held.asks.iter().zip(&actual) {
            let ObservedRow { counted, .. } = &mut self.log.rows[limit][row];
            *counted = *counted + actual - count;
        }
        for &(limit, row, _) in &held.asks {
            self.record_settlement(limit, row, start, end);
        }
        if self.rng.chance(10) {
            let again = self.context.store.settle(held.lease, Actual::Every(0)).decided();
            if again != Ok(Settlement::Settled) {
                self.fault(format!("{:?} was settled, and then it was {again:?}", held.lease));
            }
        }
    }

    /// Records what settling refunded to a row or charged in addition.
    fn record_settlement(&mut self, limit: usize, row: usize, start: Timestamp, end: Timestamp) {
        let rows = &mut self.log.rows[limit];
        let ObservedRow { order, counted } = &mut rows[row];
        if *counted > order.count {
            let more = ObservedOrder {
                forced: Some(order.at.unwrap_or(order.start)),
                asks: 0,
                ..ObservedOrder::granted_within(start, end, order.key.as_deref(), *counted - order.count)
            };
            *counted = order.count;
            let counted = more.count;
            rows.push(ObservedRow { order: more, counted });
        } else if *counted < order.count {
            order.refunded = Some((start, order.count - *counted));
        }
    }
}
