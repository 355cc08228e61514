//! Generated histories: what may happen to a few limits, and the replay of a history against the reference model.
//!
//! Numbers are small, so that limits bind. Short and long windows are mixed, so that boundaries meet. Time moves mostly
//! to an instant that matters, one tick before it, or one tick after it.

mod replay;

use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use tidegate_core::{
    Amount, Capacity, Charge, Intent, ItemSpec, Limit, LimitSpec, Mode, OverrideSpec, Per, Policy, Precision,
    Tick, Unit, WeekStart, Zone,
};

pub use replay::{HistoryTally, ReplayReply, SystemUnderTest, replay};

/// The keys of all orders.
pub const KEYS: [&[u8]; 4] = [b"ada", b"bob", b"cyd", b"dan"];

/// Number of keys used where keys are not the point.
const FEW: usize = 2;

/// Time zones with daylight saving time, odd offsets, or neither.
pub const ZONES: [&str; 6] =
    ["UTC", "Asia/Shanghai", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/St_Johns"];

/// Start times of histories, in seconds: shortly before a calendar changes.
pub const START_SECONDS: [u64; 6] = [
    5,
    1_735_660_798, // 2024-12-31T15:59:58Z, two seconds before the new year in Shanghai
    1_741_503_598, // 2025-03-09T06:59:58Z, two seconds before New York springs forward
    1_762_063_198, // 2025-11-02T05:59:58Z, two seconds before it falls back
    1_709_164_798, // 2024-02-28T23:59:58Z, before a leap day
    1_257_042_658, // 2009-11-01T02:30:58Z, before St. John's falls back across midnight
];

/// A history: the initial limits and the events.
#[derive(Debug, Clone)]
pub struct History {
    /// Resolution of time.
    pub tick: Tick,
    /// Start, in seconds since the epoch.
    pub begins: u64,
    /// The initial limits.
    pub limits: Vec<LimitSpec>,
    /// The events.
    pub events: Vec<HistoryEvent>,
}

/// One event.
#[derive(Debug, Clone)]
pub enum HistoryEvent {
    /// Time passes, or the clock is set back.
    Time(TimeStep),
    /// An order is submitted. Each ask is (limit, key, count), by index.
    Order {
        /// Acquire or peek.
        intent: Intent,
        /// The asks.
        asks: Vec<(usize, usize, Amount)>,
        /// Whether the charge is an estimate.
        hold: bool,
    },
    /// A hold is settled to this cost. The index counts back from the latest lease.
    Settle(usize, Amount),
    /// A lease is released.
    Release(usize),
    /// A lease is renewed to this many milliseconds from now.
    Renew(usize, u64),
    /// A limit is reset, for one key or for all.
    Reset(usize, Option<usize>),
    /// A limit is edited.
    Edit(usize, LimitEdit),
    /// The store may drop what it need not remember.
    Forget,
}

/// How time moves.
#[derive(Debug, Clone, Copy)]
pub enum TimeStep {
    /// Forward by this many ticks.
    Ticks(u64),
    /// Forward by this many milliseconds.
    Millis(u64),
    /// Back by this many ticks.
    Back(u64),
    /// To the instant promised by the last refusal, plus this many ticks.
    ToWait(i64),
    /// To the instant at which a reading becomes zero, plus this many ticks.
    ToReset(usize, i64),
}

/// An edit of a limit.
#[derive(Debug, Clone)]
pub enum LimitEdit {
    /// Changes the capacity of an item.
    Limit(usize, Capacity),
    /// Changes the burst of a bucket.
    Burst(usize, Option<Amount>),
    /// Changes the window of an item.
    Window(usize, Duration),
    /// Changes the precision of a sliding item.
    Precision(usize, Precision),
    /// Changes how an item charges.
    Charge(usize, Option<Charge>),
    /// Adds an item, unless its name exists.
    Add(ItemSpec),
    /// Removes an item, unless it is the last.
    Remove(usize),
    /// Changes the time zone.
    Zone(&'static str),
    /// Changes the first day of the week.
    WeekStart(WeekStart),
    /// Changes the mode.
    Mode(Mode),
    /// Sets an override: key, item, capacity, end in milliseconds from the start.
    Except(usize, usize, Capacity, Option<u64>),
    /// Removes all overrides.
    NoExceptions,
    /// Changes the end of the limit, in milliseconds from the start.
    Ends(Option<u64>),
    /// Changes `max_keys`.
    MaxKeys(Option<u64>),
}

impl LimitEdit {
    /// The definition after the edit.
    pub fn apply(&self, spec: &LimitSpec, begins: u64) -> LimitSpec {
        let mut next = spec.clone();
        let count = next.items.len();
        match self {
            LimitEdit::Limit(item, limit) => next.items[item % count].limit = *limit,
            LimitEdit::Burst(item, new) => {
                if let Policy::Bucket { burst, .. } = &mut next.items[item % count].policy {
                    *burst = *new;
                }
            }
            LimitEdit::Window(item, new) => match &mut next.items[item % count].policy {
                Policy::Interval { window }
                | Policy::Sliding { window, .. }
                | Policy::Bucket { window, .. } => {
                    *window = *new;
                }
                _ => {}
            },
            LimitEdit::Precision(item, new) => {
                if let Policy::Sliding { precision, .. } = &mut next.items[item % count].policy {
                    *precision = *new;
                }
            }
            LimitEdit::Charge(item, charge) => next.items[item % count].charge = *charge,
            LimitEdit::Add(item) => {
                if next.items.iter().all(|other| other.effective_name() != item.effective_name()) {
                    next.items.push(item.clone());
                }
            }
            LimitEdit::Remove(item) => {
                if count > 1 {
                    let gone = next.items.remove(item % count).effective_name();
                    next.overrides.retain(|other| other.item != gone);
                }
            }
            LimitEdit::Zone(name) => next.time_zone = zone(name),
            LimitEdit::WeekStart(day) => next.week_start = *day,
            LimitEdit::Mode(mode) => next.mode = *mode,
            LimitEdit::MaxKeys(most) => next.max_keys = *most,
            LimitEdit::Except(key, item, limit, until) => {
                let item = next.items[item % count].effective_name();
                next.overrides.retain(|other| other.key != KEYS[*key] || other.item != item);
                let until = until.map(|ms| Duration::from_secs(begins) + Duration::from_millis(ms));
                next.overrides.push(OverrideSpec { key: KEYS[*key].to_vec(), item, limit: *limit, until });
            }
            LimitEdit::NoExceptions => next.overrides.clear(),
            LimitEdit::Ends(at) => {
                next.ends_at = at.map(|ms| Duration::from_secs(begins) + Duration::from_millis(ms));
            }
        }
        next
    }
}

fn zone(name: &str) -> Zone {
    Zone::named(name).expect("listed zones exist")
}

// Strategies.

/// Resolutions of time.
pub fn ticks() -> impl Strategy<Value = Tick> {
    select(vec![Tick::NANOSECOND, Tick::MICROSECOND, Tick::MILLISECOND])
}

/// A small capacity, zero, or unlimited.
pub fn capacities() -> impl Strategy<Value = Capacity> {
    prop_oneof![
        1 => Just(Capacity::Unlimited),
        1 => Just(Capacity::AtMost(0)),
        8 => (1u64..=6).prop_map(Capacity::AtMost),
    ]
}

/// A window: a few ticks, not divisible by 64, or long.
pub fn windows() -> impl Strategy<Value = Duration> {
    select(vec![1u64, 2, 3, 10, 60, 63, 64, 65, 100, 130, 420, 1000, 60_000]).prop_map(Duration::from_millis)
}

/// Any policy.
pub fn policies() -> impl Strategy<Value = Policy> {
    let precision = select(vec![Precision::Exact, Precision::Bucketed]);
    prop_oneof![
        1 => Just(Policy::Total),
        3 => select(Unit::ALL.to_vec()).prop_map(Policy::Calendar),
        2 => windows().prop_map(|window| Policy::Interval { window }),
        4 => (windows(), precision).prop_map(|(window, precision)| Policy::Sliding { window, precision }),
        4 => (windows(), option::of(1u64..=8)).prop_map(|(window, burst)| Policy::Bucket { window, burst }),
        2 => windows().prop_map(|ttl| Policy::Concurrency { ttl }),
    ]
}

/// An item named after its policy, so that it keeps its identity when its window changes.
pub fn items() -> impl Strategy<Value = ItemSpec> {
    let per = select(vec![Per::All, Per::Key]);
    let charge = prop_oneof![4 => Just(None), 1 => Just(Some(Charge::Ask)), 1 => Just(Some(Charge::Count))];
    (policies(), per, capacities(), charge).prop_map(|(policy, per, limit, charge)| ItemSpec {
        name: Some(format!("{}/{}", per.word(), policy.word())),
        policy,
        per,
        limit,
        charge,
    })
}

fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![8 => Just(Mode::Enforce), 1 => Just(Mode::Shadow), 1 => Just(Mode::Off)]
}

fn until() -> impl Strategy<Value = Option<u64>> {
    option::weighted(0.8, prop_oneof![0u64..200, 0u64..5_000, Just(60_000)])
}

/// A valid limit: drawn parts that would make it invalid are left out.
pub fn limits(id: &'static str, tick: Tick, begins: u64) -> impl Strategy<Value = LimitSpec> {
    let exceptions = vec((0..FEW, 0usize..3, capacities(), until()), 0..=2);
    let season = (option::weighted(0.15, 0u64..300), option::weighted(0.2, 300u64..3_000));
    (
        vec(items(), 1..=3),
        select(ZONES.to_vec()),
        select(WeekStart::ALL.to_vec()),
        modes(),
        exceptions,
        season,
    )
        .prop_map(move |(items, zone_name, week_start, mode, exceptions, (starts, ends))| {
            let moment = |ms: u64| Duration::from_secs(begins) + Duration::from_millis(ms);
            let mut spec = LimitSpec {
                time_zone: zone(zone_name),
                week_start,
                mode,
                starts_at: starts.map(moment),
                ends_at: ends.map(moment),
                ..LimitSpec::named(id)
            };
            for item in items {
                let longer = LimitEdit::Add(item).apply(&spec.clone(), begins);
                if Limit::new(longer.clone(), tick).is_ok() {
                    spec = longer;
                }
            }
            if spec.items.is_empty() {
                spec.items.push(ItemSpec::of(Policy::Total, 3));
            }
            for (key, item, limit, until) in exceptions {
                let next = LimitEdit::Except(key, item, limit, until).apply(&spec, begins);
                if Limit::new(next.clone(), tick).is_ok() {
                    spec = next;
                }
            }
            spec
        })
}

fn limit_edit() -> impl Strategy<Value = LimitEdit> {
    prop_oneof![
        4 => (0usize..3, capacities()).prop_map(|(item, limit)| LimitEdit::Limit(item, limit)),
        2 => (0usize..3, option::of(1u64..=8)).prop_map(|(item, burst)| LimitEdit::Burst(item, burst)),
        3 => (0usize..3, windows()).prop_map(|(item, window)| LimitEdit::Window(item, window)),
        1 => (0usize..3, select(vec![Precision::Exact, Precision::Bucketed]))
            .prop_map(|(item, precision)| LimitEdit::Precision(item, precision)),
        1 => (0usize..3, option::of(select(vec![Charge::Ask, Charge::Count])))
            .prop_map(|(item, charge)| LimitEdit::Charge(item, charge)),
        2 => items().prop_map(LimitEdit::Add),
        1 => (0usize..3).prop_map(LimitEdit::Remove),
        1 => select(ZONES.to_vec()).prop_map(LimitEdit::Zone),
        1 => select(WeekStart::ALL.to_vec()).prop_map(LimitEdit::WeekStart),
        1 => modes().prop_map(LimitEdit::Mode),
        3 => (0..FEW, 0usize..3, capacities(), until())
            .prop_map(|(key, item, limit, until)| LimitEdit::Except(key, item, limit, until)),
        1 => Just(LimitEdit::NoExceptions),
        1 => option::of(0u64..5_000).prop_map(LimitEdit::Ends),
    ]
}

/// Steps of time, mostly to where something changes.
pub fn steps() -> impl Strategy<Value = TimeStep> {
    prop_oneof![
        2 => Just(TimeStep::Ticks(0)),
        2 => Just(TimeStep::Ticks(1)),
        2 => (2u64..2_000_000).prop_map(TimeStep::Ticks),
        4 => (1u64..150).prop_map(TimeStep::Millis),
        1 => (150u64..200_000).prop_map(TimeStep::Millis),
        1 => (1u64..40_000_000_000).prop_map(TimeStep::Millis),
        1 => (1u64..3_000_000).prop_map(TimeStep::Back),
        4 => (-1i64..=1).prop_map(TimeStep::ToWait),
        3 => (0usize..4, -1i64..=1).prop_map(|(reading, past)| TimeStep::ToReset(reading, past)),
    ]
}

fn orders(limits: usize, keys: usize) -> impl Strategy<Value = HistoryEvent> {
    let count = prop_oneof![1 => Just(0u64), 6 => Just(1), 4 => 2u64..=4, 1 => 5u64..=9];
    let ask = (0..limits, 0..keys, count);
    let intent = prop_oneof![4 => Just(Intent::Acquire), 1 => Just(Intent::Peek)];
    (intent, prop_oneof![3 => vec(ask.clone(), 1), 2 => vec(ask, 2..=4)], any::<bool>())
        .prop_map(|(intent, asks, hold)| HistoryEvent::Order { intent, asks, hold })
}

/// Events for this many limits. Without `edits` the definitions stay as they are.
pub fn history_events(limits: usize, edits: bool) -> impl Strategy<Value = Vec<HistoryEvent>> {
    history_events_among(FEW, limits, edits)
}

fn history_events_among(keys: usize, limits: usize, edits: bool) -> impl Strategy<Value = Vec<HistoryEvent>> {
    let edit_weight = u32::from(edits) * 2;
    let one = prop_oneof![
        8 => steps().prop_map(HistoryEvent::Time),
        12 => orders(limits, keys),
        4 => (0usize..3, 0u64..=9).prop_map(|(lease, actual)| HistoryEvent::Settle(lease, actual)),
        2 => (0usize..3).prop_map(HistoryEvent::Release),
        1 => (0usize..3, 1u64..200).prop_map(|(lease, ms)| HistoryEvent::Renew(lease, ms)),
        1 => (0..limits, option::of(0..keys)).prop_map(|(limit, key)| HistoryEvent::Reset(limit, key)),
        1 => Just(HistoryEvent::Forget),
        edit_weight => (0..limits, limit_edit()).prop_map(|(limit, limit_edit)| HistoryEvent::Edit(limit, limit_edit)),
    ];
    vec(one, 1..60)
}

/// Histories of two limits.
pub fn histories(edits: bool) -> impl Strategy<Value = History> {
    (ticks(), select(START_SECONDS.to_vec())).prop_flat_map(move |(tick, begins)| {
        let both = (limits("a", tick, begins), limits("b", tick, begins), history_events(2, edits));
        both.prop_map(move |(a, b, events)| History { tick, begins, limits: vec![a, b], events })
    })
}

/// Histories of two limits that have no room for all keys.
pub fn over_capacity_histories() -> impl Strategy<Value = History> {
    let bound = || option::weighted(0.9, prop_oneof![3 => Just(1u64), 1 => Just(2), 1 => Just(3)]);
    (ticks(), select(START_SECONDS.to_vec()), bound(), bound()).prop_flat_map(
        move |(tick, begins, most_a, most_b)| {
            let rebounds = vec((any::<proptest::sample::Index>(), 0usize..2, bound()), 0..3);
            let stories =
                (history_events_among(KEYS.len(), 2, true), rebounds).prop_map(|(mut events, rebounds)| {
                    for (place, limit, most) in rebounds {
                        let edit = HistoryEvent::Edit(limit, LimitEdit::MaxKeys(most));
                        events.insert(place.index(events.len() + 1), edit);
                    }
                    events
                });
            (limits("a", tick, begins), limits("b", tick, begins), stories).prop_map(move |(a, b, events)| {
                let bounded = |spec, max_keys| LimitSpec { max_keys, ..spec };
                let limits = vec![bounded(a, most_a), bounded(b, most_b)];
                History { tick, begins, limits, events }
            })
        },
    )
}

/// Histories of one item and one key with many edits and small time steps, so that remembered state meets every rule
/// that may judge it.
pub fn single_item_histories() -> impl Strategy<Value = History> {
    let step = prop_oneof![
        2 => Just(TimeStep::Ticks(1)),
        6 => (1u64..80).prop_map(TimeStep::Millis),
        2 => (-1i64..=1).prop_map(TimeStep::ToWait),
        2 => (Just(0usize), -1i64..=1).prop_map(|(reading, past)| TimeStep::ToReset(reading, past)),
    ];
    let count = prop_oneof![1 => Just(0u64), 6 => Just(1), 3 => 2u64..=4];
    let order = (count, any::<bool>()).prop_map(|(count, hold)| HistoryEvent::Order {
        intent: Intent::Acquire,
        asks: vec![(0, 0, count)],
        hold,
    });
    let limit_edit = prop_oneof![
        4 => windows().prop_map(|window| LimitEdit::Window(0, window)),
        3 => capacities().prop_map(|limit| LimitEdit::Limit(0, limit)),
        1 => option::of(1u64..=8).prop_map(|burst| LimitEdit::Burst(0, burst)),
        2 => select(vec![Precision::Exact, Precision::Bucketed])
            .prop_map(|precision| LimitEdit::Precision(0, precision)),
        2 => (capacities(), option::of(0u64..600)).prop_map(|(limit, until)| LimitEdit::Except(0, 0, limit, until)),
        1 => Just(LimitEdit::NoExceptions),
        1 => select(ZONES.to_vec()).prop_map(LimitEdit::Zone),
        1 => option::of(0u64..600).prop_map(LimitEdit::Ends),
    ];
    let one = prop_oneof![
        6 => step.prop_map(HistoryEvent::Time),
        8 => order,
        3 => (0usize..3, 0u64..=6).prop_map(|(lease, actual)| HistoryEvent::Settle(lease, actual)),
        1 => Just(HistoryEvent::Reset(0, None)),
        3 => limit_edit.prop_map(|limit_edit| HistoryEvent::Edit(0, limit_edit)),
    ];
    (ticks(), select(START_SECONDS.to_vec()), items(), vec(one, 4..50)).prop_filter_map(
        "it can be meant",
        |(tick, begins, item, events)| {
            let spec = LimitSpec::named("a").with(ItemSpec {
                per: Per::Key,
                limit: if item.limit == Capacity::AtMost(0) { Capacity::AtMost(3) } else { item.limit },
                ..item
            });
            Limit::new(spec.clone(), tick).is_ok().then(|| History {
                tick,
                begins,
                limits: vec![spec],
                events,
            })
        },
    )
}
