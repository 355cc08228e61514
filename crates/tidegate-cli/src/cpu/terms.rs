//! What flags and a file say together, and whose fault it is if that makes no sense.

use std::path::Path;

use tidegate::file::{CpuSpec, read_cpu};
use tidegate_cpu::Settings;

use crate::{Failure, color_of_stderr, read_whole};

/// What settings are called in a file, and by a flag.
const FLAGS: [(&str, &str); 7] = [
    ("avg_load_limit_percent", "--avg-limit"),
    ("rolling_window_hours", "--window"),
    ("window_start_hour", "--start-hour"),
    ("min_load_percent", "--min-load"),
    ("max_load_percent", "--max-load"),
    ("safety_factor", "--safety"),
    ("reserve_percent", "--reserve"),
];

/// What a file says; without one, nothing.
pub(super) fn read(path: Option<&Path>) -> Result<CpuSpec, Failure> {
    let Some(path) = path else { return Ok(CpuSpec::default()) };
    let (name, bytes) = read_whole(path)?;
    read_cpu(&name, &bytes).map_err(|wrong| Failure::BadInput(wrong.render(color_of_stderr())))
}

/// The settings that flags and a file stand for. The file made sense by itself, so what does not is told by the names of flags.
pub(super) fn settings(flags: CpuSpec, file: CpuSpec) -> Result<Settings, Failure> {
    Settings::of(flags.over(file)).map_err(|flaw| refused(flaw.field, &flaw.message))
}

/// A setting that does not fit the rest.
pub(super) fn refused(field: &str, message: &str) -> Failure {
    let mut text = format!("{field}: {message}");
    for (name, flag) in FLAGS {
        text = text.replace(name, flag);
    }
    Failure::BadInput(text)
}
