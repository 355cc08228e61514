//! The pace: time between two looks at the system's clocks, told by the processor's counter.
//!
//! Asking the kernel for the wall clock and the monotonic clock takes about four times as long as reading the counter that both
//! are made from. So the system's clocks are asked once in [`REACH`], and in between the time is what they said plus what
//! the counter has counted since:
//!
//! ```text
//!   time                          . asked again: what the clocks say, never less than the end of the line before
//!    ▲                         ___│_______
//!    │              __________|   └ a new line
//!    │   __________/              (here the counter had been too fast: time stood at the end of its line until
//!    │  /└ a line: begins where    the clocks had come that far)
//!    │     the clocks were asked, ends REACH later
//!    └──────────────────────────────────────────▶ counter
//! ```
//!
//! A line never reaches further than [`REACH`], so the time can never be further ahead of the clocks than that, however
//! badly the counter was calibrated and whatever a sleeping or migrating machine did to it; and no error is carried into
//! the next line. Lines follow each other upwards: the next begins only once the clocks have passed the end of the one
//! before, and every reading is taken from a line that was published. That is the whole argument for a time that never goes
//! back, on one thread or passed from one to another.
//!
//! Refused: letting the counter run slightly slow or fast until it meets the clocks. It needs lines of different slope,
//! and a reader that is late with an old line can then be ahead of the new one. Refused: a lock. A line is two words and
//! a version; a reader who meets a writer in the middle of two stores looks again.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// How long the counter is trusted before the system's clocks are asked again, in nanoseconds.
pub(super) const REACH: u64 = 1_000_000;

/// No line begins later: it would go on beyond the end of time.
const LATEST: u64 = u64::MAX - REACH;

/// How often a reader looks again before it lets somebody else run.
const PATIENCE: u32 = 64;

/// What the counter counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scale {
    /// Nanoseconds in [`MANY`] counts.
    factor: u64,
    /// How many counts the counter is trusted for: no more than [`REACH`].
    reach: u64,
}

/// So many counts are timed, to know what one of them takes.
const MANY: u64 = 1 << MANY_BITS;
const MANY_BITS: u32 = 32;

impl Scale {
    /// The scale of a counter whose counts take this many nanoseconds.
    pub(super) fn of(nanoseconds: impl FnOnce(u64) -> u64) -> Scale {
        let factor = nanoseconds(MANY).max(1);
        // However long a count takes: the product of the two is below 2^52.
        Scale { factor, reach: (REACH << MANY_BITS) / factor }
    }

    /// The nanoseconds in so many counts, which are within reach.
    #[inline]
    const fn nanoseconds(self, counts: u64) -> u64 {
        counts.wrapping_mul(self.factor) >> MANY_BITS
    }
}

/// Where the counter stood when the clocks were asked, and what they said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line {
    begins: u64,
    counter: u64,
}

impl Line {
    /// The time when the counter stands here; `None` beyond the end of the line.
    #[inline]
    const fn at(self, counter: u64, scale: Scale) -> Option<u64> {
        let passed = counter.wrapping_sub(self.counter);
        if passed < scale.reach {
            Some(self.after(passed, scale))
        } else if self.counter.wrapping_sub(counter) < scale.reach {
            // The processor read the counter before the line it belongs to, as it is free to.
            Some(self.begins)
        } else {
            None
        }
    }

    /// The time so many counts after it began, which are within reach.
    #[inline]
    const fn after(self, passed: u64, scale: Scale) -> u64 {
        self.begins.wrapping_add(scale.nanoseconds(passed))
    }

    /// No time told by this line is later.
    const fn end(self) -> u64 {
        self.begins.wrapping_add(REACH)
    }

    /// The line that follows when the clocks say `time`; none as long as they have not passed the end of this one.
    fn followed_by(self, time: u64, counter: u64) -> Option<Line> {
        (time >= self.end() && self.end() <= LATEST).then_some(Line { begins: time.min(LATEST), counter })
    }
}

/// The present line, for any number of threads.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Pace {
    /// Odd while the two words below are being written.
    version: AtomicU64,
    begins: AtomicU64,
    counter: AtomicU64,
    scale: Scale,
}

