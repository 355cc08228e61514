//! The client's own record of what was sold, over all runs of the server.

use std::time::{Duration, Instant};

use super::super::random::SplitMix64;
use super::super::tally::FailureReasons;
use super::tested_limit::TestedLimit;

/// Maximum number of granted requests that the next run repeats.
const MAX_REPLAYS: usize = 32;
/// One request in this many has an id.
const REQUESTS_PER_ID: u32 = 4;

/// A request that can be repeated.
#[derive(Debug, Clone)]
pub(super) struct CrashRequest {
    pub(super) limit: TestedLimit,
    pub(super) number: u32,
    pub(super) key: String,
    /// Empty without an id.
    pub(super) id: String,
}

/// A granted lease and the run that granted it.
#[derive(Debug, Clone)]
pub(super) struct HeldLease {
    pub(super) lease: Box<str>,
    server_run: u32,
}

/// Whether a release is sent for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReleaseAttempt {
    /// First attempt: the server must know the lease.
    First,
    /// Repeated attempt: the lease may be released already.
    Again,
}

/// Sales of one limit.
#[derive(Debug)]
pub(super) struct LimitAccount {
    pub(super) limit: TestedLimit,
    /// Creations: more than one means that the server lost the limit.
    pub(super) made: u64,
    /// Grants that arrived.
    pub(super) sold: u64,
    pub(super) by_key: Vec<u64>,
    /// Requests without a reply, which may have been granted.
    pub(super) unanswered: u64,
    /// Granted leases that were not released.
    pub(super) held: Vec<HeldLease>,
    /// Most leases held at once.
    pub(super) most_held: u64,
    /// What this run may still request, so that capacity is left for later runs.
    share: u64,
    /// Time of the first request and its reply, and of the last request and its reply.
    first_request: Option<Instant>,
    first_reply: Option<Instant>,
    last_sent: Option<Instant>,
    last_reply: Option<Instant>,
}

impl LimitAccount {
    /// Units sold; for leases, the most held at once.
    pub(super) fn most_sold(&self) -> u64 {
        if self.limit == TestedLimit::Concurrency { self.most_held } else { self.sold }
    }

    /// Units sold above the limit.
    pub(super) fn over_admissions(&self) -> u64 {
        let most = self.limit.max_grants(between(self.first_request, self.last_reply));
        match u64::from(self.limit.keys()) {
            1 => self.most_sold().saturating_sub(most),
            keys => self.by_key.iter().map(|sold| sold.saturating_sub(most / keys)).sum(),
        }
    }

    /// Units that could not be sold at the end although no client has them.
    pub(super) fn lost(&self) -> u64 {
        let left = if self.limit == TestedLimit::Concurrency { self.held.len() as u64 } else { self.sold };
        self.limit.min_grants(between(self.first_reply, self.last_sent)).saturating_sub(left)
    }

    /// Upper bound of the loss for this many kills.
    pub(super) fn allowed_loss(&self, kills: u32) -> u64 {
        self.limit.loss_per_crash() * u64::from(kills) + self.unanswered
    }
}

fn between(from: Option<Instant>, to: Option<Instant>) -> Duration {
    from.zip(to).map(|(from, to)| to.saturating_duration_since(from)).unwrap_or_default()
}

/// Sales of all limits.
#[derive(Debug)]
pub(super) struct SalesLedger {
    pub(super) accounts: Vec<LimitAccount>,
    /// Requests with an id that had no reply: they are repeated.
    pub(super) retries: Vec<CrashRequest>,
    /// Leases whose release had no reply: the release is repeated.
    pub(super) unanswered_releases: Vec<HeldLease>,
    /// Granted requests with an id: the next run repeats them, without charge.
    pub(super) granted: Vec<CrashRequest>,
    pub(super) replayed: u64,
    pub(super) charged_twice: u64,
    /// Leases that were used in a later run than the one that granted them.
    pub(super) leases_outlived: u64,
    /// Leases that the server should know and does not.
    pub(super) leases_lost: u64,
    pub(super) failures: u64,
    pub(super) reasons: FailureReasons,
    /// The server was killed: broken connections are expected.
    pub(super) is_killed: bool,
    server_run: u32,
    shares: u32,
    next_id: u64,
}

