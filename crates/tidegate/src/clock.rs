//! Clocks: the only place where time enters.
//!
//! A store has one clock and reads it once per batch. An operator or NTP can set the wall clock back. A limiter that
//! followed it would grant twice; one that froze would refuse every order until the old time returned. [`SystemClock`]
//! does neither: after a step back it continues from the latest instant at the pace of the monotonic clock.
//!
//! A decision can take less time than reading two kernel clocks. So they are read about once per millisecond, and the
//! processor's counter measures the time in between (`clock/counter_clock.rs`). The counter is used only where the
//! kernel itself keeps time by it: then it is steady and equal on all cores. Elsewhere every reading asks the kernel.
//!
//! A thread that writes the time periodically was rejected: reading is cheaper still, but the time is as late as the
//! scheduler.

mod counter_clock;
mod store_clock;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use counter_clock::{CounterClock, CounterScale};
use tidegate_core::{Tick, Timestamp};

pub(crate) use store_clock::StoreClock;

/// A source of time.
pub trait Clock: Send + Sync {
    /// The current instant, in ticks of [`Clock::tick`].
    fn now(&self) -> Timestamp;

    /// Resolution of the clock.
    fn tick(&self) -> Tick {
        Tick::NANOSECOND
    }

    /// Whether the clock may go back, so that its reader must remember the latest instant.
    fn may_go_back(&self) -> bool {
        true
    }

    /// Raises the clock to an instant that was seen before, perhaps by another process. A clock that never goes back
    /// shows no earlier instant from then on, within a millisecond. A clock that may go back can ignore this, because
    /// its reader remembers the latest instant.
    fn raise(&self, _seen: Timestamp) {}
}

/// The system's wall clock, never going back.
///
/// It follows a jump ahead within a millisecond. After a step back it continues at the monotonic pace. It is never more
/// than a millisecond ahead of both. The first clock of a process takes about a millisecond to make, because the
/// counter is calibrated.
#[derive(Debug)]
pub struct SystemClock {
    kernel: KernelClock,
    /// `None` where the counter cannot be trusted.
    counter_time: Option<CounterTime>,
}

impl SystemClock {
    /// A clock that starts at the wall clock's time.
    pub fn new() -> SystemClock {
        let kernel = KernelClock::new();
        let counter_time = kernel_uses_counter().then(|| CounterTime::new(&kernel));
        SystemClock { kernel, counter_time }
    }

    /// The current instant if reading the counter is enough. That is nearly always so where the counter is trusted.
    #[inline]
    pub(crate) fn try_now(&self) -> Option<Timestamp> {
        let now = match &self.counter_time {
            // One pattern, so that it is one comparison.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Some(CounterTime { source: CounterSource::TimeStampCounter, clock }) => {
                clock.try_now(safe_arch::read_timestamp_counter)
            }
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            Some(CounterTime { source, clock }) => clock.try_now(|| source.count()),
            _ => None,
        };
        now.map(Timestamp::from_ticks)
    }

    /// Reads the kernel's clocks, unless another thread just has.
    #[cold]
    #[inline(never)]
    fn now_from_kernel(&self) -> Timestamp {
        let kernel = || self.kernel.now();
        Timestamp::from_ticks(match &self.counter_time {
            Some(counter_time) => counter_time.clock.now(&|| counter_time.source.count(), &kernel),
            None => kernel(),
        })
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        self.try_now().unwrap_or_else(|| self.now_from_kernel())
    }

    fn may_go_back(&self) -> bool {
        false
    }

    fn raise(&self, seen: Timestamp) {
        self.kernel.raise(seen.ticks());
    }
}

/// The processor's counter with the latest clock sample.
#[derive(Debug)]
struct CounterTime {
    source: CounterSource,
    clock: CounterClock,
}

/// Where the counter is read.
#[derive(Debug)]
enum CounterSource {
    /// The processor's time stamp counter, read without checking that it exists.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    TimeStampCounter,
    Other(quanta::Clock),
}

impl CounterSource {
    /// The counter that this clock reads.
    fn of(clock: quanta::Clock) -> CounterSource {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let (before, count, after) =
                (safe_arch::read_timestamp_counter(), clock.raw(), safe_arch::read_timestamp_counter());
            if (before..=after).contains(&count) {
                return CounterSource::TimeStampCounter;
            }
        }
        CounterSource::Other(clock)
    }

    #[inline]
    fn count(&self) -> u64 {
        match self {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            CounterSource::TimeStampCounter => safe_arch::read_timestamp_counter(),
            CounterSource::Other(clock) => clock.raw(),
        }
    }
}

impl CounterTime {
    fn new(kernel: &KernelClock) -> CounterTime {
        let source = quanta::Clock::new();
        let time = kernel.now();
        // Samples measure counts since they were taken. `Clock::now` counts from the calibration and would stop after a
        // suspend that sets the counter back.
        let clock = CounterClock::new(
            time,
            source.raw(),
            CounterScale::of(|counts| source.delta_as_nanos(0, counts)),
        );
        CounterTime { source: CounterSource::of(source), clock }
    }
}

