//! The file of the CPU governor, `cpu.yaml`: document 003's numbers.

use std::time::Duration;

use tidegate_core::Zone;
use tidegate_core::budget::{BudgetTerms, Rate, Share, Unobserved};

use tidegate_config::text::{TimeOfDay, format_decimal};
use tidegate_config::{Diagnostics, FieldPath, Mapping, SourceSpan, read_document, read_mapping};

use super::schema::CPU;

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

/// Something in the settings that does not make sense with the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuFlaw {
    /// The field to blame.
    pub field: &'static str,
    /// Which of the slots, if it is about one.
    pub slot: Option<usize>,
    /// What is wrong with it.
    pub message: String,
    /// All fields that it is about, the first one to blame.
    with: &'static [&'static str],
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
        let rate = |rate: Rate| format_decimal(rate.billionths().into());
        let share = |share: Share, times: i128| format_decimal(i128::from(share.billionths()) * times);
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
    pub fn terms(&self) -> BudgetTerms {
        let nine_tenths = Share::from_billionths(900_000_000).expect("less than the whole");
        BudgetTerms {
            average: self.average.unwrap_or(Rate::from_units(30)),
            floor: self.floor.unwrap_or(Rate::from_units(10)),
            ceiling: self.ceiling.unwrap_or(Rate::from_units(90)),
            capacity: WHOLE,
            safety: self.safety.unwrap_or(nine_tenths),
            reserve: self.reserve.unwrap_or(Share::NONE),
        }
    }

    /// What does not make sense together, all of it.
    pub fn flaws(&self) -> Vec<CpuFlaw> {
        let terms = self.terms();
        let percent = |rate: Rate| format_decimal(rate.billionths().into());
        let (floor, average, ceiling) =
            (percent(terms.floor), percent(terms.average), percent(terms.ceiling));
        let mut flaws = Vec::new();
        let mut blame = |with: &'static [&'static str], message: String| {
            flaws.push(CpuFlaw { field: with[0], slot: None, message, with });
        };
        if terms.floor > terms.ceiling {
            let message = format!("must be at most max_load_percent, which is {ceiling}; found {floor}");
            blame(&["min_load_percent", "max_load_percent"], message);
        }
        if terms.ceiling > terms.capacity {
            blame(&["max_load_percent"], format!("must be at most 100, found {ceiling}"));
        }
        if terms.average == Rate::ZERO {
            blame(&["avg_load_limit_percent"], "must be above 0".to_owned());
        }
        if terms.average > terms.capacity {
            blame(&["avg_load_limit_percent"], format!("must be at most 100, found {average}"));
        }
        if terms.floor > terms.average {
            let message = format!(
                "must be at most avg_load_limit_percent, which is {average}; found {floor}. What may always be used \
                 would alone exceed the average"
            );
            blame(&["min_load_percent", "avg_load_limit_percent"], message);
        } else if terms.floor > terms.effective_average() {
            let message = format!(
                "must be at most what reserve_percent leaves of avg_load_limit_percent, which is {}; found {floor}",
                percent(terms.effective_average())
            );
            blame(&["min_load_percent", "avg_load_limit_percent", "reserve_percent"], message);
        }
        if terms.safety == Share::NONE {
            blame(&["safety_factor"], "must be above 0".to_owned());
        }
        for (index, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.ceiling < terms.floor) {
            let message = format!(
                "a slot's max_load_percent must be at least min_load_percent, which is {floor}; found {}",
                percent(slot.ceiling)
            );
            let with = &["time_slots", "min_load_percent"];
            flaws.push(CpuFlaw { field: with[0], slot: Some(index), message, with });
        }
        flaws
    }

    /// What is written, and where each slot is.
    fn read(mut record: Mapping) -> (CpuSpec, Vec<(usize, SourceSpan)>) {
        let rate = Rate::from_billionths;
        let seconds = |record: &mut Mapping, field| record.take_count(field).map(Duration::from_secs);
        let hundredth = |billionths: u64| Share::from_billionths(billionths / 100);
        let written = record.take_list("time_slots").unwrap_or_default().into_iter().enumerate();
        let slots = written.filter_map(|(index, slot)| Some(((index, slot.span), read_slot(slot)?)));
        let (places, slots) = slots.unzip();
        let spec = CpuSpec {
            average: record.take_decimal("avg_load_limit_percent").map(rate),
            window: record
                .take_duration("rolling_window")
                .or(record.take_count("rolling_window_hours").map(|hours| Duration::from_secs(hours * 3600))),
            first_hour: record.take_count("window_start_hour").and_then(|hour| u8::try_from(hour).ok()),
            zone: record.take_zone("time_zone"),
            floor: record.take_decimal("min_load_percent").map(rate),
            ceiling: record.take_decimal("max_load_percent").map(rate),
            safety: record.take_decimal("safety_factor").and_then(Share::from_billionths),
            sample_every: seconds(&mut record, "metrics_interval_seconds"),
            adjust_every: seconds(&mut record, "adjust_interval_seconds"),
            guards: record.take_bool("trailing_guard"),
            reserve: record.take_decimal("reserve_percent").and_then(hundredth),
            dead_band: record.take_decimal("increase_deadband_points").map(rate),
            tolerance: record.take_decimal("tolerance_points").map(rate),
            unobserved: record.take_choice("unobserved", &Unobserved::ALL, Unobserved::word),
            retention: record
                .take_count("history_retention_days")
                .map(|days| Duration::from_secs(days * 86_400)),
            slots,
        };
        (spec, places)
    }
}