impl Pace {
    /// A pace that begins when the clocks say `time` and the counter stands here.
    pub(super) fn new(time: u64, counter: u64, scale: Scale) -> Pace {
        let [version, begins, counter] = [0, time.min(LATEST), counter].map(AtomicU64::new);
        Pace { version, begins, counter, scale }
    }

    /// The time, if the present line has not ended and nobody is about to begin the next: nearly always.
    #[inline]
    pub(super) fn glance(&self, counter: impl FnOnce() -> u64) -> Option<u64> {
        let version = self.version.load(Ordering::Acquire);
        let line = self.line();
        let passed = counter().wrapping_sub(line.counter);
        if passed >= self.scale.reach || !self.is_still(version) {
            return None;
        }
        Some(line.after(passed, self.scale))
    }

    /// The time. `clocks` is asked only when the present line has ended.
    pub(super) fn now(&self, counter: &dyn Fn() -> u64, clocks: &dyn Fn() -> u64) -> u64 {
        let mut looks: u32 = 0;
        loop {
            let version = self.version.load(Ordering::Acquire);
            let line = self.line();
            let time = line.at(counter(), self.scale);
            if self.is_still(version) {
                match time.or_else(|| self.follow(version, line, counter, clocks)) {
                    Some(time) => return time,
                    None => continue,
                }
            }
            looks = looks.saturating_add(1);
            if looks.is_multiple_of(PATIENCE) {
                // Whoever is writing was put aside between two stores.
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// The time after the end of a line; `None` if somebody else has begun the next one.
    fn follow(
        &self,
        version: u64,
        line: Line,
        counter: &dyn Fn() -> u64,
        clocks: &dyn Fn() -> u64,
    ) -> Option<u64> {
        // The clocks first: a pause between the two then makes the line late, which the next one mends; the other way
        // round it would be ahead.
        let time = clocks();
        match line.followed_by(time, counter()) {
            Some(next) => self.publish(version, next).then_some(next.begins),
            None => Some(line.end()),
        }
    }

    #[inline]
    fn line(&self) -> Line {
        Line { begins: self.begins.load(Ordering::Relaxed), counter: self.counter.load(Ordering::Relaxed) }
    }

    /// Whether what was read since `version` belongs together.
    #[inline]
    fn is_still(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        // A version that was odd is over and does not come again.
        self.version.load(Ordering::Relaxed) == version & !1
    }

    /// Replaces the line of this version; `false` if it was replaced already.
    fn publish(&self, version: u64, next: Line) -> bool {
        let odd = version.wrapping_add(1);
        if self.version.compare_exchange(version, odd, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        // Nobody may see a word of the new line and still the old version.
        fence(Ordering::Release);
        self.begins.store(next.begins, Ordering::Relaxed);
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

    use super::super::reckon;
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const DAY: u64 = 86_400 * SECOND;
    /// Late in the year 2023.
    const START: u64 = 1_700_000_000 * SECOND;

    /// A machine whose three clocks are told what to say.
    struct Machine {
        wall: Cell<u64>,
        monotonic: Cell<u64>,
        counter: Cell<u64>,
        base: AtomicU64,
        asked: Cell<u64>,
        pace: Pace,
    }

    impl Machine {
        fn new() -> Machine {
            let counter = 77 * SECOND;
            Machine {
                wall: Cell::new(START),
                monotonic: Cell::new(0),
                counter: Cell::new(counter),
                base: AtomicU64::new(START),
                asked: Cell::new(0),
                pace: Pace::new(START, counter, Scale::of(|counts| counts)),
            }
        }

        /// What the system's clocks say, without the counter.
        fn clocks(&self) -> u64 {
            reckon(&self.base, self.wall.get(), self.monotonic.get())
        }

        fn now(&self) -> u64 {
            let clocks = || {
                self.asked.set(self.asked.get() + 1);
                self.clocks()
            };
            let counter = || self.counter.get();
            self.pace.glance(counter).unwrap_or_else(|| self.pace.now(&counter, &clocks))
        }

        /// Lets this much time pass for all three, for the counter at this many parts in a million too fast.
        fn pass(&self, nanoseconds: u64, ppm: i64) {
            self.wall.set(self.wall.get() + nanoseconds);
            self.monotonic.set(self.monotonic.get() + nanoseconds);
            let error = i128::from(nanoseconds) * i128::from(ppm) / 1_000_000;
            let counted = u64::try_from(i128::from(nanoseconds) + error).unwrap();
            self.counter.set(self.counter.get().wrapping_add(counted));
        }
    }

    /// How far apart two times are.
    fn apart(one: u64, other: u64) -> u64 {
        one.abs_diff(other)
    }

    #[test]
    fn between_two_looks_at_the_clocks_the_counter_tells_the_time() {
        let machine = Machine::new();
        for step in 1..=1000 {
            machine.pass(999, 0);
            assert_eq!(machine.now(), START + 999 * step);
        }
        assert_eq!(machine.asked.get(), 0);
        machine.pass(1_000, 0);
        assert_eq!(machine.now(), START + REACH);
        assert_eq!(machine.asked.get(), 1);
    }

    #[test]
    fn a_wall_that_jumps_ahead_is_followed_at_the_next_look() {
        let machine = Machine::new();
        machine.wall.set(START + DAY);
        assert_eq!(machine.now(), START, "not noticed yet");
        machine.pass(REACH, 0);
        assert_eq!(machine.now(), START + DAY + REACH);
    }

    #[test]
    fn a_wall_that_steps_back_takes_nothing_back_and_stops_nothing() {
        let machine = Machine::new();
        machine.wall.set(START - DAY);
        for step in 1..=100 {
            machine.pass(REACH / 10, 0);
            assert_eq!(machine.now(), START + step * (REACH / 10));
        }
    }

    #[test]
    fn a_counter_that_drifts_for_days_stays_within_what_it_drifts_in_one_line() {
        for ppm in [-500, -1, 0, 1, 500] {
            let machine = Machine::new();
            let mut before = machine.now();
            // A look about every 40 milliseconds for three days, in bursts that stay on one line and end past it.
            for round in 0..60_000_u64 {
                for step in [100, 400_000, 350_000, 249_000, 700, 300] {
                    machine.pass(step, ppm);
                    let now = machine.now();
                    assert!(now >= before, "{ppm} ppm, round {round}: {before} then {now}");
                    assert!(
                        apart(now, machine.clocks()) <= REACH * 500 / 1_000_000 + 1,
                        "{ppm} ppm, round {round}"
                    );
                    before = now;
                }
                machine.pass(4_320_000_000 - 1_000_100, ppm);
            }
        }
    }

    #[test]
    fn a_counter_that_was_calibrated_ten_times_too_fast_is_never_a_line_ahead() {
        let machine = Machine::new();
        let mut before = machine.now();
        for _ in 0..100_000 {
            machine.pass(7_919, 9_000_000);
            let now = machine.now();
            assert!(now >= before);
            assert!(now <= machine.clocks() + REACH);
            before = now;
        }
        assert!(apart(before, machine.clocks()) <= REACH);
    }

    #[test]
    fn a_machine_that_slept_wakes_up_at_the_walls_time() {
        // The counter and the monotonic clock stopped.
        let machine = Machine::new();
        machine.pass(5, 0);
        machine.wall.set(machine.wall.get() + DAY);
        machine.pass(REACH, 0);
        assert_eq!(machine.now(), machine.wall.get());

        // The counter went on, and the wall had been set back: only the monotonic clock is left to go by.
        let machine = Machine::new();
        machine.wall.set(START - DAY);
        machine.counter.set(machine.counter.get() + DAY / 2);
        machine.pass(REACH, 0);
        assert_eq!(machine.now(), START + REACH);

        // The counter began anew at zero.
        let machine = Machine::new();
        machine.wall.set(START + DAY);
        machine.counter.set(3);
        assert_eq!(machine.now(), START + DAY);
        machine.pass(50, 0);
        assert_eq!(machine.now(), START + DAY + 50, "and goes on from there");
    }

    #[test]
    fn a_counter_read_just_before_its_line_is_at_its_beginning() {
        let line = Line { begins: START, counter: 500 };
        let scale = Scale::of(|counts| counts);
        assert_eq!(line.at(499, scale), Some(START));
        assert_eq!(line.at(500, scale), Some(START));
        assert_eq!(line.at(500 + REACH, scale), None);
        assert_eq!(line.at(500_u64.wrapping_sub(REACH), scale), None);
    }

    #[test]
    fn counts_of_any_length_are_told_in_nanoseconds_and_never_reach_too_far() {
        // Three in a nanosecond, one in three, one in 41.7 (24 megahertz), one in a millisecond, and nonsense.
        for (counts, nanoseconds) in
            [(3_u64, 1_u64), (1, 3), (24, 1000), (1, 1_000_000), (u64::MAX, 1), (1, 1 << 31)]
        {
            let scale = Scale::of(|many| {
                u64::try_from(u128::from(many) * u128::from(nanoseconds) / u128::from(counts)).unwrap()
            });
            let line = Line { begins: START, counter: 7 };
            assert_eq!(line.at(7 + scale.reach, scale), None);
            let Some(last) = scale.reach.checked_sub(1) else { continue };
            let end = line.at(7 + last, scale).unwrap();
            assert!(end <= line.end(), "{counts} in {nanoseconds}: {} too far", end - line.end());
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
    fn a_line_published_twice_is_published_once() {
        let pace = Pace::new(START, 0, Scale::of(|counts| counts));
        let next = Line { begins: START + REACH, counter: REACH };
        assert!(pace.publish(0, next));
        assert!(!pace.publish(0, Line { begins: START, counter: 0 }), "somebody was first");
        assert_eq!(pace.line(), next);
    }

    #[test]
    fn no_thread_sees_time_go_back_nor_gets_it_from_a_thread_that_was_ahead() {
        let counter = AtomicU64::new(0);
        let latest = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let pace = Pace::new(START, 0, Scale::of(|counts| counts));
        // The clocks fall behind a counter that is a third too fast, so that lines end early all the time.
        let read = || {
            let told = latest.load(Ordering::SeqCst);
            let clocks = || START + counter.load(Ordering::SeqCst) / 4 * 3;
            let counter = || counter.fetch_add(REACH / 64, Ordering::SeqCst);
            let now = pace.glance(counter).unwrap_or_else(|| pace.now(&counter, &clocks));
            assert!(now >= told, "{told} was told, then {now}");
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
            latest.load(Ordering::SeqCst) > START + 1000 * REACH,
            "the clocks were asked again and again"
        );
    }

    /// Something that happens to a machine.
    #[derive(Debug, Clone)]
    enum Event {
        Passes { nanoseconds: u64, ppm: i64 },
        WallSet { by: i64 },
        Sleeps { nanoseconds: u64 },
        CounterSet { to: u64 },
    }

    fn event() -> impl Strategy<Value = Event> {
        let passes = |longest| {
            (0..longest, -900_000..900_000_i64)
                .prop_map(|(nanoseconds, ppm)| Event::Passes { nanoseconds, ppm })
        };
        prop_oneof![
            4 => passes(REACH / 3),
            2 => passes(3 * REACH),
            1 => passes(10 * SECOND),
            1 => (-2 * DAY.cast_signed()..2 * DAY.cast_signed()).prop_map(|by| Event::WallSet { by }),
            1 => (0..DAY).prop_map(|nanoseconds| Event::Sleeps { nanoseconds }),
            1 => any::<u64>().prop_map(|to| Event::CounterSet { to }),
        ]
    }

    proptest! {
        #![proptest_config(cases(500))]

        /// Whatever happens, time does not go back, is never more than one line ahead of the clocks, and is with them
        /// again as soon as the counter has passed a line's length and time has too.
        #[test]
        fn whatever_the_clocks_do(events in vec(event(), 1..60)) {
            let machine = Machine::new();
            let mut before = machine.now();
            for event in events {
                match event {
                    Event::Passes { nanoseconds, ppm } => machine.pass(nanoseconds, ppm),
                    Event::WallSet { by } => machine.wall.set(machine.wall.get().saturating_add_signed(by)),
                    Event::Sleeps { nanoseconds } => machine.wall.set(machine.wall.get() + nanoseconds),
                    Event::CounterSet { to } => machine.counter.set(to),
                }
                let now = machine.now();
                prop_assert!(now >= before, "{before}, then {now}");
                prop_assert!(now <= machine.clocks() + REACH, "{} ahead", now - machine.clocks());
                before = now;
            }
            machine.pass(2 * REACH, 0);
            let now = machine.now();
            prop_assert!(now >= before);
            prop_assert_eq!(now, machine.clocks());
        }
    }
}
