//! The settings file of the CPU governor, `cpu.yaml`.

use std::time::Duration;

use tidegate_core::Zone;
use tidegate_core::budget::{BudgetTerms, Rate, Share, Unobserved};

use tidegate_config::text::{TimeOfDay, format_decimal};
use tidegate_config::{Diagnostics, FieldPath, Mapping, SourceSpan, read_document, read_mapping};

use super::schema::CPU;

/// The whole machine, in percent.
const WHOLE: Rate = Rate::from_units(100);

/// Values of a file or of arguments. Missing values have defaults.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuSpec {
    /// Average limit, in percent of the machine.
    pub average: Option<Rate>,
    /// Length of a window.
    pub window: Option<Duration>,
    /// Hour of the day at which windows begin.
    pub first_hour: Option<u8>,
    /// Time zone of all hours.
    pub zone: Option<Zone>,
    /// Lowest limit.
    pub floor: Option<Rate>,
    /// Highest limit.
    pub ceiling: Option<Rate>,
    /// Part of the remaining budget that is spread evenly.
    pub safety: Option<Share>,
    /// Sampling interval.
    pub sample_every: Option<Duration>,
    /// Minimum time between increases of the limit.
    pub adjust_every: Option<Duration>,
    /// Whether trailing windows are kept below the average too.
    pub guards: Option<bool>,
    /// Part of the quota that is kept in reserve.
    pub reserve: Option<Share>,
    /// Minimum increase of the limit.
    pub dead_band: Option<Rate>,
    /// How far usage may exceed the limit before it is reported.
    pub tolerance: Option<Rate>,
    /// How unobserved time counts.
    pub unobserved: Option<Unobserved>,
    /// How long samples are kept.
    pub retention: Option<Duration>,
    /// Time slots with lower limits.
    pub slots: Vec<TimeSlot>,
}

/// A contradiction between settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuFlaw {
    /// The field to report.
    pub field: &'static str,
    /// Index of the time slot, if it is about one.
    pub slot: Option<usize>,
    /// Description of the problem.
    pub message: String,
    /// All fields involved, the reported one first.
    with: &'static [&'static str],
}

/// Hours of the day with a lower limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeSlot {
    /// Start of the slot.
    pub start: TimeOfDay,
    /// End of the slot. A slot that ends before its start spans midnight. Equal times mean the whole day.
    pub end: TimeOfDay,
    /// Highest limit in the slot.
    pub ceiling: Rate,
}

impl TimeSlot {
    /// Whether the slot contains a time of day.
    pub fn covers(&self, time: TimeOfDay) -> bool {
        if self.start < self.end {
            (self.start..self.end).contains(&time)
        } else {
            time >= self.start || time < self.end
        }
    }
}

impl CpuSpec {
    /// Merges two specs. Values of `self` take precedence.
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

    /// The spec as YAML text.
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

    /// The budget terms. The reserve is zero unless it is set.
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

