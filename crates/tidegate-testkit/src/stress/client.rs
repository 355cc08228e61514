//! An asker: throws orders at the store, keeps what it was granted for a while, and writes everything down.

use std::time::Duration;

use tidegate::{
    Actual, Amount, Answer, Ask, Clock, Detail, Grant, Hold, Intent, ItemSpec, LeaseId, LimitSpec, Order,
    Outcome, Policy, Replies, Settlement, Timestamp, Wait,
};

use super::rng::Dice;
use super::watchdog::Doing;
use super::workload::{HOT_KEYS, key};
use super::{Place, Scene, Times};
use crate::checker::Entry;

/// The most leases an asker keeps.
const MOST_LEASES: usize = 6;

/// What one asker saw.
pub(super) struct Diary {
    /// Of each limit, every row of every order.
    pub(super) pages: Vec<Vec<Line>>,
    /// Of each limit, how many orders it refused.
    pub(super) refused: Vec<usize>,
    /// Of each limit, every fence that a lease came with: when it was asked for, when heard, and the fence.
    pub(super) fences: Vec<Vec<(Timestamp, Timestamp, u64)>>,
    pub(super) leases: usize,
    pub(super) faults: Vec<String>,
}

/// One row of one order.
pub(super) struct Line {
    pub(super) entry: Entry,
    /// What is counted in the end: settled holds at their true cost.
    pub(super) kept: Amount,
}

/// An order that owns its words.
struct Draft {
    intent: Intent,
    hold: Hold,
    ttl: Option<Duration>,
    /// (limit, key, count)
    asks: Vec<(usize, Vec<u8>, Amount)>,
}

impl Draft {
    fn asks<'a>(&'a self, limits: &'a [LimitSpec]) -> Vec<Ask<'a>> {
        let ask = |(limit, key, count): &'a (usize, Vec<u8>, Amount)| {
            let limit_id = &limits[*limit].id;
            Ask { limit_id, key: Some(key), count: *count }
        };
        self.asks.iter().map(ask).collect()
    }
}

/// A lease, and where its order is written down.
struct Kept {
    lease: LeaseId,
    expires_at: Timestamp,
    hold: Hold,
    /// For each ask: its limit, the line of its row, and its count.
    asks: Vec<(usize, usize, Amount)>,
}

/// Throws orders.
pub(super) struct Asker<'a> {
    scene: &'a Scene,
    dice: Dice,
    leases: Vec<Kept>,
    diary: Diary,
}