impl SalesLedger {
    /// A ledger without sales, for this many kills.
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
            first_request: None,
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
            server_run: 0,
            shares: kills.saturating_add(2),
            next_id: 0,
        }
    }

    /// All limits in order.
    pub(super) fn limits(&self) -> Vec<TestedLimit> {
        self.accounts.iter().map(|account| account.limit).collect()
    }

    /// The account of a limit.
    pub(super) fn account(&mut self, limit: TestedLimit) -> &mut LimitAccount {
        let found = self.accounts.iter().position(|account| account.limit == limit);
        &mut self.accounts[found.expect("only tested limits are requested")]
    }

    /// Begins a run: every limit has a new share.
    pub(super) fn begin_run(&mut self) {
        self.is_killed = false;
        self.server_run += 1;
        for account in &mut self.accounts {
            account.share = (account.limit.capacity() / u64::from(self.shares)).max(1);
        }
    }

    /// The next request, or `None` if the share of this run is used up.
    pub(super) fn request(&mut self, random: &mut SplitMix64) -> Option<CrashRequest> {
        let open: Vec<_> = (0..self.accounts.len()).filter(|at| self.accounts[*at].share > 0).collect();
        let drawn = random.below(u32::try_from(open.len()).unwrap_or(u32::MAX));
        let account = &mut self.accounts[*open.get(drawn as usize)?];
        let limit = account.limit;
        // Leases are released, so they do not use up a share.
        if limit != TestedLimit::Concurrency {
            account.share -= 1;
        }
        let number = random.below(limit.keys());
        // A lease request has an id: a granted lease whose reply was lost could not be released otherwise.
        let wants_id = limit == TestedLimit::Concurrency || random.below(REQUESTS_PER_ID) == 0;
        self.next_id += u64::from(wants_id);
        let id = if wants_id { format!("crash-{}", self.next_id) } else { String::new() };
        Some(CrashRequest { limit, number, key: key(number), id })
    }

    /// Records requests before they are sent.
    pub(super) fn record_sent<'a>(&mut self, requests: impl Iterator<Item = &'a CrashRequest>, now: Instant) {
        for request in requests {
            let account = self.account(request.limit);
            account.first_request.get_or_insert(now);
            account.last_sent = Some(now);
        }
    }

    /// Records a reply.
    pub(super) fn record_reply(
        &mut self,
        request: CrashRequest,
        allowed: bool,
        lease: Option<Box<str>>,
        now: Instant,
    ) {
        let server_run = self.server_run;
        let account = self.account(request.limit);
        account.first_reply.get_or_insert(now);
        account.last_reply = Some(now);
        if !allowed {
            return;
        }
        account.sold += 1;
        account.by_key[request.number as usize] += 1;
        account.held.extend(lease.map(|lease| HeldLease { lease, server_run }));
        account.most_held = account.most_held.max(account.held.len() as u64);
        if !request.id.is_empty() && request.limit.is_counted() && self.granted.len() < MAX_REPLAYS {
            self.granted.push(request);
        }
    }

    /// Records a request without a reply. With an id it is repeated, without one it may have been granted.
    pub(super) fn record_lost(&mut self, request: CrashRequest) {
        if request.id.is_empty() {
            self.account(request.limit).unanswered += 1;
        } else {
            self.retries.push(request);
        }
    }

    /// Records an error that no kill explains.
    pub(super) fn record_failure(&mut self, why: &str) {
        self.failures += 1;
        self.reasons.add(why, 1);
    }

    /// Records a broken connection. After a kill it is expected.
    pub(super) fn record_disconnect(&mut self, why: &str) {
        if !self.is_killed {
            self.record_failure(why);
        }
    }

    /// Records whether the server knew a lease.
    pub(super) fn record_lease_lookup(&mut self, held: &HeldLease, was_known: bool) {
        self.leases_outlived += u64::from(held.server_run < self.server_run);
        self.leases_lost += u64::from(!was_known);
    }

    /// Picks a lease to release. From here on it counts as released.
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

