//! The behaviour suite: what every store does.
//!
//! Each behaviour is a small function over a [`StoreFixture`], a fresh store and its clock. A store's test binary says
//! `behaviour_suite!(new_store)`. It gets one test per behaviour, under the same name as for every other store, and one
//! test per kind of generated history that must match the reference model.
//!
//! The suite uses only [`Store`] and [`Catalog`], so it knows nothing of how a store works.

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

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::ManualClock;
use tidegate::model::{Amount, Ask, LimitSpec, Order, Tick, Wait};
use tidegate::reply::{
    Detail, GrantedLease, ItemReading, OrderError, OrderRefusal, OrderReply, Outcome, Replies,
};
use tidegate::store::Usage;
use tidegate::store::{LimitStore, Store};

pub use decisions::every_policy;
pub use model_equivalence::{StoreUnderTest, check_equivalence};

/// A fresh store and its clock.
pub struct StoreFixture {
    /// The store.
    pub store: Arc<dyn LimitStore>,
    /// Its clock.
    pub clock: Arc<ManualClock>,
}

/// A behaviour with its name.
pub type Behaviour = (&'static str, fn(&StoreFixture));

/// All behaviours.
pub fn behaviours() -> impl Iterator<Item = Behaviour> {
    [decisions::ALL, leases::ALL, requests::ALL, edits::ALL, edit_batches::ALL, bounds::ALL]
        .into_iter()
        .flatten()
        .copied()
}

/// Runs one behaviour by name.
///
/// # Panics
/// If the store behaves otherwise, or if no behaviour has this name.
pub fn run(name: &str, new_store: impl Fn(Tick) -> StoreFixture) {
    let (_, behaviour) = behaviours().find(|(other, _)| *other == name).expect("a behaviour of the suite");
    behaviour(&new_store(Tick::NANOSECOND));
}

/// Defines one test per behaviour and per kind of history. `$new_store` is a function that makes a fresh
/// [`StoreFixture`] whose clock has the given tick. For a slow store, a number limits the histories of each kind.
#[macro_export]
macro_rules! behaviour_suite {
    ($new_store:path) => {
        $crate::behaviour_suite!($new_store, 400);
    };
    ($new_store:path, $cases:literal) => {
        $crate::behaviour_suite!($new_store, $cases:
            acquire_up_to_limit_is_granted refused_order_charges_nothing items_count_all_keys_and_each_key repeated_asks_of_one_limit_add_up
            order_of_several_asks_is_all_or_nothing binding_item_has_longest_wait equal_waits_bind_first_item acquire_of_zero_charges_nothing
            acquire_above_capacity_waits_never order_for_unknown_limit_is_error order_without_needed_key_is_error key_above_1024_bytes_is_error
            order_of_more_than_32_asks_is_error empty_key_is_counted_as_key peek_charges_nothing limit_of_zero_refuses_every_unit
            unlimited_item_counts_and_never_refuses batch_is_decided_in_order clock_set_back_does_not_move_store_time
            refusing_shadow_limit_grants_and_charges_nothing limit_in_mode_off_is_ignored override_applies_to_its_key_only
            wait_ends_with_override limit_outside_its_dates_refuses full_limit_refuses_only_new_keys
            order_with_new_keys_respects_max_keys charge_by_ask_counts_orders
            cost_of_u64_max_is_refused usage_reports_current_counts
            released_lease_cannot_be_released_again unrenewed_lease_lapses renewed_lease_lapses_later denial_reports_next_lapse fence_of_later_lease_is_higher lease_holds_as_many_units_as_asked
            reset_keeps_leases_held hold_settled_below_estimate_refunds hold_settled_above_estimate_charges_more repeated_settlement_changes_nothing
            lapsed_hold_keeps_its_charge settlement_after_reset_refunds_nothing hold_of_several_asks_settles_each_ask
            settlement_with_wrong_number_of_costs_is_error ttl_out_of_range_is_error
            deleted_limit_drops_its_leases lease_of_ended_limit_returns_nothing
            holders_lists_live_leases held_until_reports_expiry_of_live_leases
            repeated_request_id_is_charged_once request_id_with_other_asks_is_error refused_request_id_can_be_retried
            request_id_is_forgotten_after_ten_minutes request_id_length_out_of_range_is_error patience_out_of_range_is_error
            edit_keeps_counts lowered_limit_acts_at_once raised_limit_grants_the_difference added_item_starts_at_zero
            removed_item_loses_its_count edited_window_counts_remembered_charges edited_time_zone_acts_at_once
            put_with_unmet_expectation_is_error put_of_invalid_limit_changes_nothing removed_limit_is_forgotten retired_limit_returns_with_its_counts
            retired_limit_is_forgotten_after_seven_days reset_zeroes_one_key_or_all watcher_receives_every_change
            apply_makes_many_edits apply_with_one_bad_edit_changes_nothing apply_keeps_counts
            limit_retired_by_apply_returns_with_its_counts limit_forgotten_by_apply_starts_at_zero
            concurrent_order_sees_all_edits_of_apply_or_none concurrent_lookup_sees_all_edits_of_apply_or_none
            lowered_max_keys_counts_only_live_keys full_limit_with_held_key_waits_on_release
            full_shadow_limit_charges_nothing zero_ask_beside_lease_needs_no_row
            rows_of_ended_limit_are_dropped renewal_ttl_out_of_range_is_error
            lease_is_gone_with_its_limit lease_survives_removal_of_one_of_its_limits
        );
    };
    ($new_store:path, $cases:literal: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::suite::run(stringify!($name), $new_store);
            }
        )*

        /// Checks that this list is complete.
        #[test]
        fn suite_lists_every_behaviour() {
            let named = [$(stringify!($name)),*];
            let missing: Vec<_> = $crate::suite::behaviours().map(|(name, _)| name).filter(|name| !named.contains(name)).collect();
            assert!(missing.is_empty(), "no test for {missing:?}");
        }

        /// Any history, edits included, is answered as the model answers it.
        #[test]
        fn any_history_matches_model() {
            $crate::suite::check_equivalence($new_store, $crate::history::histories(true), $cases);
        }

        /// Histories of one item with many edits.
        #[test]
        fn single_item_history_matches_model() {
            $crate::suite::check_equivalence($new_store, $crate::history::single_item_histories(), $cases);
        }

        /// Histories of limits that have no room for all keys.
        #[test]
        fn over_capacity_history_matches_model() {
            $crate::suite::check_equivalence($new_store, $crate::history::over_capacity_histories(), $cases);
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
    pub fn submit(&self, order: Order<'_>) -> Result<(OrderReply, Vec<ItemReading>), OrderError> {
        let answers = self.store.submit(&[order], Replies::new(Detail::Readings)).decided();
        let answer = answers.get(0).cloned().expect("one reply per order")?;
        let readings = answers.readings(&answer).to_vec();
        Ok((answer, readings))
    }

    /// Acquires `count` of a limit for a key.
    #[track_caller]
    pub fn take(&self, limit_id: &str, key: &str, count: Amount) -> OrderReply {
        let asks = [Ask { limit_id, key: Some(key.as_bytes()), count }];
        self.submit(Order::acquire(&asks)).expect("a valid order").0
    }

    /// Whether `count` of a limit was granted to a key.
    #[track_caller]
    pub fn granted(&self, limit_id: &str, key: &str, count: Amount) -> bool {
        self.take(limit_id, key, count).is_granted()
    }

    /// Units in use of an item for a key.
    #[track_caller]
    pub fn used(&self, limit_id: &str, key: &str, item: &str) -> Amount {
        let asks = [Ask { limit_id, key: Some(key.as_bytes()), count: 0 }];
        let (_, readings) = self.submit(Order::peek(&asks)).expect("a valid order");
        let found = readings.iter().find(|reading| reading.limit.items()[reading.item].name() == item);
        found.unwrap_or_else(|| panic!("no item {item}")).reading.used
    }

    /// The usage that the store reports.
    #[track_caller]
    pub fn usage(&self, limit_id: &str, key: Option<&str>) -> Usage {
        self.store.usage(limit_id, key.map(str::as_bytes)).decided().expect("a known limit")
    }
}

/// The lease of a grant.
#[track_caller]
fn lease(answer: &OrderReply) -> &GrantedLease {
    match &answer.outcome {
        Outcome::Granted(Some(grant)) => grant,
        other => panic!("expected a lease, got {other:?}"),
    }
}

/// The denial of a reply.
#[track_caller]
fn denied(answer: &OrderReply) -> &OrderRefusal {
    match &answer.outcome {
        Outcome::Denied(denied) => denied,
        other @ Outcome::Granted(_) => panic!("expected a denial, got {other:?}"),
    }
}

/// The wait of a denial in milliseconds after the decision.
#[track_caller]
fn wait_ms(answer: &OrderReply) -> u64 {
    match denied(answer).wait {
        Wait::Until(until) => until.since(answer.at).ticks().div_ceil(1_000_000),
        other => panic!("expected a time to wait until, got {other:?}"),
    }
}
