//! The JSON Schema says what the reader says.

use tidegate_server::settings::{read, schema};

const PUBLISHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/limits.schema.json");

#[test]
fn is_the_published_one() {
    let current = format!("{:#}\n", schema());
    #[expect(clippy::disallowed_methods, reason = "whether to publish, the environment says")]
    let publish = std::env::var_os("TIDEGATE_PUBLISH").is_some();
    if publish {
        std::fs::write(PUBLISHED, &current).expect("the docs are writable");
    }
    let published = std::fs::read_to_string(PUBLISHED).expect("the schema is published");
    assert_eq!(
        published, current,
        "publish it: TIDEGATE_PUBLISH=1 cargo test -p tidegate-server is_the_published_one"
    );
}

#[test]
fn agrees_with_the_reader() {
    let schema = schema();
    jsonschema::draft202012::meta::validate(&schema).expect("the schema is a schema");
    let validator = jsonschema::validator_for(&schema).expect("the schema is a schema");
    let with_item = |item: &str| format!(r#"{{"limits": [{{"id": "a", "items": [{item}]}}]}}"#);
    let cases = [
        "{}".to_owned(),
        r#"{"limits": [], "activity": {"x": 1}}"#.to_owned(),
        r#"{"activity": {"max_concurrent_tasks": -1, "window": "15s", "compat": true}}"#.to_owned(),
        r#"{"activity": {"compat": "true"}}"#.to_owned(),
        r#"{"activity": {"window": 15}}"#.to_owned(),
        r#"{"activity": null}"#.to_owned(),
        r#"{"server": {"x": 1}}"#.to_owned(),
        r#"{"server": {}, "store": null}"#.to_owned(),
        r#"{"server": {"http": "127.0.0.1:7700", "resp": "off", "workers": 2, "max_connections": null}}"#
            .to_owned(),
        r#"{"server": {"http": "[::1]:7700", "idle_timeout": "5m", "header_timeout": "10s", "drain": "0s"}}"#
            .to_owned(),
        r#"{"server": {"http": "localhost:7700"}}"#.to_owned(),
        r#"{"server": {"http": 7700}}"#.to_owned(),
        r#"{"server": {"workers": 0}}"#.to_owned(),
        r#"{"server": {"workers": 1025}}"#.to_owned(),
        r#"{"server": {"idle_timeout": "5"}}"#.to_owned(),
        r#"{"server": []}"#.to_owned(),
        r#"{"store": {"url": "memory:", "memory": "64MiB"}}"#.to_owned(),
        r#"{"store": {"url": "memory"}}"#.to_owned(),
        r#"{"store": {"url": "disc:"}}"#.to_owned(),
        r#"{"store": {"memory": "64MB"}}"#.to_owned(),
        r#"{"store": {"memory": 67108864}}"#.to_owned(),
        r#"{"store": "memory:"}"#.to_owned(),
        r#"{"limit": []}"#.to_owned(),
        r#"{"auth": null}"#.to_owned(),
        r#"{"auth": {}}"#.to_owned(),
        r#"{"auth": []}"#.to_owned(),
        r#"{"auth": {"tokens": []}}"#.to_owned(),
        r#"{"auth": {"tokens": [{"name": "n", "sha256": "12", "role": "read"}]}}"#.to_owned(),
        format!(
            r#"{{"auth": {{"tokens": [{{"name": "n", "sha256": "{}", "role": "read"}}]}}}}"#,
            "aB".repeat(32)
        ),
        format!(
            r#"{{"auth": {{"tokens": [{{"name": "n", "sha256": "{}", "role": "write"}}]}}}}"#,
            "aB".repeat(32)
        ),
        r#"{"limits": [{"id": "a"}]}"#.to_owned(),
        r#"{"limits": [{"id": 7, "time_zone": null, "mode": "off", "starts_at": "2026-01-20T00:00:00+08:00",
            "items": [{"policy": "day", "limit": 1, "per": "key"}],
            "overrides": [{"key": 7, "item": "key/day", "limit": 2}]}]}"#
            .to_owned(),
        r#"{"limits": [{"id": "a", "mode": "on", "items": [{"policy": "day", "limit": 1}]}]}"#.to_owned(),
        r#"{"limits": [{"id": "a", "ends_at": "2026-01-20", "items": [{"policy": "day", "limit": 1}]}]}"#
            .to_owned(),
        with_item(r#"{"policy": "day", "limit": 1}"#),
        with_item(r#"{"policy": "day", "limit": -2}"#),
        with_item(r#"{"policy": "day", "limit": "1"}"#),
        with_item(r#"{"policy": "day", "limit": 1.5}"#),
        with_item(r#"{"policy": "day", "limit": null}"#),
        with_item(r#"{"policy": "day"}"#),
        with_item(r#"{"limit": 1}"#),
        with_item(r#"{"policy": "day", "limit": 1, "window": "1d"}"#),
        with_item(r#"{"policy": "day", "limit": 1, "window": null}"#),
        with_item(r#"{"policy": "sliding", "limit": 1}"#),
        with_item(r#"{"policy": "sliding", "limit": 1, "window": null}"#),
        with_item(r#"{"policy": "sliding", "limit": 1, "window": "15s", "precision": "bucketed"}"#),
        with_item(r#"{"policy": "sliding", "limit": 1, "window": "15"}"#),
        with_item(r#"{"policy": "bucket", "limit": 1, "window": "15s", "burst": 2}"#),
        with_item(r#"{"policy": "bucket", "limit": 1, "window": "15s", "burst": 0}"#),
        with_item(r#"{"policy": "bucket", "limit": 1, "window": "15s", "ttl": "5s"}"#),
        with_item(r#"{"policy": "concurrency", "limit": 1, "ttl": "5s", "charge": "count"}"#),
        with_item(r#"{"policy": "concurrency", "limit": 1, "burst": 5}"#),
    ];
    for case in cases {
        let value = serde_json::from_str(&case).expect("the case is JSON");
        let by_reader = read("f", case.as_bytes()).is_ok();
        assert_eq!(validator.is_valid(&value), by_reader, "{case}");
    }
}