/// The name of a key.
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
    fn grant_above_the_limit_is_found_for_every_limit() {
        let mut ledger = SalesLedger::open(&TestedLimit::ALL, 1);
        for limit in TestedLimit::ALL {
            // A bucket may have gained one unit and what flows in during the test.
            let slack = if limit == TestedLimit::Bucket { 100 } else { 0 };
            sell(&mut ledger, limit, 0, limit.capacity() / u64::from(limit.keys()));
            assert_eq!(ledger.account(limit).over_admissions(), 0, "{limit}");
            sell(&mut ledger, limit, 0, 1 + slack);
            assert!(ledger.account(limit).over_admissions() > 0, "{limit}");
        }
    }

    #[test]
    fn missing_units_at_the_end_are_lost() {
        let mut ledger = SalesLedger::open(&[TestedLimit::Total], 2);
        sell(&mut ledger, TestedLimit::Total, 0, TestedLimit::Total.capacity() - 800);
        ledger.record_lost(request(TestedLimit::Total, 0));
        let account = ledger.account(TestedLimit::Total);
        assert_eq!((account.lost(), account.allowed_loss(2)), (800, 2 * 390 + 1));
    }

    #[test]
    fn released_lease_is_free() {
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
    fn release_without_reply_is_repeated() {
        let mut ledger = SalesLedger::open(&[TestedLimit::Concurrency], 1);
        sell(&mut ledger, TestedLimit::Concurrency, 0, 2);
        let (held, _) = ledger.lease_to_release(&mut SplitMix64::from(1)).expect("there are two");
        ledger.unanswered_releases.push(held);
        let sent = [(); 3].map(|()| ledger.lease_to_release(&mut SplitMix64::from(1)).map(|(_, sent)| sent));
        assert_eq!(sent, [Some(ReleaseAttempt::Again), Some(ReleaseAttempt::First), None]);
    }

    #[test]
    fn lease_of_earlier_run_counts_as_outlived() {
        let mut ledger = SalesLedger::open(&[TestedLimit::Concurrency], 1);
        ledger.begin_run();
        sell(&mut ledger, TestedLimit::Concurrency, 0, 1);
        let held = ledger.account(TestedLimit::Concurrency).held[0].clone();
        ledger.record_lease_lookup(&held, true);
        assert_eq!((ledger.leases_outlived, ledger.leases_lost), (0, 0));
        ledger.begin_run();
        ledger.record_lease_lookup(&held, true);
        ledger.record_lease_lookup(&held, false);
        assert_eq!((ledger.leases_outlived, ledger.leases_lost), (2, 1));
    }

    #[test]
    fn run_requests_no_more_than_its_share() {
        let mut ledger = SalesLedger::open(&[TestedLimit::Total, TestedLimit::Key], 8);
        let mut random = SplitMix64::from(7);
        assert!(ledger.request(&mut random).is_none(), "no run has begun");
        ledger.begin_run();
        let mut asked = 0;
        while ledger.request(&mut random).is_some() {
            asked += 1;
        }
        assert_eq!(asked, TestedLimit::Total.capacity() / 10 + TestedLimit::Key.capacity() / 10);
    }

    #[test]
    fn lost_request_with_id_is_repeated() {
        let mut ledger = SalesLedger::open(&[TestedLimit::Total], 1);
        ledger.record_lost(CrashRequest { id: "r".to_owned(), ..request(TestedLimit::Total, 0) });
        assert_eq!((ledger.retries.len(), ledger.account(TestedLimit::Total).unanswered), (1, 0));
    }

    #[test]
    fn broken_connection_after_kill_is_no_failure() {
        let mut ledger = SalesLedger::open(&[TestedLimit::Total], 1);
        ledger.is_killed = true;
        ledger.record_disconnect("reset");
        assert_eq!(ledger.failures, 0);
        ledger.begin_run();
        ledger.record_disconnect("reset");
        assert_eq!(ledger.failures, 1);
    }
}
