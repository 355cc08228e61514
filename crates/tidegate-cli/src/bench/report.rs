//! The report of a load test, as text and as JSON. The JSON fields are documented; they may only be added to.

use serde::Serialize;
use serde_json::value::RawValue;

use super::load_plan::{LoadPlan, LoadQuota};
use super::milliseconds;
use super::number::{basis_points, grouped};
use super::tally::{FailureReasons, LoadTally};
use super::target::BenchProtocol;
use super::verdict::{LoadFindings, LoadVerdict};
use crate::remote::table;

/// Results of one level.
#[derive(Debug, Clone)]
pub(super) struct LevelReport {
    pub(super) concurrency: usize,
    /// Decisions per second.
    pub(super) rate: u64,
    /// Decided requests in hundredths of a percent.
    pub(super) success: u64,
    pub(super) granted: u64,
    pub(super) refused: u64,
    pub(super) failed: u64,
    /// Latencies in nanoseconds.
    pub(super) p50: u64,
    pub(super) p99: u64,
    pub(super) p999: u64,
    pub(super) longest: u64,
    pub(super) quota: LoadQuota,
    pub(super) server_counted: Option<u64>,
    pub(super) found: LoadFindings,
}

impl LevelReport {
    /// Computes the results of a run.
    pub(super) fn of(
        concurrency: usize,
        tally: &LoadTally,
        quota: LoadQuota,
        server_counted: Option<u64>,
        found: LoadFindings,
    ) -> LevelReport {
        LevelReport {
            concurrency,
            rate: tally.rate(),
            success: basis_points(tally.decided(), tally.decided() + tally.failed),
            granted: tally.granted,
            refused: tally.refused,
            failed: tally.failed,
            p50: tally.latencies.within(500),
            p99: tally.latencies.within(990),
            p999: tally.latencies.within(999),
            longest: tally.latencies.largest(),
            quota,
            server_counted,
            found,
        }
    }

    fn row(&self) -> [String; 8] {
        [
            grouped(self.concurrency as u64),
            grouped(self.rate),
            percent(self.success),
            grouped(self.granted),
            grouped(self.refused),
            milliseconds(self.p50),
            milliseconds(self.p99),
            milliseconds(self.p999),
        ]
    }

    fn to_json(&self) -> LevelJson {
        LevelJson {
            concurrency: self.concurrency,
            decisions_per_second: self.rate,
            success_percent: hundredths(self.success),
            allowed: self.granted,
            refused: self.refused,
            failed: self.failed,
            latency_ns: LatencyJson { p50: self.p50, p99: self.p99, p999: self.p999, max: self.longest },
            limit: LoadQuotaJson { total: self.quota.total, per_key: self.quota.per_key },
            server_counted: self.server_counted,
            over_admissions: self.found.over_admissions,
        }
    }
}

/// All results and the verdict.
#[derive(Debug)]
pub(super) struct LoadReport {
    pub(super) server: String,
    pub(super) protocol: BenchProtocol,
    pub(super) pipeline: usize,
    pub(super) keys: u32,
    duration_ms: u64,
    warm_up_ms: u64,
    pub(super) levels: Vec<LevelReport>,
    pub(super) verdict: LoadVerdict,
}

impl LoadReport {
    /// An empty report.
    pub(super) fn begin(plan: &LoadPlan) -> LoadReport {
        let whole = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        LoadReport {
            server: plan.target.to_string(),
            protocol: plan.target.protocol,
            pipeline: plan.pipeline,
            keys: plan.keys,
            duration_ms: whole(plan.duration),
            warm_up_ms: whole(plan.warm_up),
            levels: Vec::new(),
            verdict: LoadVerdict::default(),
        }
    }

    /// The report as text.
    pub(super) fn text(&self) -> String {
        let heads =
            [" CONCURRENCY", " DECISIONS/S", " SUCCESS", " ALLOWED", " REFUSED", " P50", " P99", " P99.9"];
        let rows: Vec<_> = self.levels.iter().map(LevelReport::row).collect();
        format!("{}\n{}", table::lines(heads, &rows), self.verdict.text())
    }

    /// The report as JSON.
    pub(super) fn json(&self) -> String {
        let LoadVerdict { decisions, failures, found, reasons, .. } = &self.verdict;
        json(&LoadReportJson {
            server: &self.server,
            protocol: self.protocol.name(),
            pipeline: self.pipeline,
            keys: self.keys,
            duration_ms: self.duration_ms,
            warm_up_ms: self.warm_up_ms,
            levels: self.levels.iter().map(LevelReport::to_json).collect(),
            verdict: LoadVerdictJson {
                clean: self.verdict.is_clean(),
                decisions: *decisions,
                failures: *failures,
                over_admissions: found.over_admissions,
                forgotten: found.forgotten,
                invented: found.invented,
                reasons: ReasonJson::all(reasons),
            },
        })
    }
}

