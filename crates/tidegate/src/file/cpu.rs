//! The file of the CPU governor, `cpu.yaml`: document 003's numbers.

use std::time::Duration;

use tidegate_core::Zone;
use tidegate_core::budget::{Rate, Share, Terms, TermsFlaw, Unobserved};

use super::diagnostic::Report;
use super::fields::CPU;
use super::record::{Path, Record, read_record};
use super::source::Source;
use super::tree::Kind;
use super::{Diagnostics, decoded, parsed};
use crate::text::{TimeOfDay, shown_decimal};

/// All of a machine, in percent.
const WHOLE: Rate = Rate::from_units(100);

/// What a file says, or arguments; the rest is as the document has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuSpec {
    /// What may be used on average, in percent of the machine.
    pub average: Option<Rate>,
    /// How long a window is.
    pub window: Option<Duration>,
    /// The hour of the day at which windows begin.
    pub first_hour: Option<u8>,
    /// Whose hours are meant.
    pub zone: Option<Zone>,
    /// What may always be used.
    pub floor: Option<Rate>,
    /// What may be used at most.
    pub ceiling: Option<Rate>,
    /// How much of what can be spread is spread evenly.
    pub safety: Option<Share>,
    /// How often the counter is read.
    pub sample_every: Option<Duration>,
    /// How often the limit may rise.
    pub adjust_every: Option<Duration>,
    /// Whether windows that end at any moment are kept under the average too.
    pub guards: Option<bool>,
    /// How much of the quota is taken off once.
    pub reserve: Option<Share>,
    /// By how much the limit rises at least.
    pub dead_band: Option<Rate>,
    /// How much more than the limit may be measured before that is told.
    pub tolerance: Option<Rate>,
    /// What time counts as that nobody looked at.
    pub unobserved: Option<Unobserved>,
    /// How long samples are kept.
    pub retention: Option<Duration>,
    /// Hours in which less may be used.
    pub slots: Vec<TimeSlot>,
}

/// Hours of the day in which less may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeSlot {
    /// When it begins.
    pub start: TimeOfDay,
    /// When it is over; before the beginning if it goes over midnight, the same if it is the whole day.
    pub end: TimeOfDay,
    /// What may be used at most meanwhile.
    pub ceiling: Rate,
}

impl TimeSlot {
    /// Whether a time of day lies in it.
    pub fn covers(&self, time: TimeOfDay) -> bool {
        if self.start < self.end {
            (self.start..self.end).contains(&time)
        } else {
            time >= self.start || time < self.end
        }
    }
}

impl CpuSpec {
    /// The same, with what is said here put over what is said below.
    #[must_use]
    pub fn over(self, below: CpuSpec) -> CpuSpec {
        CpuSpec {
            average: self.average.or(below.average),
            window: self.window.or(below.window),
            first_hour: self.first_hour.or(below.first_hour),
            zone: self.zone.or(below.zone),
            floor: self.floor.or(below.floor),
            ceiling: self.ceiling.or(below.ceiling),
            safety: self.safety.or(below.safety),
            sample_every: self.sample_every.or(below.sample_every),
            adjust_every: self.adjust_every.or(below.adjust_every),
            guards: self.guards.or(below.guards),
            reserve: self.reserve.or(below.reserve),
            dead_band: self.dead_band.or(below.dead_band),
            tolerance: self.tolerance.or(below.tolerance),
            unobserved: self.unobserved.or(below.unobserved),
            retention: self.retention.or(below.retention),
            slots: if self.slots.is_empty() { below.slots } else { self.slots },
        }
    }

    /// The text that says the same.
    pub fn text(&self) -> String {
        let rate = |rate: Rate| shown_decimal(rate.billionths().into());
        let share = |share: Share, times: i128| shown_decimal(i128::from(share.billionths()) * times);
        let seconds = |time: Duration| time.as_secs().to_string();
        let lines = [
            ("avg_load_limit_percent", self.average.map(rate)),
            ("rolling_window", self.window.map(|window| format!("{}s", window.as_secs()))),
            ("window_start_hour", self.first_hour.map(|hour| hour.to_string())),
            ("time_zone", self.zone.as_ref().map(|zone| zone.name().to_owned())),
            ("min_load_percent", self.floor.map(rate)),
            ("max_load_percent", self.ceiling.map(rate)),
            ("safety_factor", self.safety.map(|factor| share(factor, 1))),
            ("metrics_interval_seconds", self.sample_every.map(seconds)),
            ("adjust_interval_seconds", self.adjust_every.map(seconds)),
            ("trailing_guard", self.guards.map(|guards| guards.to_string())),
            ("reserve_percent", self.reserve.map(|reserve| share(reserve, 100))),
            ("increase_deadband_points", self.dead_band.map(rate)),
            ("tolerance_points", self.tolerance.map(rate)),
            ("unobserved", self.unobserved.map(|policy| policy.word().to_owned())),
            ("history_retention_days", self.retention.map(|time| (time.as_secs() / 86_400).to_string())),
        ];
        let mut text = String::new();
        for (field, value) in lines {
            if let Some(value) = value {
                text.extend([field, ": ", &value, "\n"]);
            }
        }
        for (index, slot) in self.slots.iter().enumerate() {
            text.push_str(if index == 0 { "time_slots:\n" } else { "" });
            let (start, end, most) = (slot.start, slot.end, rate(slot.ceiling));
            text.extend([
                "  - {start: \"",
                &start.to_string(),
                "\", end: \"",
                &end.to_string(),
                "\", max_load_percent: ",
                &most,
                "}\n",
            ]);
        }
        text
    }

