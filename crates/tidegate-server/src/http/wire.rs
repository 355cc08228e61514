//! The JSON types of the HTTP API and their conversion to library types.
//!
//! Unknown fields are refused. Frequent responses are encoded by hand into one buffer.

pub(super) mod acquire;
pub(super) mod activity;
pub(super) mod compact_acquire;
pub(super) mod decision;
pub(super) mod instant;
pub(super) mod lease;
pub(super) mod limit;
pub(super) mod number;
pub(super) mod override_body;
pub(super) mod strict_object;
pub(super) mod usage;

use serde::Deserialize;

use super::problem::Problem;

/// Parses a body.
pub(super) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    // serde would accept an array for a struct.
    if body.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err(Problem::bad_request("the body must be a JSON object"));
    }
    serde_json::from_slice(body).map_err(|error| Problem::bad_request(format!("the body: {error}")))
}
