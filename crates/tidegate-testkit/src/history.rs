//! Invented histories: what may happen to a few limits, and a judge that plays it against the model.
//!
//! Numbers are small, so that limits bind; windows are short beside long ones, so that boundaries meet; and time
//! moves mostly *to* an instant that matters, one tick before it, or one tick past it.

use std::fmt::Write as _;
use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use tidegate_core::{
    Amount, Capacity, Charge, Intent, ItemSpec, LeaseId, Limit, LimitSpec, Mode, OverrideSpec, Per, Policy,
    Precision, Tenure, Tick, Timestamp, Unit, Wait, WeekStart, Zone,
};

use crate::model::{Model, OwnedAsk, Reading, Refusal, View};

/// The keys that ask.
pub const KEYS: [&[u8]; 2] = [b"ada", b"bob"];

/// Zones whose clocks do something interesting.
pub const ZONES: [&str; 6] =
    ["UTC", "Asia/Shanghai", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/St_Johns"];

/// Seconds at which a history may begin: shortly before something happens to a calendar.
pub const BEGINNINGS: [u64; 6] = [
    5,
    1_735_660_798, // 2024-12-31T15:59:58Z, two seconds before the new year in Shanghai
    1_741_503_598, // 2025-03-09T06:59:58Z, two seconds before New York springs forward
    1_762_063_198, // 2025-11-02T05:59:58Z, two seconds before it falls back
    1_709_164_798, // 2024-02-28T23:59:58Z, before a leap day
    1_257_042_658, // 2009-11-01T02:30:58Z, before St. John's falls back across midnight
];

/// A whole story: the limits it begins with, and what happens.
#[derive(Debug, Clone)]
pub struct History {
    /// How finely time is kept.
    pub tick: Tick,
    /// When it begins, in seconds since the epoch.
    pub begins: u64,
    /// The limits.
    pub limits: Vec<LimitSpec>,
    /// What happens.
    pub events: Vec<Happening>,
}

/// One thing that happens.
#[derive(Debug, Clone)]
pub enum Happening {
    /// Time passes, or is set back.
    Time(Step),
    /// Somebody asks: (limit, key, count) each, by index.
    Order {
        /// Take or look.
        intent: Intent,
        /// For how much of what.
        asks: Vec<(usize, usize, Amount)>,
        /// Whether the charge is an estimate.
        hold: bool,
    },
    /// A lease is settled, released or renewed; by index among those ever granted.
    Settle(usize, Amount),
    /// A lease is given back.
    Release(usize),
    /// A lease is extended by so many milliseconds from now.
    Renew(usize, u64),
    /// An operator resets a limit, for one key or all.
    Reset(usize, Option<usize>),
    /// A limit's text is changed.
    Edit(usize, Tweak),
    /// The store tidies up.
    Forget,
}

/// How time moves.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// By so many ticks.
    Ticks(u64),
    /// By so many milliseconds.
    Millis(u64),
    /// Back by so many ticks.
    Back(u64),
    /// To the last instant promised by a refusal, and this many ticks past it.
    ToWait(i64),
    /// To the instant of a reading's reset, and this many ticks past it.
    ToReset(usize, i64),
}