impl<'a> Asker<'a> {
    pub(super) fn new(scene: &'a Scene, index: usize) -> Asker<'a> {
        let limits = scene.limits.len();
        let diary = Diary {
            pages: (0..limits).map(|_| Vec::new()).collect(),
            refused: vec![0; limits],
            fences: vec![Vec::new(); limits],
            leases: 0,
            faults: Vec::new(),
        };
        let dice = Dice::new(scene.plan.seed, index as u64);
        Asker { scene, dice, leases: Vec::new(), diary }
    }

    /// Throws all orders of the plan, telling `turned` after each batch which order it has come to.
    pub(super) fn work(mut self, place: &Place, turned: &dyn Fn(usize)) -> Diary {
        let mut buffer = Replies::new(Detail::Verdicts);
        let mut turn = 0;
        while turn < self.scene.plan.orders {
            let size = if self.dice.chance(80) { 1 } else { 2 + self.dice.index(7) };
            place.tell(Doing::Submitting);
            buffer = self.submit(size, buffer);
            (turn..turn + size).for_each(turned);
            turn += size;
            while self.leases.len() > MOST_LEASES || (!self.leases.is_empty() && self.dice.chance(40)) {
                self.touch_a_lease(place);
            }
        }
        while let Some(kept) = self.leases.pop() {
            place.tell(Doing::Releasing);
            self.release(&kept);
        }
        self.diary
    }

    fn fault(&mut self, fault: String) {
        self.diary.faults.push(fault);
    }

    fn draft(&mut self) -> Draft {
        let keys = self.scene.plan.keys;
        let anybody = |dice: &mut Dice| {
            let among = if dice.chance(50) { keys.min(HOT_KEYS) } else { keys };
            key(dice.index(among))
        };
        let dice = &mut self.dice;
        let somebody = anybody(dice);
        let number = if dice.chance(50) { 1 } else { 2 + dice.index(3) };
        let asks = (0..number)
            .map(|_| {
                let key = if dice.chance(75) { somebody.clone() } else { anybody(dice) };
                (dice.index(self.scene.limits.len()), key, dice.one_of(&[0, 1, 1, 1, 1, 1, 2, 2, 3, 5]))
            })
            .collect();
        Draft {
            intent: if dice.chance(6) { Intent::Peek } else { Intent::Acquire },
            hold: if dice.chance(25) { Hold::Yes } else { Hold::No },
            ttl: dice.chance(20).then(|| Duration::from_millis(dice.one_of(&[1, 20, 150, 1000]))),
            asks,
        }
    }

    fn submit(&mut self, size: usize, buffer: Replies) -> Replies {
        let drafts: Vec<Draft> = (0..size).map(|_| self.draft()).collect();
        let scene = self.scene;
        let asks: Vec<Vec<Ask<'_>>> = drafts.iter().map(|draft| draft.asks(&scene.limits)).collect();
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
        let start = scene.clock.now();
        let answers = scene.store.submit(&orders, buffer).decided();
        let end = scene.clock.now();
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

    fn write_down(&mut self, draft: &Draft, answer: &Answer, start: Timestamp, end: Timestamp) {
        if !(start < answer.at && answer.at < end) {
            self.fault(format!("decided at {:?}, but asked from {start:?} to {end:?}", answer.at));
        }
        if answer.degraded || !answer.shadowed.is_empty() {
            self.fault(format!("nothing is crowded or only watches: {answer:?}"));
        }
        if let Outcome::Denied(denied) = &answer.outcome {
            let limits = &self.scene.limits;
            let refused = limits.iter().position(|spec| spec.id == denied.limit.id());
            match refused.filter(|refused| draft.asks.iter().any(|(limit, ..)| limit == refused)) {
                Some(refused) => self.diary.refused[refused] += 1,
                None => self.fault(format!("refused by '{}', which was not asked", denied.limit.id())),
            }
            if matches!(denied.wait, Wait::Until(until) if until <= answer.at) {
                self.fault(format!("refused at {:?} until {:?}", answer.at, denied.wait));
            }
        }
        if draft.intent == Intent::Peek {
            return;
        }
        let at = (self.scene.plan.times == Times::Reported).then_some(answer.at);
        let mut asks: Vec<(usize, usize, Amount)> = Vec::new();
        for (index, (limit, key, count)) in draft.asks.iter().enumerate() {
            let page = &mut self.diary.pages[*limit];
            let twin =
                draft.asks[..index].iter().position(|(other, whose, _)| other == limit && whose == key);
            let line = twin.map_or(page.len(), |twin| {
                let (_, line, _) = asks[twin];
                line
            });
            if twin.is_none() {
                let mut entry = Entry::granted_within(start, end, Some(key), 0);
                (entry.at, entry.granted) = (at, answer.is_granted());
                page.push(Line { entry, kept: 0 });
            }
            let Line { entry, kept } = &mut page[line];
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
        self.diary.leases += 1;
        for (limit, fence) in &grant.fences {
            match self.scene.limits.iter().position(|spec| spec.id == limit.id()) {
                Some(limit) => self.diary.fences[limit].push((start, end, *fence)),
                None => self.fault(format!("a fence of '{}', which nobody put", limit.id())),
            }
        }
        let kept = Kept { lease: grant.lease, expires_at: grant.expires_at, hold, asks };
        self.returned(&kept, grant.expires_at);
        self.leases.push(kept);
    }

    /// Writes down when what a lease holds may be back at the earliest.
    fn returned(&mut self, kept: &Kept, at: Timestamp) {
        for &(limit, line, _) in &kept.asks {
            self.diary.pages[limit][line].entry.returned = Some(at);
        }
    }

    fn touch_a_lease(&mut self, place: &Place) {
        let chosen = self.dice.index(self.leases.len());
        let kept = self.leases.swap_remove(chosen);
        match self.dice.below(10) {
            0 => {} // Lost: it will lapse.
            1..=3 => {
                place.tell(Doing::Renewing);
                self.renew(kept);
            }
            4..=6 if kept.hold == Hold::Yes => {
                place.tell(Doing::Settling);
                self.settle(&kept);
            }
            _ => {
                place.tell(Doing::Releasing);
                self.release(&kept);
            }
        }
    }

    /// Whether a lease may have been live or gone, as the store says, while it was asked.
    fn judge(&mut self, what: &str, live: bool, kept: &Kept, start: Timestamp, end: Timestamp) {
        if live && kept.expires_at <= start {
            self.fault(format!("{what} a lease from {start:?} on that lapsed at {:?}", kept.expires_at));
        }
        if !live && end < kept.expires_at {
            self.fault(format!("a lease was gone by {end:?} that lapses at {:?}", kept.expires_at));
        }
    }

    fn release(&mut self, kept: &Kept) {
        let (store, clock) = (&self.scene.store, &self.scene.clock);
        let start = clock.now();
        let released = store.release(kept.lease).decided();
        let end = clock.now();
        self.judge("released", released, kept, start, end);
        self.returned(kept, start.min(kept.expires_at));
        if self.dice.chance(10) && self.scene.store.release(kept.lease).decided() {
            self.fault(format!("{:?} was released twice", kept.lease));
        }
    }

    fn renew(&mut self, mut kept: Kept) {
        let ttl = self.dice.chance(50).then(|| Duration::from_millis(self.dice.one_of(&[1, 30, 300, 1000])));
        let start = self.scene.clock.now();
        let renewed = self.scene.store.renew(kept.lease, ttl).decided();
        let end = self.scene.clock.now();
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
    fn settle(&mut self, kept: &Kept) {
        let hangs = |item: &ItemSpec| matches!(item.policy, Policy::Interval { .. });
        let limits = &self.scene.limits;
        let adrift = kept.asks.iter().any(|(limit, ..)| limits[*limit].items.iter().any(hangs));
        // All of it for more or all of it for less: what keys exchange among themselves never left what all share.
        let up = !adrift && self.dice.chance(10);
        let actual: Vec<Amount> = kept
            .asks
            .iter()
            .map(|&(_, _, count)| match count {
                0 => 0,
                _ if up => count + 1,
                _ => 1 + self.dice.below(count),
            })
            .collect();
        let start = self.scene.clock.now();
        let settled = self.scene.store.settle(kept.lease, Actual::Each(&actual)).decided();
        let end = self.scene.clock.now();
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
            let Line { kept, .. } = &mut self.diary.pages[limit][line];
            *kept = *kept + actual - count;
        }
        for &(limit, line, _) in &kept.asks {
            self.correct(limit, line, start, end);
        }
        if self.dice.chance(10) {
            let again = self.scene.store.settle(kept.lease, Actual::Every(0)).decided();
            if again != Ok(Settlement::Settled) {
                self.fault(format!("{:?} was settled, and then it was {again:?}", kept.lease));
            }
        }
    }

    /// Writes down what settling gave back of a row, or took in addition.
    fn correct(&mut self, limit: usize, line: usize, start: Timestamp, end: Timestamp) {
        let page = &mut self.diary.pages[limit];
        let Line { entry, kept } = &mut page[line];
        if *kept > entry.count {
            let more = Entry {
                forced: Some(entry.at.unwrap_or(entry.start)),
                asks: 0,
                ..Entry::granted_within(start, end, entry.key.as_deref(), *kept - entry.count)
            };
            *kept = entry.count;
            let kept = more.count;
            page.push(Line { entry: more, kept });
        } else if *kept < entry.count {
            entry.refunded = Some((start, entry.count - *kept));
        }
    }
}
