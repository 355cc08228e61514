//! What was measured.

use std::fmt;

/// One run of one load.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    /// Requests a second.
    pub(super) rate: f64,
    /// The server's processor time for each, in microseconds.
    pub(super) micros: f64,
    pub(super) p50: Latency,
    pub(super) p99: Latency,
}

/// Milliseconds, if whoever asked told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Latency(pub(super) Option<f64>);

impl Latency {
    /// How many times the other, if both are known.
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

/// The figure whose rate is in the middle.
pub(super) fn median(mut figures: Vec<Figure>) -> Figure {
    figures.sort_by(|one, other| one.rate.total_cmp(&other.rate));
    figures.swap_remove(figures.len() / 2)
}

/// `"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms",…`
pub(super) fn of_redis_benchmark(text: &str) -> Option<(f64, Latency, Latency)> {
    let line = text.lines().rev().find(|line| line.starts_with('"') && !line.starts_with("\"test\""))?;
    // The name of the test may have commas in it.
    let cells: Vec<f64> =
        line.rsplit("\",\"").take(7).map_while(|cell| cell.trim_matches('"').parse().ok()).collect();
    let [_max, p99, _p95, p50, _min, _avg, rate] = cells[..] else { return None };
    Some((rate, Latency(Some(p50)), Latency(Some(p99))))
}

/// `Requests/sec:  1234.5` and lines such as `99%    1.02ms`.
pub(super) fn of_wrk(text: &str) -> Option<(f64, Latency, Latency)> {
    let after = |mark: &str| text.lines().find_map(|line| line.trim().strip_prefix(mark)).map(str::trim);
    let rate = after("Requests/sec:")?.parse().ok()?;
    Some((rate, Latency(after("50%").and_then(millis)), Latency(after("99%").and_then(millis))))
}

/// Whether every answer that wrk got was one it should get.
pub(super) fn went_well(wrk: &str) -> bool {
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
    fn what_redis_benchmark_says_is_read() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\
                    \"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"PING, twice\",\"58000.50\",\"0.400\",\"0.100\",\"0.391\",\"0.500\",\"0.800\",\"3.000\"\n";
        assert_eq!(of_redis_benchmark(text), Some((58000.5, Latency(Some(0.391)), Latency(Some(0.8)))));
        assert_eq!(of_redis_benchmark("Could not connect"), None);
    }

    #[test]
    fn what_wrk_says_is_read() {
        let text = "  Latency Distribution\n     50%  412.00us\n     75%    1.0ms\n     99%    1.02ms\nRequests/sec:  66000.12\n";
        assert_eq!(of_wrk(text), Some((66000.12, Latency(Some(0.412)), Latency(Some(1.02)))));
        assert!(went_well(text) && !went_well("  Non-2xx or 3xx responses: 5"));
    }

    #[test]
    fn the_middle_counts() {
        let figure = |rate| Figure { rate, micros: 1.0, p50: Latency(None), p99: Latency(None) };
        assert_eq!(median(vec![figure(3.0), figure(1.0), figure(2.0)]), figure(2.0));
    }
}
