//! The memory store behaves like every store.

use std::sync::Arc;

use proptest::prelude::*;
use tidegate::store::{Memory, MemoryStore};
use tidegate::{ManualClock, Tick, Timestamp};
use tidegate_testkit::suite::{Bench, Player};
use tidegate_testkit::{effort, history};

fn bench() -> Bench {
    bench_ticking(Tick::NANOSECOND)
}

fn bench_ticking(tick: Tick) -> Bench {
    let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
    let memory = Memory { secret: [7, 8], ..Memory::default() };
    Bench::new(MemoryStore::new(Arc::clone(&clock), memory), clock)
}

tidegate_testkit::behaviour_suite!(bench);

proptest! {
    #![proptest_config(effort::cases(400))]

    /// Any story, edits included, is answered as the reference model answers it.
    #[test]
    fn equivalence(story in history::histories(true)) {
        let mut player = Player::new(bench_ticking(story.tick));
        if let Err(difference) = history::play(&story, &mut player) {
            return Err(TestCaseError::fail(difference));
        }
    }
    /// The same for stories of one item, looked at closely.
    #[test]
    fn equivalence_of_one_item(story in history::close_ups()) {
        let mut player = Player::new(bench_ticking(story.tick));
        if let Err(difference) = history::play(&story, &mut player) {
            return Err(TestCaseError::fail(difference));
        }
    }

    /// The same for limits that have no room for all the keys that ask.
    #[test]
    fn equivalence_of_crowded_limits(story in history::crowded_histories()) {
        let mut player = Player::new(bench_ticking(story.tick));
        if let Err(difference) = history::play(&story, &mut player) {
            return Err(TestCaseError::fail(difference));
        }
    }
}
