//! Fuzz tests: any input returns limits or errors and never panics.

use proptest::prelude::*;
use tidegate_config::limits::{read_limit, read_text};
use tidegate_core::{Limit, Tick};

use super::EXAMPLE;

proptest! {
    #[test]
    fn arbitrary_bytes_return_limits_or_errors(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check_result(&bytes);
    }

    #[test]
    fn yaml_like_text_returns_limits_or_errors(text in "([-:{}\\[\\],&*!|>'\"%@#?~ \n\t]|limits|items|id|a|1|é|\r){0,120}") {
        check_result(text.as_bytes());
    }

    #[test]
    fn mutated_example_returns_limits_or_errors(
        at in 0..EXAMPLE.len(),
        removed in 0..40_usize,
        put in prop_oneof![
            "[-:{}\\[\\],&*!|>'\"%@#?~ \n\t0-9a-z.+]{0,6}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..4),
        ],
    ) {
        let mut bytes = EXAMPLE.as_bytes().to_vec();
        let end = (at + removed).min(bytes.len());
        bytes.splice(at..end, put);
        check_result(&bytes);
    }
}

/// Checks that limits are valid and that errors have positions inside the file.
fn check_result(bytes: &[u8]) {
    match read_text("f", bytes) {
        Ok(limits) => {
            for spec in limits {
                Limit::new(spec, Tick::NANOSECOND).expect("settings are valid limits");
            }
        }
        Err(errors) => {
            assert!(errors.errors() > 0);
            let lines = String::from_utf8_lossy(bytes).split(['\n', '\r']).count();
            assert!(errors.iter().all(|error| (1..=lines).contains(&error.line) && error.column >= 1));
            assert!(errors.to_string().ends_with("in f"));
        }
    }
    let _ = read_limit("f", bytes);
}
