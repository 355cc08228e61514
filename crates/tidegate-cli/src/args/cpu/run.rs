//! Arguments of `tidegate cpu run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use tidegate_config::text::parse_duration;
use tidegate_cpu::settings::CpuSpec;

use super::GovernorArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate cpu run --avg-limit 30 -- ./render-everything
  tidegate cpu run --config cpu.yaml --target host
  tidegate cpu run --target cgroup:/sys/fs/cgroup/batch --avg-limit 20 --window 12h
  tidegate cpu run --target pid:4711 --enforce signal

A command is measured and limited alone. With --target host it gets what other processes leave of the machine's average.
Exit code: the command's; without a command, 0 after SIGTERM or SIGINT. All changes are undone at the end, also after kill -9.")]
pub(crate) struct CpuRunArgs {
    /// What to measure and limit: host, cgroup:PATH or pid:N [default: the command, or the host if there is none]
    #[arg(long, value_name = "TARGET", value_parser = parse_target)]
    pub(crate) target: Option<CpuTarget>,
    /// How to limit [default: by cgroup where permitted, else by signals where possible, else not at all]
    #[arg(long, value_enum)]
    pub(crate) enforce: Option<EnforceMethod>,
    /// With --target host: cgroups to limit together [default: all except those needed for logging in]
    #[arg(long = "limit-cgroup", value_name = "PATH")]
    pub(crate) limit_cgroups: Vec<PathBuf>,
    /// Unused cgroup quota that may be used later, in percent of a period's quota
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) burst: u8,
    /// Directory of the samples
    #[arg(long, value_name = "DIR", default_value = "./tidegate-cpu")]
    pub(crate) state: PathBuf,
    #[command(flatten)]
    pub(crate) governor: GovernorArgs,
    /// Sampling interval [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = parse_sample_interval, allow_hyphen_values = true)]
    pub(crate) interval: Option<Duration>,
    /// Shortest time between two increases of the limit [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = parse_adjust_interval, allow_hyphen_values = true)]
    pub(crate) adjust: Option<Duration>,
    /// Write metrics in the Prometheus text format at every sample; the file is replaced atomically
    #[arg(long, value_name = "FILE")]
    pub(crate) prometheus: Option<PathBuf>,
    /// Print every sample as JSON on standard error
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) json: bool,
    /// Print only warnings and errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Command to run under the governor
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

/// How a target is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EnforceMethod {
    /// With the kernel's cgroup quota
    Cgroup,
    /// With SIGSTOP and SIGCONT
    Signal,
    /// Not at all: only report the limit
    None,
}

impl CpuRunArgs {
    /// The flags as settings.
    pub(crate) fn spec(&self) -> CpuSpec {
        CpuSpec { sample_every: self.interval, adjust_every: self.adjust, ..self.governor.spec() }
    }
}

/// Same range as in the settings file.
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
