//! Worked examples, written as timelines.
//!
//! ```text
//!   limit chat in Asia/Shanghai              a limit and its time zone
//!     sliding 2 per 60s                      an item for all keys together
//!     day 1 each                             an item for each key
//!     concurrency 30 for 60s
//!
//!   0s        ada          ok                time, key and expected answer
//!   0s        ada x3       refused never by each/day
//!   59s       ada peek     refused until 60.000000001s
//!   60s       ada x0       ok used day=1     readings after the decision, by policy
//!   61s       set chat                       an edit of the limit
//!     sliding 3 per 60s
//!   62s       reset chat ada                 a reset of one key, or of all keys
//! ```
//!
//! Times are seconds since the epoch (`60.0000001s`) or RFC 3339 times (`2024-12-31T23:59:59+08:00`). `of a+b` asks several
//! limits in one order.

use std::time::Duration;

use tidegate_core::{
    Amount, Capacity, Intent, ItemSpec, LimitSpec, Mode, OverrideSpec, Per, Policy, Precision, Tick,
    Timestamp, Unit, Wait, WeekStart, Zone,
};
use tidegate_testkit::history::SystemUnderTest;
use tidegate_testkit::reference_model::OwnedAsk;

use crate::minimal_store::MinimalStore;

const TICK: Tick = Tick::NANOSECOND;

/// Runs a timeline and compares every answer.
#[track_caller]
fn check(timeline: &str) {
    let mut runner = TimelineRunner { store: MinimalStore::new(TICK), pending: None, limits: Vec::new() };
    for line in timeline.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Err(what) = runner.read(&words) {
            panic!("{line}\n  {what}");
        }
    }
    runner.apply_pending().unwrap_or_else(|what| panic!("{what}"));
}

struct TimelineRunner {
    store: MinimalStore,
    /// The limit that is being read, and its time.
    pending: Option<(Timestamp, LimitSpec)>,
    limits: Vec<String>,
}

impl TimelineRunner {
    fn read(&mut self, words: &[&str]) -> Result<(), String> {
        match words {
            ["limit", head @ ..] => self.begin(Timestamp::EPOCH, head),
            [at, "set", head @ ..] => self.begin(time(at)?, head),
            [at, "reset", id, key @ ..] => {
                self.apply_pending()?;
                self.store.reset(id, key.first().map(|key| key.as_bytes()), time(at)?);
                Ok(())
            }
            ["override", key, item, limit, until @ ..] => self.add_override(key, item, limit, until),
            [word, rest @ ..] if !word.starts_with(|first: char| first.is_ascii_digit()) => {
                let item = item(word, rest)?;
                self.pending.as_mut().ok_or("an item of no limit")?.1.items.push(item);
                Ok(())
            }
            [at, key, rest @ ..] => {
                self.apply_pending()?;
                self.ask(time(at)?, key, rest)
            }
            _ => Err("not a line of a timeline".to_owned()),
        }
    }

    fn begin(&mut self, at: Timestamp, head: &[&str]) -> Result<(), String> {
        self.apply_pending()?;
        let (id, mut rest) = head.split_first().ok_or("a limit needs a name")?;
        let mut spec = LimitSpec::named(*id);
        while let [word, value, more @ ..] = rest {
            match *word {
                "in" => spec.time_zone = Zone::named(value).ok_or("no such zone")?,
                "weeks" => {
                    spec.week_start =
                        WeekStart::ALL.into_iter().find(|day| day.word() == *value).ok_or("a day")?;
                }
                "from" => spec.starts_at = Some(TICK.since_epoch(time(value)?)),
                "until" => spec.ends_at = Some(TICK.since_epoch(time(value)?)),
                "mode" => spec.mode = if *value == "shadow" { Mode::Shadow } else { Mode::Off },
                _ => return Err(format!("what is {word}?")),
            }
            rest = more;
        }
        if !self.limits.contains(&spec.id) {
            self.limits.push(spec.id.clone());
        }
        self.pending = Some((at, spec));
        Ok(())
    }

