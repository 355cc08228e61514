//! How much work tests do. `TIDEGATE_LONG` in the environment makes them do twenty times as much.

use proptest::test_runner::Config;

/// Configuration of a property test with this many cases, or twenty times as many in a long run.
pub fn cases(count: u32) -> Config {
    Config {
        cases: if is_long() { count.saturating_mul(20) } else { count },
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    }
}

/// This amount of work, or twenty times as much in a long run.
pub fn scaled(work: usize) -> usize {
    if is_long() { work * 20 } else { work }
}

/// Whether this is a long run.
#[expect(
    clippy::disallowed_methods,
    reason = "how long tests run is asked of the environment, by tests only"
)]
pub fn is_long() -> bool {
    std::env::var_os("TIDEGATE_LONG").is_some()
}