    /// The terms of the budget. Without a reserve, unless one is asked for.
    pub fn terms(&self) -> Terms {
        let nine_tenths = Share::from_billionths(900_000_000).expect("less than the whole");
        Terms {
            average: self.average.unwrap_or(Rate::from_units(30)),
            floor: self.floor.unwrap_or(Rate::from_units(10)),
            ceiling: self.ceiling.unwrap_or(Rate::from_units(90)),
            whole: WHOLE,
            safety: self.safety.unwrap_or(nine_tenths),
            reserve: self.reserve.unwrap_or(Share::NONE),
        }
    }

    /// What does not make sense together: the field to blame, and why.
    pub fn flaw(&self) -> Option<(&'static str, String)> {
        let terms = self.terms();
        let percent = |rate: Rate| shown_decimal(rate.billionths().into());
        let (floor, average, ceiling) =
            (percent(terms.floor), percent(terms.average), percent(terms.ceiling));
        if let Err(flaw) = terms.check() {
            return Some(match flaw {
                TermsFlaw::FloorAboveCeiling => (
                    "min_load_percent",
                    format!("must be at most max_load_percent, which is {ceiling}; found {floor}"),
                ),
                TermsFlaw::FloorAboveAverage => (
                    "min_load_percent",
                    format!(
                        "must be at most avg_load_limit_percent, which is {average}; found {floor}. What may always be used \
                         would alone exceed the average"
                    ),
                ),
                TermsFlaw::FloorAboveReserved => (
                    "min_load_percent",
                    format!(
                        "must be at most what reserve_percent leaves of avg_load_limit_percent, which is {}; found {floor}",
                        percent(terms.kept_average())
                    ),
                ),
                TermsFlaw::NoAverage => ("avg_load_limit_percent", "must be above 0".to_owned()),
                TermsFlaw::AverageAboveWhole => {
                    ("avg_load_limit_percent", format!("must be at most 100, found {average}"))
                }
                TermsFlaw::CeilingAboveWhole => {
                    ("max_load_percent", format!("must be at most 100, found {ceiling}"))
                }
                TermsFlaw::NoSafety => ("safety_factor", "must be above 0".to_owned()),
            });
        }
        let low = self.slots.iter().find(|slot| slot.ceiling < terms.floor)?;
        let message = format!(
            "a slot's max_load_percent must be at least min_load_percent, which is {floor}; found {}",
            percent(low.ceiling)
        );
        Some(("time_slots", message))
    }

    fn read(mut record: Record) -> CpuSpec {
        let rate = Rate::from_billionths;
        let seconds = |record: &mut Record, field| record.count(field).map(Duration::from_secs);
        let hundredth = |billionths: u64| Share::from_billionths(billionths / 100);
        CpuSpec {
            average: record.decimal("avg_load_limit_percent").map(rate),
            window: record
                .duration("rolling_window")
                .or(record.count("rolling_window_hours").map(|hours| Duration::from_secs(hours * 3600))),
            first_hour: record.count("window_start_hour").and_then(|hour| u8::try_from(hour).ok()),
            zone: record.zone("time_zone"),
            floor: record.decimal("min_load_percent").map(rate),
            ceiling: record.decimal("max_load_percent").map(rate),
            safety: record.decimal("safety_factor").and_then(Share::from_billionths),
            sample_every: seconds(&mut record, "metrics_interval_seconds"),
            adjust_every: seconds(&mut record, "adjust_interval_seconds"),
            guards: record.truth("trailing_guard"),
            reserve: record.decimal("reserve_percent").and_then(hundredth),
            dead_band: record.decimal("increase_deadband_points").map(rate),
            tolerance: record.decimal("tolerance_points").map(rate),
            unobserved: record.choice("unobserved", &Unobserved::ALL, Unobserved::word),
            retention: record.count("history_retention_days").map(|days| Duration::from_secs(days * 86_400)),
            slots: record.list("time_slots").unwrap_or_default().into_iter().filter_map(read_slot).collect(),
        }
    }
}

fn read_slot(mut record: Record) -> Option<TimeSlot> {
    Some(TimeSlot {
        start: record.clock("start")?,
        end: record.clock("end")?,
        ceiling: Rate::from_billionths(record.decimal("max_load_percent")?),
    })
}

/// Reads the file of the CPU governor. The name is for messages only.
///
/// ```
/// let spec = tidegate::file::read_cpu("cpu.yaml", b"avg_load_limit_percent: 25").unwrap();
/// assert_eq!(spec.average, Some(tidegate::budget::Rate::from_units(25)));
/// ```
pub fn read_cpu(name: &str, bytes: &[u8]) -> Result<CpuSpec, Diagnostics> {
    let text = decoded(name, bytes)?;
    let source = Source::new(name, &text);
    let mut report = Report::new(&source);
    let spec = parsed(&mut report).map(|tree| {
        if matches!(tree.kind, Kind::Empty) {
            return CpuSpec::default();
        }
        let record = read_record(&mut report, &tree, &CPU, &Path::Top);
        let (sound, places) = (record.sound, CPU.names().map(|name| (name, record.value_place(name))));
        let places: Vec<_> = places.collect();
        if let (Some(place), Some(_)) =
            (record.key_place("rolling_window"), record.key_place("rolling_window_hours"))
        {
            let message = "is said twice, by rolling_window_hours too; keep one of them";
            report.error(place, Path::Field(&Path::Top, "rolling_window"), message.to_owned());
        }
        let spec = CpuSpec::read(record);
        // What could not be read was reported, and would only be blamed again for not fitting the rest.
        if let Some((field, message)) = spec.flaw().filter(|_| sound) {
            let place = places.iter().find(|(name, _)| *name == field).and_then(|(_, place)| *place);
            report.error(place.unwrap_or(tree.place), Path::Field(&Path::Top, field), message);
        }
        spec
    });
    spec.filter(|_| !report.failed()).ok_or_else(|| report.into_diagnostics())
}
