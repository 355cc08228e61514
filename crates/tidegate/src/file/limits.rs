//! From typed fields to limits that make sense.
//!
//! What could not be read has been reported and is replaced here by something harmless, so that the core can
//! still judge everything else: one pass over a file finds all that is wrong with it, and nothing twice.

use hashbrown::HashMap;
use tidegate_core::spec::DEFAULT_TTL;
use tidegate_core::{
    Capacity, Charge, Durability, Fleet, ItemSpec, Limit, LimitSpec, Mode, OnOutage, OverrideSpec, Per,
    Policy, Precision, SpecError, Tick, Unit, WeekStart, Zone,
};

use super::diagnostic::Report;
use super::fields::{Field, ITEM, Need};
use super::record::{Path, Record, listed};
use super::source::Place;
use super::tree::Node;

/// The name of limits that nobody writes: commands that describe a bucket make them, one below this name for each description.
pub const RESERVED: &str = "cl.throttle";

/// Whether limits of this id are made by commands that describe them, and by nobody else.
pub fn is_reserved(id: &str) -> bool {
    id.strip_prefix(RESERVED).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Reads one limit out of its fields, or reports all that is wrong with it.
pub(super) fn read_limit(
    report: &mut Report<'_>,
    mut record: Record,
    node: &Node,
    path: &Path<'_>,
) -> Option<LimitSpec> {
    let items = Items::read(report, record.list("items"), path);
    let overrides = Overrides::read(record.list("overrides"));
    let spec = LimitSpec {
        id: record.text("id").unwrap_or_else(|| STAND_IN.to_owned()),
        description: record.text("description"),
        time_zone: record.zone("time_zone").unwrap_or(Zone::UTC),
        week_start: record.choice("week_start", &WeekStart::ALL, WeekStart::word).unwrap_or_default(),
        starts_at: record.instant("starts_at"),
        ends_at: record.instant("ends_at"),
        mode: record.choice("mode", Mode::ALL, Mode::word).unwrap_or_default(),
        on_outage: record.choice("on_outage", OnOutage::ALL, OnOutage::word).unwrap_or_default(),
        durability: record.choice("durability", Durability::ALL, Durability::word).unwrap_or_default(),
        fleet: record.choice("fleet", Fleet::ALL, Fleet::word).unwrap_or_default(),
        max_keys: record.count("max_keys"),
        items: items.specs,
        overrides: overrides.specs,
    };
    let mut flaws = Limit::new(spec.clone(), Tick::NANOSECOND).err().unwrap_or_default();
    if is_reserved(&spec.id) {
        let message = format!(
            "limits called {RESERVED} belong to the commands CL.THROTTLE and THROTTLE; choose another id"
        );
        flaws.push(SpecError::new("id", message));
    }
    let sound = record.sound && items.sound && flaws.is_empty();
    for flaw in flaws {
        let field = as_written(&flaw.field, &overrides.written);
        if items.known || !depends_on_items(&field) {
            report.error(place_in(node, &field), inside(path, &field), flaw.message);
        }
    }
    sound.then_some(spec)
}

/// Reports limits that have the id of an earlier one.
pub(super) struct Ids<'p> {
    first: HashMap<String, Place>,
    path: &'p Path<'p>,
}

impl<'p> Ids<'p> {
    pub(super) fn inside(path: &'p Path<'p>) -> Ids<'p> {
        Ids { first: HashMap::new(), path }
    }

    pub(super) fn see(&mut self, report: &mut Report<'_>, index: usize, id: Option<(&str, Place)>) {
        let Some((id, place)) = id else { return };
        let Some(first) = self.first.get(id) else {
            self.first.insert(id.to_owned(), place);
            return;
        };
        let (line, _) = report.source().line_and_column(*first);
        let message = format!("'{id}' is already the id of the limit on line {line}; ids must differ");
        let element = Path::Element(self.path, index);
        report.error(place, Path::Field(&element, "id"), message);
    }
}

/// Takes the place of a text that could not be read.
const STAND_IN: &str = "unread";

/// The items of a limit, each at its index.
struct Items {
    specs: Vec<ItemSpec>,
    /// Whether all of them could be read.
    sound: bool,
    /// Whether it is known of each what it is called and whose spending it counts.
    known: bool,
}

impl Items {
    fn read(report: &mut Report<'_>, records: Option<Vec<Record>>, limit: &Path<'_>) -> Items {
        let Some(records) = records else {
            return Items { specs: vec![ItemSpec::of(Policy::Total, 1)], sound: false, known: false };
        };
        let path = Path::Field(limit, "items");
        let mut items = Items { specs: Vec::with_capacity(records.len()), sound: true, known: true };
        for (index, mut record) in records.into_iter().enumerate() {
            check_policy(report, &mut record, &Path::Element(&path, index));
            items.sound &= record.sound;
            let identity = Identity::of(&record);
            items.known &= identity == Identity::Known;
            items.specs.push(item(record, identity, index));
        }
        items
    }
}

