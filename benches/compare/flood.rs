//! A flood: more keys than a store has room for, once with rows that need not be kept and once with rows that must be.
//!
//! | rule | what must be |
//! |---|---|
//! | `bucket`, fresh in a tenth of a second | everybody is granted, and whoever asks too often is refused in time: nothing is by rule |
//! | `day` | once there is no room new keys are refused by rule; keys that were there before are counted as ever |
//!
//! How long the slowest decision takes is looked at once more by itself ([`crate::pace`]).
//!
//! Beside it somebody asks another limit of the same store, with keys that were there before and with new ones, and must not
//! notice. Handles do not tell what was answered by rule; one question in a thousand goes by the store's door, which does.

use serde_json::{Value, json};
use tidegate::clock::{Clock, SystemClock};
use tidegate_bench::subjects::tidegate::Tidegate;
use tidegate_bench::{Asker, Reach, Rule, Said, keys, machine};

use crate::args::{Args, Effort};
use crate::bars::{Bar, Measure, Need};
use crate::report::Report;
use crate::{Failure, in_a_child};

/// What this scenario's child is called.
pub(crate) const CHILD: &str = "flood";

/// What is flooded.
pub(crate) const RULES: [&str; 2] = ["bucket", "day"];

pub(crate) const ROOM: usize = 64 << 20;
/// What a process may grow by beside the store's rows: code, stacks, the allocator's own.
const BESIDE_ROWS: usize = 4 << 20;
/// The most of it that there is without a single row, and what a thread keeps for moving rows, in mebibytes.
const UNTOLD: f64 = 1.0;
/// Once in so many decisions everything else is looked at.
const SELDOM: u64 = 1_000;
/// How many keys the other limit has before the flood.
const NEIGHBOURS: u64 = 100;
/// How many keys of the flood are asked for again and again.
const EARLY: u64 = 1_000;
/// What each key may in a day.
const A_DAY: u32 = 20;
const NANOSECONDS_A_DAY: u64 = 86_400_000_000_000;

const FLOODED: usize = 0;
const OTHER: usize = 1;

const COLUMNS: [(&str, &str); 14] = [
    ("rule", "rule"),
    ("keys", "keys"),
    ("granted", "granted"),
    ("refused", "refused"),
    ("sampled", "asked by the door"),
    ("degraded", "of these by rule"),
    ("rows", "rows at the end"),
    ("slowest_ns", "slowest, ns"),
    ("slowest_own_ns", "slowest, own time, ns"),
    ("ns_per_decision", "ns/decision"),
    ("grown_bytes", "grown, bytes"),
    ("said_bytes", "store says, bytes"),
    ("wrong", "wrong"),
    ("neighbours_refused", "neighbours refused"),
];

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    // Fewer would not fill the store.
    let keys = if args.effort == Effort::Quick { args.flood_keys / 16 } else { args.flood_keys };
    report.head(&format!("{keys} keys against {} MiB", ROOM >> 20), &COLUMNS.map(|column| column.1));
    for rule in RULES {
        let object = in_a_child(CHILD, &[rule.to_owned(), keys.to_string()])?;
        let cells = COLUMNS.map(|(name, _)| match &object[name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        report.row(&cells, &object);
        bars(rule, &object, report);
    }
    crate::pace::run(keys, report)
}

/// The rule of this name, as it is flooded.
pub(crate) fn rule_of(name: &str) -> Result<Rule, Failure> {
    match name {
        "bucket" => Ok(Rule::BRIEF),
        "day" => Ok(Rule::Day(A_DAY)),
        _ => Err("no such rule".into()),
    }
}

fn bars(rule: &str, object: &Value, report: &mut Report) {
    let figure = |name: &str| object[name].as_f64().unwrap_or(f64::NAN);
    let mib = 1_048_576.0;
    let most = u32::try_from((ROOM + BESIDE_ROWS) >> 20).map_or(f64::NAN, f64::from);
    let mut bar = |what: &str, measure, need, figure| {
        report.bar(Bar { scenario: format!("flood, {rule}, {what}"), measure, need, figure });
    };
    bar("memory", Measure::MebibytesGrown, Need::AtMost(most), figure("grown_bytes") / mib);
    let untold = figure("grown_bytes") - figure("said_bytes");
    bar(
        "memory that the store does not tell of",
        Measure::MebibytesGrown,
        Need::AtMost(UNTOLD),
        untold / mib,
    );
    bar("wrong answers", Measure::Wrong, Need::AtMost(0.0), figure("wrong"));
    bar("neighbours refused", Measure::Wrong, Need::AtMost(0.0), figure("neighbours_refused"));
    if rule == "bucket" {
        bar("refused or answered by rule", Measure::Wrong, Need::AtMost(0.0), figure("refused"));
    } else {
        bar("granted by rule", Measure::Wrong, Need::AtMost(0.0), figure("degraded_granted"));
    }
}

/// Floods a store, and says what it said and cost.
pub(crate) fn child(case: &[String]) -> Result<Value, Failure> {
    let [rule, keys] = case else { return Err("a case has two words".into()) };
    let kind = rule_of(rule)?;
    let keep = if kind == Rule::BRIEF { Keep::Briefly } else { Keep::ForTheDay };
    let count: u64 = keys.parse()?;
    let (clock, before) = (SystemClock::new(), machine::resident_bytes());
    let day = || clock.now().ticks() / NANOSECONDS_A_DAY;
    let first_day = day();
    let store =
        Tidegate::capped(SystemClock::new(), &[(kind, Reach::PerKey), (Rule::LIVE, Reach::PerKey)], ROOM);
    let mut tally = Tally::default();
    let began = machine::wall_time();
    Flood::over(&store, keep, &mut tally).run(count);
    let elapsed = machine::wall_time().saturating_sub(began);
    if keep == Keep::ForTheDay && day() != first_day {
        return Err("the day ended meanwhile, and the counts with it; run it again".into());
    }
    Ok(json!({
        "scenario": "flood",
        "rule": rule,
        "keys": count,
        "granted": tally.granted,
        "refused": tally.refused,
        "sampled": tally.sampled,
        "degraded": tally.degraded,
        "degraded_granted": tally.degraded_granted,
        "rows": store.rows_of(FLOODED),
        "slowest_ns": tally.slowest_ns,
        "slowest_own_ns": tally.slowest_own_ns,
        "ns_per_decision": nanoseconds(elapsed) / count.max(1),
        "grown_bytes": machine::peak_resident_bytes().saturating_sub(before),
        "said_bytes": store.bytes(),
        "wrong": tally.wrong,
        "neighbours_refused": tally.neighbours_refused,
    }))
}

/// How long the flooded limit's rows must be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    Briefly,
    ForTheDay,
}

