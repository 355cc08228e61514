//! The behaviour suite: what every store does, whatever it is made of.
//!
//! Each behaviour is a small function over a [`StoreFixture`]: a fresh store and the clock it goes by. A store's own test binary
//! says `behaviour_suite!(new_store)` and gets one test per behaviour, under the same names as every other store, and one per
//! kind of story in which it must answer like the reference model.
//!
//! The suite speaks only through [`Store`] and [`Catalog`]; nothing in it knows how a store works.

#![allow(clippy::unwrap_used, reason = "behaviours are tests: a panic is their answer")]

mod bounds;
mod decisions;
mod edit_batches;
mod edits;
mod leases;
mod model_equivalence;
mod requests;

use std::sync::Arc;
use std::time::Duration;

use tidegate::store::Usage;
use tidegate::{
    Amount, Answer, Ask, Catalog, Denied, Detail, ExpectedVersion, Grant, ItemReading, LimitSpec, LimitStore,
    ManualClock, Order, OrderError, Outcome, Replies, Store, Tick, Wait,
};

pub use decisions::every_policy;
pub use model_equivalence::{StoreUnderTest, equivalence};

/// A fresh store and the clock it goes by.
pub struct StoreFixture {
    /// The store.
    pub store: Arc<dyn LimitStore>,
    /// Its clock.
    pub clock: Arc<ManualClock>,
}

/// A behaviour and its name.
pub type Behaviour = (&'static str, fn(&StoreFixture));

/// Every behaviour.
pub fn behaviours() -> impl Iterator<Item = Behaviour> {
    [decisions::ALL, leases::ALL, requests::ALL, edits::ALL, edit_batches::ALL, bounds::ALL]
        .into_iter()
        .flatten()
        .copied()
}

/// Runs one behaviour by name.
///
/// # Panics
/// If the store does not behave so, or nothing has this name.
pub fn run(name: &str, new_store: impl Fn(Tick) -> StoreFixture) {
    let (_, behaviour) = behaviours().find(|(other, _)| *other == name).expect("a behaviour of the suite");
    behaviour(&new_store(Tick::NANOSECOND));
}

/// Makes one test per behaviour and per kind of story. `$new_store` is a function that makes a fresh [`StoreFixture`] whose clock has
/// the tick it is given. For a store that takes its time, a number says how many stories of each kind it is told.
#[macro_export]
macro_rules! behaviour_suite {
    ($new_store:path) => {
        $crate::behaviour_suite!($new_store, 400);
    };
    ($new_store:path, $cases:literal) => {
        $crate::behaviour_suite!($new_store, $cases:
            grants_up_to_the_limit refuses_and_charges_nothing counts_all_keys_and_each_key repeated_asks_add_up
            a_set_is_all_or_nothing binding_is_the_longest_wait ties_go_to_the_first_written count_zero_only_looks
            more_than_capacity_is_never unknown_limits_are_errors missing_keys_are_errors keys_have_a_bound
            asks_have_a_bound empty_keys_are_keys peek_changes_nothing limit_zero_refuses_everything
            unlimited_counts_and_never_refuses a_batch_is_decided_in_order time_never_goes_back
            shadow_grants_and_does_not_charge off_is_not_asked overrides_apply_to_their_key
            overrides_end_and_the_wait_knows starts_and_ends full_limits_refuse_only_new_keys
            a_set_of_new_keys_respects_the_bound charge_by_the_ask
            huge_costs_are_values usage_is_current_data
            leases_are_released_once leases_lapse leases_are_renewed denials_know_the_next_lapse fences_rise weights_count
            reset_keeps_leases holds_settle_down holds_settle_up settling_twice_says_the_same
            a_lapsed_hold_keeps_its_charge a_reset_voids_refunds sets_hold_and_settle_each_ask
            a_list_of_costs_has_one_for_each_ask ttl_has_bounds
            deleted_limits_take_their_leases_along an_ended_limit_gives_nothing_back
            holders_are_known leases_know_how_long_they_are_held
            a_repeated_request_is_charged_once a_reused_request_is_rejected refusals_stay_retryable
            requests_are_forgotten_after_ten_minutes request_ids_have_a_bound patience_has_a_bound
            edits_keep_counts lowering_acts_at_once raising_never_refuses new_items_start_at_zero
            removed_items_take_their_state windows_judge_what_is_remembered zones_change_at_once
            expectations_are_checked invalid_limits_change_nothing delete_forgets retired_limits_come_back
            retirement_ends resets_zero_one_key_or_all watchers_hear_every_change
            many_edits_are_made_at_once one_bad_edit_changes_nothing applied_edits_keep_counts
            what_an_application_retires_comes_back what_an_application_forgets_is_gone
            nobody_meets_half_of_an_application nobody_finds_half_of_an_application
            a_lowered_bound_counts_only_live_keys a_holder_in_the_same_order_can_make_room
            a_watching_limit_without_room_charges_nothing a_look_beside_a_lease_needs_no_room
            what_ended_keeps_no_room renewals_have_bounds
            a_lease_goes_with_its_limit a_lease_stays_with_what_is_left
        );
    };
    ($new_store:path, $cases:literal: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::suite::run(stringify!($name), $new_store);
            }
        )*

        /// Whatever is added to the suite is run here too.
        #[test]
        fn every_behaviour_has_a_test() {
            let named = [$(stringify!($name)),*];
            let missing: Vec<_> = $crate::suite::behaviours().map(|(name, _)| name).filter(|name| !named.contains(name)).collect();
            assert!(missing.is_empty(), "no test for {missing:?}");
        }

        /// Any story, edits included, is answered as the reference model answers it.
        #[test]
        fn equivalence() {
            $crate::suite::equivalence($new_store, $crate::history::histories(true), $cases);
        }

        /// The same for stories of one item, looked at closely.
        #[test]
        fn equivalence_of_one_item() {
            $crate::suite::equivalence($new_store, $crate::history::single_item_histories(), $cases);
        }

        /// The same for limits that have no room for all the keys that ask.
        #[test]
        fn equivalence_of_crowded_limits() {
            $crate::suite::equivalence($new_store, $crate::history::over_capacity_histories(), $cases);
        }
    };
}

