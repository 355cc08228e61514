use super::TestServer;

const LIMITS: &str = "limits:
  - {id: workers, items: [{policy: concurrency, limit: 2, ttl: 10m}]}
  - {id: tokens, items: [{policy: total, limit: 1000, per: key}]}
";

/// The lease id in a grant, as a script extracts it.
fn lease(granted: &str) -> String {
    let line = granted.lines().find(|line| line.starts_with("lease ")).unwrap_or_else(|| panic!("{granted}"));
    line.split(' ').nth(1).expect("an id").to_owned()
}

#[test]
fn lease_is_released_once() {
    let serving = TestServer::with_limits(LIMITS);
    let granted = serving.run(&["acquire", "workers", "ada"]).done();
    assert!(granted.lines().nth(1).expect("a lease").ends_with(", fence 1"), "{granted}");
    let lease = lease(&granted);
    assert_eq!(serving.run(&["release", &lease]).done(), "released\n");
    let again = serving.run(&["release", &lease]).failed(1);
    assert!(again.starts_with("not released: "), "{again}");
    let again = serving.run(&["release", &lease, "--json"]);
    assert_eq!((again.code, &*again.out), (Some(1), "{\"released\":false}\n"));
    serving.run(&["release", "nothing"]).failed(1);
}

#[test]
fn renewed_lease_stays_valid() {
    let serving = TestServer::with_limits(LIMITS);
    let lease = lease(&serving.run(&["acquire", "workers", "--ttl", "1h"]).done());
    for args in [&["renew", &lease][..], &["renew", &lease, "--ttl", "2h"]] {
        let renewed = serving.run(args).done();
        assert!(renewed.starts_with("renewed until 2"), "{renewed}");
    }
    assert!(serving.run(&["renew", &lease, "--json"]).done().starts_with("{\"expires_at\":\"2"));
    serving.run(&["release", &lease]).done();
    assert!(serving.run(&["renew", &lease]).failed(1).contains("lease"));
}

#[test]
fn hold_is_settled_to_actual_cost() {
    let serving = TestServer::with_limits(LIMITS);
    let used = || {
        let shown = serving.run(&["limit", "get", "tokens", "--key", "ada", "--json"]).done();
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        shown["key_usage"]["count"].as_u64()
    };
    let held = lease(&serving.run(&["acquire", "tokens", "ada", "--count", "500", "--hold"]).done());
    assert_eq!(used(), Some(500));
    assert_eq!(serving.run(&["settle", &held, "312"]).done(), "settled\n");
    assert_eq!(used(), Some(312));

    let asks = ["--ask", "limit=tokens,count=100,key=ada", "--ask", "limit=tokens,count=100,key=bob"];
    let held = lease(&serving.run(&[&["acquire", "--hold"], &asks[..]].concat()).done());
    assert_eq!(serving.run(&["settle", &held, "8", "9", "--json"]).done(), "{\"settled\":true}\n");
    assert_eq!(used(), Some(320));
    serving.run(&["settle", "nothing", "1"]).failed(1);
    serving.run(&["settle", &held]).failed(2);
}