/// Reports fields that do not belong to the item's policy, and those that it lacks.
fn check_policy(report: &mut Report<'_>, record: &mut Record, path: &Path<'_>) {
    let Some(policy) = record.peek_word("policy") else { return };
    for field in ITEM.fields {
        let Some(policies) = field.policies() else { continue };
        let belongs = policies.contains(&policy);
        let (place, message) = match (record.key_place(field.name), &field.need) {
            (Some(place), _) if !belongs => (
                place,
                format!("does not belong to policy {policy}, only to {}; remove it", listed(policies)),
            ),
            (None, Need::AlwaysIn(_)) if belongs => (
                record.place,
                format!("is missing; policy {policy} needs a duration such as 500ms, 15s or 24h"),
            ),
            _ => continue,
        };
        record.sound = false;
        if !record.means(field.name) {
            report.error(place, Path::Field(path, field.name), message);
        }
    }
}

/// Whether it can be told what an item is called and whose spending it counts, whatever else is wrong with it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Identity {
    Known,
    Unknown,
}

impl Identity {
    fn of(record: &Record) -> Identity {
        let readable = |field| record.can_be_read(field) && !record.means(field);
        let named = record.key_place("name").is_some();
        let has_window = |policy| match ITEM.field("window").and_then(Field::policies) {
            Some(policies) if policies.contains(&policy) => record.key_place("window").is_some(),
            _ => true,
        };
        let by_policy = readable("window") && record.peek_word("policy").is_some_and(has_window);
        if readable("name") && readable("per") && (named || by_policy) {
            Identity::Known
        } else {
            Identity::Unknown
        }
    }
}

/// The item of a record. If not all of it could be read, what remains is judged field by field: it has no limit
/// to be at odds with, and a name of its own if nobody knows what it is called.
fn item(mut record: Record, identity: Identity, index: usize) -> ItemSpec {
    let stand_in = (identity == Identity::Unknown).then(|| format!("{STAND_IN}:{index}/{STAND_IN}"));
    let limit = record.limit("limit").filter(|_| record.sound);
    ItemSpec {
        name: record.text("name").or(stand_in),
        limit: limit.unwrap_or(Capacity::Unlimited),
        per: record.choice("per", Per::ALL, Per::word).unwrap_or_default(),
        charge: record.choice("charge", Charge::ALL, Charge::word),
        policy: policy(&mut record).unwrap_or(Policy::Total),
    }
}

fn policy(record: &mut Record) -> Option<Policy> {
    let word = record.word("policy")?;
    Some(match word {
        "total" => Policy::Total,
        "interval" => Policy::Interval { window: record.duration("window")? },
        "sliding" => Policy::Sliding {
            window: record.duration("window")?,
            precision: record.choice("precision", Precision::ALL, Precision::word).unwrap_or_default(),
        },
        "bucket" => Policy::Bucket { window: record.duration("window")?, burst: record.count("burst") },
        "concurrency" => Policy::Concurrency { ttl: record.duration("ttl").unwrap_or(DEFAULT_TTL) },
        _ => Policy::Calendar(Unit::ALL.into_iter().find(|unit| unit.word() == word)?),
    })
}

/// The overrides of a limit that name an item, and where each of them is written.
struct Overrides {
    specs: Vec<OverrideSpec>,
    written: Vec<usize>,
}

impl Overrides {
    fn read(records: Option<Vec<Record>>) -> Overrides {
        let mut overrides = Overrides { specs: Vec::new(), written: Vec::new() };
        for (index, mut record) in records.unwrap_or_default().into_iter().enumerate() {
            let Some(item) = record.text("item") else { continue };
            overrides.written.push(index);
            overrides.specs.push(OverrideSpec {
                key: record.text("key").unwrap_or_else(|| format!("{STAND_IN}:{index}")).into_bytes(),
                item,
                limit: record.limit("limit").unwrap_or(Capacity::Unlimited),
                until: record.instant("until"),
            });
        }
        overrides
    }
}

/// A flaw's field, with an override counted among all that are written.
fn as_written(field: &str, written: &[usize]) -> String {
    let counted = field.strip_prefix("overrides[").and_then(|rest| rest.split_once(']'));
    match counted.and_then(|(index, rest)| Some((written.get(index.parse::<usize>().ok()?)?, rest))) {
        Some((index, rest)) => format!("overrides[{index}]{rest}"),
        None => field.to_owned(),
    }
}

/// Whether a flaw can be an illusion while it is not known what some item is called.
fn depends_on_items(field: &str) -> bool {
    let last = field.rsplit('.').next();
    field.starts_with("overrides[") && matches!(last, Some("item" | "limit"))
}

fn inside(path: &Path<'_>, field: &str) -> String {
    match path {
        Path::Top => field.to_owned(),
        _ => format!("{path}.{field}"),
    }
}

/// Where a field of a limit stands, or the nearest thing around it that is written.
fn place_in(limit: &Node, field: &str) -> Place {
    let mut node = limit;
    for step in field.split(['.', '[']) {
        let next = match step.strip_suffix(']').map(str::parse) {
            Some(Ok(index)) => node.element(index),
            _ => node.field(step),
        };
        let Some(next) = next else { break };
        node = next;
    }
    node.place
}
