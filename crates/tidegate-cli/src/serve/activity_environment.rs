//! Activity settings from the environment.
//!
//! `MAX_CONCURRENT_TASKS`, `SLIDE_WINDOW_QUESTION_COUNT` and `SLIDE_WINDOW_TIME` override the section `activity` of
//! the settings file.

use std::time::Duration;

use tidegate_config::text::{parse_capacity, parse_duration};
use tidegate_server::settings::ActivitySpec;

use crate::Failure;
use crate::remote::client;

/// The names of the variables.
const TASKS: &str = "MAX_CONCURRENT_TASKS";
const REQUESTS: &str = "SLIDE_WINDOW_QUESTION_COUNT";
const WINDOW: &str = "SLIDE_WINDOW_TIME";

/// Reads the variables. Fails with every error at once.
pub(super) fn environment() -> Result<ActivitySpec, Failure> {
    let mut values = Vec::new();
    for name in [TASKS, REQUESTS, WINDOW] {
        values.extend(client::environment(name)?.map(|value| (name, value)));
    }
    let set = |name: &str| values.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
    read(set).map_err(|wrong| Failure::BadInput(wrong.join("\n")))
}

fn read(set: impl Fn(&str) -> Option<String>) -> Result<ActivitySpec, Vec<String>> {
    let mut wrong = Vec::new();
    let mut spec = ActivitySpec::default();
    let mut note = |name: &str, why: String| wrong.push(format!("the environment variable {name} {why}"));
    for (name, field) in [(TASKS, &mut spec.max_concurrent_tasks), (REQUESTS, &mut spec.window_requests)] {
        match set(name).map(|value| parse_capacity(&value)).transpose() {
            Ok(capacity) => *field = capacity,
            Err(why) => note(name, why),
        }
    }
    match set(WINDOW).map(|value| window(&value)).transpose() {
        Ok(window) => spec.window = window,
        Err(why) => note(WINDOW, why),
    }
    if wrong.is_empty() { Ok(spec) } else { Err(wrong) }
}

/// Reads whole seconds or a duration.
fn window(value: &str) -> Result<Duration, String> {
    let window = if value.bytes().all(|digit| digit.is_ascii_digit()) {
        parse_duration(&format!("{value}s"))
    } else {
        parse_duration(value)
    };
    match window {
        Ok(window) if !window.is_zero() => Ok(window),
        Ok(_) => Err(format!("must be at least 1ms, found '{value}'")),
        Err(why) => Err(format!("must be whole seconds such as 15, or a duration: it {why}")),
    }
}

#[cfg(test)]
mod tests {
    use tidegate::model::Capacity;

    use super::*;

    fn with(values: &[(&str, &str)]) -> Result<ActivitySpec, Vec<String>> {
        read(|name| values.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn variables_override_their_settings() {
        assert_eq!(with(&[]), Ok(ActivitySpec::default()));
        let spec = with(&[(TASKS, "7"), (REQUESTS, "-1"), (WINDOW, "20")]).unwrap();
        assert_eq!(spec.max_concurrent_tasks, Some(Capacity::AtMost(7)));
        assert_eq!(spec.window_requests, Some(Capacity::Unlimited));
        assert_eq!(spec.window, Some(Duration::from_secs(20)));
        assert_eq!(with(&[(WINDOW, "1500ms")]).unwrap().window, Some(Duration::from_millis(1500)));
    }

    #[test]
    fn every_error_names_its_variable() {
        let wrong = with(&[(TASKS, "many"), (REQUESTS, "-2"), (WINDOW, "1.5")]).unwrap_err();
        assert_eq!(wrong.len(), 3);
        for ((name, allowed), message) in
            [(TASKS, "whole number"), (REQUESTS, "-1 (count, never refuse)"), (WINDOW, "whole seconds")]
                .iter()
                .zip(&wrong)
        {
            assert!(message.contains(name) && message.contains(allowed), "{message}");
        }
        for value in ["0", "0s", "-1", "15 s", "1h30m", "99999999999999999999"] {
            assert!(with(&[(WINDOW, value)]).is_err(), "{value}");
        }
    }
}
