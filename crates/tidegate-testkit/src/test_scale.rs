//! How hard to try.

use proptest::test_runner::Config;

/// A property test of this many cases, or of twenty times as many when `TIDEGATE_LONG` is set.
pub fn cases(count: u32) -> Config {
    Config {
        cases: if is_long() { count.saturating_mul(20) } else { count },
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    }
}

/// This much work, or twenty times as much when `TIDEGATE_LONG` is set.
pub fn scaled(work: usize) -> usize {
    if is_long() { work * 20 } else { work }
}

/// Whether tests may take long.
#[expect(
    clippy::disallowed_methods,
    reason = "how long tests run is asked of the environment, by tests only"
)]
pub fn is_long() -> bool {
    std::env::var_os("TIDEGATE_LONG").is_some()
}
