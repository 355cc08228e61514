//! Crash tests of servers. A server with a memory store loses its counts, and the test must detect that.

use serde_json::Value;

use super::parse_json;
use crate::run;

/// Number of kills, normally and with `TIDEGATE_LONG`.
const KILLS: &str = "20";
const MANY_KILLS: &str = "200";

/// Report of a crash test against a memory store, as JSON and text.
fn crash_memory_store(seed: u32) -> (Value, String) {
    let seed = seed.to_string();
    let args = ["bench", "--crash", "--store", "memory:", "--kills", "2", "--seed", &seed, "--json", "-"];
    let found = run(&args, "");
    assert_eq!(found.code, Some(1), "{}", found.err);
    (parse_json(&found.out), found.err)
}

#[test]
fn memory_store_exceeds_limits_and_is_detected() {
    // A run may end before anything is sold; retry with another seed.
    let oversold = |(output, _): &(Value, String)| output["verdict"]["over_admissions"].as_u64() > Some(0);
    let (output, words) = (0..10).map(crash_memory_store).find(oversold).expect("something is sold twice");
    assert!(words.contains("SOLD ABOVE THE LIMIT") && words.contains("the verdict is not clean"), "{words}");
    assert_eq!((&output["kills"], &output["verdict"]["clean"]), (&2.into(), &false.into()));
    assert_eq!(output["verdict"]["failures"], 0, "{output}");
    assert!(output["verdict"]["forgotten_limits"].as_u64() > Some(0), "{output}");
    let recovery = |name: &str| output["recovery_ms"][name].as_u64().expect("a time");
    assert!(0 < recovery("min") && recovery("min") <= recovery("median"), "{output}");
    assert!(recovery("median") <= recovery("max"), "{output}");
    let laws = output["laws"].as_array().expect("laws");
    assert_eq!(laws.len(), 8, "{output}");
    for law in laws {
        let number = |name: &str| law[name].as_u64().expect("a number");
        assert_eq!(number("lost"), 0, "the last life alone has sold everything: {law}");
        let above = number("sold") - number("limit");
        // Refill of the bucket is legitimate, and per-key limits may be sold incompletely.
        if !["bucket", "key", "key-day"].iter().any(|name| law["law"] == *name) {
            assert_eq!(number("over_admissions"), above, "{law}");
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "whether there is time, the environment says")]
fn disk_store_exceeds_no_limit() {
    let kills = if std::env::var_os("TIDEGATE_LONG").is_some() { MANY_KILLS } else { KILLS };
    let run = run(&["bench", "--crash", "--kills", kills], "");
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    let clean = "No limit was exceeded, and no loss was above its bound.\n";
    assert!(run.out.ends_with(clean), "{}", run.out);
}

#[test]
fn failed_start_shows_the_reason() {
    let output = run(&["bench", "--crash", "--store", "floppy:"], "").failed(1);
    assert!(output.starts_with("the server did not start:\n") && output.contains("floppy:"), "{output}");
}
