//! What will be asked, how often and of which limits.

use std::time::Duration;

use super::target::{BenchProtocol, BenchTarget};
use crate::Failure;
use crate::args::{BenchArgs, DEFAULT_SERVER};
use crate::remote::client::environment;
use crate::serve::descriptors;

/// A warm-up is this part of what is measured, and not shorter than that.
const WARM_UP_PART: u32 = 10;
const SHORTEST_WARM_UP: Duration = Duration::from_millis(50);
/// What a warm-up may be granted: more than anybody asks in it, so that it is grants whose speed is learnt.
const WARM_UP_TOTAL: u64 = 1_000_000;

/// What a limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoadQuota {
    /// All keys together.
    pub(super) total: u64,
    /// Each key.
    pub(super) per_key: u64,
}

/// Everything that is known before anybody is asked.
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
    /// What the arguments and the environment want.
    pub(super) fn of(args: &BenchArgs) -> Result<LoadPlan, Failure> {
        let target = match (&args.server, environment("TIDEGATE_SERVER")?) {
            (Some(target), _) => target.clone(),
            (None, Some(written)) => BenchTarget::parse(&written)
                .map_err(|why| Failure::BadInput(format!("TIDEGATE_SERVER {why}")))?,
            (None, None) => BenchTarget::parse(DEFAULT_SERVER).map_err(Failure::Failed)?,
        };
        if args.pipeline > 1 && target.protocol == BenchProtocol::Http {
            let why = "--pipeline is for redis://; over http:// every connection has one question at a time";
            return Err(Failure::BadInput(why.to_owned()));
        }
        let levels = args.concurrency.0.clone();
        let most = levels.iter().copied().max().unwrap_or_default();
        let possible = descriptors();
        if most > possible {
            return Err(Failure::BadInput(format!(
                "the system lets this process have {possible} connections, and --concurrency wants {most}; 'ulimit -n' \
                 gives it more"
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

    /// What a warm-up may be granted.
    pub(super) fn warm_up_quota(&self) -> LoadQuota {
        self.quota_of(WARM_UP_TOTAL)
    }

    /// What a level may be granted that is asked so often in a second: half of it, unless somebody said otherwise.
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
        let CliCommand::Bench(args) = CliArgs::parse_from(all).command else { panic!("that is bench") };
        LoadPlan::of(&args)
    }

    #[test]
    fn half_of_what_is_asked_is_granted() {
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
    fn whoever_says_how_much_is_obeyed() {
        let plan = plan(&["http://h", "--total", "7", "--per-key", "2"]).expect("a plan");
        for quota in [plan.quota(1_000_000), plan.warm_up_quota()] {
            assert_eq!(quota, LoadQuota { total: 7, per_key: 2 });
        }
    }

    #[test]
    fn a_warm_up_is_a_tenth_unless_said() {
        let warm_up = |words: &[&str]| plan(&[&["http://h"], words].concat()).expect("a plan").warm_up;
        assert_eq!(warm_up(&[]), Duration::from_millis(500));
        assert_eq!(warm_up(&["--duration", "200ms"]), SHORTEST_WARM_UP);
        assert_eq!(warm_up(&["--warm-up", "2s"]), Duration::from_secs(2));
    }

    #[test]
    fn only_resp_is_pipelined() {
        assert!(matches!(plan(&["http://h", "--pipeline", "2"]), Err(Failure::BadInput(_))));
        assert_eq!(plan(&["redis://h", "--pipeline", "2"]).expect("a plan").pipeline, 2);
    }
}