/// Serializes a report. Numbers and text cannot fail to serialize.
pub(super) fn json(expected: &impl Serialize) -> String {
    serde_json::to_string(expected).unwrap_or_default()
}

#[derive(Debug, Serialize)]
struct LoadReportJson<'a> {
    server: &'a str,
    #[serde(rename = "door")]
    protocol: &'static str,
    pipeline: usize,
    keys: u32,
    duration_ms: u64,
    warm_up_ms: u64,
    levels: Vec<LevelJson>,
    verdict: LoadVerdictJson<'a>,
}

#[derive(Debug, Serialize)]
struct LevelJson {
    concurrency: usize,
    decisions_per_second: u64,
    success_percent: Box<RawValue>,
    allowed: u64,
    refused: u64,
    failed: u64,
    latency_ns: LatencyJson,
    limit: LoadQuotaJson,
    server_counted: Option<u64>,
    over_admissions: u64,
}

#[derive(Debug, Serialize)]
struct LatencyJson {
    p50: u64,
    p99: u64,
    p999: u64,
    max: u64,
}

#[derive(Debug, Serialize)]
struct LoadQuotaJson {
    total: u64,
    per_key: u64,
}

#[derive(Debug, Serialize)]
struct LoadVerdictJson<'a> {
    clean: bool,
    decisions: u64,
    failures: u64,
    over_admissions: u64,
    forgotten: u64,
    invented: u64,
    reasons: Vec<ReasonJson<'a>>,
}

/// A failure reason and its count.
#[derive(Debug, Serialize)]
pub(super) struct ReasonJson<'a> {
    reason: &'a str,
    count: u64,
}

impl<'a> ReasonJson<'a> {
    /// All reasons, the most frequent first.
    pub(super) fn all(reasons: &'a FailureReasons) -> Vec<ReasonJson<'a>> {
        reasons.sorted().into_iter().map(|(reason, count)| ReasonJson { reason, count }).collect()
    }
}

/// `99.98 %`.
pub(super) fn percent(success: u64) -> String {
    format!("{}.{:02} %", success / 100, success % 100)
}

/// `99.98` as a JSON number with two decimals.
fn hundredths(number: u64) -> Box<RawValue> {
    RawValue::from_string(format!("{}.{:02}", number / 100, number % 100)).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A level with made-up results.
    pub(in crate::bench) fn level(concurrency: usize, rate: u64, success: u64, p99: u64) -> LevelReport {
        LevelReport {
            concurrency,
            rate,
            success,
            granted: rate / 2,
            refused: rate - rate / 2,
            failed: 0,
            p50: p99 / 3,
            p99,
            p999: p99 * 2,
            longest: p99 * 4,
            quota: LoadQuota { total: rate / 2, per_key: 1 },
            server_counted: Some(rate / 2),
            found: LoadFindings::default(),
        }
    }

    /// A report of these levels.
    pub(in crate::bench) fn report(levels: Vec<LevelReport>) -> LoadReport {
        LoadReport {
            server: "http://127.0.0.1:7700".to_owned(),
            protocol: BenchProtocol::Http,
            pipeline: 1,
            keys: 10_000,
            duration_ms: 5000,
            warm_up_ms: 500,
            levels,
            verdict: LoadVerdict { decisions: 7, ..LoadVerdict::default() },
        }
    }

    #[test]
    fn text_is_an_aligned_table() {
        let report =
            report(vec![level(1, 12_345, 10_000, 240_000), level(256, 1_234_567, 3_691, 18_000_001)]);
        let expected = "\
CONCURRENCY  DECISIONS/S   SUCCESS  ALLOWED  REFUSED       P50        P99      P99.9
          1       12,345  100.00 %    6,172    6,173  0.080 ms   0.240 ms   0.480 ms
        256    1,234,567   36.91 %  617,283  617,284  6.000 ms  18.001 ms  36.001 ms

0 failures in 7 decisions; no grants above the limit.
The server's counts match the grants.
";
        assert_eq!(report.text(), expected);
    }

    #[test]
    fn json_has_the_documented_fields() {
        let expected = report(vec![level(4, 1000, 9_999, 240_000)]).json();
        assert_eq!(
            expected,
            "{\"server\":\"http://127.0.0.1:7700\",\"door\":\"http\",\"pipeline\":1,\"keys\":10000,\
             \"duration_ms\":5000,\"warm_up_ms\":500,\"levels\":[{\"concurrency\":4,\"decisions_per_second\":1000,\
             \"success_percent\":99.99,\"allowed\":500,\"refused\":500,\"failed\":0,\
             \"latency_ns\":{\"p50\":80000,\"p99\":240000,\"p999\":480000,\"max\":960000},\
             \"limit\":{\"total\":500,\"per_key\":1},\"server_counted\":500,\"over_admissions\":0}],\
             \"verdict\":{\"clean\":true,\"decisions\":7,\"failures\":0,\"over_admissions\":0,\"forgotten\":0,\
             \"invented\":0,\"reasons\":[]}}"
        );
    }
}
