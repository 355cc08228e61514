//! Settings files: what good ones mean, and what bad ones are told.
//!
//! Every message is a snapshot, made from a small file that deserves it. To read them all is to review the
//! reader; `snapshots/` holds them.

use std::fmt::Write as _;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::file::{Color, MOST_DIAGNOSTICS, Reading, Severity, read, read_limit, schema};
use tidegate::{Capacity, Charge, ItemSpec, Limit, LimitSpec, Mode, OverrideSpec, Policy, Precision, Tick};
use tidegate::{Unit, WeekStart, Zone};

/// The example of the manual, all fields of it.
const EXAMPLE: &str = r"limits:
  - id: spring-sale                  # limit_id; 1..256 bytes of [A-Za-z0-9._:/-]
    description: flash sale           # optional
    time_zone: Asia/Shanghai          # IANA name; default UTC; used by calendar items
    week_start: monday                # default monday
    starts_at: 2026-01-20T00:00:00+08:00   # optional
    ends_at: 2026-02-20T00:00:00+08:00
    mode: enforce                     # enforce (default) | shadow | off
    on_outage: deny                   # deny (default) | admit, when the store cannot answer
    durability: ceiling               # ceiling (default) | sync | volatile
    fleet: exact                      # exact (default) | sliced
    max_keys: 1000000                 # optional bound; a full limit refuses only its own new keys
    items:
      - {policy: total,       limit: 10000}                              # per: all is the default
      - {policy: total,       limit: 2,   per: key}
      - {policy: day,         limit: 1,   per: key}                      # second .. year
      - {policy: interval,    limit: 5,   per: key, window: 10s}         # anchored at the first hit
      - {policy: sliding,     limit: 5,   per: key, window: 15s}         # exact, closed window
      - {policy: sliding,     limit: 2000000, window: 60s, precision: bucketed}
      - {policy: bucket,      limit: 100, window: 1s, burst: 200}        # GCRA
      - {policy: concurrency, limit: 30,  ttl: 60s}                      # leases
    overrides:
      - {key: vip-7, item: key/day, limit: 20, until: 2026-02-01T00:00:00Z}   # until is optional
";

/// Reads a file that must be good and give no warnings.
#[track_caller]
fn good(text: &str) -> Vec<LimitSpec> {
    match read("tidegate.yaml", text.as_bytes()) {
        Ok(Reading { settings, warnings }) if warnings.is_empty() => settings.limits,
        Ok(Reading { warnings, .. }) => panic!("{warnings}"),
        Err(errors) => panic!("{errors}"),
    }
}

/// What a bad file is told.
#[track_caller]
fn bad(bytes: impl AsRef<[u8]>) -> String {
    read("tidegate.yaml", bytes.as_ref()).expect_err("the file must be refused").to_string()
}

/// What the items of a limit that is otherwise good are told, one file for each line.
#[track_caller]
fn bad_items(items: &[&str]) -> String {
    let mut told = String::new();
    for item in items {
        let file = format!("limits:\n  - id: a\n    items:\n      - {item}\n");
        writeln!(told, "{}\n", bad(&file)).expect("a string takes all writes");
    }
    told
}

