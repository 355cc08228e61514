//! The clock: the one place where time enters.
//!
//! A store has one clock and asks it once per batch. The system's wall clock can be set back by an operator or by
//! NTP; a limiter that followed it would grant twice, and one that merely froze would refuse everybody until the
//! old time came round again. [`SystemClock`] does neither: after a step back it goes on at the pace of the
//! monotonic clock from the latest instant it has seen.
//!
//! A decision can take less time than asking the kernel for two clocks, so they are asked about once in a millisecond;
//! in between the processor's own counter tells how much has passed (`clock/pace.rs`). It is trusted where the kernel
//! itself keeps time by it, because then it is known to go on steadily and alike on every core; elsewhere every reading asks
//! the kernel. Refused: a thread that writes the time down every so often. It is cheaper still to read, and as late as the
//! scheduler is.

mod pace;
mod timepiece;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pace::{Pace, Scale};
use tidegate_core::{Tick, Timestamp};

pub(crate) use timepiece::Timepiece;

/// Tells the time, never going back.
pub trait Clock: Send + Sync {
    /// The instant it is, in ticks of [`Clock::tick`].
    fn now(&self) -> Timestamp;

    /// How finely it tells it.
    fn tick(&self) -> Tick {
        Tick::NANOSECOND
    }

    /// Whether it may show an earlier instant than before, so that somebody must remember the latest.
    fn may_go_back(&self) -> bool {
        true
    }

    /// This instant was seen before, perhaps by another process: a clock that never goes back shows none before it from now on. It takes
    /// effect within a millisecond. A clock that may go back need not care; whoever remembers the latest instant does.
    fn raise(&self, _seen: Timestamp) {}
}

/// The wall clock, as long as it goes forward.
///
/// It never goes back. When the wall clock jumps ahead it follows within a millisecond, when the wall clock steps back it
/// goes on at the monotonic pace, and it is never more than a millisecond ahead of the two. The first one of a process takes
/// about a millisecond to make, because the counter is measured.
#[derive(Debug)]
pub struct SystemClock {
    kernel: Kernel,
    /// Absent where the counter is not to be trusted.
    counted: Option<Counted>,
}

impl SystemClock {
    /// A clock that begins at the wall clock's time.
    pub fn new() -> SystemClock {
        let kernel = Kernel::new();
        let counted = keeps_time_by_the_counter().then(|| Counted::new(&kernel));
        SystemClock { kernel, counted }
    }

    /// The instant it is, if it takes no more than a look at the counter: nearly always, where that is trusted.
    #[inline]
    pub(crate) fn glance(&self) -> Option<Timestamp> {
        let now = match &self.counted {
            // In one pattern, so that it is one comparison.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Some(Counted { source: Source::Stamp, pace }) => pace.glance(safe_arch::read_timestamp_counter),
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            Some(Counted { source, pace }) => pace.glance(|| source.count()),
            _ => None,
        };
        now.map(Timestamp::from_ticks)
    }

    /// Looks at the kernel's clocks, unless somebody else just has.
    #[cold]
    #[inline(never)]
    fn look(&self) -> Timestamp {
        let kernel = || self.kernel.now();
        Timestamp::from_ticks(match &self.counted {
            Some(counted) => counted.pace.now(&|| counted.source.count(), &kernel),
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
        self.glance().unwrap_or_else(|| self.look())
    }

    fn may_go_back(&self) -> bool {
        false
    }

    fn raise(&self, seen: Timestamp) {
        self.kernel.raise(seen.ticks());
    }
}

/// The processor's counter and the line of time it is on.
#[derive(Debug)]
struct Counted {
    source: Source,
    pace: Pace,
}

/// Where counts are read.
#[derive(Debug)]
enum Source {
    /// In the processor's time stamp counter, without a look at whether there is one.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Stamp,
    Other(quanta::Clock),
}

impl Source {
    /// The counter that this clock reads.
    fn of(clock: quanta::Clock) -> Source {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let (before, count, after) =
                (safe_arch::read_timestamp_counter(), clock.raw(), safe_arch::read_timestamp_counter());
            if (before..=after).contains(&count) {
                return Source::Stamp;
            }
        }
        Source::Other(clock)
    }

    #[inline]
    fn count(&self) -> u64 {
        match self {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Source::Stamp => safe_arch::read_timestamp_counter(),
            Source::Other(clock) => clock.raw(),
        }
    }
}

impl Counted {
    fn new(kernel: &Kernel) -> Counted {
        let source = quanta::Clock::new();
        let time = kernel.now();
        // Lines tell how much has passed since they began. `Clock::now` counts from the calibration, and would stand still there after a
        // sleep that set the counter back.
        let pace = Pace::new(time, source.raw(), Scale::of(|counts| source.delta_as_nanos(0, counts)));
        Counted { source: Source::of(source), pace }
    }
}

/// Whether the kernel makes its own clocks from the counter that user space can read.
fn keeps_time_by_the_counter() -> bool {
    const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    if !cfg!(target_os = "linux") {
        return true;
    }
    std::fs::read_to_string(CLOCKSOURCE).is_ok_and(|name| matches!(name.trim(), "tsc" | "arch_sys_counter"))
}

/// What the kernel's two clocks say together.
#[derive(Debug)]
struct Kernel {
    started: Instant,
    /// The wall clock at `started`, in nanoseconds; it only ever rises, when the wall clock jumps ahead.
    base: AtomicU64,
}

impl Kernel {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn new() -> Kernel {
        let base = AtomicU64::new(wall());
        Kernel { started: Instant::now(), base }
    }

