//! The subjects of Tidegate: the memory store through its handles, and any store through `submit`.

pub mod submit;
pub mod tidegate;

use std::time::Duration;

use ::tidegate::catalog::{Catalog, ExpectedVersion};
use ::tidegate::model::{ItemSpec, LimitSpec, Policy, Precision, Unit};

use crate::rule::{BenchRule, LimitScope};

/// Adds one limit per rule and returns their ids.
fn put(catalog: &impl Catalog, rules: &[(BenchRule, LimitScope)]) -> Vec<String> {
    let put = |(index, &(rule, reach)): (usize, &(BenchRule, LimitScope))| {
        let id = format!("limit-{index}");
        catalog
            .put(spec(&id, rule, reach), ExpectedVersion::Absent)
            .expect("the rules of the benchmarks make sense");
        id
    };
    rules.iter().enumerate().map(put).collect()
}

fn spec(id: &str, rule: BenchRule, reach: LimitScope) -> LimitSpec {
    let (policy, capacity) = match rule {
        BenchRule::Bucket { step, burst } => (Policy::Bucket { window: step, burst: Some(burst.into()) }, 1),
        BenchRule::Day(capacity) => (Policy::Calendar(Unit::Day), capacity),
        BenchRule::Interval(capacity) => (Policy::Interval { window: BenchRule::HOUR }, capacity),
        BenchRule::Sliding(capacity) => {
            (Policy::Sliding { window: BenchRule::MINUTE, precision: Precision::Exact }, capacity)
        }
        BenchRule::PerSecond(capacity) => {
            let precision = if capacity <= 1_000 { Precision::Exact } else { Precision::Bucketed };
            (Policy::Sliding { window: Duration::from_secs(1), precision }, capacity)
        }
    };
    let item = ItemSpec::of(policy, capacity.into());
    LimitSpec::named(id).with(match reach {
        LimitScope::Shared => item,
        LimitScope::PerKey => item.per_key(),
    })
}
