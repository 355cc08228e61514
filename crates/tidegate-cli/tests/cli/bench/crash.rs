//! Servers that are killed. One that keeps its counts in memory loses them, and has to be found out.

use serde_json::Value;

use super::json;
use crate::run;

/// How often a server is killed here, and how often if somebody has the time.
const KILLS: &str = "20";
const MANY_KILLS: &str = "200";

/// What is told of a server that forgets everything when it is killed; in words too.
fn of_one_that_forgets(seed: u32) -> (Value, String) {
    let seed = seed.to_string();
    let args = ["bench", "--crash", "--store", "memory:", "--kills", "2", "--seed", &seed, "--json", "-"];
    let found = run(&args, "");
    assert_eq!(found.code, Some(1), "{}", found.err);
    (json(&found.out), found.err)
}

#[test]
fn a_server_that_forgets_is_found_out() {
    // A life may be over before anything was sold in it. That does not happen every time.
    let oversold = |(told, _): &(Value, String)| told["verdict"]["over_admissions"].as_u64() > Some(0);
    let (told, words) = (0..10).map(of_one_that_forgets).find(oversold).expect("something is sold twice");
    assert!(words.contains("SOLD ABOVE THE LIMIT") && words.contains("the verdict is not clean"), "{words}");
    assert_eq!((&told["kills"], &told["verdict"]["clean"]), (&2.into(), &false.into()));
    assert_eq!(told["verdict"]["failures"], 0, "{told}");
    assert!(told["verdict"]["forgotten_limits"].as_u64() > Some(0), "{told}");
    let recovery = |name: &str| told["recovery_ms"][name].as_u64().expect("a time");
    assert!(0 < recovery("min") && recovery("min") <= recovery("median"), "{told}");
    assert!(recovery("median") <= recovery("max"), "{told}");
    let laws = told["laws"].as_array().expect("laws");
    assert_eq!(laws.len(), 8, "{told}");
    for law in laws {
        let number = |name: &str| law[name].as_u64().expect("a number");
        assert_eq!(number("lost"), 0, "the last life alone has sold everything: {law}");
        let above = number("sold") - number("limit");
        // What flowed into a bucket was for sale, and who has a limit of its own may have bought less than others.
        if !["bucket", "key", "key-day"].iter().any(|name| law["law"] == *name) {
            assert_eq!(number("over_admissions"), above, "{law}");
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "whether there is time, the environment says")]
fn a_server_that_writes_down_what_it_sells_sells_nothing_twice() {
    let kills = if std::env::var_os("TIDEGATE_LONG").is_some() { MANY_KILLS } else { KILLS };
    let run = run(&["bench", "--crash", "--kills", kills], "");
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    let clean = "No limit was exceeded, and no loss was above its bound.\n";
    assert!(run.out.ends_with(clean), "{}", run.out);
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let told = run(&["bench", "--crash", "--store", "floppy:"], "").failed(1);
    assert!(told.starts_with("the server did not start:\n") && told.contains("floppy:"), "{told}");
}