/// Whether the kernel makes its clocks from the counter that user space can read.
fn kernel_uses_counter() -> bool {
    const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    if !cfg!(target_os = "linux") {
        return true;
    }
    std::fs::read_to_string(CLOCKSOURCE).is_ok_and(|name| matches!(name.trim(), "tsc" | "arch_sys_counter"))
}

/// The kernel's wall clock and monotonic clock.
#[derive(Debug)]
struct KernelClock {
    started: Instant,
    /// Wall clock at `started`, in nanoseconds. It rises when the wall clock jumps ahead and never falls.
    base: AtomicU64,
}

impl KernelClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn new() -> KernelClock {
        let base = AtomicU64::new(wall());
        KernelClock { started: Instant::now(), base }
    }

    fn raise(&self, seen: u64) {
        let _never_back = monotonic_wall_time(&self.base, seen, nanos(self.started.elapsed()));
    }

    fn now(&self) -> u64 {
        // Reads the wall clock first. A pause between the two then makes it late, which the next reading corrects. The
        // other order would make it ahead for good.
        let wall = wall();
        monotonic_wall_time(&self.base, wall, nanos(self.started.elapsed()))
    }
}

/// The time for this wall clock reading and this much time since `base` was set: the wall clock, unless it has gone
/// back.
fn monotonic_wall_time(base: &AtomicU64, wall: u64, elapsed: u64) -> u64 {
    let ahead = wall.saturating_sub(elapsed);
    base.fetch_max(ahead, Ordering::Relaxed).max(ahead).saturating_add(elapsed)
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn wall() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanos)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A clock that stands still until it is set, for tests and for replaying recorded time.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicU64,
    tick: Tick,
}

impl ManualClock {
    /// A clock at this instant, in nanoseconds.
    pub fn at(now: Timestamp) -> ManualClock {
        ManualClock::ticking(Tick::NANOSECOND, now)
    }

    /// A clock at this instant with this tick.
    pub fn ticking(tick: Tick, now: Timestamp) -> ManualClock {
        ManualClock { now: AtomicU64::new(now.ticks()), tick }
    }

    /// Sets the clock. It may be set back, as real clocks are.
    pub fn set(&self, now: Timestamp) {
        self.now.store(now.ticks(), Ordering::Release);
    }

    /// Advances the clock.
    pub fn advance(&self, by: Duration) {
        self.set(Clock::now(self).plus(self.tick.span(by)));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_ticks(self.now.load(Ordering::Acquire))
    }

    fn tick(&self) -> Tick {
        self.tick
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }

    fn tick(&self) -> Tick {
        (**self).tick()
    }

    fn raise(&self, seen: Timestamp) {
        (**self).raise(seen);
    }

    fn may_go_back(&self) -> bool {
        (**self).may_go_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_clock_moving_forward_is_followed() {
        let base = AtomicU64::new(1_000);
        assert_eq!(monotonic_wall_time(&base, 1_005, 5), 1_005);
        assert_eq!(monotonic_wall_time(&base, 9_010, 10), 9_010, "also when it jumps");
        assert_eq!(monotonic_wall_time(&base, 9_020, 20), 9_020);
    }

    #[test]
    fn wall_clock_set_back_neither_moves_nor_stops_time() {
        let base = AtomicU64::new(1_000);
        assert_eq!(monotonic_wall_time(&base, 1_100, 100), 1_100);
        assert_eq!(
            monotonic_wall_time(&base, 600, 110),
            1_110,
            "ten later, though the wall says five hundred earlier"
        );
        assert_eq!(monotonic_wall_time(&base, 690, 200), 1_200);
        assert_eq!(monotonic_wall_time(&base, 2_000, 300), 2_000, "until the wall has caught up");
    }

    #[test]
    fn pause_between_readings_is_corrected() {
        let base = AtomicU64::new(1_000);
        assert_eq!(monotonic_wall_time(&base, 1_010, 60), 1_060, "fifty passed after the wall was read");
        assert_eq!(monotonic_wall_time(&base, 1_070, 70), 1_070);
    }

    #[test]
    fn system_clock_never_goes_back() {
        let clock = SystemClock::new();
        let forward = || {
            let readings: Vec<_> = (0..200_000).map(|_| clock.now()).collect();
            assert!(readings.is_sorted());
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(forward);
            }
        });
    }

    #[test]
    fn system_clock_follows_kernel_clock() {
        let clock = SystemClock::new();
        for _ in 0..20_000 {
            let before = clock.kernel.now();
            let now = clock.now().ticks();
            let after = clock.kernel.now();
            assert!(
                now.saturating_add(counter_clock::MAX_EXTRAPOLATION) >= before,
                "{} behind",
                before.saturating_sub(now)
            );
            assert!(
                now <= after.saturating_add(counter_clock::MAX_EXTRAPOLATION),
                "{} ahead",
                now.saturating_sub(after)
            );
        }
    }

    #[test]
    fn untrusted_counter_reads_kernel_every_time() {
        let clock = SystemClock { kernel: KernelClock::new(), counter_time: None };
        let before = clock.kernel.now();
        let now = clock.now().ticks();
        assert!((before..=clock.kernel.now()).contains(&now));
    }
}
