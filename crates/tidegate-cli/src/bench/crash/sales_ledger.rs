//! What was sold, over all lives: what the tool knows, and never what the server says.

use std::time::{Duration, Instant};

use super::super::random::SplitMix64;
use super::super::tally::FailureReasons;
use super::tested_limit::TestedLimit;

/// How many questions that were told are asked again in the next life.
const MAX_REPLAYS: usize = 32;
/// One question of so many has an id.
const REQUESTS_PER_ID: u32 = 4;

/// A question that can be asked again.
#[derive(Debug, Clone)]
pub(super) struct CrashRequest {
    pub(super) limit: TestedLimit,
    pub(super) number: u32,
    pub(super) key: String,
    /// Empty if it has none.
    pub(super) id: String,
}

/// A lease that was granted, and in which life.
#[derive(Debug, Clone)]
pub(super) struct HeldLease {
    pub(super) lease: Box<str>,
    life: u32,
}

/// How often a lease was sent back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReleaseAttempt {
    /// The server must know it.
    First,
    /// It may have come back before.
    Again,
}

/// What is known of one limit.
#[derive(Debug)]
pub(super) struct LimitAccount {
    pub(super) limit: TestedLimit,
    /// How often it was made: once, or it was forgotten.
    pub(super) made: u64,
    /// Replies that came as granted.
    pub(super) sold: u64,
    pub(super) by_key: Vec<u64>,
    /// Questions without an answer, that may have been granted all the same.
    pub(super) unanswered: u64,
    /// Leases that were granted and not sent back.
    pub(super) held: Vec<HeldLease>,
    /// The most leases that were held at once.
    pub(super) most_held: u64,
    /// What may still be asked in this life, so that something is left for the next.
    share: u64,
    /// From before the first question, from after the first answer; to before the last question, to after the last answer.
    began: Option<Instant>,
    first_reply: Option<Instant>,
    last_sent: Option<Instant>,
    last_reply: Option<Instant>,
}

impl LimitAccount {
    /// What was sold, and for leases, at once.
    pub(super) fn most_sold(&self) -> u64 {
        if self.limit == TestedLimit::Concurrency { self.most_held } else { self.sold }
    }

    /// What was sold above the limit.
    pub(super) fn over_admissions(&self) -> u64 {
        let most = self.limit.max_grants(between(self.began, self.last_reply));
        match u64::from(self.limit.keys()) {
            1 => self.most_sold().saturating_sub(most),
            keys => self.by_key.iter().map(|sold| sold.saturating_sub(most / keys)).sum(),
        }
    }

    /// What was not sold though there was nobody else who had it, once everything was asked for.
    pub(super) fn lost(&self) -> u64 {
        let left = if self.limit == TestedLimit::Concurrency { self.held.len() as u64 } else { self.sold };
        self.limit.min_grants(between(self.first_reply, self.last_sent)).saturating_sub(left)
    }

    /// What may be lost with so many kills.
    pub(super) fn allowed_loss(&self, kills: u32) -> u64 {
        self.limit.loss_per_crash() * u64::from(kills) + self.unanswered
    }
}

fn between(from: Option<Instant>, to: Option<Instant>) -> Duration {
    from.zip(to).map(|(from, to)| to.saturating_duration_since(from)).unwrap_or_default()
}

/// What is known of all limits.
#[derive(Debug)]
pub(super) struct SalesLedger {
    pub(super) accounts: Vec<LimitAccount>,
    /// Questions with an id that were under way when the server was killed: they are asked again.
    pub(super) retries: Vec<CrashRequest>,
    /// Leases whose release was sent and not answered: they are sent back again, and have come back or will.
    pub(super) unanswered_releases: Vec<HeldLease>,
    /// Questions with an id that were granted in this life: asked again in the next, they cost nothing.
    pub(super) granted: Vec<CrashRequest>,
    pub(super) replayed: u64,
    pub(super) charged_twice: u64,
    /// Leases that were named to the server in a later life than they were granted in.
    pub(super) leases_outlived: u64,
    /// Leases that it should have known, and did not.
    pub(super) leases_lost: u64,
    pub(super) failures: u64,
    pub(super) reasons: FailureReasons,
    /// From here on a broken connection is nobody's failure.
    pub(super) is_killed: bool,
    life: u32,
    shares: u32,
    next_id: u64,
}

impl SalesLedger {
    /// Nothing has been sold yet, and there will be so many kills.
    pub(super) fn open(limits: &[TestedLimit], kills: u32) -> SalesLedger {
        let account = |limit: &TestedLimit| LimitAccount {
            limit: *limit,
            made: 0,
            sold: 0,
            by_key: vec![0; limit.keys() as usize],
            unanswered: 0,
            held: Vec::new(),
            most_held: 0,
            share: 0,
            began: None,
            first_reply: None,
            last_sent: None,
            last_reply: None,
        };
        SalesLedger {
            accounts: limits.iter().map(account).collect(),
            retries: Vec::new(),
            unanswered_releases: Vec::new(),
            granted: Vec::new(),
            replayed: 0,
            charged_twice: 0,
            leases_outlived: 0,
            leases_lost: 0,
            failures: 0,
            reasons: FailureReasons::default(),
            is_killed: false,
            life: 0,
            shares: kills.saturating_add(2),
            next_id: 0,
        }
    }