/// What was said, and what it cost.
#[derive(Debug, Default)]
struct Tally {
    granted: u64,
    refused: u64,
    /// Asked in a way that tells what was answered by rule, because there was no room to remember.
    sampled: u64,
    degraded: u64,
    degraded_granted: u64,
    /// Replies, or counts, that are not what they must be.
    wrong: u64,
    neighbours_refused: u64,
    slowest_ns: u64,
    slowest_own_ns: u64,
}

struct Flood<'a> {
    store: &'a Tidegate,
    keep: Keep,
    handle: Box<dyn Asker + 'a>,
    door: Box<dyn Asker + 'a>,
    neighbour: Box<dyn Asker + 'a>,
    /// How often each early key was asked for.
    early: Vec<u64>,
    tally: &'a mut Tally,
    key: String,
}

impl<'a> Flood<'a> {
    fn over(store: &'a Tidegate, keep: Keep, tally: &'a mut Tally) -> Flood<'a> {
        Flood {
            store,
            keep,
            handle: store.asker_of(FLOODED),
            door: store.submitter_of(FLOODED),
            neighbour: store.asker_of(OTHER),
            early: Vec::new(),
            tally,
            key: String::new(),
        }
    }

    fn run(&mut self, count: u64) {
        (0..NEIGHBOURS).for_each(|number| self.ask_neighbour(number));
        for number in 0..count {
            let sampled = number % SELDOM == 0;
            let began = machine::wall_time();
            self.ask(number, sampled);
            if number < EARLY && self.keep == Keep::ForTheDay {
                self.early.push(1);
            }
            if !sampled {
                continue;
            }
            let turn = number / SELDOM;
            match self.keep {
                Keep::Briefly => self.spend(began),
                Keep::ForTheDay => self.ask_early(turn % EARLY),
            }
            self.ask_neighbour(turn % NEIGHBOURS);
            self.ask_neighbour(NEIGHBOURS + turn);
        }
        self.count_early();
    }

    /// Asks for a new key and takes the time.
    fn ask(&mut self, number: u64, sampled: bool) {
        keys::write(&mut self.key, number);
        let asker = if sampled { &mut self.door } else { &mut self.handle };
        let (began, began_own) = (machine::wall_time(), machine::thread_time());
        let said = asker.ask(&self.key);
        let own = machine::thread_time().saturating_sub(began_own);
        let wall = machine::wall_time().saturating_sub(began);
        let tally = &mut *self.tally;
        tally.slowest_ns = tally.slowest_ns.max(nanoseconds(wall));
        tally.slowest_own_ns = tally.slowest_own_ns.max(nanoseconds(own));
        tally.sampled += u64::from(sampled);
        tally.degraded += u64::from(matches!(said, Said::GrantedByRule | Said::RefusedByRule));
        tally.degraded_granted += u64::from(said == Said::GrantedByRule);
        match said {
            Said::Granted | Said::GrantedByRule => tally.granted += 1,
            Said::Refused | Said::RefusedByRule => tally.refused += 1,
        }
    }

    /// Asks for the key that was just asked for until it must be spent. What came back meanwhile is granted too.
    fn spend(&mut self, began: std::time::Duration) {
        let Rule::Bucket { step, burst } = Rule::BRIEF else { return };
        let granted = (0..burst).filter(|_| self.handle.ask(&self.key) == Said::Granted).count() as u64 + 1;
        let elapsed = machine::wall_time().saturating_sub(began);
        let came_back = nanoseconds(elapsed) / nanoseconds(step) + 1;
        let most = u64::from(burst) + if elapsed < step { 0 } else { came_back };
        self.tally.wrong += u64::from(!(u64::from(burst)..=most).contains(&granted));
    }

    /// Asks again for a key that was there before the store was full.
    fn ask_early(&mut self, number: u64) {
        let Some(asked) = usize::try_from(number).ok().and_then(|number| self.early.get_mut(number)) else {
            return;
        };
        *asked += 1;
        let expected = Said::of(*asked <= u64::from(A_DAY));
        keys::write(&mut self.key, number);
        self.tally.wrong += u64::from(self.handle.ask(&self.key) != expected);
    }

    /// Early keys are at their true counts.
    fn count_early(&mut self) {
        for (number, asked) in (0..).zip(&self.early) {
            keys::write(&mut self.key, number);
            let used = self.store.used(FLOODED, &self.key);
            self.tally.wrong += u64::from(used != (*asked).min(A_DAY.into()));
        }
    }

    fn ask_neighbour(&mut self, number: u64) {
        keys::write(&mut self.key, number);
        self.tally.neighbours_refused += u64::from(self.neighbour.ask(&self.key) != Said::Granted);
    }
}

fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
