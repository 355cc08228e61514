//! Servers that are killed. One that keeps its counts in memory loses them, and has to be found out.

use super::json;
use crate::run;

/// Whether `serve` has a store that survives being killed.
const HAS_DISK: bool = false;

#[test]
fn a_server_that_forgets_is_found_out() {
    let found =
        run(&["bench", "--crash", "--store", "memory:", "--kills", "2", "--seed", "5", "--json", "-"], "");
    assert_eq!(found.code, Some(1), "{}", found.err);
    let told = json(&found.out);
    assert_eq!((&told["kills"], &told["seed"]), (&2.into(), &5.into()));
    assert_eq!(told["laws"].as_array().map(Vec::len), Some(7), "{told}");
    assert_eq!(told["verdict"]["clean"], false);
    assert_eq!(told["verdict"]["failures"], 0, "{told}");
    assert!(told["verdict"]["forgotten_limits"].as_u64() > Some(0), "{told}");
    let recovery = |name: &str| told["recovery_ms"][name].as_u64().expect("a time");
    assert!(
        recovery("min") > 0 && recovery("min") <= recovery("median") && recovery("median") <= recovery("max")
    );
    for law in told["laws"].as_array().expect("laws") {
        // The last life alone has sold everything.
        assert!(law["sold"].as_u64() >= law["limit"].as_u64(), "{law}");
        assert_eq!(law["lost"], 0, "{law}");
    }
    // A life of no length sells nothing; not both of them are that.
    assert!(told["verdict"]["over_admissions"].as_u64() > Some(0), "{told}");
    assert!(found.err.contains("SOLD ABOVE THE LIMIT") && found.err.contains("--seed 5"), "{}", found.err);
}

#[test]
fn a_server_that_writes_down_what_it_sells_sells_nothing_twice() {
    let run = run(&["bench", "--crash", "--kills", "4"], "");
    if HAS_DISK {
        assert!(
            run.done().contains("Nothing was sold above its limit, and no more was lost than was promised.")
        );
    } else {
        assert!(run.failed(1).contains("the server did not start:"));
    }
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let told = run(&["bench", "--crash", "--store", "floppy:"], "").failed(1);
    assert!(told.starts_with("the server did not start:\n") && told.contains("floppy:"), "{told}");
}
