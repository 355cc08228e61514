//! `process_*` metrics, under the names that Prometheus client libraries use.
//!
//! Read from `/proc/self` on each scrape. Without `/proc` nothing is written.

use std::fs;

use crate::metrics_page::{MetricKind, MetricsPage, NanosAsSeconds};

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// Writes the metrics to the page.
pub fn write(page: &mut MetricsPage) {
    let units = ProcUnits {
        page_bytes: rustix::param::page_size() as u64,
        ticks: rustix::param::clock_ticks_per_second(),
    };
    let stat = fs::read_to_string("/proc/self/stat").ok();
    let Some(process) = stat.as_deref().and_then(|text| ProcessStat::parse(text, units)) else { return };
    process.write(page);
    let system = fs::read_to_string("/proc/stat").ok();
    if let Some(booted) = system.as_deref().and_then(parse_boot_time) {
        let help = "Start time of the process in seconds since 1970.";
        page.family("process_start_time_seconds", MetricKind::Gauge, help).sample(
            &[],
            NanosAsSeconds(u128::from(booted) * NANOS_PER_SECOND + process.start_after_boot_nanos),
        );
    }
    // The directory handle used for counting is itself open.
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        let help = "Open file descriptors.";
        page.family("process_open_fds", MetricKind::Gauge, help).sample(&[], open.count().saturating_sub(1));
    }
    let limits = fs::read_to_string("/proc/self/limits").ok();
    if let Some(max) = limits.as_deref().and_then(parse_open_file_limit) {
        let help = "Maximum number of open file descriptors.";
        page.family("process_max_fds", MetricKind::Gauge, help).sample(&[], max);
    }
}

/// Units of the kernel's counters.
#[derive(Debug, Clone, Copy)]
struct ProcUnits {
    page_bytes: u64,
    /// Clock ticks per second.
    ticks: u64,
}

/// The parsed fields of `/proc/self/stat`.
#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    cpu_nanos: u128,
    start_after_boot_nanos: u128,
    threads: u64,
    virtual_bytes: u64,
    resident_bytes: u64,
}

impl ProcessStat {
    fn parse(stat: &str, units: ProcUnits) -> Option<ProcessStat> {
        // The second field is the program's name and may contain anything; the third follows the last parenthesis.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let nanos = |ticks: u64| u128::from(ticks) * NANOS_PER_SECOND / u128::from(units.ticks.max(1));
        Some(ProcessStat {
            cpu_nanos: nanos(field(14)?.checked_add(field(15)?)?),
            threads: field(20)?,
            start_after_boot_nanos: nanos(field(22)?),
            virtual_bytes: field(23)?,
            resident_bytes: field(24)?.checked_mul(units.page_bytes)?,
        })
    }

    fn write(&self, page: &mut MetricsPage) {
        let help = "CPU time of the process in seconds.";
        page.family("process_cpu_seconds_total", MetricKind::Counter, help)
            .sample(&[], NanosAsSeconds(self.cpu_nanos));
        let help = "Resident memory in bytes.";
        page.family("process_resident_memory_bytes", MetricKind::Gauge, help)
            .sample(&[], self.resident_bytes);
        let help = "Virtual memory in bytes.";
        page.family("process_virtual_memory_bytes", MetricKind::Gauge, help).sample(&[], self.virtual_bytes);
        page.family("process_threads", MetricKind::Gauge, "Number of threads.").sample(&[], self.threads);
    }
}

/// Boot time of the system, in seconds since 1970.
fn parse_boot_time(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// The soft limit of open files; `None` if unlimited.
fn parse_open_file_limit(limits: &str) -> Option<u64> {
    let rest = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "4242 (a) (b c) R 1 2 3 4 5 6 7 8 9 10 250 50 13 14 15 16 6 18 12345 4096000 300 20 21\n";

    #[test]
    fn program_name_with_parentheses_is_skipped() {
        let process = ProcessStat::parse(STAT, ProcUnits { page_bytes: 4096, ticks: 100 });
        let expected = ProcessStat {
            cpu_nanos: 3_000_000_000,
            start_after_boot_nanos: 123_450_000_000,
            threads: 6,
            virtual_bytes: 4_096_000,
            resident_bytes: 300 * 4096,
        };
        assert_eq!(process, Some(expected));
    }

    #[test]
    fn malformed_files_give_none() {
        let units = ProcUnits { page_bytes: 4096, ticks: 0 };
        for text in ["", "1 (a", "1 (a) R 1 2 3", "1 (a) R a b c d e f g h i j k l m n o p q r s t u v"] {
            assert_eq!(ProcessStat::parse(text, units), None, "{text:?}");
        }
        assert_eq!(
            parse_open_file_limit("Max open files            unlimited            unlimited  files\n"),
            None
        );
    }

    #[test]
    fn boot_time_and_open_file_limit_are_parsed() {
        assert_eq!(parse_boot_time("cpu 1 2\nbtime 1768867200\nprocesses 3\n"), Some(1_768_867_200));
        let limits = "Limit                     Soft Limit           Hard Limit           ProcUnits\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(parse_open_file_limit(limits), Some(1024));
    }
}
