//! The body of an override: validated by the parser of settings files as the only override of its limit.

use serde::Deserialize;
use tidegate::model::{LimitSpec, OverrideSpec};

use super::limit::{checked, limit_with, object, refusal, with_field};
use crate::http::problem::{FieldError, Problem, ProblemCode};

/// Prefix of errors of that override.
const ONLY: &str = "overrides[0].";

/// Parses the override of this limit for this key; returns all errors.
pub(in crate::http) fn read(limit: &LimitSpec, key: &str, body: &[u8]) -> Result<OverrideSpec, Problem> {
    let (json, fields) = object(body)?;
    if let Some(unknown) = fields.keys().find(|field| !["item", "limit", "until"].contains(&field.as_str())) {
        let detail =
            format!("'{unknown}' is not a field of an override here; they are item, limit and until");
        return Err(Problem::bad_request(detail));
    }
    let text = limit_with(limit, &with_field(json, "key", key));
    let mut spec =
        checked(&text).map_err(|errors| refusal(errors.into_iter().map(strip_prefix).collect()))?;
    spec.overrides.pop().ok_or_else(|| Problem::new(ProblemCode::InvalidLimit, "there is no override"))
}

/// Removes the prefix from the field of an error.
pub(in crate::http) fn strip_prefix(error: FieldError) -> FieldError {
    let field = error.field.strip_prefix(ONLY).map_or(error.field.clone(), str::to_owned);
    FieldError { field, ..error }
}

/// Body of a removal: one item's override, or all of the key.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct OverrideRemovalBody {
    pub(in crate::http) item: Option<String>,
}
