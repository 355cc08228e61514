//! `tidegate cpu`.

mod journal;
mod plan;
mod report;
mod simulate;
mod status;

use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}
