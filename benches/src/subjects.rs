//! The subjects that are ours: the memory store by its handles, and any store by its door.

pub mod submit;
pub mod tidegate;

use std::time::Duration;

use ::tidegate::catalog::{Catalog, ExpectedVersion};
use ::tidegate::model::{ItemSpec, LimitSpec, Policy, Precision, Unit};

use crate::rule::{Reach, Rule};

/// Adds one limit for each rule; their ids.
fn put(catalog: &impl Catalog, rules: &[(Rule, Reach)]) -> Vec<String> {
    let put = |(index, &(rule, reach)): (usize, &(Rule, Reach))| {
        let id = format!("limit-{index}");
        catalog
            .put(spec(&id, rule, reach), ExpectedVersion::Absent)
            .expect("the rules of the benchmarks make sense");
        id
    };
    rules.iter().enumerate().map(put).collect()
}

fn spec(id: &str, rule: Rule, reach: Reach) -> LimitSpec {
    let (policy, capacity) = match rule {
        Rule::Bucket { step, burst } => (Policy::Bucket { window: step, burst: Some(burst.into()) }, 1),
        Rule::Day(capacity) => (Policy::Calendar(Unit::Day), capacity),
        Rule::Interval(capacity) => (Policy::Interval { window: Rule::HOUR }, capacity),
        Rule::Sliding(capacity) => {
            (Policy::Sliding { window: Rule::MINUTE, precision: Precision::Exact }, capacity)
        }
        Rule::PerSecond(capacity) => {
            let precision = if capacity <= 1_000 { Precision::Exact } else { Precision::Bucketed };
            (Policy::Sliding { window: Duration::from_secs(1), precision }, capacity)
        }
    };
    let item = ItemSpec::of(policy, capacity.into());
    LimitSpec::named(id).with(match reach {
        Reach::Shared => item,
        Reach::PerKey => item.per_key(),
    })
}
