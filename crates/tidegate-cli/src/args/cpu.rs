//! Arguments of `tidegate cpu`.
//!
//! A flag's own range is checked here. Conflicts between flags and the settings file are checked by
//! [`crate::cpu::settings`].

mod run;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use tidegate::budget::{Rate, Share, Unobserved};
use tidegate_config::text::{parse_decimal, parse_duration, suggestion};
use tidegate_core::Zone;
use tidegate_core::calendar::{MAX_SCHEDULED_WINDOW, MIN_SCHEDULED_WINDOW};
use tidegate_cpu::settings::CpuSpec;

pub(crate) use run::{CpuRunArgs, CpuTarget, EnforceMethod};

/// Billionths per unit.
const UNIT: u64 = 1_000_000_000;
/// 100 percent, in billionths.
const MAX_PERCENT: u64 = 100 * UNIT;
/// Largest reserve, in billionths of a percent.
const MAX_RESERVE: u64 = 99 * UNIT;
/// Longest interval between two samples.
const MAX_INTERVAL: Duration = Duration::from_secs(300);
/// Longest time range of a chart: one year, in hours.
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
    /// Compute the remaining budget from given numbers; no clock, no state
    Plan(CpuPlanArgs),
    /// Keep a machine, a cgroup, a process or a command under its average
    Run(Box<CpuRunArgs>),
    /// Run a load trace through the governor
    Simulate(Box<CpuSimulateArgs>),
    /// Show the state of the budget
    Status(CpuStatusArgs),
    /// Draw usage and limits as an SVG chart
    Report(CpuReportArgs),
    /// Watchdog: undo the changes of a governor that ended abnormally
    #[command(hide = true)]
    Watch(CpuWatchArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct CpuWatchArgs {
    /// Command to start on request, as its child
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Parameters of a budget.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BudgetArgs {
    /// Average limit in percent of the machine [default: 30]
    #[arg(long, value_name = "PERCENT", value_parser = parse_positive_percent, allow_hyphen_values = true)]
    pub(crate) avg_limit: Option<Rate>,
    /// Window length, a week at most [default: 24h]
    #[arg(long, value_name = "DURATION", value_parser = parse_window, allow_hyphen_values = true)]
    pub(crate) window: Option<Duration>,
    /// Minimum load limit in percent [default: 10]
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, allow_hyphen_values = true)]
    pub(crate) min_load: Option<Rate>,
    /// Maximum load limit in percent [default: 90]
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, allow_hyphen_values = true)]
    pub(crate) max_load: Option<Rate>,
    /// Share of the spreadable quota that is spread evenly, above 0 and at most 1 [default: 0.9]
    #[arg(long, value_name = "FACTOR", value_parser = parse_safety, allow_hyphen_values = true)]
    pub(crate) safety: Option<Share>,
}

impl BudgetArgs {
    /// The flags as settings.
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

Quotas are in percent of the machine times minutes. Nothing is rounded up.")]
pub(crate) struct CpuPlanArgs {
    #[command(flatten)]
    pub(crate) terms: BudgetArgs,
    /// Elapsed part of the window; the whole window asks about the start of the next one
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration, allow_hyphen_values = true)]
    pub(crate) elapsed: Duration,
    /// Average load in the elapsed time, in percent
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = parse_percent, allow_hyphen_values = true)]
    pub(crate) average: Rate,
    /// Number of samples behind the average; below 10 the average is ignored [default: enough]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) samples: Option<u64>,
    /// Sampling interval
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_interval, allow_hyphen_values = true)]
    pub(crate) interval: Duration,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = r#"Examples:
  tidegate cpu simulate --trace yesterday.csv
  tidegate cpu simulate --trace - --config cpu.yaml --guard off --samples samples.csv < yesterday.ndjson

A trace is CSV (time,cpu) or one JSON object per line ({"time":…,"cpu":…}). time is RFC 3339 or seconds since 1970, cpu is
the demanded load in percent. It holds until the next row; the last row only ends the trace."#)]
pub(crate) struct CpuSimulateArgs {
    /// File with the load trace; - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: PathBuf,
    #[command(flatten)]
    pub(crate) governor: GovernorArgs,
    /// Write every governor sample as CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) samples: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Settings of a governor.
#[derive(Debug, clap::Args)]
pub(crate) struct GovernorArgs {
    /// Settings file; flags override it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) terms: BudgetArgs,
    /// Share of the quota kept in reserve, in percent [default: 1]
    #[arg(long, value_name = "PERCENT", value_parser = parse_reserve, allow_hyphen_values = true)]
    pub(crate) reserve: Option<Share>,
    /// Also limit trailing windows, which end at any moment [default: on]
    #[arg(long, value_enum)]
    pub(crate) guard: Option<OnOff>,
    /// Time zone of the windows, such as Asia/Shanghai [default: UTC]
    #[arg(long, value_name = "ZONE", value_parser = parse_zone)]
    pub(crate) zone: Option<Zone>,
    /// Hour of the day at which windows start [default: 0]
    #[arg(long, value_name = "HOUR", value_parser = clap::value_parser!(u8).range(0..=23), allow_hyphen_values = true)]
    pub(crate) start_hour: Option<u8>,
    /// How unobserved time is counted: limit, average or zero; for a trace, the time before it [default: limit]
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

/// A switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnOff {
    /// Enabled
    On,
    /// Disabled
    Off,
}

/// The state directory of a governor and the settings to read it with.
#[derive(Debug, clap::Args)]
pub(crate) struct CpuStateArgs {
    /// Directory of the samples
    #[arg(long, value_name = "DIR", default_value = "./tidegate-cpu")]
    pub(crate) state: PathBuf,
    /// Settings file to use instead of the one saved in the state directory
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate cpu status
  tidegate cpu status --config cpu.yaml --json
  tidegate cpu status --prometheus /var/lib/node_exporter/textfile/tidegate.prom

Shows the state at the latest sample. Exit code 1 if there is none.")]
pub(crate) struct CpuStatusArgs {
    #[command(flatten)]
    pub(crate) state: CpuStateArgs,
    /// Write metrics in the Prometheus text format; the file is replaced atomically
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
    /// Output file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: PathBuf,
    /// Hours to show, back from the latest sample
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_HOURS)))]
    pub(crate) hours: u32,
    /// Print a summary of the chart as JSON
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