    /// All contradictions in the spec.
    pub fn flaws(&self) -> Vec<CpuFlaw> {
        let terms = self.terms();
        let percent = |rate: Rate| format_decimal(rate.billionths().into());
        let (floor, average, ceiling) =
            (percent(terms.floor), percent(terms.average), percent(terms.ceiling));
        let mut flaws = Vec::new();
        let mut report = |with: &'static [&'static str], message: String| {
            flaws.push(CpuFlaw { field: with[0], slot: None, message, with });
        };
        if terms.floor > terms.ceiling {
            let message = format!("must be at most max_load_percent, which is {ceiling}; found {floor}");
            report(&["min_load_percent", "max_load_percent"], message);
        }
        if terms.ceiling > terms.capacity {
            report(&["max_load_percent"], format!("must be at most 100, found {ceiling}"));
        }
        if terms.average == Rate::ZERO {
            report(&["avg_load_limit_percent"], "must be above 0".to_owned());
        }
        if terms.average > terms.capacity {
            report(&["avg_load_limit_percent"], format!("must be at most 100, found {average}"));
        }
        if terms.floor > terms.average {
            let message = format!(
                "must be at most avg_load_limit_percent, which is {average}; found {floor}. What may always be used \
                 would alone exceed the average"
            );
            report(&["min_load_percent", "avg_load_limit_percent"], message);
        } else if terms.floor > terms.effective_average() {
            let message = format!(
                "must be at most what reserve_percent leaves of avg_load_limit_percent, which is {}; found {floor}",
                percent(terms.effective_average())
            );
            report(&["min_load_percent", "avg_load_limit_percent", "reserve_percent"], message);
        }
        if terms.safety == Share::NONE {
            report(&["safety_factor"], "must be above 0".to_owned());
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

    /// Reads the fields, with the positions of the time slots.
    fn read(mut record: Mapping) -> (CpuSpec, Vec<(usize, SourceSpan)>) {
        let rate = Rate::from_billionths;
        let seconds = |record: &mut Mapping, field| record.take_count(field).map(Duration::from_secs);
        let hundredth = |billionths: u64| Share::from_billionths(billionths / 100);
        let written = record.take_list("time_slots").unwrap_or_default().into_iter().enumerate();
        let slots = written.filter_map(|(index, slot)| Some(((index, slot.span), read_slot(slot)?)));
        let (positions, slots) = slots.unzip();
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
        (spec, positions)
    }
}

fn read_slot(mut record: Mapping) -> Option<TimeSlot> {
    Some(TimeSlot {
        start: record.take_time_of_day("start")?,
        end: record.take_time_of_day("end")?,
        ceiling: Rate::from_billionths(record.take_decimal("max_load_percent")?),
    })
}

/// Reads the settings file of the CPU governor. The name appears only in messages.
///
/// ```
/// let spec = tidegate_cpu::settings::read_cpu("cpu.yaml", b"avg_load_limit_percent: 25").unwrap();
/// assert_eq!(spec.average, Some(tidegate::budget::Rate::from_units(25)));
/// ```
pub fn read_cpu(name: &str, bytes: &[u8]) -> Result<CpuSpec, Diagnostics> {
    read_cpu_below(name, bytes, &CpuSpec::default())
}

/// Reads a file whose values are overridden by `over`. A contradiction that the override resolves is not reported.
pub fn read_cpu_below(name: &str, bytes: &[u8], over: &CpuSpec) -> Result<CpuSpec, Diagnostics> {
    let spec = read_document(name, bytes, |sink, tree| {
        if tree.is_empty() {
            return Some(CpuSpec::default());
        }
        let record = read_mapping(sink, tree, &CPU, &FieldPath::Top);
        let positions: Vec<_> = CPU.names().map(|name| (name, record.value_span(name))).collect();
        // An unreadable field is reported already. Do not report its contradictions too.
        let is_unread = |name: &&str| !record.is_readable(name) || record.is_misspelled(name);
        let unread: Vec<&str> = CPU.names().filter(is_unread).collect();
        if let (Some(position), Some(_)) =
            (record.key_span("rolling_window"), record.key_span("rolling_window_hours"))
        {
            let message = "is set twice, also by rolling_window_hours; keep one of them";
            sink.error(position, FieldPath::Field(&FieldPath::Top, "rolling_window"), message.to_owned());
        }
        let (spec, slots) = CpuSpec::read(record);
        let merged = over.clone().over(spec.clone()).flaws();
        for flaw in spec.flaws().into_iter().filter(|flaw| merged.contains(flaw)) {
            if flaw.with.iter().any(|field| unread.contains(field)) {
                continue;
            }
            let path = FieldPath::Field(&FieldPath::Top, flaw.field);
            if let Some((index, position)) = flaw.slot.and_then(|slot| slots.get(slot)) {
                sink.error(*position, FieldPath::Element(&path, *index), flaw.message);
            } else {
                let position = positions
                    .iter()
                    .find(|(name, _)| *name == flaw.field)
                    .and_then(|(_, position)| *position);
                sink.error(position.unwrap_or(tree.span), path, flaw.message);
            }
        }
        Some(spec)
    });
    spec.map(|(spec, _)| spec)
}
