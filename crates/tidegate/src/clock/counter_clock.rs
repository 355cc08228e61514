//! Time between two samples of the kernel's clocks, measured by the processor's counter.
//!
//! Reading the wall clock and the monotonic clock takes about four times as long as reading the counter that both are
//! made from. So the clocks are sampled once per [`MAX_EXTRAPOLATION`]. In between, time is the latest sample plus the
//! counts since then:
//!
//! ```text
//!   time                          . next sample: what the clocks show, never less than the end of the former one
//!    ▲                         ___│_______
//!    │              __________|   └ sample
//!    │   __________/              (the counter was too fast: time stood at the end of its sample until
//!    │  /└ sample: starts where    the clocks had come that far)
//!    │     the clocks were read, ends MAX_EXTRAPOLATION later
//!    └──────────────────────────────────────────▶ counter
//! ```
//!
//! A sample is extrapolated by [`MAX_EXTRAPOLATION`] at most. So time is never further ahead of the clocks, however
//! badly the counter was calibrated and whatever a suspend or migration did to it, and no error is carried into the
//! next sample. The next sample starts only when the clocks have passed the end of the former one, and every reading
//! comes from a published sample. So time never goes back, within a thread or between threads.
//!
//! Slewing the counter towards the clocks was rejected: it needs samples of different slope, and a late reader of an
//! old sample could be ahead of a new one. A lock was rejected too: a sample is two words and a version, and a reader
//! that meets a writer reads again.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Longest extrapolation from one sample, in nanoseconds.
pub(super) const MAX_EXTRAPOLATION: u64 = 1_000_000;

/// No sample starts later: it would go on beyond the end of time.
const LATEST_SAMPLE: u64 = u64::MAX - MAX_EXTRAPOLATION;

/// Failed reads before a reader yields its thread.
const SPINS_BEFORE_YIELD: u32 = 64;

/// Conversion of counts to nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CounterScale {
    /// Nanoseconds in [`CALIBRATION_COUNTS`] counts.
    factor: u64,
    /// Longest extrapolation in counts, [`MAX_EXTRAPOLATION`] at most.
    reach: u64,
}

/// Number of counts that are timed to calibrate the counter.
const CALIBRATION_COUNTS: u64 = 1 << CALIBRATION_BITS;
const CALIBRATION_BITS: u32 = 32;

impl CounterScale {
    /// The scale of a counter; `nanoseconds` converts counts.
    pub(super) fn of(nanoseconds: impl FnOnce(u64) -> u64) -> CounterScale {
        let factor = nanoseconds(CALIBRATION_COUNTS).max(1);
        // For any length of a count the product of the two is below 2^52.
        CounterScale { factor, reach: (MAX_EXTRAPOLATION << CALIBRATION_BITS) / factor }
    }

    /// Nanoseconds in this many counts, which must be within `reach`.
    #[inline]
    const fn nanoseconds(self, counts: u64) -> u64 {
        counts.wrapping_mul(self.factor) >> CALIBRATION_BITS
    }
}

/// A sample: the time that the clocks showed, and the counter at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ClockSample {
    time: u64,
    counter: u64,
}

impl ClockSample {
    /// The time at this count; `None` beyond the end of the sample.
    #[inline]
    const fn at(self, counter: u64, scale: CounterScale) -> Option<u64> {
        let passed = counter.wrapping_sub(self.counter);
        if passed < scale.reach {
            Some(self.after(passed, scale))
        } else if self.counter.wrapping_sub(counter) < scale.reach {
            // The processor may read the counter before the sample it belongs to.
            Some(self.time)
        } else {
            None
        }
    }

    /// The time this many counts after the sample, which must be within `reach`.
    #[inline]
    const fn after(self, passed: u64, scale: CounterScale) -> u64 {
        self.time.wrapping_add(scale.nanoseconds(passed))
    }

    /// The latest time of this sample.
    const fn end(self) -> u64 {
        self.time.wrapping_add(MAX_EXTRAPOLATION)
    }

    /// The next sample for clocks that show `time`; `None` until they have passed the end of this one.
    fn successor(self, time: u64, counter: u64) -> Option<ClockSample> {
        (time >= self.end() && self.end() <= LATEST_SAMPLE)
            .then_some(ClockSample { time: time.min(LATEST_SAMPLE), counter })
    }
}

/// The current sample, for any number of threads.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct CounterClock {
    /// Odd while the next two words are written.
    version: AtomicU64,
    time: AtomicU64,
    counter: AtomicU64,
    scale: CounterScale,
}

impl CounterClock {
    /// Starts with a sample of this time and count.
    pub(super) fn new(time: u64, counter: u64, scale: CounterScale) -> CounterClock {
        let [version, time, counter] = [0, time.min(LATEST_SAMPLE), counter].map(AtomicU64::new);
        CounterClock { version, time, counter, scale }
    }

