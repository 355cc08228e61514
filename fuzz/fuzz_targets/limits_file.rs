//! Any bytes at all, read as a limits file: an answer or a list of errors, never a panic.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // Only the absence of a panic is asked for here; what a file means is held by the library's own tests.
    let _ = tidegate_server::settings::read("fuzz.yaml", bytes);
});
