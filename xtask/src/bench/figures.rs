//! Measurements, and the parsers of the load generators' reports.

use std::fmt;

/// One round of one load.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measurement {
    /// Requests a second.
    pub(super) rate: f64,
    /// CPU time of the server per request, in microseconds.
    pub(super) micros: f64,
    pub(super) p50: Latency,
    pub(super) p99: Latency,
}

/// Milliseconds, if the load generator reports them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Latency(pub(super) Option<f64>);

impl Latency {
    /// The ratio to another latency, if both are known.
    pub(super) fn over(self, other: Latency) -> Option<f64> {
        self.0.zip(other.0).map(|(one, other)| one / other)
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ms) => write!(f, "{ms:.3}"),
            None => f.write_str("-"),
        }
    }
}

/// The measurement with the median rate.
pub(super) fn median(mut measurements: Vec<Measurement>) -> Measurement {
    measurements.sort_by(|one, other| one.rate.total_cmp(&other.rate));
    measurements.swap_remove(measurements.len() / 2)
}

/// `"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms",…`
pub(super) fn parse_redis_benchmark(text: &str) -> Option<(f64, Latency, Latency)> {
    let line = text.lines().rev().find(|line| line.starts_with('"') && !line.starts_with("\"test\""))?;
    // The test name may contain commas.
    let cells: Vec<f64> =
        line.rsplit("\",\"").take(7).map_while(|cell| cell.trim_matches('"').parse().ok()).collect();
    let [_max, p99, _p95, p50, _min, _avg, rate] = cells[..] else { return None };
    Some((rate, Latency(Some(p50)), Latency(Some(p99))))
}

/// `Requests/sec:  1234.5` and lines such as `99%    1.02ms`.
pub(super) fn parse_wrk(text: &str) -> Option<(f64, Latency, Latency)> {
    let after = |mark: &str| text.lines().find_map(|line| line.trim().strip_prefix(mark)).map(str::trim);
    let rate = after("Requests/sec:")?.parse().ok()?;
    Some((rate, Latency(after("50%").and_then(millis)), Latency(after("99%").and_then(millis))))
}

/// Whether wrk reports neither error statuses nor socket errors.
pub(super) fn has_only_successes(wrk: &str) -> bool {
    !wrk.contains("Non-2xx") && !wrk.contains("Socket errors")
}

fn millis(text: &str) -> Option<f64> {
    let number = |unit: &str| text.strip_suffix(unit).and_then(|number| number.parse::<f64>().ok());
    number("us").map(|us| us / 1e3).or_else(|| number("ms")).or_else(|| number("s").map(|s| s * 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_benchmark_report_is_parsed() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\
                    \"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"PING, twice\",\"58000.50\",\"0.400\",\"0.100\",\"0.391\",\"0.500\",\"0.800\",\"3.000\"\n";
        assert_eq!(parse_redis_benchmark(text), Some((58000.5, Latency(Some(0.391)), Latency(Some(0.8)))));
        assert_eq!(parse_redis_benchmark("Could not connect"), None);
    }

    #[test]
    fn wrk_report_is_parsed() {
        let text = "  Latency Distribution\n     50%  412.00us\n     75%    1.0ms\n     99%    1.02ms\nRequests/sec:  66000.12\n";
        assert_eq!(parse_wrk(text), Some((66000.12, Latency(Some(0.412)), Latency(Some(1.02)))));
        assert!(has_only_successes(text) && !has_only_successes("  Non-2xx or 3xx responses: 5"));
    }

    #[test]
    fn median_of_three_is_the_middle_rate() {
        let measurement = |rate| Measurement { rate, micros: 1.0, p50: Latency(None), p99: Latency(None) };
        assert_eq!(median(vec![measurement(3.0), measurement(1.0), measurement(2.0)]), measurement(2.0));
    }
}
