//! Valid files return their limits.

use std::time::Duration;

use tidegate_config::limits::{read_file, read_limit, read_text};
use tidegate_core::{Capacity, Charge, ItemSpec, LimitSpec, Mode, OverrideSpec, Policy, Precision};
use tidegate_core::{Unit, WeekStart, Zone};

use super::EXAMPLE;

/// The limits of a valid file.
#[track_caller]
fn limits_of(text: &str) -> Vec<LimitSpec> {
    read_text("tidegate.yaml", text).unwrap_or_else(|errors| panic!("{errors}"))
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn example_limit() -> LimitSpec {
    let sliding = |window, precision| Policy::Sliding { window: seconds(window), precision };
    LimitSpec {
        description: Some("flash sale".to_owned()),
        time_zone: Zone::named("Asia/Shanghai").expect("the zone is in the database"),
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
fn example_of_manual_returns_its_limit() {
    assert_eq!(limits_of(EXAMPLE), [example_limit()]);
}

#[test]
fn json_file_returns_its_limit() {
    let json = "{\n\t\"limits\": [{\"id\": \"a/b\", \"description\": \"\\ud83d\\ude00 \\/ \\u00e9\", \"time_zone\": null,\n\t\
                \"items\": [{\"policy\": \"sliding\", \"limit\": -1, \"window\": \"1500ms\", \"per\": \"key\", \"charge\": \"ask\"}],\n\
                \"overrides\": [{\"key\": 7, \"item\": \"key/sliding-1500ms\", \"limit\": 0}]}]}";
    let [limit] = limits_of(json).try_into().expect("one limit");
    assert_eq!(limit.description.as_deref(), Some("😀 / é"));
    assert_eq!(limit.items[0].limit, Capacity::Unlimited);
    assert_eq!(limit.items[0].charge, Some(Charge::Ask));
    assert_eq!(limit.overrides[0].key, b"7");
    assert_eq!(limit.overrides[0].until, None);
}

#[test]
fn words_return_their_enum_values() {
    let text = "limits: [{id: 123, week_start: sunday, mode: off, on_outage: admit, durability: sync, \
                fleet: sliced, items: [{name: x, policy: concurrency, limit: 0, charge: count}]}]";
    let [limit] = limits_of(text).try_into().expect("one limit");
    assert_eq!(limit.id, "123");
    assert_eq!((limit.week_start, limit.mode), (WeekStart::Sunday, Mode::Off));
    assert_eq!(limit.on_outage.word(), "admit");
    assert_eq!((limit.durability.word(), limit.fleet.word()), ("sync", "sliced"));
    assert_eq!(limit.items[0].name.as_deref(), Some("x"));
    assert_eq!(limit.items[0].policy, Policy::Concurrency { ttl: seconds(60) });
    assert_eq!(limit.items[0].charge, Some(Charge::Count));
}

#[test]
fn calendar_units_return_calendar_policies() {
    for unit in Unit::ALL {
        let text = format!("limits: [{{id: a, items: [{{policy: {}, limit: 1}}]}}]", unit.word());
        assert_eq!(limits_of(&text)[0].items[0].policy, Policy::Calendar(unit));
    }
}

#[test]
fn file_without_limits_returns_empty_list() {
    for text in
        ["", "\n\n", "# nothing yet\n", "---\n", "{}", "limits:\n", "limits:\n  # - id: a\n", "limits: []"]
    {
        assert_eq!(limits_of(text), [], "{text:?}");
    }
    assert_eq!(limits_of("\u{feff}limits: []"), [], "a byte order mark is skipped");
}

#[test]
fn alias_returns_value_of_its_anchor() {
    let text = "limits:\n  - {id: a, items: &two [{policy: day, limit: 2}]}\n  - {id: b, items: *two}\n";
    let limits = limits_of(text);
    assert_eq!(limits[0].items, limits[1].items);
}

#[test]
fn line_ends_of_all_systems_give_same_position() {
    for end in ["\n", "\r\n", "\r"] {
        let text = ["limits:", "  - id: a", "    items: 5", ""].join(end);
        let errors = read_text("f", text.as_bytes()).expect_err("items must be a list");
        let places: Vec<_> = errors.iter().map(|error| (error.line, error.column)).collect();
        assert_eq!(places, [(3, 12)], "{end:?}");
    }
}

#[test]
fn read_limit_returns_limit_or_relative_paths() {
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
fn read_file_of_an_example_returns_its_limits() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/login/tidegate.yaml");
    assert_eq!(read_file(path).expect("the example is valid").len(), 1);
}

#[test]
fn read_file_of_a_bad_file_lists_all_errors() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/login/broken.yaml");
    let errors = read_file(path).expect_err("the example is broken");
    assert!(errors.errors() > 1);
    for error in &errors {
        assert!(errors.to_string().contains(&error.message), "{errors}");
    }
}

#[test]
fn read_file_of_a_missing_file_names_the_file() {
    let errors = read_file("no/such/file.yaml").expect_err("there is no such file");
    assert!(errors.to_string().starts_with("error: no/such/file.yaml:1:1: cannot be read: "), "{errors}");
}

#[test]
fn server_sections_are_skipped() {
    let text = "server: {x: [y]}\nstore: 5\nauth: {}\nactivity: {window: never}\nlimits: []\n";
    assert_eq!(limits_of(text), []);
}
