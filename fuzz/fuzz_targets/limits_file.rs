//! Reads arbitrary bytes as a limits file: a result or a list of errors, never a panic.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // This target checks only for panics. Unit tests of the parser check the meaning.
    let _ = tidegate_server::settings::read("fuzz.yaml", bytes);
});
