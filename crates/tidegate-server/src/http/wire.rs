//! The JSON of the HTTP door: its own types, and how they become the library's and come from them.
//!
//! What is read refuses fields that it does not know. What is written often is written by hand into one buffer.

pub(super) mod acquire;
pub(super) mod activity;
pub(super) mod compact_acquire;
pub(super) mod decision;
pub(super) mod instant;
pub(super) mod lease;
pub(super) mod limit;
pub(super) mod number;
pub(super) mod object;
pub(super) mod override_body;
pub(super) mod usage;

use serde::Deserialize;

use super::problem::Problem;

/// Reads a body, or says what is wrong with it.
pub(super) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    // Lists are taken for objects by whoever reads them field by field.
    if body.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err(Problem::bad_request("the body must be a JSON object"));
    }
    serde_json::from_slice(body).map_err(|error| Problem::bad_request(format!("the body: {error}")))
}
