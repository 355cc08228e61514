//! The plain store behaves like every store.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tidegate::{ManualClock, MapStore, Tick, Timestamp};
use tidegate_testkit::suite::{Bench, Player};
use tidegate_testkit::{effort, history};

fn bench() -> Bench {
    bench_ticking(Tick::NANOSECOND)
}

fn bench_ticking(tick: Tick) -> Bench {
    let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
    Bench::new(MapStore::new(Arc::clone(&clock), 7), clock)
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

/// Stories about crowds have crowds in them.
#[test]
fn crowded_limits_are_crowded() {
    let mut runner = TestRunner::deterministic();
    let mut refused = 0;
    for _ in 0..200 {
        let story = history::crowded_histories().new_tree(&mut runner).expect("a story").current();
        let played = history::play(&story, &mut Player::new(bench_ticking(story.tick)));
        refused += played.expect("the store answers like the model").degraded;
    }
    assert!(refused > 50, "{refused} in 200 stories");
}