    /// The laws, in their order.
    pub(super) fn limits(&self) -> Vec<TestedLimit> {
        self.accounts.iter().map(|account| account.limit).collect()
    }

    /// The account of a law that is sold.
    pub(super) fn account(&mut self, limit: TestedLimit) -> &mut LimitAccount {
        let found = self.accounts.iter().position(|account| account.limit == limit);
        &mut self.accounts[found.expect("only laws that are sold are asked about")]
    }

    /// Another life: everybody has a share again.
    pub(super) fn begin_life(&mut self) {
        self.is_killed = false;
        self.life += 1;
        for account in &mut self.accounts {
            account.share = (account.limit.capacity() / u64::from(self.shares)).max(1);
        }
    }

    /// What to ask next; `None` if this life has had its share of everything.
    pub(super) fn request(&mut self, random: &mut SplitMix64) -> Option<CrashRequest> {
        let open: Vec<_> = (0..self.accounts.len()).filter(|at| self.accounts[*at].share > 0).collect();
        let drawn = random.below(u32::try_from(open.len()).unwrap_or(u32::MAX));
        let account = &mut self.accounts[*open.get(drawn as usize)?];
        let limit = account.limit;
        // Leases come back, so there is always another.
        if limit != TestedLimit::Concurrency {
            account.share -= 1;
        }
        let number = random.below(limit.keys());
        // A lease that was granted and not answered would be nobody's for the rest of the run.
        let wants_id = limit == TestedLimit::Concurrency || random.below(REQUESTS_PER_ID) == 0;
        self.next_id += u64::from(wants_id);
        let id = if wants_id { format!("crash-{}", self.next_id) } else { String::new() };
        Some(CrashRequest { limit, number, key: key(number), id })
    }

    /// Some questions are about to be sent.
    pub(super) fn record_sent<'a>(&mut self, requests: impl Iterator<Item = &'a CrashRequest>, now: Instant) {
        for request in requests {
            let account = self.account(request.limit);
            account.began.get_or_insert(now);
            account.last_sent = Some(now);
        }
    }

    /// An answer has come.
    pub(super) fn record_reply(
        &mut self,
        request: CrashRequest,
        allowed: bool,
        lease: Option<Box<str>>,
        now: Instant,
    ) {
        let life = self.life;
        let account = self.account(request.limit);
        account.first_reply.get_or_insert(now);
        account.last_reply = Some(now);
        if !allowed {
            return;
        }
        account.sold += 1;
        account.by_key[request.number as usize] += 1;
        account.held.extend(lease.map(|lease| HeldLease { lease, life }));
        account.most_held = account.most_held.max(account.held.len() as u64);
        if !request.id.is_empty() && request.limit.is_counted() && self.granted.len() < MAX_REPLAYS {
            self.granted.push(request);
        }
    }

    /// No answer will come. With an id it is asked again; without one it may have been granted.
    pub(super) fn record_lost(&mut self, request: CrashRequest) {
        if request.id.is_empty() {
            self.account(request.limit).unanswered += 1;
        } else {
            self.retries.push(request);
        }
    }

    /// Something went wrong that no kill explains.
    pub(super) fn record_failure(&mut self, why: &str) {
        self.failures += 1;
        self.reasons.add(why, 1);
    }

    /// A connection broke.
    pub(super) fn record_disconnect(&mut self, why: &str) {
        if !self.is_killed {
            self.record_failure(why);
        }
    }

    /// The server was asked about a lease that it granted.
    pub(super) fn record_lease_lookup(&mut self, held: &HeldLease, was_known: bool) {
        self.leases_outlived += u64::from(held.life < self.life);
        self.leases_lost += u64::from(!was_known);
    }

    /// A lease to give back, for the first time or again; from here on it counts as given back.
    pub(super) fn lease_to_release(
        &mut self,
        random: &mut SplitMix64,
    ) -> Option<(HeldLease, ReleaseAttempt)> {
        if let Some(held) = self.unanswered_releases.pop() {
            return Some((held, ReleaseAttempt::Again));
        }
        let account = self.accounts.iter_mut().find(|account| account.limit == TestedLimit::Concurrency)?;
        let drawn = random.below(u32::try_from(account.held.len()).unwrap_or(u32::MAX)) as usize;
        (drawn < account.held.len()).then(|| (account.held.swap_remove(drawn), ReleaseAttempt::First))
    }
}

/// What a key is called.
pub(super) fn key(number: u32) -> String {
    format!("key-{number}")
}

#[cfg(test)]
mod tests {
    use super::super::super::stopwatch::now;
    use super::*;

    fn request(limit: TestedLimit, number: u32) -> CrashRequest {
        CrashRequest { limit, number, key: key(number), id: String::new() }
    }

