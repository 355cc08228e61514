//! The JSON Schema of a settings file, made from the tables that the reader uses.
//!
//! Editors use it to complete and to underline. It says what one field may be and which fields go together; ids
//! that repeat, overrides of items that do not exist and rates that cannot be kept are beyond it, so
//! [`super::read`] remains the judge.

use serde_json::{Map, Value, json};
use tidegate_core::amount::MAX_LIMIT;

use super::fields::{Field, ITEM, LIMIT, Need, OVERRIDE, SETTINGS, Shape, TOKEN, Table};

/// The schema of a settings file, draft 2020-12.
pub fn schema() -> Value {
    let mut schema = object(&SETTINGS);
    schema.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    schema.insert("title".to_owned(), json!("Tidegate settings"));
    schema.insert(
        "$defs".to_owned(),
        json!({"limit": object(&LIMIT), "item": item(), "override": object(&OVERRIDE), "token": object(&TOKEN)}),
    );
    Value::Object(schema)
}

fn object(table: &Table) -> Map<String, Value> {
    let properties: Map<_, _> =
        table.fields.iter().map(|field| (field.name.to_owned(), property(field))).collect();
    let required: Vec<_> = table
        .fields
        .iter()
        .filter(|field| matches!(field.need, Need::Always))
        .map(|field| field.name)
        .collect();
    let mut schema = Map::new();
    schema.insert("type".to_owned(), json!("object"));
    schema.insert("properties".to_owned(), Value::Object(properties));
    schema.insert("required".to_owned(), json!(required));
    schema.insert("additionalProperties".to_owned(), json!(false));
    schema
}

/// An item: its fields, and for each field that belongs to some policies only, a rule that says so.
fn item() -> Map<String, Value> {
    let mut schema = object(&ITEM);
    let rules: Vec<_> = ITEM.fields.iter().filter_map(policy_rule).collect();
    schema.insert("allOf".to_owned(), json!(rules));
    schema
}

fn policy_rule(field: &Field) -> Option<Value> {
    let policies = field.policies()?;
    let present = match field.need {
        Need::AlwaysIn(_) => {
            json!({"required": [field.name], "properties": {field.name: {"not": {"type": "null"}}}})
        }
        _ => json!(true),
    };
    Some(json!({
        "if": {"properties": {"policy": {"enum": policies}}, "required": ["policy"]},
        "then": present,
        "else": {"properties": {field.name: {"type": "null"}}},
    }))
}

fn property(field: &Field) -> Value {
    let mut schema = shape(&field.shape);
    if !matches!(field.need, Need::Always) {
        allow_null(&mut schema);
    }
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("description".to_owned(), json!(field.about));
    }
    schema
}

/// A field that may be left out may also be null.
fn allow_null(schema: &mut Value) {
    if let Some(kinds) = schema.get_mut("type") {
        let mut all = kinds.as_array().cloned().unwrap_or_else(|| vec![kinds.clone()]);
        all.push(json!("null"));
        *kinds = Value::Array(all);
    }
    if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        words.push(Value::Null);
    }
}

fn shape(shape: &Shape) -> Value {
    match shape {
        Shape::Text => json!({"type": ["string", "number", "boolean"]}),
        Shape::Name => {
            json!({"type": ["string", "number", "boolean"], "pattern": "^[A-Za-z0-9._:/-]{1,256}$"})
        }
        Shape::Word(words) => json!({"type": "string", "enum": words()}),
        Shape::Limit => json!({"type": "integer", "minimum": -1, "maximum": MAX_LIMIT}),
        Shape::Count { most, .. } => json!({"type": "integer", "minimum": 1, "maximum": most}),
        Shape::Whole { least, most } => json!({"type": "integer", "minimum": least, "maximum": most}),
        Shape::Decimal { .. } => json!({"type": "number", "minimum": 0}),
        Shape::Clock => json!({"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"}),
        Shape::Truth => json!({"type": "boolean"}),
        Shape::Duration | Shape::Timeout { .. } => {
            json!({"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"})
        }
        Shape::Size { .. } => json!({"type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB|TiB)$"}),
        Shape::Listen => json!({
            "type": "string",
            "pattern": "^(off|[0-9]{1,3}(\\.[0-9]{1,3}){3}:[0-9]{1,5}|\\[[0-9A-Fa-f:.]+(%[0-9]+)?\\]:[0-9]{1,5})$",
        }),
        Shape::Store => json!({"type": "string", "pattern": "^(memory:?|disk:.+|postgres(ql)?://.+)$"}),
        Shape::Instant => json!({
            "type": "string",
            "format": "date-time",
            "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})$",
        }),
        Shape::Zone => json!({"type": "string"}),
        Shape::List(table) => {
            let name = if std::ptr::eq(*table, &raw const LIMIT) {
                "limit"
            } else if std::ptr::eq(*table, &raw const ITEM) {
                "item"
            } else if std::ptr::eq(*table, &raw const TOKEN) {
                "token"
            } else {
                "override"
            };
            let at_least = usize::from(std::ptr::eq(*table, &raw const ITEM));
            json!({"type": "array", "items": {"$ref": format!("#/$defs/{name}")}, "minItems": at_least})
        }
        Shape::Sha256 => json!({"type": ["string", "number"], "pattern": "^[0-9A-Fa-f]{64}$"}),
        Shape::Section(table) => Value::Object(object(table)),
        Shape::Allowance => json!({"type": ["integer", "string"], "minimum": -1, "maximum": MAX_LIMIT}),
        Shape::Texts => json!({"type": "array", "items": {"type": "string"}}),
        Shape::Unread => json!({}),
    }
}
