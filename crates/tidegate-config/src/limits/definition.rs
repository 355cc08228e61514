//! Builds a limit from typed fields and validates it.
//!
//! Invalid fields were reported before. They are replaced here by placeholders, so that the core can still validate the other
//! fields. One pass over a file finds all errors and reports each of them once.

use tidegate_core::spec::DEFAULT_TTL;
use tidegate_core::{
    Capacity, Charge, Durability, Fleet, ItemSpec, Limit, LimitSpec, Mode, OnOutage, OverrideSpec, Per,
    Policy, Precision, SpecError, Tick, Unit, WeekStart, Zone,
};

use crate::diagnostic::DiagnosticSink;
use crate::mapping_fields::{FieldPath, Mapping, join_or};
use crate::schema::{FieldSchema, Presence};
use crate::source::SourceSpan;
use crate::yaml::YamlNode;

use super::reserved::{RESERVED, is_reserved};
use super::schema::ITEM;

/// Builds a limit from its fields, or reports all its errors.
pub(super) fn read_limit(
    sink: &mut DiagnosticSink<'_>,
    mut record: Mapping,
    node: &YamlNode,
    path: &FieldPath<'_>,
) -> Option<LimitSpec> {
    let items = ItemList::read(sink, record.take_list("items"), path);
    let overrides = OverrideList::read(record.take_list("overrides"));
    let spec = LimitSpec {
        id: record.take_text("id").unwrap_or_else(|| PLACEHOLDER.to_owned()),
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
        let field = path_in_file(&flaw.field, &overrides.file_indexes);
        if items.is_identified || !depends_on_items(&field) {
            sink.error(span_of_field(node, &field), join_path(path, &field), flaw.message);
        }
    }
    is_valid.then_some(spec)
}

/// The placeholder of an invalid text.
const PLACEHOLDER: &str = "unread";

/// The items of a limit, in the order of the file.
struct ItemList {
    specs: Vec<ItemSpec>,
    /// Whether all items are valid.
    is_valid: bool,
    /// Whether the name and the scope of every item are known.
    is_identified: bool,
}

impl ItemList {
    fn read(sink: &mut DiagnosticSink<'_>, records: Option<Vec<Mapping>>, limit: &FieldPath<'_>) -> ItemList {
        let Some(records) = records else {
            return ItemList {
                specs: vec![ItemSpec::of(Policy::Total, 1)],
                is_valid: false,
                is_identified: false,
            };
        };
        let path = FieldPath::Field(limit, "items");
        let mut items =
            ItemList { specs: Vec::with_capacity(records.len()), is_valid: true, is_identified: true };
        for (index, mut record) in records.into_iter().enumerate() {
            check_policy(sink, &mut record, &FieldPath::Element(&path, index));
            items.is_valid &= record.is_valid;
            let identity = ItemIdentity::of(&record);
            items.is_identified &= identity == ItemIdentity::Known;
            items.specs.push(build_item(record, identity, index));
        }
        items
    }
}

/// Reports fields that do not belong to the policy of the item, and required fields that are missing.
fn check_policy(sink: &mut DiagnosticSink<'_>, record: &mut Mapping, path: &FieldPath<'_>) {
    let Some(policy) = record.word("policy") else { return };
    for field in ITEM.fields {
        let Some(policies) = field.policies() else { continue };
        let belongs = policies.contains(&policy);
        let (span, message) = match (record.key_span(field.name), &field.presence) {
            (Some(span), _) if !belongs => (
                span,
                format!("does not belong to policy {policy}, only to {}; remove it", join_or(policies)),
            ),
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

/// Whether the name and the scope of an item are known, even if other fields are invalid.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ItemIdentity {
    Known,
    Unknown,
}

impl ItemIdentity {
    fn of(record: &Mapping) -> ItemIdentity {
        let is_readable = |field| record.is_readable(field) && !record.is_misspelled(field);
        let has_name = record.key_span("name").is_some();
        let has_window = |policy| match ITEM.field("window").and_then(FieldSchema::policies) {
            Some(policies) if policies.contains(&policy) => record.key_span("window").is_some(),
            _ => true,
        };
        let by_policy = is_readable("window") && record.word("policy").is_some_and(has_window);
        if is_readable("name") && is_readable("per") && (has_name || by_policy) {
            ItemIdentity::Known
        } else {
            ItemIdentity::Unknown
        }
    }
}

/// Builds an item. An invalid item becomes unlimited, so that its fields cannot conflict with its limit. An item without a known
/// name gets a unique placeholder.
fn build_item(mut record: Mapping, identity: ItemIdentity, index: usize) -> ItemSpec {
    let placeholder =
        (identity == ItemIdentity::Unknown).then(|| format!("{PLACEHOLDER}:{index}/{PLACEHOLDER}"));
    let limit = record.take_limit("limit").filter(|_| record.is_valid);
    ItemSpec {
        name: record.take_text("name").or(placeholder),
        limit: limit.unwrap_or(Capacity::Unlimited),
        per: record.take_choice("per", Per::ALL, Per::word).unwrap_or_default(),
        charge: record.take_choice("charge", Charge::ALL, Charge::word),
        policy: take_policy(&mut record).unwrap_or(Policy::Total),
    }
}

fn take_policy(record: &mut Mapping) -> Option<Policy> {
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

/// The overrides of a limit that name an item.
struct OverrideList {
    specs: Vec<OverrideSpec>,
    /// The index of each override in the file.
    file_indexes: Vec<usize>,
}

impl OverrideList {
    fn read(records: Option<Vec<Mapping>>) -> OverrideList {
        let mut overrides = OverrideList { specs: Vec::new(), file_indexes: Vec::new() };
        for (index, mut record) in records.unwrap_or_default().into_iter().enumerate() {
            let Some(item) = record.take_text("item") else { continue };
            overrides.file_indexes.push(index);
            overrides.specs.push(OverrideSpec {
                key: record.take_text("key").unwrap_or_else(|| format!("{PLACEHOLDER}:{index}")).into_bytes(),
                item,
                limit: record.take_limit("limit").unwrap_or(Capacity::Unlimited),
                until: record.take_instant("until"),
            });
        }
        overrides
    }
}

/// The path of a flaw in the file: indexes of overrides become their indexes in the file.
fn path_in_file(field: &str, file_indexes: &[usize]) -> String {
    let counted = field.strip_prefix("overrides[").and_then(|rest| rest.split_once(']'));
    match counted.and_then(|(index, rest)| Some((file_indexes.get(index.parse::<usize>().ok()?)?, rest))) {
        Some((index, rest)) => format!("overrides[{index}]{rest}"),
        None => field.to_owned(),
    }
}

/// Whether a flaw may be a false alarm while the name of an item is unknown.
fn depends_on_items(field: &str) -> bool {
    let last = field.rsplit('.').next();
    field.starts_with("overrides[") && matches!(last, Some("item" | "limit"))
}

fn join_path(path: &FieldPath<'_>, field: &str) -> String {
    match path {
        FieldPath::Top => field.to_owned(),
        _ => format!("{path}.{field}"),
    }
}

/// The position of a field of a limit, or of its innermost parent that is present.
fn span_of_field(limit: &YamlNode, field: &str) -> SourceSpan {
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