/// A change of a limit's text.
#[derive(Debug, Clone)]
pub enum Tweak {
    /// An item gets another number.
    Limit(usize, Capacity),
    /// A bucket gets another burst.
    Burst(usize, Option<Amount>),
    /// An item gets another window.
    Window(usize, Duration),
    /// A sliding item is measured otherwise.
    Precision(usize, Precision),
    /// An item charges otherwise.
    Charge(usize, Option<Charge>),
    /// An item is written, unless its name is taken.
    Add(ItemSpec),
    /// An item is struck out, unless it is the last.
    Remove(usize),
    /// The limit moves.
    Zone(&'static str),
    /// Its weeks begin on another day.
    WeekStart(WeekStart),
    /// Its refusals become real, or not.
    Mode(Mode),
    /// A key gets an exception: (key, item, limit, milliseconds from the beginning).
    Except(usize, usize, Capacity, Option<u64>),
    /// All exceptions go.
    NoExceptions,
    /// The limit ends so many milliseconds after the beginning, or never.
    Ends(Option<u64>),
}

impl Tweak {
    /// The text after the change.
    pub fn apply(&self, spec: &LimitSpec, begins: u64) -> LimitSpec {
        let mut next = spec.clone();
        let count = next.items.len();
        match self {
            Tweak::Limit(item, limit) => next.items[item % count].limit = *limit,
            Tweak::Burst(item, new) => {
                if let Policy::Bucket { burst, .. } = &mut next.items[item % count].policy {
                    *burst = *new;
                }
            }
            Tweak::Window(item, new) => match &mut next.items[item % count].policy {
                Policy::Interval { window }
                | Policy::Sliding { window, .. }
                | Policy::Bucket { window, .. } => {
                    *window = *new;
                }
                _ => {}
            },
            Tweak::Precision(item, new) => {
                if let Policy::Sliding { precision, .. } = &mut next.items[item % count].policy {
                    *precision = *new;
                }
            }
            Tweak::Charge(item, charge) => next.items[item % count].charge = *charge,
            Tweak::Add(item) => {
                if next.items.iter().all(|other| other.effective_name() != item.effective_name()) {
                    next.items.push(item.clone());
                }
            }
            Tweak::Remove(item) => {
                if count > 1 {
                    let gone = next.items.remove(item % count).effective_name();
                    next.overrides.retain(|other| other.item != gone);
                }
            }
            Tweak::Zone(name) => next.time_zone = zone(name),
            Tweak::WeekStart(day) => next.week_start = *day,
            Tweak::Mode(mode) => next.mode = *mode,
            Tweak::Except(key, item, limit, until) => {
                let item = next.items[item % count].effective_name();
                next.overrides.retain(|other| other.key != KEYS[*key] || other.item != item);
                let until = until.map(|ms| Duration::from_secs(begins) + Duration::from_millis(ms));
                next.overrides.push(OverrideSpec { key: KEYS[*key].to_vec(), item, limit: *limit, until });
            }
            Tweak::NoExceptions => next.overrides.clear(),
            Tweak::Ends(at) => {
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

/// The ticks a store may have.
pub fn ticks() -> impl Strategy<Value = Tick> {
    select(vec![Tick::NANOSECOND, Tick::MICROSECOND, Tick::MILLISECOND])
}

/// A small limit, zero and unlimited included.
pub fn capacities() -> impl Strategy<Value = Capacity> {
    prop_oneof![
        1 => Just(Capacity::Unlimited),
        1 => Just(Capacity::AtMost(0)),
        8 => (1u64..=6).prop_map(Capacity::AtMost),
    ]
}

/// A window: some few ticks, some that 64 does not divide, some long.
pub fn windows() -> impl Strategy<Value = Duration> {
    select(vec![1u64, 2, 3, 10, 60, 63, 64, 65, 100, 130, 420, 1000, 60_000]).prop_map(Duration::from_millis)
}

/// Every policy.
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

/// An item named for its policy, so that an edit of its window keeps its identity.
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

/// A limit that can be meant: whatever is wrong with a draw is left out.
pub fn limits(id: &'static str, tick: Tick, begins: u64) -> impl Strategy<Value = LimitSpec> {
    let exceptions = vec((0..KEYS.len(), 0usize..3, capacities(), until()), 0..=2);
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
                let longer = Tweak::Add(item).apply(&spec.clone(), begins);
                if Limit::new(longer.clone(), tick).is_ok() {
                    spec = longer;
                }
            }
            if spec.items.is_empty() {
                spec.items.push(ItemSpec::of(Policy::Total, 3));
            }
            for (key, item, limit, until) in exceptions {
                let next = Tweak::Except(key, item, limit, until).apply(&spec, begins);
                if Limit::new(next.clone(), tick).is_ok() {
                    spec = next;
                }
            }
            spec
        })
}

fn tweaks() -> impl Strategy<Value = Tweak> {
    prop_oneof![
        4 => (0usize..3, capacities()).prop_map(|(item, limit)| Tweak::Limit(item, limit)),
        2 => (0usize..3, option::of(1u64..=8)).prop_map(|(item, burst)| Tweak::Burst(item, burst)),
        3 => (0usize..3, windows()).prop_map(|(item, window)| Tweak::Window(item, window)),
        1 => (0usize..3, select(vec![Precision::Exact, Precision::Bucketed]))
            .prop_map(|(item, precision)| Tweak::Precision(item, precision)),
        1 => (0usize..3, option::of(select(vec![Charge::Ask, Charge::Count])))
            .prop_map(|(item, charge)| Tweak::Charge(item, charge)),
        2 => items().prop_map(Tweak::Add),
        1 => (0usize..3).prop_map(Tweak::Remove),
        1 => select(ZONES.to_vec()).prop_map(Tweak::Zone),
        1 => select(WeekStart::ALL.to_vec()).prop_map(Tweak::WeekStart),
        1 => modes().prop_map(Tweak::Mode),
        3 => (0..KEYS.len(), 0usize..3, capacities(), until())
            .prop_map(|(key, item, limit, until)| Tweak::Except(key, item, limit, until)),
        1 => Just(Tweak::NoExceptions),
        1 => option::of(0u64..5_000).prop_map(Tweak::Ends),
    ]
}

/// How time moves: mostly to where something happens.
pub fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Ticks(0)),
        2 => Just(Step::Ticks(1)),
        2 => (2u64..2_000_000).prop_map(Step::Ticks),
        4 => (1u64..150).prop_map(Step::Millis),
        1 => (150u64..200_000).prop_map(Step::Millis),
        1 => (1u64..40_000_000_000).prop_map(Step::Millis),
        1 => (1u64..3_000_000).prop_map(Step::Back),
        4 => (-1i64..=1).prop_map(Step::ToWait),
        3 => (0usize..4, -1i64..=1).prop_map(|(reading, past)| Step::ToReset(reading, past)),
    ]
}