    fn add_override(&mut self, key: &str, item: &str, limit: &str, until: &[&str]) -> Result<(), String> {
        let until = match until {
            ["until", until] => Some(TICK.since_epoch(time(until)?)),
            _ => None,
        };
        let spec = &mut self.pending.as_mut().ok_or("an override of no limit")?.1;
        let item = spec
            .items
            .iter()
            .map(ItemSpec::effective_name)
            .find(|name| name.contains(item))
            .ok_or("an item")?;
        spec.overrides.push(OverrideSpec { key: key.into(), item, limit: capacity(limit)?, until });
        Ok(())
    }

    fn apply_pending(&mut self) -> Result<(), String> {
        let Some((at, spec)) = self.pending.take() else { return Ok(()) };
        if self.store.put(&spec, at) { Ok(()) } else { Err(format!("{spec:?} is invalid")) }
    }

    fn ask(&mut self, now: Timestamp, key: &str, mut rest: &[&str]) -> Result<(), String> {
        let (mut count, mut intent, mut ids) = (1, Intent::Acquire, vec![self.limits[0].clone()]);
        loop {
            match rest {
                [word, more @ ..] if word.strip_prefix('x').is_some_and(|n| n.parse::<u64>().is_ok()) => {
                    count = word[1..].parse().map_err(|_| "a count")?;
                    rest = more;
                }
                ["peek", more @ ..] => {
                    intent = Intent::Peek;
                    rest = more;
                }
                ["of", named, more @ ..] => {
                    ids = named.split('+').map(str::to_owned).collect();
                    rest = more;
                }
                _ => break,
            }
        }
        let key = Some(key.as_bytes().to_vec());
        let asks: Vec<OwnedAsk> =
            ids.into_iter().map(|limit_id| OwnedAsk { limit_id, key: key.clone(), count }).collect();
        let answer = self.store.order(intent, &asks, false, now);
        let (expected, more) = outcome(rest)?;
        let answered = answer.refusal.as_ref().map(|refusal| refusal.wait);
        if answered != expected {
            return Err(format!("answered {answered:?}"));
        }
        let more = match more {
            ["by", item, more @ ..] => {
                let refusal = answer.refusal.ok_or("expected a refusal")?;
                let named = format!("{}:{}", refusal.limit_id, refusal.item);
                if !named.contains(item) {
                    return Err(format!("refused by {named}"));
                }
                more
            }
            more => more,
        };
        for word in more.strip_prefix(&["used"]).unwrap_or_default() {
            let (item, used) = word.split_once('=').ok_or("used ITEM=N")?;
            let reading =
                answer.readings.iter().find(|reading| reading.item.contains(item)).ok_or("an item")?;
            if reading.used.to_string() != used {
                return Err(format!("{} of {} used", reading.used, reading.item));
            }
        }
        Ok(())
    }
}