impl StoreFixture {
    /// A fixture for this store and clock.
    pub fn new(store: impl Store + Catalog + 'static, clock: Arc<ManualClock>) -> StoreFixture {
        StoreFixture { store: Arc::new(store), clock }
    }

    /// Adds a limit.
    #[track_caller]
    pub fn add(&self, spec: LimitSpec) {
        self.store.put(spec, ExpectedVersion::Absent).expect("a valid new limit");
    }

    /// Replaces a limit.
    #[track_caller]
    pub fn edit(&self, spec: LimitSpec) {
        self.store.put(spec, ExpectedVersion::Present).expect("a valid next version");
    }

    /// Lets time pass.
    pub fn pass(&self, duration: Duration) {
        self.clock.advance(duration);
    }

    /// Lets seconds pass.
    pub fn pass_seconds(&self, seconds: u64) {
        self.pass(Duration::from_secs(seconds));
    }

    /// Submits one order.
    pub fn submit(&self, order: Order<'_>) -> Result<(Answer, Vec<ItemReading>), OrderError> {
        let answers = self.store.submit(&[order], Replies::new(Detail::Readings)).decided();
        let answer = answers.get(0).cloned().expect("one answer for one order")?;
        let readings = answers.readings(&answer).to_vec();
        Ok((answer, readings))
    }

    /// Takes `count` of a limit for a key.
    #[track_caller]
    pub fn take(&self, limit_id: &str, key: &str, count: Amount) -> Answer {
        let asks = [Ask { limit_id, key: Some(key.as_bytes()), count }];
        self.submit(Order::acquire(&asks)).expect("a sensible order").0
    }

    /// Whether `count` of a limit was granted to a key.
    #[track_caller]
    pub fn granted(&self, limit_id: &str, key: &str, count: Amount) -> bool {
        self.take(limit_id, key, count).is_granted()
    }

    /// How much an item says is in use for a key.
    #[track_caller]
    pub fn used(&self, limit_id: &str, key: &str, item: &str) -> Amount {
        let asks = [Ask { limit_id, key: Some(key.as_bytes()), count: 0 }];
        let (_, readings) = self.submit(Order::peek(&asks)).expect("a sensible order");
        let found = readings.iter().find(|reading| reading.limit.items()[reading.item].name() == item);
        found.unwrap_or_else(|| panic!("no item {item}")).reading.used
    }

    /// What the store counts.
    #[track_caller]
    pub fn usage(&self, limit_id: &str, key: Option<&str>) -> Usage {
        self.store.usage(limit_id, key.map(str::as_bytes)).decided().expect("a known limit")
    }
}

/// The lease of a grant.
#[track_caller]
fn lease(answer: &Answer) -> &Grant {
    match &answer.outcome {
        Outcome::Granted(Some(grant)) => grant,
        other => panic!("expected a lease, got {other:?}"),
    }
}

/// The denial of an answer.
#[track_caller]
fn denied(answer: &Answer) -> &Denied {
    match &answer.outcome {
        Outcome::Denied(denied) => denied,
        other @ Outcome::Granted(_) => panic!("expected a denial, got {other:?}"),
    }
}

/// How long after the decision a denial says to wait, in milliseconds.
#[track_caller]
fn wait_ms(answer: &Answer) -> u64 {
    match denied(answer).wait {
        Wait::Until(until) => until.since(answer.at).ticks().div_ceil(1_000_000),
        other => panic!("expected a time to wait until, got {other:?}"),
    }
}
