//! JSON Schema made from a [`MappingSchema`].
//!
//! Editors use it for completion and validation. It describes the type of each field and the fields of each policy. JSON Schema
//! cannot express duplicate ids, overrides of missing items and unsupported rates; only the reader checks them.

use serde_json::{Map, Value, json};
use tidegate_core::amount::MAX_LIMIT;

use crate::schema::{FieldSchema, FieldType, MappingSchema, Presence};

/// The JSON Schema of a file, draft 2020-12. Elements of lists become definitions; sections are inlined.
pub fn json_schema(title: &str, file: &MappingSchema) -> Value {
    let mut definitions = Map::new();
    define_elements(file, &mut definitions);
    let mut schema = object_schema(file);
    schema.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    schema.insert("title".to_owned(), json!(title));
    schema.insert("$defs".to_owned(), Value::Object(definitions));
    Value::Object(schema)
}

/// Adds a definition for the elements of each list, recursively.
fn define_elements(mapping: &MappingSchema, definitions: &mut Map<String, Value>) {
    for field in mapping.fields {
        match field.value {
            FieldType::List { element, .. } => {
                definitions.insert(element.name.to_owned(), Value::Object(object_schema(element)));
                define_elements(element, definitions);
            }
            FieldType::Section(section) => define_elements(section, definitions),
            _ => {}
        }
    }
}

/// The schema of a mapping, with a rule for each field that depends on the policy.
fn object_schema(mapping: &MappingSchema) -> Map<String, Value> {
    let properties: Map<_, _> =
        mapping.fields.iter().map(|field| (field.name.to_owned(), property_schema(field))).collect();
    let required: Vec<_> = mapping
        .fields
        .iter()
        .filter(|field| matches!(field.presence, Presence::Always))
        .map(|field| field.name)
        .collect();
    let rules: Vec<_> = mapping.fields.iter().filter_map(policy_rule).collect();
    let mut schema = Map::new();
    schema.insert("type".to_owned(), json!("object"));
    schema.insert("properties".to_owned(), Value::Object(properties));
    schema.insert("required".to_owned(), json!(required));
    schema.insert("additionalProperties".to_owned(), json!(false));
    if !rules.is_empty() {
        schema.insert("allOf".to_owned(), json!(rules));
    }
    schema
}

fn policy_rule(field: &FieldSchema) -> Option<Value> {
    let policies = field.policies()?;
    let present = match field.presence {
        Presence::AlwaysIn(_) => {
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

fn property_schema(field: &FieldSchema) -> Value {
    let mut schema = value_schema(&field.value);
    if !matches!(field.presence, Presence::Always) {
        allow_null(&mut schema);
    }
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("description".to_owned(), json!(field.about));
    }
    schema
}

/// Adds `null` to the valid values of an optional field.
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

fn value_schema(value: &FieldType) -> Value {
    match value {
        FieldType::Text => json!({"type": ["string", "number", "boolean"]}),
        FieldType::Name => {
            json!({"type": ["string", "number", "boolean"], "pattern": "^[A-Za-z0-9._:/-]{1,256}$"})
        }
        FieldType::Word(words) => json!({"type": "string", "enum": words()}),
        FieldType::Limit => json!({"type": "integer", "minimum": -1, "maximum": MAX_LIMIT}),
        FieldType::Count { most, .. } => json!({"type": "integer", "minimum": 1, "maximum": most}),
        FieldType::Whole { least, most } => json!({"type": "integer", "minimum": least, "maximum": most}),
        FieldType::Decimal { .. } => json!({"type": "number", "minimum": 0}),
        FieldType::TimeOfDay => json!({"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"}),
        FieldType::Bool => json!({"type": "boolean"}),
        FieldType::Duration | FieldType::Timeout { .. } => {
            json!({"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"})
        }
        FieldType::Size { .. } => json!({"type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB|TiB)$"}),
        FieldType::Instant => json!({
            "type": "string",
            "format": "date-time",
            "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})$",
        }),
        FieldType::Zone => json!({"type": "string"}),
        FieldType::Custom(custom) => (custom.json_schema)(),
        FieldType::Texts => json!({"type": "array", "items": {"type": "string"}}),
        FieldType::List { element, least } => {
            let definition = format!("#/$defs/{}", element.name);
            json!({"type": "array", "items": {"$ref": definition}, "minItems": least})
        }
        FieldType::Section(section) => Value::Object(object_schema(section)),
        FieldType::Unread { .. } => json!({}),
    }
}