fn read_slot(mut record: Mapping) -> Option<TimeSlot> {
    Some(TimeSlot {
        start: record.take_time_of_day("start")?,
        end: record.take_time_of_day("end")?,
        ceiling: Rate::from_billionths(record.take_decimal("max_load_percent")?),
    })
}

/// Reads the file of the CPU governor. The name is for messages only.
///
/// ```
/// let spec = tidegate_cpu::settings::read_cpu("cpu.yaml", b"avg_load_limit_percent: 25").unwrap();
/// assert_eq!(spec.average, Some(tidegate::budget::Rate::from_units(25)));
/// ```
pub fn read_cpu(name: &str, bytes: &[u8]) -> Result<CpuSpec, Diagnostics> {
    read_cpu_below(name, bytes, &CpuSpec::default())
}

/// The same, for a file over which something else goes: what makes no sense in the file alone and does with that is not told.
pub fn read_cpu_below(name: &str, bytes: &[u8], over: &CpuSpec) -> Result<CpuSpec, Diagnostics> {
    let spec = read_document(name, bytes, |sink, tree| {
        if tree.is_empty() {
            return Some(CpuSpec::default());
        }
        let record = read_mapping(sink, tree, &CPU, &FieldPath::Top);
        let places: Vec<_> = CPU.names().map(|name| (name, record.value_span(name))).collect();
        // What could not be read was reported, and would only be blamed again for not fitting the rest.
        let is_unread = |name: &&str| !record.is_readable(name) || record.is_misspelled(name);
        let unread: Vec<&str> = CPU.names().filter(is_unread).collect();
        if let (Some(place), Some(_)) =
            (record.key_span("rolling_window"), record.key_span("rolling_window_hours"))
        {
            let message = "is said twice, by rolling_window_hours too; keep one of them";
            sink.error(place, FieldPath::Field(&FieldPath::Top, "rolling_window"), message.to_owned());
        }
        let (spec, slots) = CpuSpec::read(record);
        let together = over.clone().over(spec.clone()).flaws();
        for flaw in spec.flaws().into_iter().filter(|flaw| together.contains(flaw)) {
            if flaw.with.iter().any(|field| unread.contains(field)) {
                continue;
            }
            let path = FieldPath::Field(&FieldPath::Top, flaw.field);
            if let Some((index, place)) = flaw.slot.and_then(|slot| slots.get(slot)) {
                sink.error(*place, FieldPath::Element(&path, *index), flaw.message);
            } else {
                let place = places.iter().find(|(name, _)| *name == flaw.field).and_then(|(_, place)| *place);
                sink.error(place.unwrap_or(tree.span), path, flaw.message);
            }
        }
        Some(spec)
    });
    spec.map(|(spec, _)| spec)
}
