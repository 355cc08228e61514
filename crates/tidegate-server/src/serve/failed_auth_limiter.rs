//! Failed failed_auths: how often an address may show a token that nobody knows. Tidegate limits itself with Tidegate.
//!
//! Decided: a token that is known always passes, however many wrong ones came from the same address. A token has 256 random bits, so
//! guessing is hopeless with or without a bound; what the bound is for is noise, and the time that hashing takes. Refusing the right token
//! because of somebody else's wrong ones would let one broken client behind a shared address shut out all the others.
//!
//! An address of IPv6 counts by its first 64 bits, because whoever has one has all of them.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tidegate::{Decision, ExpectedVersion, ItemSpec, LimitSpec, Limiter, Policy};

/// How many failures an address has at once.
pub(super) const MAX_FAILURES: u64 = 20;
/// How long it takes until all of them are forgiven.
pub(super) const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// How many addresses are remembered. When there are more, new ones are treated as if they had failed too often.
const MAX_ADDRESSES: u64 = 200_000;

const LIMIT: &str = "failed-attempts";

/// Caller failed, and how often.
#[derive(Debug)]
pub(super) struct FailedAuthLimiter {
    limiter: Limiter,
}

impl FailedAuthLimiter {
    pub(super) fn new() -> FailedAuthLimiter {
        let limiter = Limiter::in_memory();
        let policy = Policy::Bucket { window: FAILURE_WINDOW, burst: Some(MAX_FAILURES) };
        let mut spec = LimitSpec::named(LIMIT).with(ItemSpec::of(policy, MAX_FAILURES).per_key());
        spec.max_keys = Some(MAX_ADDRESSES);
        let put = limiter.store().put(spec, ExpectedVersion::Absent);
        debug_assert!(put.is_ok(), "it is a limit that makes sense");
        FailedAuthLimiter { limiter }
    }

    /// Somebody at this address failed. If that was too often: how long until the next may fail.
    pub(super) fn record_failure(&self, address: IpAddr) -> Option<Duration> {
        match self.limiter.ask(LIMIT, &address_key(address)).try_acquire() {
            Ok(Decision::Denied(denial)) => Some(denial.retry_after().unwrap_or(FAILURE_WINDOW)),
            _ => None,
        }
    }
}

/// What an address counts as.
fn address_key(address: IpAddr) -> [u8; 9] {
    let mut key = [0; 9];
    match address.to_canonical() {
        IpAddr::V4(four) => {
            key[0] = 4;
            key[1..5].copy_from_slice(&four.octets());
        }
        IpAddr::V6(six) => {
            key[0] = 6;
            key[1..].copy_from_slice(&Ipv6Addr::octets(&six)[..8]);
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_address_may_fail_so_often_and_others_do_not_notice() {
        let failed_auths = FailedAuthLimiter::new();
        let mallory = address("192.0.2.7");
        for _ in 0..MAX_FAILURES {
            assert_eq!(failed_auths.record_failure(mallory), None);
        }
        let wait = failed_auths.record_failure(mallory).expect("that was too often");
        assert!(wait <= FAILURE_WINDOW / u32::try_from(MAX_FAILURES).expect("few"), "{wait:?}");
        assert_eq!(failed_auths.record_failure(address("192.0.2.8")), None);
    }

    #[test]
    fn addresses_count_by_what_their_owner_has() {
        assert_eq!(address_key(address("2001:db8::1")), address_key(address("2001:db8::ffff:1")));
        assert_ne!(address_key(address("2001:db8::1")), address_key(address("2001:db8:0:1::1")));
        assert_eq!(address_key(address("::ffff:192.0.2.7")), address_key(address("192.0.2.7")));
    }
}