fn orders(limits: usize) -> impl Strategy<Value = Happening> {
    let count = prop_oneof![1 => Just(0u64), 6 => Just(1), 4 => 2u64..=4, 1 => 5u64..=9];
    let ask = (0..limits, 0..KEYS.len(), count);
    let intent = prop_oneof![4 => Just(Intent::Acquire), 1 => Just(Intent::Peek)];
    (intent, prop_oneof![3 => vec(ask.clone(), 1), 2 => vec(ask, 2..=4)], any::<bool>())
        .prop_map(|(intent, asks, hold)| Happening::Order { intent, asks, hold })
}

/// What may happen to so many limits. Without `edits`, nobody touches their text.
pub fn happenings(limits: usize, edits: bool) -> impl Strategy<Value = Vec<Happening>> {
    let edit_weight = u32::from(edits) * 2;
    let one = prop_oneof![
        8 => steps().prop_map(Happening::Time),
        12 => orders(limits),
        4 => (0usize..3, 0u64..=9).prop_map(|(lease, actual)| Happening::Settle(lease, actual)),
        2 => (0usize..3).prop_map(Happening::Release),
        1 => (0usize..3, 1u64..200).prop_map(|(lease, ms)| Happening::Renew(lease, ms)),
        1 => (0..limits, option::of(0..KEYS.len())).prop_map(|(limit, key)| Happening::Reset(limit, key)),
        1 => Just(Happening::Forget),
        edit_weight => (0..limits, tweaks()).prop_map(|(limit, tweak)| Happening::Edit(limit, tweak)),
    ];
    vec(one, 1..60)
}

/// Whole stories over two limits.
pub fn histories(edits: bool) -> impl Strategy<Value = History> {
    (ticks(), select(BEGINNINGS.to_vec())).prop_flat_map(move |(tick, begins)| {
        let both = (limits("a", tick, begins), limits("b", tick, begins), happenings(2, edits));
        both.prop_map(move |(a, b, events)| History { tick, begins, limits: vec![a, b], events })
    })
}

