//! The peers: other libraries that answer the same question, each used as its documentation says.

pub(crate) mod governor;
pub(crate) mod pingora;
pub(crate) mod throttlecrab;

use std::num::NonZeroU32;

use tidegate_bench::Rule;

/// What a peer makes of a rule: the most at once, and the time for one of them. Every peer knows buckets and nothing else.
fn bucket(rule: Rule) -> (NonZeroU32, std::time::Duration) {
    match rule {
        Rule::Bucket { step, burst } => {
            (NonZeroU32::new(burst).expect("no rule of the benchmarks is empty"), step)
        }
        other => panic!("peers know buckets only, not {other:?}"),
    }
}
