//! Limits failed authentications per client address, with a Tidegate limiter.
//!
//! A valid token always passes, however many invalid ones came from the same address. Tokens have 256 random bits, so guessing is
//! hopeless without a limit; the limit bounds noise and hashing time. Refusing valid tokens would let one broken client behind a
//! shared address lock out all the others.
//!
//! IPv6 addresses are counted by their first 64 bits, because one customer usually gets a whole /64.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tidegate::{AcquireError, LimitHandle, Limiter, bucket, rules};

/// Failures that an address may make in a burst.
pub(super) const MAX_FAILURES: u64 = 20;
/// Time after which all of them are forgiven.
pub(super) const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// Number of addresses that are tracked. When the table is full, a new address is treated as over the limit.
const MAX_ADDRESSES: u64 = 200_000;

const LIMIT: &str = "failed-attempts";

/// Counts failures per address.
#[derive(Debug)]
pub(super) struct FailedAuthLimiter {
    failures: LimitHandle,
}

impl FailedAuthLimiter {
    pub(super) fn new() -> FailedAuthLimiter {
        let failures = bucket(MAX_FAILURES, FAILURE_WINDOW).per_key();
        let limiter = Limiter::builder().limit(LIMIT, rules(failures).max_keys(MAX_ADDRESSES)).build();
        let limiter = limiter.expect("the limit is valid");
        FailedAuthLimiter { failures: limiter.limit(LIMIT).expect("it was built with it") }
    }

    /// Counts a failure of this address. Over the limit, returns the time until the next attempt may fail.
    pub(super) fn record_failure(&self, address: IpAddr) -> Option<Duration> {
        match self.failures.try_acquire(address_key(address)) {
            Err(AcquireError::Refused(refused)) => Some(refused.retry_after().unwrap_or(FAILURE_WINDOW)),
            _ => None,
        }
    }
}

/// The limiter key of an address.
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
    fn failures_are_bounded_per_address() {
        let failed_auths = FailedAuthLimiter::new();
        let client = address("192.0.2.7");
        for _ in 0..MAX_FAILURES {
            assert_eq!(failed_auths.record_failure(client), None);
        }
        let wait = failed_auths.record_failure(client).expect("that was one too many");
        assert!(wait <= FAILURE_WINDOW / u32::try_from(MAX_FAILURES).expect("few"), "{wait:?}");
        assert_eq!(failed_auths.record_failure(address("192.0.2.8")), None);
    }

    #[test]
    fn ipv6_addresses_count_by_their_first_64_bits() {
        assert_eq!(address_key(address("2001:db8::1")), address_key(address("2001:db8::ffff:1")));
        assert_ne!(address_key(address("2001:db8::1")), address_key(address("2001:db8:0:1::1")));
        assert_eq!(address_key(address("::ffff:192.0.2.7")), address_key(address("192.0.2.7")));
    }
}