/// Stories of one item and one key, edited often, in which little time passes: what is remembered meets every law that
/// ever judges it.
pub fn close_ups() -> impl Strategy<Value = History> {
    let step = prop_oneof![
        2 => Just(Step::Ticks(1)),
        6 => (1u64..80).prop_map(Step::Millis),
        2 => (-1i64..=1).prop_map(Step::ToWait),
        2 => (Just(0usize), -1i64..=1).prop_map(|(reading, past)| Step::ToReset(reading, past)),
    ];
    let count = prop_oneof![1 => Just(0u64), 6 => Just(1), 3 => 2u64..=4];
    let order = (count, any::<bool>()).prop_map(|(count, hold)| Happening::Order {
        intent: Intent::Acquire,
        asks: vec![(0, 0, count)],
        hold,
    });
    let tweak = prop_oneof![
        4 => windows().prop_map(|window| Tweak::Window(0, window)),
        3 => capacities().prop_map(|limit| Tweak::Limit(0, limit)),
        1 => option::of(1u64..=8).prop_map(|burst| Tweak::Burst(0, burst)),
        2 => select(vec![Precision::Exact, Precision::Bucketed])
            .prop_map(|precision| Tweak::Precision(0, precision)),
        2 => (capacities(), option::of(0u64..600)).prop_map(|(limit, until)| Tweak::Except(0, 0, limit, until)),
        1 => Just(Tweak::NoExceptions),
        1 => select(ZONES.to_vec()).prop_map(Tweak::Zone),
        1 => option::of(0u64..600).prop_map(Tweak::Ends),
    ];
    let one = prop_oneof![
        6 => step.prop_map(Happening::Time),
        8 => order,
        3 => (0usize..3, 0u64..=6).prop_map(|(lease, actual)| Happening::Settle(lease, actual)),
        1 => Just(Happening::Reset(0, None)),
        3 => tweak.prop_map(|tweak| Happening::Edit(0, tweak)),
    ];
    (ticks(), select(BEGINNINGS.to_vec()), items(), vec(one, 4..50)).prop_filter_map(
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

// Playing.

/// What a subject answers to an order.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Why it was refused, or `None` if it was granted.
    pub refusal: Option<Refusal>,
    /// The readings after the decision, in order.
    pub readings: Vec<Reading>,
    /// The lease the grant came with.
    pub lease: Option<Tenure>,
}

/// Something that keeps limits: the core with a map around it, or a store.
pub trait Subject {
    /// Adds or replaces a limit; whether its text was accepted.
    fn put(&mut self, spec: &LimitSpec, now: Timestamp) -> bool;
    /// Decides an order.
    fn order(&mut self, intent: Intent, asks: &[OwnedAsk], hold: bool, now: Timestamp) -> Answer;
    /// Settles a hold; whether it was live.
    fn settle(&mut self, lease: LeaseId, actual: Amount, now: Timestamp) -> bool;
    /// Releases a lease; whether it was live.
    fn release(&mut self, lease: LeaseId, now: Timestamp) -> bool;
    /// Moves the end of a lease; whether it was live.
    fn renew(&mut self, lease: LeaseId, expires_at: Timestamp, now: Timestamp) -> bool;
    /// Zeroes what is counted.
    fn reset(&mut self, limit_id: &str, key: Option<&[u8]>, now: Timestamp);
    /// Tidies up whatever it may forget.
    fn forget(&mut self, now: Timestamp);
}

/// Plays a story to a subject and to the model, and tells the first difference.
pub fn play(history: &History, subject: &mut dyn Subject) -> Result<Tally, String> {
    let mut game = Game {
        model: Model::new(history.tick),
        now: Timestamp::from_ticks(history.begins * history.tick.per_second()),
        begins: history.begins,
        ids: history.limits.iter().map(|spec| spec.id.clone()).collect(),
        leases: Vec::new(),
        of_several: Vec::new(),
        wait: None,
        resets: Vec::new(),
        tally: Tally::default(),
        over: false,
        told: String::new(),
    };
    for spec in &history.limits {
        game.put(subject, spec.clone());
    }
    for event in &history.events {
        if game.over {
            break;
        }
        game.happen(subject, event).map_err(|what| format!("{what}\nafter\n{}", game.told))?;
    }
    game.tally.ended = game.model.clamp(game.now);
    Ok(game.tally)
}

/// What a story contained, to see that stories are not empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Orders granted.
    pub granted: usize,
    /// Orders refused.
    pub refused: usize,
    /// Edits accepted.
    pub edits: usize,
    /// Holds settled.
    pub settled: usize,
    /// When it ended, as the subject's clock says.
    pub ended: Timestamp,
}

