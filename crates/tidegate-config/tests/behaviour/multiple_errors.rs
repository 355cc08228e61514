//! Files with several errors, and the format of their messages.

use tidegate_config::limits::read_text;
use tidegate_config::{Color, MAX_DIAGNOSTICS};

use super::errors_of;

/// An invalid limit of an item does not hide an unknown item name in an override.
#[test]
fn errors_of_items_do_not_hide_errors_of_overrides() {
    insta::assert_snapshot!(errors_of(
        "limits:\n  - id: x\n    items:\n      - {policy: day, limit: 1, per: key}\n      - {policy: total, limit: -5}\n      - {policy: day, limit: -5, per: key}\n    overrides:\n      - {key: a, item: key/dya, limit: 1}\n"
    ));
}

#[test]
fn limits_with_duplicate_id_are_rejected() {
    insta::assert_snapshot!(errors_of(
        "limits:\n  - {id: a, items: [{policy: day, limit: 1}]}\n  - {id: b, items: [{policy: day, limit: 1}]}\n  - {id: a, items: [{policy: hour, limit: x}]}\n"
    ));
}

#[test]
fn items_with_duplicate_name_are_rejected() {
    insta::assert_snapshot!(errors_of(
        "limits:\n  - id: a\n    items:\n      - {policy: day, limit: 1}\n      - {policy: day, limit: 2}\n      - {name: all/day, policy: hour, limit: 2}\n"
    ));
}

#[test]
fn file_with_many_errors_reports_all() {
    insta::assert_snapshot!(errors_of(MANY_ERRORS));
}

#[test]
fn errors_render_with_ansi_colors() {
    let errors = read_text("tidegate.yaml", b"envoy: 1\nlimit: []\n").expect_err("limit is unknown");
    insta::assert_snapshot!(errors.render(Color::Ansi).replace('\u{1b}', "ESC"));
}

#[test]
fn errors_in_long_and_unusual_lines_show_excerpts() {
    let far = format!(
        "limits: [{{id: a, description: {}, mode: no, items: [{{policy: day, limit: 1}}], fleet: {}}}]",
        "x".repeat(500),
        "y".repeat(500)
    );
    insta::assert_snapshot!(errors_of(far));
    insta::assert_snapshot!(errors_of(
        "limits: [{id: a, description: 限流限流, mode:\tno, items: [{policy: day, limit: 1}]}]"
    ));
    insta::assert_snapshot!(errors_of(
        "limits: [{description: \"\u{202e}evil\", id: b, mode: 'n\\o', items: [{policy: day, limit: 1}]}]"
    ));
}

#[test]
fn errors_above_maximum_are_counted() {
    let errors = read_text("f", "limits:\n".to_owned().add_lines("  - {}\n", 5000).as_bytes())
        .expect_err("all are empty");
    assert_eq!(errors.iter().count(), MAX_DIAGNOSTICS);
    assert_eq!(errors.summary(), "10000 errors in f (1000 shown)");
}

const MANY_ERRORS: &str = r#"envoy: {port: 1}
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
