//! Limits as JSON, with the fields and checks of a settings file.
//!
//! JSON is a subset of YAML: a body is first checked to be JSON and then read by [`tidegate_config::limits::read_limit`], which reports all errors
//! at once.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};
use tidegate::model::{Capacity, ItemSpec, LimitSpec, OverrideSpec, Policy};
use tidegate_config::limits::read_limit;
use tidegate_config::{Diagnostics, Severity};

use super::instant;
use crate::http::problem::{FieldError, Problem, ProblemCode};

/// Parses a limit with its id.
pub(in crate::http) fn read(body: &[u8]) -> Result<LimitSpec, Problem> {
    let (json, _) = object(body)?;
    checked(json).map_err(refusal)
}

/// Parses a limit whose id is in the path; the body may repeat but not contradict it.
pub(in crate::http) fn read_as(id: &str, body: &[u8]) -> Result<LimitSpec, Problem> {
    let (json, fields) = object(body)?;
    let text = match fields.get("id") {
        None => with_field(json, "id", id),
        Some(_) => json.to_owned(),
    };
    let other = || FieldError { field: "id".to_owned(), message: format!("must be '{id}', as in the path") };
    match checked(&text) {
        Ok(spec) if spec.id == id => Ok(spec),
        Ok(_) => Err(refusal(vec![other()])),
        Err(mut errors) => {
            let contradicts = fields.get("id").and_then(Value::as_str).is_some_and(|said| said != id);
            errors.extend(contradicts.then(other));
            Err(refusal(errors))
        }
    }
}

/// The body as JSON text of an object, and its fields.
pub(super) fn object(body: &[u8]) -> Result<(&str, Map<String, Value>), Problem> {
    let fields = super::read(body)?;
    let json = std::str::from_utf8(body).map_err(|_| Problem::bad_request("the body must be UTF-8"))?;
    Ok((json.trim_matches([' ', '\t', '\n', '\r']), fields))
}

/// Inserts a string field at the start of a JSON object.
pub(super) fn with_field(json: &str, field: &str, text: &str) -> String {
    let rest = json.strip_prefix('{').unwrap_or(json);
    let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
    format!("{{{}:{}{comma}{rest}", quoted(field), quoted(text))
}

/// The limit with only this override, to validate it.
pub(super) fn limit_with(limit: &LimitSpec, overriding: &str) -> String {
    let items: Vec<_> = limit.items.iter().map(ItemBody::of).collect();
    let items = serde_json::to_string(&items).unwrap_or_default();
    format!("{{\"id\":{},\"items\":{items},\"overrides\":[{overriding}]}}", quoted(&limit.id))
}

/// Parses and validates a limit; returns all errors.
pub(super) fn checked(text: &str) -> Result<LimitSpec, Vec<FieldError>> {
    read_limit("the body", text.as_bytes()).map_err(errors)
}

fn errors(diagnostics: Diagnostics) -> Vec<FieldError> {
    let error = |found: &tidegate_config::Diagnostic| found.severity == Severity::Error;
    let written = diagnostics.into_iter().filter(error);
    written
        .map(|found| FieldError {
            message: match found.help {
                Some(help) => format!("{}; {help}", found.message),
                None => found.message,
            },
            field: found.field,
        })
        .collect()
}

/// Only unknown fields are a bad request; other errors make the limit invalid.
pub(super) fn refusal(errors: Vec<FieldError>) -> Problem {
    let only_unknown = errors.iter().all(|error| error.message.starts_with("is not a field of "));
    let code = if only_unknown { ProblemCode::BadRequest } else { ProblemCode::InvalidLimit };
    Problem::of_fields(code, errors)
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The JSON of a limit, as the API returns and accepts it.
pub fn limit_as_json(spec: &LimitSpec) -> String {
    serde_json::to_string(&LimitBody::of(spec)).unwrap_or_default()
}

/// A limit in a response, with defaults filled in. It can be put back unchanged.
#[derive(Debug, Serialize)]
pub(in crate::http) struct LimitBody<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    time_zone: &'a str,
    week_start: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    starts_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_at: Option<String>,
    mode: &'static str,
    on_outage: &'static str,
    durability: &'static str,
    fleet: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_keys: Option<u64>,
    items: Vec<ItemBody<'a>>,
    overrides: Vec<OverrideBody<'a>>,
}

impl<'a> LimitBody<'a> {
    pub(in crate::http) fn of(spec: &'a LimitSpec) -> LimitBody<'a> {
        LimitBody {
            id: &spec.id,
            description: spec.description.as_deref(),
            time_zone: spec.time_zone.name(),
            week_start: spec.week_start.word(),
            starts_at: spec.starts_at.map(instant::since_epoch),
            ends_at: spec.ends_at.map(instant::since_epoch),
            mode: spec.mode.word(),
            on_outage: spec.on_outage.word(),
            durability: spec.durability.word(),
            fleet: spec.fleet.word(),
            max_keys: spec.max_keys,
            items: spec.items.iter().map(ItemBody::of).collect(),
            overrides: spec.overrides.iter().map(OverrideBody::of).collect(),
        }
    }
}

#[derive(Debug, Serialize)]
struct ItemBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    policy: &'static str,
    limit: i64,
    per: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    precision: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    charge: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<String>,
}

impl<'a> ItemBody<'a> {
    fn of(spec: &'a ItemSpec) -> ItemBody<'a> {
        let (mut burst, mut precision, mut ttl) = (None, None, None);
        match spec.policy {
            Policy::Bucket { burst: written, .. } => burst = written,
            Policy::Sliding { precision: written, .. } => precision = Some(written.word()),
            Policy::Concurrency { ttl: written } => ttl = Some(duration(written)),
            Policy::Total | Policy::Calendar(_) | Policy::Interval { .. } => {}
        }
        ItemBody {
            name: spec.name.as_deref(),
            policy: spec.policy.word(),
            limit: capacity(spec.limit),
            per: spec.per.word(),
            window: spec.policy.window().map(duration),
            burst,
            precision,
            charge: spec.charge.map(tidegate::model::Charge::word),
            ttl,
        }
    }
}

/// An override in a response.
#[derive(Debug, Serialize)]
pub(in crate::http) struct OverrideBody<'a> {
    key: std::borrow::Cow<'a, str>,
    item: &'a str,
    limit: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
}

impl<'a> OverrideBody<'a> {
    pub(in crate::http) fn of(spec: &'a OverrideSpec) -> OverrideBody<'a> {
        OverrideBody {
            key: String::from_utf8_lossy(&spec.key),
            item: &spec.item,
            limit: capacity(spec.limit),
            until: spec.until.map(instant::since_epoch),
        }
    }
}

/// `-1` stands for unlimited.
fn capacity(capacity: Capacity) -> i64 {
    match capacity {
        Capacity::Unlimited => -1,
        Capacity::AtMost(limit) => i64::try_from(limit).unwrap_or(i64::MAX),
    }
}

/// Whole seconds if possible, else milliseconds, as in item names.
fn duration(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 {
        format!("{}s", duration.as_secs())
    } else {
        format!("{}ms", duration.as_millis())
    }
}
