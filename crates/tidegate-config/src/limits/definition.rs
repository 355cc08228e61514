//! From typed fields to limits that make sense.
//!
//! What could not be read has been reported and is replaced here by something harmless, so that the core can
//! still judge everything else: one pass over a file finds all that is wrong with it, and nothing twice.

use tidegate_core::spec::DEFAULT_TTL;
use tidegate_core::{
    Capacity, Charge, Durability, Fleet, ItemSpec, Limit, LimitSpec, Mode, OnOutage, OverrideSpec, Per,
    Policy, Precision, SpecError, Tick, Unit, WeekStart, Zone,
};

use crate::diagnostic::DiagnosticSink;
use crate::yaml_mapping::{FieldPath, Mapping, listed};
use crate::schema::{FieldSchema, Presence};
use crate::source::SourceSpan;
use crate::yaml::YamlNode;

use super::reserved::{RESERVED, is_reserved};
use super::schema::ITEM;

/// Reads one limit out of its fields, or reports all that is wrong with it.
pub(super) fn read_limit(
    sink: &mut DiagnosticSink<'_>,
    mut record: Mapping,
    node: &YamlNode,
    path: &FieldPath<'_>,
) -> Option<LimitSpec> {
    let items = Items::read(sink, record.take_list("items"), path);
    let overrides = Overrides::read(record.take_list("overrides"));
    let spec = LimitSpec {
        id: record.take_text("id").unwrap_or_else(|| STAND_IN.to_owned()),
        description: record.take_text("description"),
        time_zone: record.take_zone("time_zone").unwrap_or(Zone::UTC),
        week_start: record.take_choice("week_start", &WeekStart::ALL, WeekStart::word).unwrap_or_default(),
        starts_at: record.take_instant("starts_at"),
        ends_at: record.take_instant("ends_at"),
        mode: record.take_choice("mode", Mode::ALL, Mode::word).unwrap_or_default(),
        on_outage: record.take_choice("on_outage", OnOutage::ALL, OnOutage::word).unwrap_or_default(),
        durability: record.take_choice("durability", Durability::ALL, Durability::word).unwrap_or_default(),
        fleet: record.take_choice("fleet", Fleet::ALL, Fleet::word).unwrap_or_default(),
        max_keys: record.take_count("max_keys"),
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
    let is_valid = record.is_valid && items.is_valid && flaws.is_empty();
    for flaw in flaws {
        let field = as_written(&flaw.field, &overrides.written);
        if items.known || !depends_on_items(&field) {
            sink.error(place_in(node, &field), inside(path, &field), flaw.message);
        }
    }
    is_valid.then_some(spec)
}

/// Takes the place of a text that could not be read.
const STAND_IN: &str = "unread";

/// The items of a limit, each at its index.
struct Items {
    specs: Vec<ItemSpec>,
    /// Whether all of them could be read.
    is_valid: bool,
    /// Whether it is known of each what it is called and whose spending it counts.
    known: bool,
}

impl Items {
    fn read(sink: &mut DiagnosticSink<'_>, records: Option<Vec<Mapping>>, limit: &FieldPath<'_>) -> Items {
        let Some(records) = records else {
            return Items { specs: vec![ItemSpec::of(Policy::Total, 1)], is_valid: false, known: false };
        };
        let path = FieldPath::Field(limit, "items");
        let mut items = Items { specs: Vec::with_capacity(records.len()), is_valid: true, known: true };
        for (index, mut record) in records.into_iter().enumerate() {
            check_policy(sink, &mut record, &FieldPath::Element(&path, index));
            items.is_valid &= record.is_valid;
            let identity = Identity::of(&record);
            items.known &= identity == Identity::Known;
            items.specs.push(item(record, identity, index));
        }
        items
    }
}

/// Reports fields that do not belong to the item's policy, and those that it lacks.
fn check_policy(sink: &mut DiagnosticSink<'_>, record: &mut Mapping, path: &FieldPath<'_>) {
    let Some(policy) = record.word("policy") else { return };
    for field in ITEM.fields {
        let Some(policies) = field.policies() else { continue };
        let belongs = policies.contains(&policy);
        let (span, message) = match (record.key_span(field.name), &field.presence) {
            (Some(span), _) if !belongs => {
                (span, format!("does not belong to policy {policy}, only to {}; remove it", listed(policies)))
            }
            (None, Presence::AlwaysIn(_)) if belongs => (
                record.span,
                format!("is missing; policy {policy} needs a duration such as 500ms, 15s or 24h"),
            ),
            _ => continue,
        };
        record.is_valid = false;
        if !record.is_misspelled(field.name) {
            sink.error(span, FieldPath::Field(path, field.name), message);
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
    fn of(record: &Mapping) -> Identity {
        let readable = |field| record.is_readable(field) && !record.is_misspelled(field);
        let named = record.key_span("name").is_some();
        let has_window = |policy| match ITEM.field("window").and_then(FieldSchema::policies) {
            Some(policies) if policies.contains(&policy) => record.key_span("window").is_some(),
            _ => true,
        };
        let by_policy = readable("window") && record.word("policy").is_some_and(has_window);
        if readable("name") && readable("per") && (named || by_policy) {
            Identity::Known
        } else {
            Identity::Unknown
        }
    }
}

/// The item of a record. If not all of it could be read, what remains is judged field by field: it has no limit
/// to be at odds with, and a name of its own if nobody knows what it is called.
fn item(mut record: Mapping, identity: Identity, index: usize) -> ItemSpec {
    let stand_in = (identity == Identity::Unknown).then(|| format!("{STAND_IN}:{index}/{STAND_IN}"));
    let limit = record.take_limit("limit").filter(|_| record.is_valid);
    ItemSpec {
        name: record.take_text("name").or(stand_in),
        limit: limit.unwrap_or(Capacity::Unlimited),
        per: record.take_choice("per", Per::ALL, Per::word).unwrap_or_default(),
        charge: record.take_choice("charge", Charge::ALL, Charge::word),
        policy: policy(&mut record).unwrap_or(Policy::Total),
    }
}

fn policy(record: &mut Mapping) -> Option<Policy> {
    let word = record.take_word("policy")?;
    Some(match word {
        "total" => Policy::Total,
        "interval" => Policy::Interval { window: record.take_duration("window")? },
        "sliding" => Policy::Sliding {
            window: record.take_duration("window")?,
            precision: record.take_choice("precision", Precision::ALL, Precision::word).unwrap_or_default(),
        },
        "bucket" => {
            Policy::Bucket { window: record.take_duration("window")?, burst: record.take_count("burst") }
        }
        "concurrency" => Policy::Concurrency { ttl: record.take_duration("ttl").unwrap_or(DEFAULT_TTL) },
        _ => Policy::Calendar(Unit::ALL.into_iter().find(|unit| unit.word() == word)?),
    })
}

/// The overrides of a limit that name an item, and where each of them is written.
struct Overrides {
    specs: Vec<OverrideSpec>,
    written: Vec<usize>,
}

impl Overrides {
    fn read(records: Option<Vec<Mapping>>) -> Overrides {
        let mut overrides = Overrides { specs: Vec::new(), written: Vec::new() };
        for (index, mut record) in records.unwrap_or_default().into_iter().enumerate() {
            let Some(item) = record.take_text("item") else { continue };
            overrides.written.push(index);
            overrides.specs.push(OverrideSpec {
                key: record.take_text("key").unwrap_or_else(|| format!("{STAND_IN}:{index}")).into_bytes(),
                item,
                limit: record.take_limit("limit").unwrap_or(Capacity::Unlimited),
                until: record.take_instant("until"),
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

fn inside(path: &FieldPath<'_>, field: &str) -> String {
    match path {
        FieldPath::Top => field.to_owned(),
        _ => format!("{path}.{field}"),
    }
}

/// Where a field of a limit stands, or the nearest thing around it that is written.
fn place_in(limit: &YamlNode, field: &str) -> SourceSpan {
    let mut node = limit;
    for step in field.split(['.', '[']) {
        let next = match step.strip_suffix(']').map(str::parse) {
            Some(Ok(index)) => node.element(index),
            _ => node.field(step),
        };
        let Some(next) = next else { break };
        node = next;
    }
    node.span
}