struct Game {
    model: Model,
    now: Timestamp,
    begins: u64,
    ids: Vec<String>,
    leases: Vec<Tenure>,
    /// Leases of several asks, which have no one true cost to be settled to.
    of_several: Vec<LeaseId>,
    wait: Option<Timestamp>,
    resets: Vec<Timestamp>,
    tally: Tally,
    /// Whether the rest of the story cannot be judged.
    over: bool,
    told: String,
}

impl Game {
    fn put(&mut self, subject: &mut dyn Subject, spec: LimitSpec) {
        let now = self.model.clamp(self.now);
        if subject.put(&spec, now) {
            self.model.put(spec, now);
            self.tally.edits += 1;
        }
    }

    fn happen(&mut self, subject: &mut dyn Subject, event: &Happening) -> Result<(), String> {
        let _infallible = writeln!(self.told, "  at {}: {event:?}", self.now.ticks());
        // Whatever the clock says, a store's time does not go back.
        let now = self.model.clamp(self.now);
        match event {
            Happening::Time(step) => {
                self.advance(*step);
                Ok(())
            }
            Happening::Order { intent, asks, hold } => self.order(subject, *intent, asks, *hold),
            Happening::Settle(lease, actual) => {
                let Some(tenure) = self.lease(*lease) else { return Ok(()) };
                if self.of_several.contains(&tenure.lease) {
                    return Ok(());
                }
                let ours = self.model.settle(tenure.lease, *actual, now);
                self.tally.settled += usize::from(ours);
                agree("settled", subject.settle(tenure.lease, *actual, now), ours)
            }
            Happening::Release(lease) => {
                let Some(tenure) = self.lease(*lease) else { return Ok(()) };
                let ours = self.model.release(tenure.lease, now);
                agree("released", subject.release(tenure.lease, now), ours)
            }
            Happening::Renew(lease, ms) => {
                let Some(tenure) = self.lease(*lease) else { return Ok(()) };
                let until = now.plus(self.model.tick().span(Duration::from_millis(*ms)));
                let ours = self.model.renew(tenure.lease, until, now);
                agree("renewed", subject.renew(tenure.lease, until, now), ours)
            }
            Happening::Reset(limit, key) => {
                let key = key.map(|key| KEYS[key]);
                self.model.reset(&self.ids[*limit], key, now);
                subject.reset(&self.ids[*limit], key, now);
                Ok(())
            }
            Happening::Edit(limit, tweak) => {
                let spec = self.model.spec(&self.ids[*limit]).expect("every limit was put");
                let next = tweak.apply(spec, self.begins);
                self.put(subject, next);
                Ok(())
            }
            Happening::Forget => {
                subject.forget(now);
                Ok(())
            }
        }
    }

    fn lease(&self, index: usize) -> Option<Tenure> {
        // The latest leases are the likeliest to be live.
        self.leases.len().checked_sub(1 + index).map(|at| self.leases[at])
    }

    fn advance(&mut self, step: Step) {
        let tick = self.model.tick();
        let moved = |at: Timestamp, by: i64| Timestamp::from_ticks(at.ticks().saturating_add_signed(by));
        let to = match step {
            Step::Ticks(ticks) => Timestamp::from_ticks(self.now.ticks() + ticks),
            Step::Millis(ms) => self.now.plus(tick.span(Duration::from_millis(ms))),
            Step::Back(ticks) => Timestamp::from_ticks(self.now.ticks().saturating_sub(ticks)),
            Step::ToWait(past) => self.wait.map_or(self.now, |at| moved(at, past)),
            Step::ToReset(index, past) => self.resets.get(index).map_or(self.now, |&at| moved(at, past)),
        };
        // A story ends long before time does.
        self.now = to.min(Timestamp::from_ticks(4_000_000_000 * tick.per_second()));
    }

