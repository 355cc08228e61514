//! Arguments of `tidegate bench` and their bounds.

use std::path::PathBuf;
use std::time::Duration;

use super::remote::positive_duration;
use crate::bench::crash::tested_limit::TestedLimit;
use crate::bench::target::BenchTarget;
use crate::remote::url::ServerUrl;

/// More connections than this measure the client machine's sockets instead of the server.
const MOST_CONNECTIONS: usize = 10_000;
/// Maximum number of concurrency levels in one run.
const MOST_LEVELS: usize = 32;
/// Maximum duration of one level.
const LONGEST_LEVEL: Duration = Duration::from_secs(3600);
/// Maximum number of keys. The tool keeps one counter per key.
const MOST_KEYS: u32 = 10_000_000;
/// Maximum pipeline depth: what a server reads at once.
const DEEPEST_PIPELINE: usize = 1024;
/// Largest capacity of a test limit.
const LARGEST_CAPACITY: u64 = 1_000_000_000_000;
/// Maximum number of kills. Every run of the server gets a share of the capacity, and shares must not round to 0.
const MOST_KILLS: u32 = 1000;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate bench --server http://127.0.0.1:7700
  tidegate bench --server redis://127.0.0.1:7701 --pipeline 64 --svg load.svg
  tidegate bench --concurrency 1,8,64 --duration 2s --json -
  tidegate bench --crash --kills 50

Exit codes: 0 no errors, 1 failures or a limit was exceeded, 2 bad input, 4 unreachable")]
pub(crate) struct BenchArgs {
    #[arg(long, value_name = "URL", value_parser = BenchTarget::parse)]
    #[arg(help = "Server URL, http:// or redis:// [default: $TIDEGATE_SERVER, else http://127.0.0.1:7700]")]
    pub(crate) server: Option<BenchTarget>,
    /// HTTP URL for managing test limits when the load goes over redis:// [default: port 7700 of the same host]
    #[arg(long, value_name = "URL", value_parser = ServerUrl::parse)]
    pub(crate) http: Option<ServerUrl>,
    #[arg(long, value_name = "FILE", help = "File with the token [default: $TIDEGATE_TOKEN]")]
    pub(crate) token_file: Option<PathBuf>,
    /// Timeout for one reply
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = positive_duration)]
    pub(crate) timeout: Duration,
    /// Concurrency levels, measured one after another
    #[arg(long, value_name = "LIST", default_value = "1,4,16,64,256", value_parser = parse_levels)]
    pub(crate) concurrency: ConcurrencyLevels,
    /// Duration of each level
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_level_duration)]
    pub(crate) duration: Duration,
    /// Warm-up before each level [default: a tenth of --duration, 50ms at least]
    #[arg(long, value_name = "DURATION", value_parser = parse_level_duration)]
    pub(crate) warm_up: Option<Duration>,
    /// Number of keys, used with equal probability
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_KEYS)))]
    pub(crate) keys: u32,
    /// Requests in flight per connection; redis:// only
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_pipeline)]
    pub(crate) pipeline: usize,
    /// Capacity of the test limit, all keys together [default: about half of the expected requests]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=LARGEST_CAPACITY))]
    pub(crate) total: Option<u64>,
    /// Capacity per key [default: its share of --total, rounded up]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=LARGEST_CAPACITY))]
    pub(crate) per_key: Option<u64>,
    /// Prefix of the ids of the test limits, which are deleted at the end
    #[arg(long, value_name = "PREFIX", default_value = "bench/")]
    pub(crate) prefix: String,
    /// Write the results as JSON; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the results as an SVG chart
    #[arg(long, value_name = "FILE", conflicts_with = "crash")]
    pub(crate) svg: Option<PathBuf>,
    /// Crash test: start a server, kill it repeatedly under load, and check that no limit is exceeded
    #[arg(long, conflicts_with_all = ["server", "http", "token_file", "concurrency", "duration", "warm_up",
        "keys", "pipeline", "total", "per_key", "prefix"])]
    pub(crate) crash: bool,
    #[command(flatten)]
    pub(crate) crashing: CrashArgs,
}

/// Arguments of `--crash`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With --crash")]
pub(crate) struct CrashArgs {
    /// Number of kills
    #[arg(long, value_name = "N", default_value_t = 20, requires = "crash",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_KILLS)))]
    pub(crate) kills: u32,
    /// Random seed; the same seed kills at the same moments
    #[arg(long, value_name = "N", requires = "crash")]
    pub(crate) seed: Option<u64>,
    /// Data directory of the server; must be empty [default: a temporary directory, removed on success]
    #[arg(long, value_name = "DIR", requires = "crash")]
    pub(crate) store_dir: Option<PathBuf>,
    /// Which limits to test
    #[arg(long = "laws", value_name = "LIST", requires = "crash", value_enum, value_delimiter = ',',
        default_values_t = TestedLimit::ALL)]
    pub(crate) limits: Vec<TestedLimit>,
    /// Store URL to use instead of the directory, for testing the crash test itself
    #[arg(long, value_name = "URL", requires = "crash", hide = true)]
    pub(crate) store: Option<String>,
}

/// Concurrency levels in written order.
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
    fn levels_out_of_range_are_refused() {
        assert_eq!(parse_levels("1, 4,16"), Ok(ConcurrencyLevels(vec![1, 4, 16])));
        assert_eq!(parse_levels("10000"), Ok(ConcurrencyLevels(vec![10_000])));
        for wrong in ["", "0", "1,,2", "1,0", "10001", "100000", "-1", "many", "1.5"] {
            assert!(parse_levels(wrong).expect_err(wrong).contains("from 1 to 10000"), "{wrong}");
        }
        assert!(parse_levels(&["1"; 33].join(",")).is_err());
    }

    #[test]
    fn level_duration_is_bounded() {
        assert_eq!(parse_level_duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(parse_level_duration("1h"), Ok(LONGEST_LEVEL));
        for wrong in ["0s", "2h", "5", ""] {
            assert!(parse_level_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pipeline_depth_is_bounded() {
        assert_eq!(parse_pipeline("1024"), Ok(1024));
        for wrong in ["0", "1025", "-1", "x"] {
            assert!(parse_pipeline(wrong).is_err(), "{wrong}");
        }
    }
}