    fn raise(&self, seen: u64) {
        let _never_back = reckon(&self.base, seen, nanos(self.started.elapsed()));
    }

    fn now(&self) -> u64 {
        // The wall first: a pause between the two then makes it seem behind, which the next reading mends; the other way
        // round it would seem ahead, and would stay so.
        let wall = wall();
        reckon(&self.base, wall, nanos(self.started.elapsed()))
    }
}

/// The time it is when the wall clock says `wall` and this much has passed since `base` was set: what the wall clock
/// says, unless it has gone back.
fn reckon(base: &AtomicU64, wall: u64, elapsed: u64) -> u64 {
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

/// A clock that stands still until it is told otherwise: for tests, and for replaying recorded time.
#[derive(Debug)]
pub struct ManualClock {
    now: AtomicU64,
    tick: Tick,
}

impl ManualClock {
    /// A clock that stands at this instant, in nanoseconds.
    pub fn at(now: Timestamp) -> ManualClock {
        ManualClock::ticking(Tick::NANOSECOND, now)
    }

    /// A clock with this tick that stands at this instant.
    pub fn ticking(tick: Tick, now: Timestamp) -> ManualClock {
        ManualClock { now: AtomicU64::new(now.ticks()), tick }
    }

    /// Moves it to this instant. It can be moved back, as real clocks can; what reads it must cope.
    pub fn set(&self, now: Timestamp) {
        self.now.store(now.ticks(), Ordering::Release);
    }

    /// Moves it ahead.
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
    fn a_wall_clock_that_goes_forward_is_followed() {
        let base = AtomicU64::new(1_000);
        assert_eq!(reckon(&base, 1_005, 5), 1_005);
        assert_eq!(reckon(&base, 9_010, 10), 9_010, "also when it jumps");
        assert_eq!(reckon(&base, 9_020, 20), 9_020);
    }

    #[test]
    fn one_that_goes_back_neither_takes_time_back_nor_stops_it() {
        let base = AtomicU64::new(1_000);
        assert_eq!(reckon(&base, 1_100, 100), 1_100);
        assert_eq!(reckon(&base, 600, 110), 1_110, "ten later, though the wall says five hundred earlier");
        assert_eq!(reckon(&base, 690, 200), 1_200);
        assert_eq!(reckon(&base, 2_000, 300), 2_000, "until the wall has caught up");
    }

    #[test]
    fn a_pause_between_the_readings_is_not_kept() {
        let base = AtomicU64::new(1_000);
        assert_eq!(reckon(&base, 1_010, 60), 1_060, "fifty passed after the wall was read");
        assert_eq!(reckon(&base, 1_070, 70), 1_070);
    }

    #[test]
    fn the_real_one_only_goes_forward() {
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
    fn the_real_one_stays_with_the_kernel() {
        let clock = SystemClock::new();
        for _ in 0..20_000 {
            let before = clock.kernel.now();
            let now = clock.now().ticks();
            let after = clock.kernel.now();
            assert!(now.saturating_add(pace::REACH) >= before, "{} behind", before.saturating_sub(now));
            assert!(now <= after.saturating_add(pace::REACH), "{} ahead", now.saturating_sub(after));
        }
    }

    #[test]
    fn where_the_counter_is_not_trusted_every_reading_asks_the_kernel() {
        let clock = SystemClock { kernel: Kernel::new(), counted: None };
        let before = clock.kernel.now();
        let now = clock.now().ticks();
        assert!((before..=clock.kernel.now()).contains(&now));
    }
}