    /// The time if the current sample has not ended and is not being replaced. That is nearly always so.
    #[inline]
    pub(super) fn try_now(&self, counter: impl FnOnce() -> u64) -> Option<u64> {
        let version = self.version.load(Ordering::Acquire);
        let sample = self.sample();
        let passed = counter().wrapping_sub(sample.counter);
        if passed >= self.scale.reach || !self.is_unchanged(version) {
            return None;
        }
        Some(sample.after(passed, self.scale))
    }

    /// The time. Reads `clocks` only when the current sample has ended.
    pub(super) fn now(&self, counter: &dyn Fn() -> u64, clocks: &dyn Fn() -> u64) -> u64 {
        let mut attempts: u32 = 0;
        loop {
            let version = self.version.load(Ordering::Acquire);
            let sample = self.sample();
            let time = sample.at(counter(), self.scale);
            if self.is_unchanged(version) {
                match time.or_else(|| self.resample(version, sample, counter, clocks)) {
                    Some(time) => return time,
                    None => continue,
                }
            }
            attempts = attempts.saturating_add(1);
            if attempts.is_multiple_of(SPINS_BEFORE_YIELD) {
                // The writer was preempted between two stores.
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Takes the next sample and returns the time; `None` if another thread replaced the sample.
    fn resample(
        &self,
        version: u64,
        sample: ClockSample,
        counter: &dyn Fn() -> u64,
        clocks: &dyn Fn() -> u64,
    ) -> Option<u64> {
        // Reads the clocks first. A pause between the two then makes the sample late, which the next one corrects. The
        // other order would make it ahead.
        let time = clocks();
        match sample.successor(time, counter()) {
            Some(next) => self.publish(version, next).then_some(next.time),
            None => Some(sample.end()),
        }
    }

    #[inline]
    fn sample(&self) -> ClockSample {
        ClockSample { time: self.time.load(Ordering::Relaxed), counter: self.counter.load(Ordering::Relaxed) }
    }

    /// Whether everything read since `version` belongs together.
    #[inline]
    fn is_unchanged(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        // An odd version has ended and does not return.
        self.version.load(Ordering::Relaxed) == version & !1
    }

    /// Replaces the sample of this version; `false` if it was replaced before.
    fn publish(&self, version: u64, next: ClockSample) -> bool {
        let odd = version.wrapping_add(1);
        if self.version.compare_exchange(version, odd, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        // No reader may see a word of the new sample with the old version.
        fence(Ordering::Release);
        self.time.store(next.time, Ordering::Relaxed);
        self.counter.store(next.counter, Ordering::Relaxed);
        self.version.store(odd.wrapping_add(1), Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::AtomicBool;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use tidegate_testkit::test_scale::cases;

    use super::super::monotonic_wall_time;
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const DAY: u64 = 86_400 * SECOND;
    /// Late in 2023.
    const START: u64 = 1_700_000_000 * SECOND;

    /// A machine whose three clocks are set by the test.
    struct SimulatedMachine {
        wall: Cell<u64>,
        monotonic: Cell<u64>,
        counter: Cell<u64>,
        base: AtomicU64,
        kernel_reads: Cell<u64>,
        clock: CounterClock,
    }

    impl SimulatedMachine {
        fn new() -> SimulatedMachine {
            let counter = 77 * SECOND;
            SimulatedMachine {
                wall: Cell::new(START),
                monotonic: Cell::new(0),
                counter: Cell::new(counter),
                base: AtomicU64::new(START),
                kernel_reads: Cell::new(0),
                clock: CounterClock::new(START, counter, CounterScale::of(|counts| counts)),
            }
        }

        /// What the kernel's clocks show, without the counter.
        fn clocks(&self) -> u64 {
            monotonic_wall_time(&self.base, self.wall.get(), self.monotonic.get())
        }

        fn now(&self) -> u64 {
            let clocks = || {
                self.kernel_reads.set(self.kernel_reads.get() + 1);
                self.clocks()
            };
            let counter = || self.counter.get();
            self.clock.try_now(counter).unwrap_or_else(|| self.clock.now(&counter, &clocks))
        }

        /// Lets time pass on all three clocks, with the counter off by this many parts per million.
        fn pass(&self, nanoseconds: u64, ppm: i64) {
            self.wall.set(self.wall.get() + nanoseconds);
            self.monotonic.set(self.monotonic.get() + nanoseconds);
            let error = i128::from(nanoseconds) * i128::from(ppm) / 1_000_000;
            let counted = u64::try_from(i128::from(nanoseconds) + error).unwrap();
            self.counter.set(self.counter.get().wrapping_add(counted));
        }
    }

    /// Distance of two times.
    fn difference(one: u64, other: u64) -> u64 {
        one.abs_diff(other)
    }

    #[test]
    fn time_between_samples_follows_counter() {
        let machine = SimulatedMachine::new();
        for step in 1..=1000 {
            machine.pass(999, 0);
            assert_eq!(machine.now(), START + 999 * step);
        }
        assert_eq!(machine.kernel_reads.get(), 0);
        machine.pass(1_000, 0);
        assert_eq!(machine.now(), START + MAX_EXTRAPOLATION);
        assert_eq!(machine.kernel_reads.get(), 1);
    }

    #[test]
    fn wall_clock_jump_is_followed_at_next_sample() {
        let machine = SimulatedMachine::new();
        machine.wall.set(START + DAY);
        assert_eq!(machine.now(), START, "the jump is not noticed yet");
        machine.pass(MAX_EXTRAPOLATION, 0);
        assert_eq!(machine.now(), START + DAY + MAX_EXTRAPOLATION);
    }

    #[test]
    fn wall_clock_set_back_neither_moves_nor_stops_time() {
        let machine = SimulatedMachine::new();
        machine.wall.set(START - DAY);
        for step in 1..=100 {
            machine.pass(MAX_EXTRAPOLATION / 10, 0);
            assert_eq!(machine.now(), START + step * (MAX_EXTRAPOLATION / 10));
        }
    }

    #[test]
    fn drifting_counter_stays_within_drift_of_one_sample() {
        for ppm in [-500, -1, 0, 1, 500] {
            let machine = SimulatedMachine::new();
            let mut before = machine.now();
            // A reading about every 40 milliseconds for three days, in bursts that stay in one sample or leave it.
            for round in 0..60_000_u64 {
                for step in [100, 400_000, 350_000, 249_000, 700, 300] {
                    machine.pass(step, ppm);
                    let now = machine.now();
                    assert!(now >= before, "{ppm} ppm, round {round}: {before} then {now}");
                    assert!(
                        difference(now, machine.clocks()) <= MAX_EXTRAPOLATION * 500 / 1_000_000 + 1,
                        "{ppm} ppm, round {round}"
                    );
                    before = now;
                }
                machine.pass(4_320_000_000 - 1_000_100, ppm);
            }
        }
    }

    #[test]
    fn counter_ten_times_too_fast_is_less_than_one_sample_ahead() {
        let machine = SimulatedMachine::new();
        let mut before = machine.now();
        for _ in 0..100_000 {
            machine.pass(7_919, 9_000_000);
            let now = machine.now();
            assert!(now >= before);
            assert!(now <= machine.clocks() + MAX_EXTRAPOLATION);
            before = now;
        }
        assert!(difference(before, machine.clocks()) <= MAX_EXTRAPOLATION);
    }

    #[test]
    fn suspended_machine_resumes_at_wall_clock_time() {
        // The counter and the monotonic clock stopped.
        let machine = SimulatedMachine::new();
        machine.pass(5, 0);
        machine.wall.set(machine.wall.get() + DAY);
        machine.pass(MAX_EXTRAPOLATION, 0);
        assert_eq!(machine.now(), machine.wall.get());

        // The counter continued and the wall clock was set back: only the monotonic clock is left.
        let machine = SimulatedMachine::new();
        machine.wall.set(START - DAY);
        machine.counter.set(machine.counter.get() + DAY / 2);
        machine.pass(MAX_EXTRAPOLATION, 0);
        assert_eq!(machine.now(), START + MAX_EXTRAPOLATION);

        // The counter restarted at zero.
        let machine = SimulatedMachine::new();
        machine.wall.set(START + DAY);
        machine.counter.set(3);
        assert_eq!(machine.now(), START + DAY);
        machine.pass(50, 0);
        assert_eq!(machine.now(), START + DAY + 50, "and goes on from there");
    }

    #[test]
    fn counter_read_before_its_sample_is_at_its_start() {
        let sample = ClockSample { time: START, counter: 500 };
        let scale = CounterScale::of(|counts| counts);
        assert_eq!(sample.at(499, scale), Some(START));
        assert_eq!(sample.at(500, scale), Some(START));
        assert_eq!(sample.at(500 + MAX_EXTRAPOLATION, scale), None);
        assert_eq!(sample.at(500_u64.wrapping_sub(MAX_EXTRAPOLATION), scale), None);
    }

    #[test]
    fn counts_of_any_length_never_exceed_maximum_extrapolation() {
        // Three counts per nanosecond, one per three, one per 41.7 (24 MHz), one per millisecond, and extremes.
        for (counts, nanoseconds) in
            [(3_u64, 1_u64), (1, 3), (24, 1000), (1, 1_000_000), (u64::MAX, 1), (1, 1 << 31)]
        {
            let scale = CounterScale::of(|many| {
                u64::try_from(u128::from(many) * u128::from(nanoseconds) / u128::from(counts)).unwrap()
            });
            let sample = ClockSample { time: START, counter: 7 };
            assert_eq!(sample.at(7 + scale.reach, scale), None);
            let Some(last) = scale.reach.checked_sub(1) else { continue };
            let end = sample.at(7 + last, scale).unwrap();
            assert!(end <= sample.end(), "{counts} in {nanoseconds}: {} too far", end - sample.end());
            if counts > 1000 {
                continue;
            }
            let exact = u128::from(last) * u128::from(nanoseconds) / u128::from(counts);
            assert!(
                u128::from(end - START).abs_diff(exact) <= 2,
                "{counts} in {nanoseconds}: {end}, not {exact}"
            );
        }
    }

    #[test]
    fn sample_of_stale_version_is_not_published() {
        let clock = CounterClock::new(START, 0, CounterScale::of(|counts| counts));
        let next = ClockSample { time: START + MAX_EXTRAPOLATION, counter: MAX_EXTRAPOLATION };
        assert!(clock.publish(0, next));
        assert!(!clock.publish(0, ClockSample { time: START, counter: 0 }), "the sample was replaced before");
        assert_eq!(clock.sample(), next);
    }

    #[test]
    fn time_never_goes_back_across_threads() {
        let counter = AtomicU64::new(0);
        let latest = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let clock = CounterClock::new(START, 0, CounterScale::of(|counts| counts));
        // The clocks are slower than the counter by a quarter, so samples end early all the time.
        let read = || {
            let earlier = latest.load(Ordering::SeqCst);
            let clocks = || START + counter.load(Ordering::SeqCst) / 4 * 3;
            let counter = || counter.fetch_add(MAX_EXTRAPOLATION / 64, Ordering::SeqCst);
            let now = clock.try_now(counter).unwrap_or_else(|| clock.now(&counter, &clocks));
            assert!(now >= earlier, "{earlier}, then {now}");
            latest.fetch_max(now, Ordering::SeqCst);
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        read();
                    }
                });
            }
            (0..200_000).for_each(|_| read());
            stop.store(true, Ordering::Relaxed);
        });
        assert!(
            latest.load(Ordering::SeqCst) > START + 1000 * MAX_EXTRAPOLATION,
            "the clocks were read many times"
        );
    }

    /// An event of the machine.
    #[derive(Debug, Clone)]
    enum MachineEvent {
        Passes { nanoseconds: u64, ppm: i64 },
        WallSet { by: i64 },
        Sleeps { nanoseconds: u64 },
        CounterSet { to: u64 },
    }

    fn event() -> impl Strategy<Value = MachineEvent> {
        let passes = |longest| {
            (0..longest, -900_000..900_000_i64)
                .prop_map(|(nanoseconds, ppm)| MachineEvent::Passes { nanoseconds, ppm })
        };
        prop_oneof![
            4 => passes(MAX_EXTRAPOLATION / 3),
            2 => passes(3 * MAX_EXTRAPOLATION),
            1 => passes(10 * SECOND),
            1 => (-2 * DAY.cast_signed()..2 * DAY.cast_signed()).prop_map(|by| MachineEvent::WallSet { by }),
            1 => (0..DAY).prop_map(|nanoseconds| MachineEvent::Sleeps { nanoseconds }),
            1 => any::<u64>().prop_map(|to| MachineEvent::CounterSet { to }),
        ]
    }

    proptest! {
        #![proptest_config(cases(500))]

        /// Time never goes back and is at most one sample ahead of the clocks. It meets the clocks as soon as the
        /// counter has passed the length of a sample and time has too.
        #[test]
        fn any_clock_behavior_keeps_time_monotonic(events in vec(event(), 1..60)) {
            let machine = SimulatedMachine::new();
            let mut before = machine.now();
            for event in events {
                match event {
                    MachineEvent::Passes { nanoseconds, ppm } => machine.pass(nanoseconds, ppm),
                    MachineEvent::WallSet { by } => machine.wall.set(machine.wall.get().saturating_add_signed(by)),
                    MachineEvent::Sleeps { nanoseconds } => machine.wall.set(machine.wall.get() + nanoseconds),
                    MachineEvent::CounterSet { to } => machine.counter.set(to),
                }
                let now = machine.now();
                prop_assert!(now >= before, "{before}, then {now}");
                prop_assert!(now <= machine.clocks() + MAX_EXTRAPOLATION, "{} ahead", now - machine.clocks());
                before = now;
            }
            machine.pass(2 * MAX_EXTRAPOLATION, 0);
            let now = machine.now();
            prop_assert!(now >= before);
            prop_assert_eq!(now, machine.clocks());
        }
    }
}
