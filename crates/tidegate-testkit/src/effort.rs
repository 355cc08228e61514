//! How hard to try.

use proptest::test_runner::Config;

/// A property test of this many cases, or of twenty times as many when `TIDEGATE_LONG` is set.
#[expect(
    clippy::disallowed_methods,
    reason = "how long tests run is asked of the environment, by tests only"
)]
pub fn cases(count: u32) -> Config {
    let long = std::env::var_os("TIDEGATE_LONG").is_some();
    Config {
        cases: if long { count.saturating_mul(20) } else { count },
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    }
}
