//! `tidegate cpu run`: what can be typed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use tidegate::file::CpuSpec;
use tidegate::text::parse_duration;

use super::GovernorArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate cpu run --avg-limit 30 -- ./render-everything
  tidegate cpu run --config cpu.yaml --target host
  tidegate cpu run --target cgroup:/sys/fs/cgroup/batch --avg-limit 20 --window 12h
  tidegate cpu run --target pid:4711 --enforce signal

A command is measured and limited by itself, or, with --target host, gets what the others leave of the machine's average. Exit code: that
of the command; else 0 when it is told to stop. Whatever was changed is put back, also after kill -9.")]
pub(crate) struct CpuRunArgs {
    /// What is measured and limited: host, cgroup:PATH or pid:N [default: the command, or the host if there is none]
    #[arg(long, value_name = "TARGET", value_parser = parse_target)]
    pub(crate) target: Option<CpuTarget>,
    /// How it is limited [default: by a cgroup where that is allowed, else by signals where that is possible, else not]
    #[arg(long, value_enum)]
    pub(crate) enforce: Option<EnforceMethod>,
    /// With --target host: the cgroups that are limited, together [default: all that hold nobody who is needed to log in]
    #[arg(long = "limit-cgroup", value_name = "PATH")]
    pub(crate) limit_cgroups: Vec<PathBuf>,
    /// How much unused quota of a cgroup may be used later, in percent of a period's quota
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) burst: u8,
    /// The directory in which samples are kept
    #[arg(long, value_name = "DIR", default_value = "./tidegate-cpu")]
    pub(crate) state: PathBuf,
    #[command(flatten)]
    pub(crate) governor: GovernorArgs,
    /// How often the counter is read [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = parse_sample_interval, allow_hyphen_values = true)]
    pub(crate) interval: Option<Duration>,
    /// How often the limit may rise [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = parse_adjust_interval, allow_hyphen_values = true)]
    pub(crate) adjust: Option<Duration>,
    /// Write metrics in the text format of Prometheus at every sample; the file is replaced as a whole
    #[arg(long, value_name = "FILE")]
    pub(crate) prometheus: Option<PathBuf>,
    /// Tell every sample on standard error, as JSON
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) json: bool,
    /// Tell nothing but errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// The command that is run under the governor
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CpuTarget {
    /// The whole machine.
    Host,
    /// A cgroup, by its directory.
    Cgroup(PathBuf),
    /// A process and all that it starts.
    Pid(u32),
}

/// How something is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EnforceMethod {
    /// By the kernel's quota for a cgroup
    Cgroup,
    /// By stopping and continuing processes
    Signal,
    /// Not at all: the limit is told, and nothing else
    None,
}

impl CpuRunArgs {
    /// What was typed, as a file would say it.
    pub(crate) fn spec(&self) -> CpuSpec {
        CpuSpec { sample_every: self.interval, adjust_every: self.adjust, ..self.governor.spec() }
    }
}

/// As the file has them.
fn parse_sample_interval(text: &str) -> Result<Duration, String> {
    parse_seconds(text, 300)
}

fn parse_adjust_interval(text: &str) -> Result<Duration, String> {
    parse_seconds(text, 600)
}

fn parse_seconds(text: &str, most: u64) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    if time.subsec_nanos() == 0 && (1..=most).contains(&time.as_secs()) {
        return Ok(time);
    }
    Err(format!("must be whole seconds from 1s to {most}s"))
}

fn parse_target(text: &str) -> Result<CpuTarget, String> {
    match text.split_once(':') {
        None if text == "host" => Ok(CpuTarget::Host),
        Some(("cgroup", path)) if !path.is_empty() => Ok(CpuTarget::Cgroup(path.into())),
        Some(("pid", number)) => match number.parse() {
            Ok(pid) if pid > 0 => Ok(CpuTarget::Pid(pid)),
            _ => Err(format!("'{number}' is not the number of a process")),
        },
        _ => Err("must be host, cgroup:PATH or pid:N".to_owned()),
    }
}
