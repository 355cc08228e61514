//! The peers: other rate limiting libraries, each used as documented.

pub(crate) mod governor;
pub(crate) mod pingora;
pub(crate) mod throttlecrab;

use std::num::NonZeroU32;

use tidegate_bench::BenchRule;

/// Converts a rule for a peer: the burst, and the refill time of one unit. Peers support only buckets.
fn bucket(rule: BenchRule) -> (NonZeroU32, std::time::Duration) {
    match rule {
        BenchRule::Bucket { step, burst } => {
            (NonZeroU32::new(burst).expect("no rule of the benchmarks is empty"), step)
        }
        other => panic!("peers know buckets only, not {other:?}"),
    }
}