    fn order(
        &mut self,
        subject: &mut dyn Subject,
        intent: Intent,
        asks: &[(usize, usize, Amount)],
        hold: bool,
    ) -> Result<(), String> {
        let asks: Vec<OwnedAsk> = asks
            .iter()
            .map(|&(limit, key, count)| OwnedAsk {
                limit_id: self.ids[limit].clone(),
                key: Some(KEYS[key].to_vec()),
                count,
            })
            .collect();
        let now = self.model.clamp(self.now);
        // Only one ask has one true cost.
        let hold = hold && asks.len() == 1;
        let theirs = subject.order(intent, &asks, hold, now);
        let truth = self.model.refusal(&asks, now, View::Truth);
        let spent = self.model.refusal(&asks, now, View::Spent);
        between(truth.as_ref(), theirs.refusal.as_ref(), spent.as_ref())?;
        for view in [View::Truth, View::Spent] {
            self.promise_holds(&asks, now, view)?;
        }
        if self.model.is_open_to_doubt(&asks, now) {
            self.over = true;
            return Ok(());
        }
        if theirs.refusal.is_none() && intent == Intent::Acquire {
            self.model.charge(&asks, theirs.lease, now);
            self.leases.extend(theirs.lease);
            self.of_several.extend(theirs.lease.filter(|_| asks.len() > 1).map(|tenure| tenure.lease));
        }
        let truth = self.model.readings(&asks, now, View::Truth);
        let spent = self.model.readings(&asks, now, View::Spent);
        readings_between(&truth, &theirs.readings, &spent)?;
        self.resets = theirs.readings.iter().filter_map(|reading| reading.resets_at).collect();
        match &theirs.refusal {
            Some(Refusal { wait: Wait::Until(until), .. }) => self.wait = Some(*until),
            _ => self.wait = None,
        }
        self.tally.granted += usize::from(theirs.refusal.is_none());
        self.tally.refused += usize::from(theirs.refusal.is_some());
        Ok(())
    }

    /// The model's own wait is the first instant at which everything fits, tried one by one.
    fn promise_holds(&self, asks: &[OwnedAsk], now: Timestamp, view: View) -> Result<(), String> {
        if let Some(Refusal { wait: Wait::Until(until), .. }) = self.model.refusal(asks, now, view) {
            let first = self.model.first_fit(asks, now, view);
            if first != Some(until) {
                return Err(format!("the model promises {until:?}, but the first fit is {first:?}"));
            }
        }
        Ok(())
    }
}

fn agree(what: &str, theirs: bool, ours: bool) -> Result<(), String> {
    if theirs == ours { Ok(()) } else { Err(format!("{what}: {theirs}, by definition {ours}")) }
}

/// Whether an answer is the definition's, or, where a bucket was refunded, no kinder than the truth and no harsher than
/// if nothing had been given back.
fn between(truth: Option<&Refusal>, theirs: Option<&Refusal>, spent: Option<&Refusal>) -> Result<(), String> {
    let wait = |refusal: Option<&Refusal>| refusal.map(|refusal| refusal.wait);
    let right = if truth == spent {
        theirs == truth
    } else {
        wait(truth) <= wait(theirs) && wait(theirs) <= wait(spent)
    };
    if right {
        Ok(())
    } else {
        Err(format!("answered {theirs:?}\nby definition {truth:?}\nwithout refunds {spent:?}"))
    }
}

fn readings_between(truth: &[Reading], theirs: &[Reading], spent: &[Reading]) -> Result<(), String> {
    let right = truth.len() == theirs.len()
        && truth.iter().zip(theirs).zip(spent).all(|((truth, theirs), spent)| {
            if truth == spent {
                return theirs == truth;
            }
            let same = (&truth.limit_id, &truth.item, truth.capacity)
                == (&theirs.limit_id, &theirs.item, theirs.capacity);
            same && truth.used <= theirs.used
                && theirs.used <= spent.used
                && truth.resets_at <= theirs.resets_at
                && theirs.resets_at <= spent.resets_at
        });
    if right {
        Ok(())
    } else {
        Err(format!("reads {theirs:?}\nby definition {truth:?}\nwithout refunds {spent:?}"))
    }
}
