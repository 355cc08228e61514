//! `tidegate cpu`: what can be typed.
//!
//! What a flag says by itself is checked here; what flags say together is checked with the file's settings, by
//! [`crate::cpu::settings`].

mod run;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use tidegate::budget::{Rate, Share, Unobserved};
use tidegate::file::CpuSpec;
use tidegate::text::{parse_decimal, parse_duration, suggestion};
use tidegate_core::Zone;
use tidegate_core::calendar::{MAX_SCHEDULED_WINDOW, MIN_SCHEDULED_WINDOW};

pub(crate) use run::{CpuRunArgs, CpuTarget, EnforceMethod};

/// Billionths in a unit.
const UNIT: u64 = 1_000_000_000;
/// The most percents there are.
const MAX_PERCENT: u64 = 100 * UNIT;
/// The largest reserve, in percent.
const MAX_RESERVE: u64 = 99 * UNIT;
/// The longest time between two samples.
const MAX_INTERVAL: Duration = Duration::from_secs(300);
/// The most hours that a picture shows: a year of them.
const MAX_HOURS: u32 = 366 * 24;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate cpu run --avg-limit 30 -- ./render-everything
  tidegate cpu plan --avg-limit 30 --window 24h --elapsed 60m --average 36.5
  tidegate cpu simulate --trace yesterday.csv --guard off
  tidegate cpu status --json")]
pub(crate) struct CpuArgs {
    #[command(subcommand)]
    pub(crate) command: CpuCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CpuCommand {
    /// Reckon what may be used from here on, without a clock and without state
    Plan(CpuPlanArgs),
    /// Govern: keep a machine, a cgroup, a process or a command under its average
    Run(Box<CpuRunArgs>),
    /// Run a recorded or an invented load through the governor
    Simulate(Box<CpuSimulateArgs>),
    /// Say how the budget stands
    Status(CpuStatusArgs),
    /// Draw what was used and what was allowed
    Report(CpuReportArgs),
    /// Put back what a governor changed when it ends without a word
    #[command(hide = true)]
    Watch(CpuWatchArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct CpuWatchArgs {
    /// The command that it starts when it is told to, and is the parent of
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// The numbers of a budget.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BudgetArgs {
    /// What may be used on average, in percent of the machine [default: 30]
    #[arg(long, value_name = "PERCENT", value_parser = parse_positive_percent, allow_hyphen_values = true)]
    pub(crate) avg_limit: Option<Rate>,
    /// How long a window is, a week at most [default: 24h]
    #[arg(long, value_name = "DURATION", value_parser = parse_window, allow_hyphen_values = true)]
    pub(crate) window: Option<Duration>,
    /// What may always be used [default: 10]
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, allow_hyphen_values = true)]
    pub(crate) min_load: Option<Rate>,
    /// What may be used at most [default: 90]
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, allow_hyphen_values = true)]
    pub(crate) max_load: Option<Rate>,
    /// How much of what can be spread is spread evenly, above 0 and at most 1 [default: 0.9]
    #[arg(long, value_name = "FACTOR", value_parser = parse_safety, allow_hyphen_values = true)]
    pub(crate) safety: Option<Share>,
}

impl BudgetArgs {
    /// What was typed, as a file would say it.
    pub(crate) fn spec(&self) -> CpuSpec {
        CpuSpec {
            average: self.avg_limit,
            window: self.window,
            floor: self.min_load,
            ceiling: self.max_load,
            safety: self.safety,
            ..CpuSpec::default()
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate cpu plan --avg-limit 30 --window 24h --min-load 10 --max-load 90 --safety 0.9 --elapsed 60m --average 36.5
  tidegate cpu plan --elapsed 12h --average 35 --json

Quotas are in percents of the machine times minutes. Nothing is rounded up.")]
pub(crate) struct CpuPlanArgs {
    #[command(flatten)]
    pub(crate) terms: BudgetArgs,
    /// How much of the window has passed; all of it asks about the beginning of the next one
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration, allow_hyphen_values = true)]
    pub(crate) elapsed: Duration,
    /// What was used on average in that time
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = parse_percent, allow_hyphen_values = true)]
    pub(crate) average: Rate,
    /// How many samples that average is from; below 10 it is not believed [default: enough]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) samples: Option<u64>,
    /// How often samples are taken
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_interval, allow_hyphen_values = true)]
    pub(crate) interval: Duration,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = r#"Examples:
  tidegate cpu simulate --trace yesterday.csv
  tidegate cpu simulate --trace - --config cpu.yaml --guard off --samples looks.csv < yesterday.ndjson

