//! The parameters of a load test.

use std::time::Duration;

use super::target::{BenchProtocol, BenchTarget};
use crate::Failure;
use crate::args::{BenchArgs, DEFAULT_SERVER};
use crate::remote::client::environment;
use crate::serve::descriptors;

/// Length of a warm-up: this fraction of the measured time, but not less than the minimum.
const WARM_UP_PART: u32 = 10;
const SHORTEST_WARM_UP: Duration = Duration::from_millis(50);
/// Capacity of the warm-up limit: more than a warm-up requests, so that it measures grants.
const WARM_UP_TOTAL: u64 = 1_000_000;

/// Capacity of a test limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoadQuota {
    /// All keys together.
    pub(super) total: u64,
    /// Each key.
    pub(super) per_key: u64,
}

/// The parameters, validated.
#[derive(Debug)]
pub(super) struct LoadPlan {
    pub(super) target: BenchTarget,
    pub(super) levels: Vec<usize>,
    pub(super) duration: Duration,
    pub(super) warm_up: Duration,
    pub(super) keys: u32,
    pub(super) pipeline: usize,
    pub(super) timeout: Duration,
    total: Option<u64>,
    per_key: Option<u64>,
}

impl LoadPlan {
    /// Reads arguments and environment.
    pub(super) fn of(args: &BenchArgs) -> Result<LoadPlan, Failure> {
        let target = match (&args.server, environment("TIDEGATE_SERVER")?) {
            (Some(target), _) => target.clone(),
            (None, Some(written)) => BenchTarget::parse(&written)
                .map_err(|why| Failure::BadInput(format!("TIDEGATE_SERVER {why}")))?,
            (None, None) => BenchTarget::parse(DEFAULT_SERVER).map_err(Failure::Failed)?,
        };
        if args.pipeline > 1 && target.protocol == BenchProtocol::Http {
            let why = "--pipeline is for redis://; over http:// every connection has one request at a time";
            return Err(Failure::BadInput(why.to_owned()));
        }
        let levels = args.concurrency.0.clone();
        let most = levels.iter().copied().max().unwrap_or_default();
        let possible = descriptors();
        if most > possible {
            return Err(Failure::BadInput(format!(
                "this process may open {possible} connections, and --concurrency needs {most}; raise 'ulimit -n'"
            )));
        }
        let default = (args.duration / WARM_UP_PART).max(SHORTEST_WARM_UP);
        Ok(LoadPlan {
            target,
            levels,
            duration: args.duration,
            warm_up: args.warm_up.unwrap_or(default),
            keys: args.keys,
            pipeline: args.pipeline,
            timeout: args.timeout,
            total: args.total,
            per_key: args.per_key,
        })
    }

    /// Capacity of the warm-up limit.
    pub(super) fn warm_up_quota(&self) -> LoadQuota {
        self.quota_of(WARM_UP_TOTAL)
    }

    /// Capacity for a level with this request rate: half of the expected requests, unless `--total` or `--per-key` is
    /// given.
    pub(super) fn quota(&self, rate: u64) -> LoadQuota {
        let asked = u128::from(rate) * self.duration.as_millis() / 1000;
        self.quota_of(u64::try_from(asked / 2).unwrap_or(u64::MAX).max(1))
    }

    fn quota_of(&self, default: u64) -> LoadQuota {
        let total = self.total.unwrap_or(default);
        let per_key = self.per_key.unwrap_or_else(|| total.div_ceil(u64::from(self.keys)));
        LoadQuota { total, per_key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{CliArgs, CliCommand};
    use clap::Parser;

    fn plan(words: &[&str]) -> Result<LoadPlan, Failure> {
        let all = ["tidegate", "bench", "--server"].iter().chain(words);
        let CliCommand::Bench(args) = CliArgs::parse_from(all).command else {
            panic!("expected the bench command")
        };
        LoadPlan::of(&args)
    }

    #[test]
    fn quota_is_half_of_the_expected_requests() {
        let plan = plan(&["http://h", "--duration", "2s", "--keys", "100"]).expect("a plan");
        assert_eq!(plan.quota(5000), LoadQuota { total: 5000, per_key: 50 });
        assert_eq!(
            plan.quota(5001),
            LoadQuota { total: 5001, per_key: 51 },
            "rounded up: the shares are enough"
        );
        assert_eq!(plan.quota(0), LoadQuota { total: 1, per_key: 1 });
        assert!(plan.quota(u64::MAX).total > 0);
    }

    #[test]
    fn given_total_and_per_key_override_the_default() {
        let plan = plan(&["http://h", "--total", "7", "--per-key", "2"]).expect("a plan");
        for quota in [plan.quota(1_000_000), plan.warm_up_quota()] {
            assert_eq!(quota, LoadQuota { total: 7, per_key: 2 });
        }
    }

    #[test]
    fn default_warm_up_is_a_tenth_of_the_duration() {
        let warm_up = |words: &[&str]| plan(&[&["http://h"], words].concat()).expect("a plan").warm_up;
        assert_eq!(warm_up(&[]), Duration::from_millis(500));
        assert_eq!(warm_up(&["--duration", "200ms"]), SHORTEST_WARM_UP);
        assert_eq!(warm_up(&["--warm-up", "2s"]), Duration::from_secs(2));
    }

    #[test]
    fn pipeline_over_http_is_refused() {
        assert!(matches!(plan(&["http://h", "--pipeline", "2"]), Err(Failure::BadInput(_))));
        assert_eq!(plan(&["redis://h", "--pipeline", "2"]).expect("a plan").pipeline, 2);
    }
}