    fn sell(ledger: &mut SalesLedger, limit: TestedLimit, number: u32, count: u64) {
        for _ in 0..count {
            let lease = (limit == TestedLimit::Concurrency).then(|| "l".into());
            ledger.record_sent([request(limit, number)].iter(), now());
            ledger.record_reply(request(limit, number), true, lease, now());
        }
    }

    #[test]
    fn one_above_the_limit_is_found_for_every_law() {
        let mut ledger = SalesLedger::open(&TestedLimit::ALL, 1);
        for limit in TestedLimit::ALL {
            // A bucket may have let in one more, and the time that this takes.
            let slack = if limit == TestedLimit::Bucket { 100 } else { 0 };
            sell(&mut ledger, limit, 0, limit.capacity() / u64::from(limit.keys()));
            assert_eq!(ledger.account(limit).over_admissions(), 0, "{limit}");
            sell(&mut ledger, limit, 0, 1 + slack);
            assert!(ledger.account(limit).over_admissions() > 0, "{limit}");
        }
    }

    #[test]
    fn what_is_missing_at_the_end_was_lost() {
        let mut ledger = SalesLedger::open(&[TestedLimit::Total], 2);
        sell(&mut ledger, TestedLimit::Total, 0, TestedLimit::Total.capacity() - 800);
        ledger.record_lost(request(TestedLimit::Total, 0));
        let account = ledger.account(TestedLimit::Total);
        assert_eq!((account.lost(), account.allowed_loss(2)), (800, 2 * 390 + 1));
    }

    #[test]
    fn a_lease_that_is_sent_back_is_free() {
        let mut ledger = SalesLedger::open(&[TestedLimit::Concurrency], 1);
        let limit = TestedLimit::Concurrency.capacity();
        sell(&mut ledger, TestedLimit::Concurrency, 0, limit);
        let sent = ledger.lease_to_release(&mut SplitMix64::from(1));
        assert_eq!(sent.map(|(_, sent)| sent), Some(ReleaseAttempt::First));
        sell(&mut ledger, TestedLimit::Concurrency, 0, 1);
        assert_eq!(
            (
                ledger.account(TestedLimit::Concurrency).over_admissions(),
                ledger.account(TestedLimit::Concurrency).lost()
            ),
            (0, 0)
        );
        sell(&mut ledger, TestedLimit::Concurrency, 0, 1);
        assert_eq!(ledger.account(TestedLimit::Concurrency).over_admissions(), 1);
    }

    #[test]
    fn a_release_without_an_answer_is_sent_again() {
        let mut ledger = SalesLedger::open(&[TestedLimit::Concurrency], 1);
        sell(&mut ledger, TestedLimit::Concurrency, 0, 2);
        let (held, _) = ledger.lease_to_release(&mut SplitMix64::from(1)).expect("there are two");
        ledger.unanswered_releases.push(held);
        let sent = [(); 3].map(|()| ledger.lease_to_release(&mut SplitMix64::from(1)).map(|(_, sent)| sent));
        assert_eq!(sent, [Some(ReleaseAttempt::Again), Some(ReleaseAttempt::First), None]);
    }

    #[test]
    fn only_a_lease_of_an_earlier_life_has_outlived_it() {
        let mut ledger = SalesLedger::open(&[TestedLimit::Concurrency], 1);
        ledger.begin_life();
        sell(&mut ledger, TestedLimit::Concurrency, 0, 1);
        let held = ledger.account(TestedLimit::Concurrency).held[0].clone();
        ledger.record_lease_lookup(&held, true);
        assert_eq!((ledger.leases_outlived, ledger.leases_lost), (0, 0));
        ledger.begin_life();
        ledger.record_lease_lookup(&held, true);
        ledger.record_lease_lookup(&held, false);
        assert_eq!((ledger.leases_outlived, ledger.leases_lost), (2, 1));
    }

    #[test]
    fn a_life_has_a_share_and_no_more() {
        let mut ledger = SalesLedger::open(&[TestedLimit::Total, TestedLimit::Key], 8);
        let mut random = SplitMix64::from(7);
        assert!(ledger.request(&mut random).is_none(), "no life has begun");
        ledger.begin_life();
        let mut asked = 0;
        while ledger.request(&mut random).is_some() {
            asked += 1;
        }
        assert_eq!(asked, TestedLimit::Total.capacity() / 10 + TestedLimit::Key.capacity() / 10);
    }

    #[test]
    fn a_lost_question_with_an_id_is_asked_again() {
        let mut ledger = SalesLedger::open(&[TestedLimit::Total], 1);
        ledger.record_lost(CrashRequest { id: "r".to_owned(), ..request(TestedLimit::Total, 0) });
        assert_eq!((ledger.retries.len(), ledger.account(TestedLimit::Total).unanswered), (1, 0));
    }

    #[test]
    fn a_connection_may_break_once_the_server_is_killed() {
        let mut ledger = SalesLedger::open(&[TestedLimit::Total], 1);
        ledger.is_killed = true;
        ledger.record_disconnect("reset");
        assert_eq!(ledger.failures, 0);
        ledger.begin_life();
        ledger.record_disconnect("reset");
        assert_eq!(ledger.failures, 1);
    }
}
