//! Anything at all is read or refused; nothing breaks the reader.

use proptest::prelude::*;
use tidegate_config::limits::{read_limit, read_text};
use tidegate_core::{Limit, Tick};

use super::EXAMPLE;

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check_any(&bytes);
    }

    #[test]
    fn any_yamlish_text_is_read_or_refused(text in "([-:{}\\[\\],&*!|>'\"%@#?~ \n\t]|limits|items|id|a|1|é|\r){0,120}") {
        check_any(text.as_bytes());
    }

    #[test]
    fn a_good_file_with_something_else_in_it_is_read_or_refused(
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
        check_any(&bytes);
    }
}

/// Whatever is read makes sense, and whatever is refused is refused at a place that exists.
fn check_any(bytes: &[u8]) {
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
