//! What `tidegate bench` is told, and the bounds of what it can be told.

use std::path::PathBuf;
use std::time::Duration;

use super::remote::positive_duration;
use crate::bench::crash::tested_limit::TestedLimit;
use crate::bench::target::BenchTarget;
use crate::remote::url::ServerUrl;

/// The most connections at once: beyond it a machine measures its own sockets.
const MOST_CONNECTIONS: usize = 10_000;
/// The most levels of concurrency in one run.
const MOST_LEVELS: usize = 32;
/// The longest that one level may take.
const LONGEST_LEVEL: Duration = Duration::from_secs(3600);
/// The most keys: each of them is counted here too.
const MOST_KEYS: u32 = 10_000_000;
/// The deepest pipeline: what a server reads at once.
const DEEPEST_PIPELINE: usize = 1024;
/// The largest capacity that is set up.
const LARGEST_CAPACITY: u64 = 1_000_000_000_000;
/// The most kills: each life has a share of what is sold, and the shares must not become nothing.
const MOST_KILLS: u32 = 1000;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate bench --server http://127.0.0.1:7700
  tidegate bench --server redis://127.0.0.1:7701 --pipeline 64 --svg load.svg
  tidegate bench --concurrency 1,8,64 --duration 2s --json -
  tidegate bench --crash --kills 50

Exit codes: 0 all is well, 1 failures or something was sold above its limit, 2 bad input, 4 unreachable")]
pub(crate) struct BenchArgs {
    #[arg(long, value_name = "URL", value_parser = BenchTarget::parse)]
    #[arg(
        help = "Where the server is, http:// or redis:// [default: $TIDEGATE_SERVER, else http://127.0.0.1:7700]"
    )]
    pub(crate) server: Option<BenchTarget>,
    /// Where limits are made if the load goes over redis:// [default: port 7700 of the same host]
    #[arg(long, value_name = "URL", value_parser = ServerUrl::parse)]
    pub(crate) http: Option<ServerUrl>,
    #[arg(long, value_name = "FILE", help = "A file with the token [default: $TIDEGATE_TOKEN]")]
    pub(crate) token_file: Option<PathBuf>,
    /// How long an answer may take
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = positive_duration)]
    pub(crate) timeout: Duration,
    /// How many connections ask at once: one level after another
    #[arg(long, value_name = "LIST", default_value = "1,4,16,64,256", value_parser = parse_levels)]
    pub(crate) concurrency: ConcurrencyLevels,
    /// How long each level is measured
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_level_duration)]
    pub(crate) duration: Duration,
    /// How long each level runs before it is measured [default: a tenth of --duration, 50ms at least]
    #[arg(long, value_name = "DURATION", value_parser = parse_level_duration)]
    pub(crate) warm_up: Option<Duration>,
    /// How many keys are asked about, each as often as any other
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_KEYS)))]
    pub(crate) keys: u32,
    /// How many questions each connection sends at once; redis:// only
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_pipeline)]
    pub(crate) pipeline: usize,
    /// How much each level may be granted, all keys together [default: about half of what will be asked]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=LARGEST_CAPACITY))]
    pub(crate) total: Option<u64>,
    /// How much each key may be granted [default: its share of --total, rounded up]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=LARGEST_CAPACITY))]
    pub(crate) per_key: Option<u64>,
    /// What the ids of the limits begin with that are made, and removed again
    #[arg(long, value_name = "PREFIX", default_value = "bench/")]
    pub(crate) prefix: String,
    /// Write what was measured as JSON; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw what was measured
    #[arg(long, value_name = "FILE", conflicts_with = "crash")]
    pub(crate) svg: Option<PathBuf>,
    /// Start a server of its own, kill it again and again under load, and count what was sold
    #[arg(long, conflicts_with_all = ["server", "http", "token_file", "concurrency", "duration", "warm_up",
        "keys", "pipeline", "total", "per_key", "prefix"])]
    pub(crate) crash: bool,
    #[command(flatten)]
    pub(crate) crashing: CrashArgs,
}

/// What `--crash` is told.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With --crash")]
pub(crate) struct CrashArgs {
    /// How often the server is killed
    #[arg(long, value_name = "N", default_value_t = 20, requires = "crash",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_KILLS)))]
    pub(crate) kills: u32,
    /// What the moments are drawn from: the same number, the same moments
    #[arg(long, value_name = "N", requires = "crash")]
    pub(crate) seed: Option<u64>,
    /// Where the server keeps its counts; it must be empty [default: a place of its own, removed if all was well]
    #[arg(long, value_name = "DIR", requires = "crash")]
    pub(crate) store_dir: Option<PathBuf>,
    /// Which laws are tried
    #[arg(long, value_name = "LIST", requires = "crash", value_enum, value_delimiter = ',',
        default_values_t = TestedLimit::ALL)]
    pub(crate) limits: Vec<TestedLimit>,
    /// The store that the server is started with, in place of the directory: for those who test the test
    #[arg(long, value_name = "URL", requires = "crash", hide = true)]
    pub(crate) store: Option<String>,
}

/// Levels of concurrency, in the order they were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConcurrencyLevels(pub(crate) Vec<usize>);

fn parse_levels(text: &str) -> Result<ConcurrencyLevels, String> {
    let level = |word: &str| {
        let number = word.trim().parse::<usize>().ok();
        number.filter(|number| (1..=MOST_CONNECTIONS).contains(number)).ok_or_else(|| {
            format!("must be numbers from 1 to {MOST_CONNECTIONS} with commas between them, found '{word}'")
        })
    };
    let levels = text.split(',').map(level).collect::<Result<Vec<_>, _>>()?;
    if levels.len() > MOST_LEVELS {
        return Err(format!("must be at most {MOST_LEVELS} levels, found {}", levels.len()));
    }
    Ok(ConcurrencyLevels(levels))
}

fn parse_level_duration(text: &str) -> Result<Duration, String> {
    let time = positive_duration(text)?;
    if time > LONGEST_LEVEL {
        return Err(format!("must be at most {}h, found {text}", LONGEST_LEVEL.as_secs() / 3600));
    }
    Ok(time)
}

fn parse_pipeline(text: &str) -> Result<usize, String> {
    let depth = text.parse::<usize>().ok().filter(|depth| (1..=DEEPEST_PIPELINE).contains(depth));
    depth.ok_or_else(|| format!("must be a whole number from 1 to {DEEPEST_PIPELINE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_a_list_of_numbers_that_can_be() {
        assert_eq!(parse_levels("1, 4,16"), Ok(ConcurrencyLevels(vec![1, 4, 16])));
        assert_eq!(parse_levels("10000"), Ok(ConcurrencyLevels(vec![10_000])));
        for wrong in ["", "0", "1,,2", "1,0", "10001", "100000", "-1", "many", "1.5"] {
            assert!(parse_levels(wrong).expect_err(wrong).contains("from 1 to 10000"), "{wrong}");
        }
        assert!(parse_levels(&["1"; 33].join(",")).is_err());
    }

    #[test]
    fn a_level_takes_some_time_and_not_for_ever() {
        assert_eq!(parse_level_duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(parse_level_duration("1h"), Ok(LONGEST_LEVEL));
        for wrong in ["0s", "2h", "5", ""] {
            assert!(parse_level_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pipeline_has_a_depth() {
        assert_eq!(parse_pipeline("1024"), Ok(1024));
        for wrong in ["0", "1025", "-1", "x"] {
            assert!(parse_pipeline(wrong).is_err(), "{wrong}");
        }
    }
}
