//! CPU settings from flags and a file. Errors name the flag or the line that caused them.

use std::path::Path;

use tidegate_cpu::GovernorSettings;
use tidegate_cpu::settings::{CpuSpec, read_cpu_below};

use crate::{Failure, color_of_stderr, read_whole};

/// Names of settings in a file and as flags.
const FLAGS: [(&str, &str); 7] = [
    ("avg_load_limit_percent", "--avg-limit"),
    ("rolling_window_hours", "--window"),
    ("window_start_hour", "--start-hour"),
    ("min_load_percent", "--min-load"),
    ("max_load_percent", "--max-load"),
    ("safety_factor", "--safety"),
    ("reserve_percent", "--reserve"),
];

/// Reads the settings file, whose values the flags override; without a file, nothing.
pub(super) fn read(path: Option<&Path>, flags: &CpuSpec) -> Result<CpuSpec, Failure> {
    let Some(path) = path else { return Ok(CpuSpec::default()) };
    let (name, bytes) = read_whole(path)?;
    read_cpu_below(&name, &bytes, flags).map_err(|wrong| Failure::BadInput(wrong.render(color_of_stderr())))
}

/// Combines flags and file. Errors of the file were reported by [`read`]; the rest names flags.
pub(super) fn settings(flags: CpuSpec, file: CpuSpec) -> Result<GovernorSettings, Failure> {
    let spec = flags.over(file);
    check_spec(&spec)?;
    GovernorSettings::of(spec).map_err(|flaw| failure_of(flaw.field, &flaw.message))
}

/// Reports all conflicts, with the names of flags.
pub(super) fn check_spec(spec: &CpuSpec) -> Result<(), Failure> {
    let flaws: Vec<String> =
        spec.flaws().iter().map(|flaw| flag_message(flaw.field, &flaw.message)).collect();
    if flaws.is_empty() { Ok(()) } else { Err(Failure::BadInput(flaws.join("\n"))) }
}

/// A conflict as bad input.
fn failure_of(field: &str, message: &str) -> Failure {
    Failure::BadInput(flag_message(field, message))
}

fn flag_message(field: &str, message: &str) -> String {
    let mut text = format!("{field}: {message}");
    for (name, flag) in FLAGS {
        text = text.replace(name, flag);
    }
    text
}
