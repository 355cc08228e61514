//! Good files mean what they say.

use std::time::Duration;

use tidegate::file::{
    ActivitySpec, Listen, Reading, Role, ServerSpec, Severity, StoreSpec, TokenSpec, read, read_limit,
    read_limits,
};
use tidegate::model::{Capacity, Charge, ItemSpec, LimitSpec, Mode, OverrideSpec, Policy, Precision};
use tidegate::model::{Unit, WeekStart, Zone};

use super::EXAMPLE;

/// Reads a file that must be good and give no warnings.
#[track_caller]
fn good(text: &str) -> Vec<LimitSpec> {
    match read("tidegate.yaml", text.as_bytes()) {
        Ok(Reading { settings, warnings, .. }) if warnings.is_empty() => settings.limits,
        Ok(Reading { warnings, .. }) => panic!("{warnings}"),
        Err(errors) => panic!("{errors}"),
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn the_example() -> LimitSpec {
    let sliding = |window, precision| Policy::Sliding { window: seconds(window), precision };
    LimitSpec {
        description: Some("flash sale".to_owned()),
        time_zone: Zone::named("Asia/Shanghai").expect("it is in the database"),
        starts_at: Some(seconds(1_768_838_400)),
        ends_at: Some(seconds(1_771_516_800)),
        max_keys: Some(1_000_000),
        items: vec![
            ItemSpec::of(Policy::Total, 10_000),
            ItemSpec::of(Policy::Total, 2).per_key(),
            ItemSpec::of(Policy::Calendar(Unit::Day), 1).per_key(),
            ItemSpec::of(Policy::Interval { window: seconds(10) }, 5).per_key(),
            ItemSpec::of(sliding(15, Precision::Exact), 5).per_key(),
            ItemSpec::of(sliding(60, Precision::Bucketed), 2_000_000),
            ItemSpec::of(Policy::Bucket { window: seconds(1), burst: Some(200) }, 100),
            ItemSpec::of(Policy::Concurrency { ttl: seconds(60) }, 30),
        ],
        overrides: vec![OverrideSpec {
            key: b"vip-7".to_vec(),
            item: "key/day".to_owned(),
            limit: Capacity::AtMost(20),
            until: Some(seconds(1_769_904_000)),
        }],
        ..LimitSpec::named("spring-sale")
    }
}

#[test]
fn the_manuals_example_means_what_it_says() {
    assert_eq!(good(EXAMPLE), [the_example()]);
}

#[test]
fn json_is_yaml() {
    let json = "{\n\t\"limits\": [{\"id\": \"a/b\", \"description\": \"\\ud83d\\ude00 \\/ \\u00e9\", \"time_zone\": null,\n\t\
                \"items\": [{\"policy\": \"sliding\", \"limit\": -1, \"window\": \"1500ms\", \"per\": \"key\", \"charge\": \"ask\"}],\n\
                \"overrides\": [{\"key\": 7, \"item\": \"key/sliding-1500ms\", \"limit\": 0}]}]}";
    let [limit] = good(json).try_into().expect("one limit");
    assert_eq!(limit.description.as_deref(), Some("😀 / é"));
    assert_eq!(limit.items[0].limit, Capacity::Unlimited);
    assert_eq!(limit.items[0].charge, Some(Charge::Ask));
    assert_eq!(limit.overrides[0].key, b"7");
    assert_eq!(limit.overrides[0].until, None);
}

#[test]
fn every_word_is_its_choice() {
    let text = "limits: [{id: 123, week_start: sunday, mode: off, on_outage: admit, durability: sync, \
                fleet: sliced, items: [{name: x, policy: concurrency, limit: 0, charge: count}]}]";
    let [limit] = good(text).try_into().expect("one limit");
    assert_eq!(limit.id, "123");
    assert_eq!((limit.week_start, limit.mode), (WeekStart::Sunday, Mode::Off));
    assert_eq!(limit.on_outage.word(), "admit");
    assert_eq!((limit.durability.word(), limit.fleet.word()), ("sync", "sliced"));
    assert_eq!(limit.items[0].name.as_deref(), Some("x"));
    assert_eq!(limit.items[0].policy, Policy::Concurrency { ttl: seconds(60) });
    assert_eq!(limit.items[0].charge, Some(Charge::Count));
}

#[test]
fn calendar_units_are_policies() {
    for unit in Unit::ALL {
        let text = format!("limits: [{{id: a, items: [{{policy: {}, limit: 1}}]}}]", unit.word());
        assert_eq!(good(&text)[0].items[0].policy, Policy::Calendar(unit));
    }
}

#[test]
fn nothing_is_no_limits() {
    for text in
        ["", "\n\n", "# nothing yet\n", "---\n", "{}", "limits:\n", "limits:\n  # - id: a\n", "limits: []"]
    {
        assert_eq!(good(text), [], "{text:?}");
    }
    assert_eq!(good("\u{feff}limits: []"), [], "a byte order mark is no text");
}

#[test]
fn an_alias_is_what_it_stands_for() {
    let text = "limits:\n  - {id: a, items: &two [{policy: day, limit: 2}]}\n  - {id: b, items: *two}\n";
    let limits = good(text);
    assert_eq!(limits[0].items, limits[1].items);
}

#[test]
fn line_ends_of_any_system_count_alike() {
    for end in ["\n", "\r\n", "\r"] {
        let text = ["limits:", "  - id: a", "    items: 5", ""].join(end);
        let errors = read("f", text.as_bytes()).expect_err("items must be a list");
        let places: Vec<_> = errors.iter().map(|error| (error.line, error.column)).collect();
        assert_eq!(places, [(3, 12)], "{end:?}");
    }
}

#[test]
fn sections_of_others_are_warnings() {
    let text = "tls: []\nenvoy: {}\nlimits: []\n";
    let reading = read("tidegate.yaml", text.as_bytes()).expect("warnings are not errors");
    assert!(reading.warnings.iter().all(|warning| warning.severity == Severity::Warning));
    insta::assert_snapshot!(reading.warnings);
}

#[test]
fn an_activity_is_a_limit_in_words_of_its_own() {
    let text = "activity: {max_concurrent_tasks: 3, max_concurrent_per_user: -1, window_requests: 0, window: 500ms, \
                lease_ttl: 2m, compat: true}";
    let settings = read("tidegate.yaml", text.as_bytes()).expect("it makes sense").settings;
    let spec = ActivitySpec {
        max_concurrent_tasks: Some(Capacity::AtMost(3)),
        max_concurrent_per_user: Some(Capacity::Unlimited),
        window_requests: Some(Capacity::AtMost(0)),
        window: Some(Duration::from_millis(500)),
        lease_ttl: Some(Duration::from_secs(120)),
        compat: Some(true),
    };
    assert_eq!((settings.activity, settings.limits.len()), (Some(spec), 0));
    assert_eq!(settings.all_limits()[0].id, "activity");
    let nothing =
        |text: &str| read("tidegate.yaml", text.as_bytes()).expect("it makes sense").settings.activity;
    assert_eq!(nothing("activity: {}"), Some(ActivitySpec::default()));
    assert_eq!(nothing("activity: null"), None);
    assert_eq!(nothing("limits: []"), None);
    let alone = "limits: [{id: activity, items: [{policy: day, limit: 1}]}]";
    assert_eq!(nothing(alone), None, "whoever writes the limit has the limit");
    assert_eq!(read_limits("f", b"activity: {}").expect("it makes sense").len(), 1);
}

#[test]
fn tokens_are_read_with_their_roles_and_prefixes() {
    let (one, two) = ("0123456789abcdef".repeat(4), "ABCDEF0123456789".repeat(4));
    let text = format!(
        "auth:\n  tokens:\n  - {{name: ops, sha256: {one}, role: admin}}\n  \
         - {{name: shop, sha256: {two}, role: decide, prefix: shop/}}\n"
    );
    let token = |name: &str, sha256: &str, role, prefix: &str| TokenSpec {
        name: name.to_owned(),
        sha256: sha256.to_owned(),
        role,
        prefix: prefix.to_owned(),
    };
    let tokens = vec![token("ops", &one, Role::Admin, ""), token("shop", &two, Role::Decide, "shop/")];
    let reading = read("tidegate.yaml", text.as_bytes()).expect("a good file");
    assert_eq!((reading.settings.tokens, reading.warnings.is_empty()), (Some(tokens), true));

    let known = |text: &str| read("tidegate.yaml", text.as_bytes()).expect("a good file").settings.tokens;
    assert_eq!(known("limits: []"), None, "nobody needs one");
    assert_eq!(known("auth:\n  tokens: []"), Some(vec![]), "nobody has one");
}

#[test]
fn a_server_is_told_where_to_listen_and_how_long_to_wait() {
    let text = "server:\n  http: 0.0.0.0:80\n  resp: off\n  workers: 4\n  max_connections: 20000\n  \
                idle_timeout: 5m\n  header_timeout: 10s\n  request_timeout: 30s\n  drain: 0s\n";
    let reading = read("tidegate.yaml", text.as_bytes()).expect("a good file");
    let server = ServerSpec {
        http: Some(Listen::At(([0, 0, 0, 0], 80).into())),
        resp: Some(Listen::Off),
        workers: Some(4),
        max_connections: Some(20_000),
        idle_timeout: Some(seconds(300)),
        header_timeout: Some(seconds(10)),
        request_timeout: Some(seconds(30)),
        drain: Some(Duration::ZERO),
    };
    assert_eq!((reading.settings.server, reading.warnings.is_empty()), (server, true));

    let read = |text: &str| read("tidegate.yaml", text.as_bytes()).expect("a good file").settings;
    for nothing in ["limits: []", "server: {}\nstore: {}", "server: null\nstore: {url: null}"] {
        let settings = read(nothing);
        assert_eq!(settings.server, ServerSpec::default(), "{nothing}");
        assert_eq!(settings.store, StoreSpec::default(), "{nothing}");
    }
    assert_eq!(read("server: {http: '[::1]:0'}").server.http, "[::1]:0".parse().ok().map(Listen::At));
}

#[test]
fn a_store_is_named_with_or_without_its_colon() {
    for text in ["store: {url: 'memory:', memory: 64MiB}", "store:\n  url: memory\n  memory: 65536KiB\n"] {
        let reading = read("tidegate.yaml", text.as_bytes()).expect("a good file");
        let store = StoreSpec { url: Some(tidegate::text::StoreUrl::Memory), memory: Some(64 << 20) };
        assert_eq!((reading.settings.store, reading.warnings.is_empty()), (store, true), "{text}");
    }
}

#[test]
fn one_limit_is_read_by_itself() {
    let limit = read_limit("body", br#"{"id": "a", "items": [{"policy": "day", "limit": 1}]}"#);
    let day = ItemSpec::of(Policy::Calendar(Unit::Day), 1);
    assert_eq!(limit, Ok(LimitSpec::named("a").with(day)));

    let errors = read_limit("body", br#"{"id": "a", "items": [{"policy": "day", "limit": "1"}], "x": 1}"#);
    let errors = errors.expect_err("the limit is text and x is unknown");
    let fields: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["items[0].limit", "x"]);
    assert!(read_limit("body", b"").is_err());
}

#[test]
fn one_limit_and_a_whole_file_are_told_apart() {
    let ids = |text: &str| -> Vec<String> {
        let limits = read_limits("it", text.as_bytes()).expect(text);
        limits.into_iter().map(|limit| limit.id).collect()
    };
    let item = "items: [{policy: day, limit: 1}]";
    assert_eq!(ids(&format!("id: a\n{item}")), ["a"]);
    assert_eq!(ids(&format!("{{\"id\": \"a\", {item}}}")), ["a"]);
    assert_eq!(ids(&format!("limits: [{{id: a, {item}}}, {{id: b, {item}}}]\ntls: {{}}")), ["a", "b"]);
    assert_eq!(ids(EXAMPLE), ["spring-sale"]);
    for nothing in ["", "# nothing", "limits: []", "auth: {tokens: []}"] {
        assert_eq!(ids(nothing), [""; 0], "{nothing}");
    }
    for (text, field) in [
        ("id: a\nitems: [{policy: dya, limit: 1}]", "items[0].policy"),
        ("limits: [{id: a, items: [{policy: dya, limit: 1}]}]", "limits[0].items[0].policy"),
        ("[1]", ""),
    ] {
        let wrong = read_limits("it", text.as_bytes()).expect_err(text);
        assert!(wrong.iter().any(|found| found.field == field), "{text}: {wrong}");
    }
}