/// What a limit with one good item and this field is told, one file for each line.
#[track_caller]
fn bad_fields(fields: &[&str]) -> String {
    let mut told = String::new();
    for field in fields {
        let file =
            format!("limits:\n  - id: a\n    items: [{{policy: day, limit: 1, per: key}}]\n    {field}\n");
        writeln!(told, "{}\n", bad(&file)).expect("a string takes all writes");
    }
    told
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

mod good_files {
    use super::*;

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
        for text in [
            "",
            "\n\n",
            "# nothing yet\n",
            "---\n",
            "{}",
            "limits:\n",
            "limits:\n  # - id: a\n",
            "limits: []",
        ] {
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
        let text = "server: {port: 1}\nstore: memory\nauth: {}\nactivity:\ntls: []\nenvoy: {}\nlimits: []\n";
        let reading = read("tidegate.yaml", text.as_bytes()).expect("warnings are not errors");
        assert!(reading.warnings.iter().all(|warning| warning.severity == Severity::Warning));
        insta::assert_snapshot!(reading.warnings);
    }

    #[test]
    fn one_limit_is_read_by_itself() {
        let limit = read_limit("body", br#"{"id": "a", "items": [{"policy": "day", "limit": 1}]}"#);
        let day = ItemSpec::of(Policy::Calendar(Unit::Day), 1);
        assert_eq!(limit, Ok(LimitSpec::named("a").with(day)));

        let errors =
            read_limit("body", br#"{"id": "a", "items": [{"policy": "day", "limit": "1"}], "x": 1}"#);
        let errors = errors.expect_err("the limit is text and x is unknown");
        let fields: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, ["items[0].limit", "x"]);
        assert!(read_limit("body", b"").is_err());
    }
}

mod bad_text {
    use super::*;

    #[test]
    fn that_is_not_yaml() {
        let files = [
            "limits:\n\t- id: a\n",
            "limits: [\n",
            "limits: [{id: a]\n",
            "limits:\n  - id: a: b\n",
            "limits:\n  - id: \"a\n    items: []\n",
            "limits:\n  - id: @a\n",
            "limits: []\n  more: 1\n",
            "{\"limits\": []} trailing",
            "limits:\n  - {id: a items: 3}\n",
            "limits: \"\\q\"\n",
        ];
        let told: Vec<_> = files.iter().map(bad).collect();
        insta::assert_snapshot!(told.join("\n\n"));
    }

    #[test]
    fn that_is_not_text() {
        let files: [&[u8]; 4] = [
            b"limits:\n  - id: caf\xe9\n",
            b"\xff\xfel\0i\0m\0",
            b"limits: []\n\0",
            b"limits:\n  - id: a\x1b[31m\n",
        ];
        let told: Vec<_> = files.iter().map(bad).collect();
        insta::assert_snapshot!(told.join("\n\n"));
    }

    #[test]
    fn with_two_documents() {
        insta::assert_snapshot!(bad("limits: []\n---\nlimits: []\n"));
    }

    #[test]
    fn with_a_key_twice() {
        insta::assert_snapshot!(bad(
            "limits:\n  - id: a\n    items: [{policy: day, limit: 1, limit: 2}]\n    id: b\nlimits: []\n"
        ));
    }

    #[test]
    fn with_keys_that_are_not_text() {
        insta::assert_snapshot!(bad("[a, b]: 1\n{}: 2\n"));
    }

    #[test]
    fn with_tags() {
        insta::assert_snapshot!(bad(
            "limits:\n  - id: !!str 5\n    items: !mine [{policy: day, limit: 1}]\n"
        ));
    }

    #[test]
    fn with_aliases_of_nothing_and_of_themselves() {
        insta::assert_snapshot!(bad("limits:\n  - id: *none\n    items: &items [*items]\n"));
    }

    #[test]
    fn with_merge_keys() {
        insta::assert_snapshot!(bad(
            "limits:\n  - {id: a, items: [&day {policy: day, limit: 2}, {<<: *day, limit: 1}]}\n"
        ));
    }

    #[test]
    fn that_is_too_large() {
        let told = bad(vec![b'#'; (64 << 20) + 1]);
        assert!(told.contains("at most 64 MiB"), "{told}");
    }

    #[test]
    fn that_is_too_deep() {
        for text in ["[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(100_000)] {
            let told = bad(text);
            assert!(told.contains("levels deep"), "{told}");
        }
        // Deeper by one alias at a time.
        let mut text = String::from("a0: &a0 [x]\n");
        for level in 1..1000 {
            writeln!(text, "a{level}: &a{level} [*a{}]", level - 1).expect("a string takes all writes");
        }
        assert!(bad(text).contains("levels deep"));
    }

    /// A value is counted once, however deep it lies.
    #[test]
    fn with_very_many_values_is_still_a_file() {
        let text = format!("server: [[[[[{}0]]]]]\n", "0,".repeat(900_000));
        assert!(read("tidegate.yaml", text.as_bytes()).is_ok());
    }

    #[test]
    fn that_unfolds_without_end() {
        let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..20 {
            let ten = vec![format!("*a{}", level - 1); 10].join(", ");
            writeln!(text, "a{level}: &a{level} [{ten}]").expect("a string takes all writes");
        }
        assert!(bad(text).contains("counting those behind aliases"));
    }
}

mod bad_structure {
    use super::*;

    #[test]
    fn at_the_top() {
        let files =
            ["- id: a\n", "just text\n", "5", "limits: 5\n", "limits: {id: a}\n", "limits: [5, [], null]\n"];
        let told: Vec<_> = files.iter().map(bad).collect();
        insta::assert_snapshot!(told.join("\n\n"));
    }

    #[test]
    fn with_unknown_fields() {
        let text = "limit: []\nfoo: 1\nlimits:\n  - id: a\n    time-zone: UTC\n    TimeZone: UTC\n    zzz:\n    items:\n      - {policy: bucket, limit: 1, window: 1s, brust: 5, max: 3}\n    overrides:\n      - {key: a, item: b, limit: 1, untill: 2026-01-01T00:00:00Z}\n";
        insta::assert_snapshot!(bad(text));
    }

    #[test]
    fn with_missing_fields() {
        insta::assert_snapshot!(bad(
            "limits:\n  - description: x\n  - id: a\n    items:\n      - {}\n      - per: key\n    overrides: [{}]\n  - {id: null, items: null}\n"
        ));
    }

    #[test]
    fn with_fields_that_have_no_value() {
        insta::assert_snapshot!(bad(
            "limits:\n  - id:\n    mode:\n    ends_at:\n    items:\n      - policy: day\n        limit:\n"
        ));
    }

    #[test]
    fn with_values_of_the_wrong_kind() {
        insta::assert_snapshot!(bad(
            "limits:\n  - id: [a]\n    mode: {a: b}\n    time_zone: []\n    ends_at: {}\n    max_keys: []\n    items: none\n    overrides: {key: a}\n  - id: b\n    items: [day, {policy: [day], limit: {}, window: []}]\n"
        ));
    }
}

mod bad_values {
    use super::*;

    #[test]
    fn of_limit() {
        let limits = [
            "-2",
            "1.5",
            "1e3",
            "5.0",
            "1_000",
            "\"5\"",
            "'many'",
            "unlimited",
            "~five",
            "007",
            "0x10",
            "9223372036854775808",
            "-9223372036854775809",
            "yes",
        ];
        let items: Vec<_> = limits.iter().map(|limit| format!("{{policy: day, limit: {limit}}}")).collect();
        insta::assert_snapshot!(bad_items(&items.iter().map(String::as_str).collect::<Vec<_>>()));
    }

    #[test]
    fn of_limit_that_no_store_can_keep() {
        insta::assert_snapshot!(bad_items(&[
            "{policy: sliding, limit: 1000001, window: 1s}",
            "{policy: bucket, limit: 600000007, window: 1s}",
            "{policy: bucket, limit: 1, window: 36525d, burst: 2}",
        ]));
    }

    #[test]
    fn of_policy() {
        insta::assert_snapshot!(bad_items(&[
            "{policy: dayly, limit: 1}",
            "{policy: Day, limit: 1}",
            "{policy: fixed, limit: 1}"
        ]));
    }

    #[test]
    fn of_words() {
        insta::assert_snapshot!(bad_items(&[
            "{policy: day, limit: 1, per: user}",
            "{policy: day, limit: 1, per: keys}",
            "{policy: day, limit: 1, charge: cuont}",
            "{policy: sliding, limit: 1, window: 1s, precision: bucket}",
        ]));
        insta::assert_snapshot!(bad_fields(&[
            "mode: enforced",
            "mode: on",
            "on_outage: allow",
            "durability: synch",
            "fleet: sliced ok",
            "week_start: sun",
            "week_start: sundy",
        ]));
    }

    #[test]
    fn of_window() {
        let windows = [
            "10",
            "1h30m",
            "1.5h",
            "10 s",
            "10sec",
            "10M",
            "-5s",
            "s",
            "5x",
            "0s",
            "0ms",
            "36526d",
            "99999999999999999999d",
            "1.5ms",
            "\"\"",
            "１０s",
        ];
        let items: Vec<_> =
            windows.iter().map(|window| format!("{{policy: sliding, limit: 1, window: {window}}}")).collect();
        insta::assert_snapshot!(bad_items(&items.iter().map(String::as_str).collect::<Vec<_>>()));
    }

    #[test]
    fn of_burst_and_ttl() {
        insta::assert_snapshot!(bad_items(&[
            "{policy: bucket, limit: 10, window: 1s, burst: 0}",
            "{policy: bucket, limit: 10, window: 1s, burst: -1}",
            "{policy: bucket, limit: 10, window: 1s, burst: 2.5}",
            "{policy: bucket, limit: 10, window: 1s, burst: \"20\"}",
            "{policy: concurrency, limit: 10, ttl: 0s}",
            "{policy: concurrency, limit: 10, ttl: 60}",
        ]));
    }

    #[test]
    fn of_fields_that_do_not_belong() {
        insta::assert_snapshot!(bad_items(&[
            "{policy: total, limit: 1, window: 1s}",
            "{policy: day, limit: 1, window: 1d}",
            "{policy: concurrency, limit: 1, window: 1s}",
            "{policy: sliding, limit: 1, window: 1s, burst: 5}",
            "{policy: interval, limit: 1, window: 1s, precision: exact}",
            "{policy: bucket, limit: 1, window: 1s, ttl: 5s}",
            "{policy: interval, limit: 1}",
            "{policy: sliding, limit: 1}",
            "{policy: bucket, limit: 1, burst: 5}",
        ]));
    }

    #[test]
    fn of_ids_and_names() {
        insta::assert_snapshot!(bad(
            "limits:\n  - {id: '', items: [{policy: day, limit: 1}]}\n  - {id: a b, items: [{policy: day, limit: 1, name: ümlaut}]}\n"
        ));
    }

    #[test]
    fn of_time_zone() {
        insta::assert_snapshot!(bad_fields(&[
            "time_zone: Asia/Shanghia",
            "time_zone: shanghai",
            "time_zone: New York",
            "time_zone: UTC+8",
            "time_zone: Mars/Olympus",
        ]));
    }

    #[test]
    fn of_instants() {
        let instants = [
            "2026-01-20",
            "2026-01-20T00:00:00",
            "2026-01-20 00:00:00Z",
            "2026-01-20T00:00Z",
            "2026-01-20T00:00",
            "2026-02-30T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-20T24:00:00Z",
            "2016-12-31T23:59:60Z",
            "2026-01-20T00:00:00+24:00",
            "2026-01-20T00:00:00+08",
            "2026-01-20T00:00:00+08:00[Asia/Shanghai]",
            "2026-01-20T00:00:00.0000000001Z",
            "1969-12-31T23:59:59Z",
            "2262-04-12T00:00:00Z",
            "9999-12-31T23:59:59-23:59",
            "1768838400",
            "tomorrow",
        ];
        let fields: Vec<_> = instants.iter().map(|at| format!("ends_at: {at}")).collect();
        insta::assert_snapshot!(bad_fields(&fields.iter().map(String::as_str).collect::<Vec<_>>()));
    }

    #[test]
    fn of_the_rest_of_a_limit() {
        insta::assert_snapshot!(bad_fields(&[
            "max_keys: 0",
            "max_keys: -1",
            "max_keys: all",
            "starts_at: 2026-01-20T00:00:00Z\n    ends_at: 2026-01-20T00:00:00Z",
        ]));
        insta::assert_snapshot!(bad("limits: [{id: a, items: []}]"));
    }

    #[test]
    fn of_overrides() {
        let long = format!("overrides: [{{key: {}, item: key/day, limit: 1}}]", "k".repeat(1025));
        insta::assert_snapshot!(bad_fields(&[
            "overrides: [{key: a, item: day, limit: 1}]",
            "overrides: [{key: a, item: key/day, limit: -7, until: soon}]",
            "overrides: [{key: a, item: key/day, limit: 1}, {key: a, item: key/day, limit: 2}]",
            "overrides: [{item: key/day, limit: x}, {key: b, item: nope, limit: 2}]",
            &long,
        ]));
        insta::assert_snapshot!(bad(
            "limits: [{id: a, items: [{policy: day, limit: 1}], overrides: [{key: a, item: all/day, limit: 1}]}]"
        ));
    }
}

mod several {
    use super::*;

    /// What one item's limit may be has nothing to do with what another is called.
    #[test]
    fn errors_of_items_do_not_hide_those_of_names() {
        insta::assert_snapshot!(bad(
            "limits:\n  - id: x\n    items:\n      - {policy: day, limit: 1, per: key}\n      - {policy: total, limit: -5}\n      - {policy: day, limit: -5, per: key}\n    overrides:\n      - {key: a, item: key/dya, limit: 1}\n"
        ));
    }

    #[test]
    fn limits_of_one_id() {
        insta::assert_snapshot!(bad(
            "limits:\n  - {id: a, items: [{policy: day, limit: 1}]}\n  - {id: b, items: [{policy: day, limit: 1}]}\n  - {id: a, items: [{policy: hour, limit: x}]}\n"
        ));
    }

    #[test]
    fn items_of_one_name() {
        insta::assert_snapshot!(bad(
            "limits:\n  - id: a\n    items:\n      - {policy: day, limit: 1}\n      - {policy: day, limit: 2}\n      - {name: all/day, policy: hour, limit: 2}\n"
        ));
    }

    #[test]
    fn errors_are_all_told_at_once() {
        insta::assert_snapshot!(bad(HORRIBLE));
    }

    #[test]
    fn errors_in_colour() {
        let errors = read("tidegate.yaml", b"server: 1\nlimit: []\n").expect_err("limit is unknown");
        insta::assert_snapshot!(errors.render(Color::Ansi).replace('\u{1b}', "ESC"));
    }

    #[test]
    fn errors_in_wide_and_in_strange_lines() {
        let far = format!(
            "limits: [{{id: a, description: {}, mode: no, items: [{{policy: day, limit: 1}}], fleet: {}}}]",
            "x".repeat(500),
            "y".repeat(500)
        );
        insta::assert_snapshot!(bad(far));
        insta::assert_snapshot!(bad(
            "limits: [{id: a, description: 限流限流, mode:\tno, items: [{policy: day, limit: 1}]}]"
        ));
        insta::assert_snapshot!(bad(
            "limits: [{description: \"\u{202e}evil\", id: b, mode: 'n\\o', items: [{policy: day, limit: 1}]}]"
        ));
    }

    #[test]
    fn errors_beyond_the_most_are_counted() {
        let errors = read("f", "limits:\n".to_owned().add_lines("  - {}\n", 5000).as_bytes())
            .expect_err("all are empty");
        assert_eq!(errors.iter().count(), MOST_DIAGNOSTICS);
        assert_eq!(errors.summary(), "10000 errors in f (1000 shown)");
    }

    const HORRIBLE: &str = r#"server: {port: 1}
limts: []
limits:
  - id: spring sale
    time_zone: Asia/Shangai
    week_start: Mon
    starts_at: 2026-02-20T00:00:00+08:00
    ends_at: 2026-01-20T00:00:00+08:00
    mode: enforcing
    max_keys: 0
    items:
      - {policy: total, limit: "10000"}
      - {policy: day, limit: 1.5, per: user}
      - {policy: bucket, limit: 10, window: 0s, burst: 0}
      - {policy: sliding, limit: 2000000, window: 60s}
      - {policy: sliding, limit: 5, windw: 15s}
      - {policy: hour, limit: 5}
      - {policy: hour, limit: 6}
      - {policy: concurrency, limit: 30, ttl: 60}
      - limit: 3
    overrides:
      - {key: vip, item: key/nothing, limit: -5}
      - {key: vip, until: 2016-12-31T23:59:60Z, item: x, limit: 1}
  - id: spring sale
    id: b
    items: []
  - nothing
"#;

    trait AddLines {
        fn add_lines(self, line: &str, count: usize) -> String;
    }

    impl AddLines for String {
        fn add_lines(self, line: &str, count: usize) -> String {
            self + &line.repeat(count)
        }
    }
}

mod the_schema {
    use super::*;

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
            "publish it: TIDEGATE_PUBLISH=1 cargo test -p tidegate is_the_published_one"
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
            r#"{"limits": [], "server": {"x": 1}}"#.to_owned(),
            r#"{"limit": []}"#.to_owned(),
            r#"{"limits": [{"id": "a"}]}"#.to_owned(),
            r#"{"limits": [{"id": 7, "time_zone": null, "mode": "off", "starts_at": "2026-01-20T00:00:00+08:00",
                "items": [{"policy": "day", "limit": 1, "per": "key"}],
                "overrides": [{"key": 7, "item": "key/day", "limit": 2}]}]}"#
                .to_owned(),
            r#"{"limits": [{"id": "a", "mode": "on", "items": [{"policy": "day", "limit": 1}]}]}"#.to_owned(),
            r#"{"limits": [{"id": "a", "ends_at": "2026-01-20", "items": [{"policy": "day", "limit": 1}]}]}"#.to_owned(),
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
}

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
    match read("f", bytes) {
        Ok(reading) => {
            for spec in reading.settings.limits {
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