fn outcome<'a>(words: &'a [&'a str]) -> Result<(Option<Wait>, &'a [&'a str]), String> {
    match words {
        ["ok", more @ ..] => Ok((None, more)),
        ["refused", "never", more @ ..] => Ok((Some(Wait::Never), more)),
        ["refused", "on", "release", more @ ..] => Ok((Some(Wait::OnRelease), more)),
        ["refused", "until", at, more @ ..] => Ok((Some(Wait::Until(time(at)?)), more)),
        _ => Err("what is the answer?".to_owned()),
    }
}

/// `sliding 5 per 15s each`, `bucket 2 per 1s burst 3`, `day 1`, `concurrency 3 for 60s each`.
fn item(word: &str, mut rest: &[&str]) -> Result<ItemSpec, String> {
    let (limit, more) = rest.split_first().ok_or("a limit")?;
    let (mut window, mut burst, mut precision, mut per, mut ask) =
        (None, None, Precision::Exact, Per::All, None);
    let mut name = None;
    rest = more;
    loop {
        rest = match rest {
            [] => break,
            ["per" | "for", length, more @ ..] => {
                window = Some(TICK.since_epoch(time(length)?));
                more
            }
            ["burst", n, more @ ..] => {
                burst = Some(n.parse::<Amount>().map_err(|_| "a burst")?);
                more
            }
            ["bucketed", more @ ..] => {
                precision = Precision::Bucketed;
                more
            }
            ["each", more @ ..] => {
                per = Per::Key;
                more
            }
            ["as", called, more @ ..] => {
                name = Some((*called).to_owned());
                more
            }
            ["by-ask", more @ ..] => {
                ask = Some(tidegate_core::Charge::Ask);
                more
            }
            [word, ..] => return Err(format!("what is {word}?")),
        };
    }
    let needed = || window.ok_or("it needs a window");
    let policy = match word {
        "total" => Policy::Total,
        "interval" => Policy::Interval { window: needed()? },
        "sliding" => Policy::Sliding { window: needed()?, precision },
        "bucket" => Policy::Bucket { window: needed()?, burst },
        "concurrency" => Policy::Concurrency { ttl: needed()? },
        unit => Policy::Calendar(
            Unit::ALL.into_iter().find(|u| u.word() == unit).ok_or(format!("what is {unit}?"))?,
        ),
    };
    Ok(ItemSpec { name, policy, per, limit: capacity(limit)?, charge: ask })
}

fn capacity(text: &str) -> Result<Capacity, String> {
    match text {
        "-1" => Ok(Capacity::Unlimited),
        number => number.parse().map(Capacity::AtMost).map_err(|_| format!("{number} is no limit")),
    }
}

/// Seconds (`60.0000001s`) or an RFC 3339 time.
fn time(text: &str) -> Result<Timestamp, String> {
    let since_epoch = if text.contains('T') {
        let at: jiff::Timestamp = text.parse().map_err(|error| format!("{text}: {error}"))?;
        Duration::new(
            u64::try_from(at.as_second()).map_err(|_| "before 1970")?,
            u32::try_from(at.subsec_nanosecond()).map_err(|_| "before 1970")?,
        )
    } else {
        let number = text.strip_suffix('s').ok_or(format!("{text} is no time"))?;
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let nanos = format!("{part:0<9}").parse().map_err(|_| format!("{text} is no time"))?;
        Duration::new(whole.parse().map_err(|_| format!("{text} is no time"))?, nanos)
    };
    TICK.instant(since_epoch).ok_or("beyond the end of time".to_owned())
}

// A message pipeline: sliding windows for all keys and for each key.

#[test]
fn sliding_event_exactly_one_window_old_still_counts() {
    check(
        "
        limit chat
          sliding 1 per 60s each

        0s            u   ok
        60s           u   refused until 60.000000001s
        60.0000001s   u   ok
    ",
    );
}

#[test]
fn all_and_key_items_refuse_together_and_all_is_binding() {
    check(
        "
        limit chat
          sliding 2 per 60s
          sliding 1 per 60s each

        0s   ada   ok
        0s   ada   refused until 60.000000001s by key/sliding
        0s   bob   ok
        1s   cat   refused until 60.000000001s by all/sliding
        1s   ada   refused until 60.000000001s by all/sliding
    ",
    );
}

#[test]
fn third_request_of_limit_two_is_refused_for_any_key() {
    check(
        "
        limit chat
          sliding 2 per 60s

        0s   ada   ok
        1s   bob   ok
        2s   cat   refused until 60.000000001s
    ",
    );
}

#[test]
fn fourth_request_of_limit_three_is_refused_for_that_key_only() {
    check(
        "
        limit chat
          sliding 3 per 60s each

        0s   ada   ok
        1s   ada   ok
        2s   ada   ok
        3s   ada   refused until 60.000000001s
        3s   bob   ok
    ",
    );
}

#[test]
fn refused_requests_do_not_extend_the_wait() {
    check(
        "
        limit chat
          sliding 1 per 60s each

        0s        u   ok
        30s       u   refused until 60.000000001s
        30s       u   refused until 60.000000001s
        30s       u   refused until 60.000000001s
        45s       u   refused until 60.000000001s
        60s       u   refused until 60.000000001s
        60.001s   u   ok used sliding=1
    ",
    );
}

#[test]
fn grant_counts_in_all_and_key_items() {
    check(
        "
        limit chat
          sliding 100 per 60s
          sliding 10 per 60s each

        0s   u   ok used all/sliding=1 key/sliding=1
    ",
    );
}

#[test]
fn limit_zero_refuses_everything() {
    check(
        "
        limit user
          sliding 0 per 60s each
        limit global
          sliding 0 per 60s

        0s   u   of user     refused never
        0s   u   of global   refused never
    ",
    );
}

#[test]
fn limit_applies_per_window_of_any_length() {
    check(
        "
        limit chat
          sliding 1 per 5s each

        0s            u   ok
        5s            u   refused until 5.000000001s
        5.000000001s  u   ok
    ",
    );
}

#[test]
fn clock_set_back_neither_shortens_nor_extends_the_wait() {
    check(
        "
        limit chat
          sliding 1 per 60s each

        1000s   u   ok
        500s    u   refused until 1060.000000001s
        1060s   u   refused until 1060.000000001s
        1061s   u   ok
    ",
    );
}

#[test]
fn wait_is_computed_from_oldest_entries() {
    check(
        "
        limit chat
          sliding 2 per 60s each

        10s   u      ok
        20s   u      ok
        30s   u      refused until 70.000000001s
        30s   u x2   refused until 80.000000001s
        30s   u x3   refused never
    ",
    );
}

// Activities and users: totals, calendar windows, all or nothing.

#[test]
fn total_counts_all_keys_and_each_key() {
    check(
        "
        limit sale
          total 3
          total 2 each

        0s   ada   ok
        1s   ada   ok
        2s   ada   refused never by key/total
        3s   bob   ok used all/total=3 key/total=1
        4s   bob   refused never by all/total
    ",
    );
}

#[test]
fn total_of_three_refuses_fourth_forever() {
    check(
        "
        limit sale
          total 3

        0s      u   ok
        1s      u   ok
        2s      u   ok
        3s      u   refused never
        9999s   u   peek refused never used total=3
    ",
    );
}

#[test]
fn charge_is_all_or_nothing_and_may_fill_the_limit() {
    check(
        "
        limit sale
          total 10

        0s   u x8   ok used total=8
        0s   u x3   refused never used total=8
        0s   u x2   ok used total=10
        0s   u peek refused never
        0s   u x0   ok used total=10
    ",
    );
}

#[test]
fn count_zero_is_granted_while_usage_is_within_limit() {
    check(
        "
        limit sale
          total 2 each

        0s   u x2   ok
        0s   u x0   ok
        1s   set sale
          total 1 each
        1s   u x0   refused never used total=2
        1s   v x0   ok
    ",
    );
}

#[test]
fn refusal_by_total_does_not_charge_the_day_item() {
    check(
        "
        limit sale in Asia/Shanghai
          total 2
          day 1 each

        2025-01-01T10:00:00+08:00   ada   ok
        2025-01-01T11:00:00+08:00   ada   refused until 2025-01-02T00:00:00+08:00 by key/day
        2025-01-01T12:00:00+08:00   bob   ok used all/total=2 key/day=1
        2025-01-02T00:00:00+08:00   ada   refused never by all/total used key/day=0
    ",
    );
}

#[test]
fn hundred_and_first_user_is_refused_by_total() {
    let users = (1..=100).map(|n| format!("{n}s  u{n}  ok")).collect::<Vec<_>>().join("\n");
    check(&format!(
        "
        limit sale
          total 100
          day 1 each
        {users}
        101s     u101  refused never by all/total used key/day=0
        86400s   u1    refused never by all/total used key/day=0
        "
    ));
}

#[test]
fn year_end_in_shanghai_resets_all_units_except_week() {
    check(
        "
        limit sale in Asia/Shanghai
          minute 1
          hour 1
          day 1
          month 1
          year 1
          week 2

        2024-12-31T23:59:59+08:00   u   ok used minute=1 hour=1 day=1 month=1 year=1 week=1
        2024-12-31T23:59:59+08:00   u   refused until 2025-01-01T00:00:00+08:00 by minute
        2025-01-01T00:00:00+08:00   u   ok used minute=1 hour=1 day=1 month=1 year=1 week=2
        2025-01-01T00:01:00+08:00   u   refused until 2026-01-01T00:00:00+08:00 by year
    ",
    );
}

#[test]
fn week_starts_on_monday_by_default() {
    check(
        "
        limit sale in Asia/Shanghai
          week 1 each

        2025-01-05T23:59:59+08:00   u   ok
        2025-01-05T23:59:59+08:00   u   refused until 2025-01-06T00:00:00+08:00
        2025-01-06T00:00:00+08:00   u   ok
    ",
    );
}

#[test]
fn week_starts_on_configured_day() {
    check(
        "
        limit sale in Asia/Shanghai weeks sunday
          week 1 each

        2025-01-04T23:59:59+08:00   u   ok
        2025-01-05T00:00:00+08:00   u   ok
        2025-01-06T00:00:00+08:00   u   refused until 2025-01-12T00:00:00+08:00
    ",
    );
}

#[test]
fn leap_day_is_last_day_of_its_month() {
    check(
        "
        limit sale in Asia/Shanghai
          month 1 each

        2024-02-29T23:59:59+08:00   u   ok
        2024-02-29T23:59:59+08:00   u   refused until 2024-03-01T00:00:00+08:00
        2024-03-01T00:00:00+08:00   u   ok
    ",
    );
}

#[test]
fn interval_starts_at_first_charge() {
    check(
        "
        limit sale
          interval 2 per 60s each

        0s    u   ok
        59s   u   ok
        59s   u   refused until 60s
        60s   u   ok used interval=1
        75s   v   ok
        134s  v   ok
        134s  v   refused until 135s
    ",
    );
}

#[test]
fn interval_under_steady_traffic_still_resets() {
    check(
        "
        limit sale
          interval 3 per 60s each

        0s    u   ok
        25s   u   ok
        50s   u   ok
        55s   u   refused until 60s
        60s   u   ok used interval=1
    ",
    );
}

#[test]
fn edit_keeps_counts_starts_new_items_at_zero_and_drops_removed_items() {
    check(
        "
        limit sale
          total 3 each
          day 5 each

        0s   u x3   ok used total=3 day=3
        1s   set sale
          total 5 each
          hour 9 each
        1s   u x0   ok used total=3 hour=0
        1s   u x2   ok used total=5 hour=2
        2s   set sale
          total 9 each
          day 5 each
        2s   u x0   ok used total=5 day=0
    ",
    );
}

#[test]
fn reset_of_key_or_limit_zeroes_counts() {
    check(
        "
        limit sale
          total 2
          total 1 each

        0s   ada   ok
        1s   ada   refused never by key/total
        2s   reset sale ada
        2s   ada   ok used all/total=2 key/total=1
        3s   bob   refused never by all/total
        4s   reset sale
        4s   bob   ok used all/total=1
    ",
    );
}

#[test]
fn limit_with_start_and_end_refuses_outside() {
    check(
        "
        limit sale from 100s until 200s
          total 1 each

        0s     u   refused until 100s
        99.999999999s u refused until 100s
        100s   u   ok
        101s   u   refused never
        200s   v   refused never
        999s   v   refused never
    ",
    );
}

#[test]
fn clock_set_back_does_not_reset_calendar_window() {
    check(
        "
        limit sale in Asia/Shanghai
          day 1 each

        2025-01-02T00:00:01+08:00   u   ok
        2025-01-01T23:59:59+08:00   u   refused until 2025-01-03T00:00:00+08:00
    ",
    );
}

#[test]
fn two_limits_in_one_order_are_decided_together() {
    check(
        "
        limit a
          total 1 each
        limit b
          sliding 1 per 60s

        0s   u of b     ok
        0s   u of a+b   refused until 60.000000001s by b:all/sliding
        1s   u of a     ok used total=1
        61s  u of a+b   refused never by a:key/total
        61s  v of a+b   ok
    ",
    );
}

#[test]
fn unlimited_counts_and_zero_refuses() {
    check(
        "
        limit a
          total -1
          day -1 each

        0s   u x1000   ok used total=1000 day=1000
        1s   set a
          total 0
          day -1 each
        1s   u         refused never by total
    ",
    );
}

#[test]
fn bucket_allows_burst_and_refills_at_rate() {
    check(
        "
        limit api
          bucket 2 per 1s burst 3 each

        0s             u x3   ok used bucket=3
        0s             u      refused until 0.5s
        0.499999999s   u      refused until 0.5s used bucket=3
        0.5s           u      ok
        0.5s           u x3   refused until 2s
        0.5s           u x4   refused never
        100s           u x3   ok
        100s           u      refused until 100.5s
    ",
    );
}

#[test]
fn expired_lease_frees_its_unit() {
    check(
        "
        limit tasks
          concurrency 2 for 60s

        0s    a      ok
        1s    b x5   ok used concurrency=2
        2s    c      refused on release
        60s   c      ok used concurrency=2
        61s   d      ok used concurrency=2
    ",
    );
}

#[test]
fn override_applies_until_its_end() {
    check(
        "
        limit sale
          total 1 each
          override vip total 3 until 100s

        0s     vip     ok
        1s     vip     ok
        2s     vip x2  refused never
        2s     u       ok
        2s     u       refused never
        99s    vip     ok used total=3
        100s   vip x0  refused never
    ",
    );
}

#[test]
fn wait_accounts_for_override_end() {
    check(
        "
        limit sale
          interval 5 per 1000s each
          override bad interval 1 until 100s

        0s     bad     ok
        1s     bad     refused until 100s
        1s     bad x5  refused until 1000s
        100s   bad     ok
    ",
    );
}

#[test]
fn promised_instant_is_checked_again_after_override_end() {
    check(
        "
        limit a
          interval 1 per 50s
        limit b
          interval 1 per 90s each
          override vip interval 9 until 40s

        0s   vip of a+b   ok
        1s   vip of a+b   refused until 90s by b:
        90s  vip of a+b   ok
    ",
    );
}

#[test]
fn wait_past_limit_end_is_never() {
    check(
        "
        limit sale until 100s
          interval 1 per 60s

        0s    u   ok
        1s    u   refused until 60s
        60s   u   ok
        61s   u   refused never
    ",
    );
}

#[test]
fn shadow_limit_never_refuses_and_skips_charges_it_would_refuse() {
    check(
        "
        limit trial mode shadow
          total 2
          total 1 each
        limit real
          total 9

        0s   u of trial+real   ok used all/total=1 key/total=1
        1s   u of trial+real   ok used all/total=1 key/total=1
        2s   v of trial+real   ok used all/total=2
        3s   w of trial        ok used all/total=2 key/total=0
        4s   w of real peek    ok used total=3
    ",
    );
}

#[test]
fn bucketed_sliding_window_never_exceeds_limit() {
    check(
        "
        limit big
          sliding 1 per 64s bucketed

        0.5s           u   ok
        64.999999999s  u   refused until 65s
        65s            u   ok
    ",
    );
}

#[test]
fn charge_ask_counts_one_unit_per_ask() {
    check(
        "
        limit a
          total 2 by-ask

        0s   u x100   ok used total=1
        0s   u x0     ok used total=1
        1s   u x7     ok used total=2
        2s   u        refused never
    ",
    );
}

#[test]
fn longer_window_does_not_restore_expired_charges() {
    check(
        "
        limit chat
          sliding 2 per 10s as it

        0s    u      ok
        6s    u      ok
        12s   set chat
          sliding 2 per 60s as it
        12s   u x0   ok used it=1
        12s   u      ok used it=2
        13s   u      refused until 66.000000001s
    ",
    );
}

#[test]
fn shorter_window_applies_to_stored_charges() {
    check(
        "
        limit chat
          interval 1 per 60s as it each

        0s    u      ok
        30s   set chat
          interval 1 per 20s as it each
        30s   u      ok used it=1
        31s   set chat
          interval 1 per 100s as it each
        31s   u      refused until 130s
    ",
    );
}

#[test]
fn time_zone_change_applies_at_once_and_keeps_usage() {
    check(
        "
        limit sale in UTC
          day 1 each

        2025-01-01T15:00:00Z   u   ok
        2025-01-01T15:30:00Z   set sale in Asia/Shanghai
          day 1 each
        2025-01-01T15:30:00Z   u   refused until 2025-01-01T16:00:00Z
        2025-01-01T16:00:00Z   u   ok
    ",
    );
}

#[test]
fn ended_limit_restarts_without_usage() {
    check(
        "
        limit sale until 100s
          total 1

        0s     u   ok
        100s   u   refused never
        150s   set sale until 300s
          total 1
        150s   u   ok used total=1
        151s   u   refused never
    ",
    );
}