A trace is CSV (time,cpu) or one JSON object per line ({"time":…,"cpu":…}). time is RFC 3339 or seconds since 1970, cpu is
what would be used, in percent. It holds until the next row; the last row only ends the trace."#)]
pub(crate) struct CpuSimulateArgs {
    /// The load; - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: PathBuf,
    #[command(flatten)]
    pub(crate) governor: GovernorArgs,
    /// Write every look of the governor as CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) samples: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// How it is governed.
#[derive(Debug, clap::Args)]
pub(crate) struct GovernorArgs {
    /// The settings of the governor; flags go before what it says
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) terms: BudgetArgs,
    /// How much of the quota is taken off once, in percent [default: 1]
    #[arg(long, value_name = "PERCENT", value_parser = parse_reserve, allow_hyphen_values = true)]
    pub(crate) reserve: Option<Share>,
    /// Whether windows that end at any moment are kept under the average too [default: on]
    #[arg(long, value_enum)]
    pub(crate) guard: Option<OnOff>,
    /// Whose hours are meant, such as Asia/Shanghai [default: UTC]
    #[arg(long, value_name = "ZONE", value_parser = parse_zone)]
    pub(crate) zone: Option<Zone>,
    /// The hour of the day at which windows begin [default: 0]
    #[arg(long, value_name = "HOUR", value_parser = clap::value_parser!(u8).range(0..=23), allow_hyphen_values = true)]
    pub(crate) start_hour: Option<u8>,
    /// What time counts as that nobody looked at: limit, average or zero; for a trace that before it [default: limit]
    #[arg(long, value_name = "POLICY", value_parser = parse_unobserved)]
    pub(crate) unobserved: Option<Unobserved>,
}

impl GovernorArgs {
    /// What was typed, as a file would say it.
    pub(crate) fn spec(&self) -> CpuSpec {
        CpuSpec {
            reserve: self.reserve,
            guards: self.guard.map(|guard| guard == OnOff::On),
            zone: self.zone.clone(),
            first_hour: self.start_hour,
            unobserved: self.unobserved,
            ..self.terms.spec()
        }
    }
}

/// Whether something is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnOff {
    /// It is
    On,
    /// It is not
    Off,
}

/// Where a governor keeps what it saw, and how it governs.
#[derive(Debug, clap::Args)]
pub(crate) struct CpuStateArgs {
    /// The directory in which the governor keeps its samples
    #[arg(long, value_name = "DIR", default_value = "./tidegate-cpu")]
    pub(crate) state: PathBuf,
    /// Other settings than those that the governor was started with last, which it keeps in its directory
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate cpu status
  tidegate cpu status --config cpu.yaml --json
  tidegate cpu status --prometheus /var/lib/node_exporter/textfile/tidegate.prom

It says how things stood at the latest sample. Exit code 1 if there is none.")]
pub(crate) struct CpuStatusArgs {
    #[command(flatten)]
    pub(crate) state: CpuStateArgs,
    /// Write metrics in the text format of Prometheus; the file is replaced as a whole
    #[arg(long, value_name = "FILE")]
    pub(crate) prometheus: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate cpu report --svg cpu.svg
  tidegate cpu report --svg week.svg --hours 168 --config cpu.yaml")]
pub(crate) struct CpuReportArgs {
    #[command(flatten)]
    pub(crate) state: CpuStateArgs,
    /// Where the picture goes
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: PathBuf,
    /// How far it reaches back from the latest sample
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_HOURS)))]
    pub(crate) hours: u32,
    /// Say in JSON what was drawn
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_percent(text: &str) -> Result<Rate, String> {
    let percent = parse_decimal(text)?;
    if percent > MAX_PERCENT {
        return Err("must be at most 100".to_owned());
    }
    Ok(Rate::from_billionths(percent))
}

fn parse_positive_percent(text: &str) -> Result<Rate, String> {
    let percent = parse_percent(text)?;
    if percent == Rate::ZERO { Err("must be above 0".to_owned()) } else { Ok(percent) }
}

fn parse_safety(text: &str) -> Result<Share, String> {
    let refuse = || "must be above 0 and at most 1".to_owned();
    Share::from_billionths(parse_decimal(text)?).filter(|share| *share != Share::NONE).ok_or_else(refuse)
}

fn parse_reserve(text: &str) -> Result<Share, String> {
    let percent = parse_decimal(text)?;
    let refuse = || format!("must be at most {}", MAX_RESERVE / UNIT);
    Share::from_billionths(percent / 100).filter(|_| percent <= MAX_RESERVE).ok_or_else(refuse)
}

fn parse_window(text: &str) -> Result<Duration, String> {
    let window = parse_duration(text)?;
    if (MIN_SCHEDULED_WINDOW..=MAX_SCHEDULED_WINDOW).contains(&window) && window.subsec_nanos() == 0 {
        return Ok(window);
    }
    let (least, most) = (MIN_SCHEDULED_WINDOW.as_secs(), MAX_SCHEDULED_WINDOW.as_secs() / 3600);
    Err(format!("must be whole seconds from {least}s to {most}h"))
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    if interval.is_zero() || interval > MAX_INTERVAL {
        return Err(format!("must be above 0s and at most {}s", MAX_INTERVAL.as_secs()));
    }
    Ok(interval)
}

fn parse_zone(text: &str) -> Result<Zone, String> {
    Zone::named(text).ok_or_else(|| {
        let names = Zone::names();
        format!(
            "must be a time zone such as Asia/Shanghai{}",
            suggestion(text, names.iter().map(String::as_str))
        )
    })
}

fn parse_unobserved(text: &str) -> Result<Unobserved, String> {
    let words = Unobserved::ALL.map(Unobserved::word);
    Unobserved::ALL
        .into_iter()
        .find(|policy| policy.word() == text)
        .ok_or_else(|| format!("must be limit, average or zero{}", suggestion(text, words)))
}
