//! Applying settings: limits and tokens change together, and the file wins.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate::Limiter;
use tidegate::activity::{self, Activity, Reason};
use tidegate::catalog::{Catalog, Edit, ExpectedVersion};
use tidegate::clock::ManualClock;
use tidegate::model::{Capacity, ItemSpec, LimitSpec, Policy};
use tidegate::store::LimitStore;
use tidegate::store::{Memory, MemoryStore, Store};
use tidegate_server::live_settings::{LiveSettings, SettingsApplied, SettingsRejected};
use tidegate_server::resp::{RespService, RespSession};
use tidegate_server::settings::{ActivitySpec, Settings, read};
use tidegate_server::tokens::{Caller, NewToken, Role};
use tidegate_testkit::logged_store::{LoggedStore, ManualLog};

use crate::resp::fixture::{START, say};

/// Live settings, their store, and a limiter.
struct SettingsFixture {
    store: Arc<MemoryStore>,
    rules: LiveSettings,
    limiter: Limiter,
}

impl SettingsFixture {
    fn new() -> SettingsFixture {
        let clock = Arc::new(ManualClock::at(START));
        let store = Arc::new(MemoryStore::new(clock, Memory::default()));
        let full: Arc<dyn LimitStore> = Arc::clone(&store) as _;
        SettingsFixture { rules: LiveSettings::new(Arc::clone(&full)), limiter: Limiter::new(full), store }
    }

    #[track_caller]
    fn apply(&self, text: &str) -> SettingsApplied {
        self.rules.apply(settings(text)).expect("valid input")
    }

    #[track_caller]
    fn fails(&self, settings: Settings) -> Vec<String> {
        let SettingsRejected { flaws } = self.rules.apply(settings).expect_err("invalid input");
        flaws.into_iter().map(|flaw| flaw.field).collect()
    }

    fn takes(&self, id: &str, count: u64) -> bool {
        match self.limiter.limit(id).expect("the limit exists").of(b"u").count(count).try_acquire() {
            Ok(_) => true,
            Err(error) => {
                assert!(error.is_refused(), "{error}");
                false
            }
        }
    }

    fn ids(&self) -> Vec<String> {
        self.store.list().iter().map(|limit| limit.id().to_owned()).collect()
    }
}

#[track_caller]
fn settings(text: &str) -> Settings {
    read("tidegate.yaml", text.as_bytes()).unwrap_or_else(|wrong| panic!("{wrong}")).settings
}

fn applied(added: usize, changed: usize, removed: usize, unchanged: usize) -> SettingsApplied {
    SettingsApplied { added, changed, removed, unchanged, ..SettingsApplied::default() }
}

fn total(id: &str, most: u64) -> LimitSpec {
    LimitSpec::named(id).with(ItemSpec::of(Policy::Total, most))
}

const TWO: &str = "limits:
  - {id: a, items: [{policy: total, limit: 5}]}
  - {id: b, items: [{policy: total, limit: 5}]}
";

#[test]
fn apply_changes_only_edited_limits() {
    let fixture = SettingsFixture::new();
    assert_eq!(fixture.apply(TWO), applied(2, 0, 0, 0));
    assert!(fixture.takes("a", 3) && fixture.takes("b", 3));
    let b = fixture.store.get("b").expect("it is written");

    let next = "limits:
  - {id: a, items: [{policy: total, limit: 4}]}
  - {id: b, items: [{policy: total, limit: 5}]}
  - {id: c, items: [{policy: total, limit: 1}]}
";
    assert_eq!(fixture.apply(next), applied(1, 1, 0, 1));
    assert!(fixture.takes("a", 1) && !fixture.takes("a", 1), "three of four were taken before");
    assert!(Arc::ptr_eq(&b, &fixture.store.get("b").expect("it is written")), "it was not touched");
    assert_eq!(fixture.rules.in_force().limits.len(), 3);
    assert_eq!(fixture.apply(next), applied(0, 0, 0, 3));
}

#[test]
fn removed_limit_is_unknown_and_may_return() {
    let fixture = SettingsFixture::new();
    fixture.apply(TWO);
    assert!(fixture.takes("b", 5));
    let one = "limits: [{id: a, items: [{policy: total, limit: 5}]}]";
    assert_eq!(fixture.apply(one), applied(0, 0, 1, 1));
    assert_eq!(fixture.ids(), ["a"]);
    assert!(!fixture.rules.is_from_file("b"));
    assert_eq!(fixture.apply(TWO), applied(1, 0, 0, 1));
    assert!(!fixture.takes("b", 1), "an edit that is undone does not oversell");
    assert!(fixture.rules.is_from_file("b"));
}

#[test]
fn limit_in_file_replaces_limit_of_api() {
    let fixture = SettingsFixture::new();
    for limit in [total("a", 9), total("b", 5), total("mine", 5)] {
        fixture.store.put(limit, ExpectedVersion::Absent).expect("a new limit");
    }
    assert!(fixture.takes("a", 5) && !fixture.rules.is_from_file("a"));
    assert_eq!(fixture.apply(TWO), applied(0, 1, 0, 1), "one says something else, one says the same");
    assert!(!fixture.takes("a", 1), "its counts are kept");
    assert!(fixture.rules.is_from_file("a") && fixture.rules.is_from_file("b"));
    assert!(!fixture.rules.is_from_file("mine"));
    assert_eq!(fixture.apply("limits: []"), applied(0, 0, 2, 0));
    assert_eq!(fixture.ids(), ["mine"], "what was never written stays");
}

#[test]
fn rejected_settings_change_nothing() {
    let fixture = SettingsFixture::new();
    fixture.apply(&format!("{TWO}auth: {{tokens: []}}"));
    let before = fixture.rules.in_force();

    let mut bad = settings("auth: {tokens: []}");
    bad.limits = vec![total("new", 1), LimitSpec::named("empty"), total("cl.throttle/1/1/1", 1)];
    assert_eq!(fixture.fails(bad), ["limits[2].id"]);
    let mut bad = settings("limits: []");
    bad.limits = vec![total("new", 1), LimitSpec::named("empty"), total("new", 2)];
    assert_eq!(fixture.fails(bad), ["limits[1].items", "limits[2].id"]);
    let mut bad = settings("limits: [{id: new, items: [{policy: total, limit: 1}]}]");
    let token = tidegate_server::settings::TokenSpec {
        name: "ops".to_owned(),
        sha256: "12".to_owned(),
        role: Role::Admin,
        prefix: String::new(),
    };
    bad.tokens = Some(vec![token]);
    assert_eq!(fixture.fails(bad), ["auth.tokens[0].sha256"]);

    assert_eq!(fixture.ids(), ["a", "b"]);
    assert!(fixture.rules.is_from_file("a") && !fixture.rules.is_from_file("new"));
    assert_eq!(fixture.rules.tokens().identify(None), Caller::Anonymous, "authentication is still required");
    assert!(Arc::ptr_eq(&before, &fixture.rules.in_force()));
}

#[test]
fn all_tokens_are_refused_before_the_first_apply() {
    let fixture = SettingsFixture::new();
    assert_eq!(fixture.rules.tokens().identify(None), Caller::Anonymous);
    fixture.apply("limits: []");
    assert!(fixture.rules.tokens().allows_anonymous());
}

#[test]
fn settings_without_auth_are_rejected_on_public_servers() {
    let store: Arc<dyn LimitStore> =
        Arc::new(MemoryStore::new(Arc::new(ManualClock::at(START)), Memory::default()));
    let rules = LiveSettings::new(store).require_tokens();
    rules.apply(settings("auth: {tokens: []}")).expect("valid input");
    let rejected = rules.apply(settings(TWO)).expect_err("auth is missing");
    assert_eq!(rejected.flaws[0].field, "auth");
    assert!(!rules.tokens().allows_anonymous());
}

#[test]
fn changed_server_and_store_sections_need_a_restart() {
    let fixture = SettingsFixture::new();
    let needs = |text: &str| fixture.apply(text).needs_restart;
    assert!(needs("server: {workers: 1}\nstore: {memory: 1GiB}").is_empty(), "this is the start");
    assert_eq!(needs("server: {workers: 2}\nstore: {memory: 1GiB}"), ["server"]);
    assert_eq!(needs("limits: []"), ["server", "store"]);
    assert!(needs("server: {workers: 1}\nstore: {memory: 1GiB}").is_empty(), "it is as it was");
}

#[test]
fn api_limits_are_kept_beside_file_limits() {
    let fixture = SettingsFixture::new();
    fixture.apply(TWO);
    fixture.store.apply(vec![Edit::Put(total("mine", 1), ExpectedVersion::Absent)]).expect("a new limit");
    assert_eq!(fixture.apply(TWO), applied(0, 0, 0, 2));
    assert_eq!(fixture.ids(), ["a", "b", "mine"]);
}

const OUTSIDE: &str = "-NOAUTH Authentication required.";

/// A token, and its entry in a file.
fn token(role: &str) -> (String, String) {
    let new = NewToken::generate().expect("randomness");
    let line = format!("{{name: t, sha256: {}, role: {role}}}", new.sha256);
    (new.secret, line)
}

#[test]
fn session_loses_permissions_with_its_token() {
    let fixture = SettingsFixture::new();
    let (one, one_line) = token("decide");
    let (two, two_line) = token("read");
    let file = |tokens: &str| format!("{TWO}auth: {{tokens: [{tokens}]}}");
    fixture.apply(&file(&format!("{one_line}, {two_line}")));
    let service =
        Arc::new(RespService::new(Arc::clone(&fixture.store) as _, Arc::clone(fixture.rules.tokens()) as _));
    let mut sessions = [one, two].map(|secret| {
        let mut session = RespSession::new(Arc::clone(&service));
        assert_eq!(say(&mut session, &format!("AUTH {secret}")), "+OK");
        assert!(!format!("{session:?}").contains(&secret), "a secret is not kept");
        session
    });
    let mut ask = |which: usize, line: &str| say(&mut sessions[which], line);
    fixture.apply(&file(&two_line));
    assert_eq!(ask(0, "TG.PEEK a u"), OUTSIDE, "its token is gone");
    assert_eq!(ask(1, "TG.PEEK a u"), "[1, 5, 5, -1, -1, '', '']", "other sessions are not affected");
    fixture.apply(&file(&format!("{one_line}, {}", two_line.replace("role: read", "role: decide"))));
    assert_eq!(ask(0, "PING"), "+PONG", "it is back");
    assert_eq!(ask(1, "TG.ACQUIRE a u"), "[1, 5, 4, -1, -1, '', '']", "and means more");
    fixture.apply(&file(&two_line.replace("role: read", "role: decide, prefix: b")));
    assert!(ask(1, "TG.ACQUIRE a u").starts_with("-NOPERM"), "or less");
    fixture.apply(TWO);
    assert_eq!(ask(0, "PING"), "+PONG", "no token is required");
    assert_eq!(ask(1, "TG.ACQUIRE a u"), "[1, 5, 3, -1, -1, '', '']");
    fixture.apply(&file(""));
    assert_eq!((ask(0, "PING"), ask(1, "PING")), (OUTSIDE.to_owned(), OUTSIDE.to_owned()));
}

#[test]
fn anonymous_session_is_refused_once_tokens_are_required() {
    let fixture = SettingsFixture::new();
    fixture.apply(TWO);
    let service =
        Arc::new(RespService::new(Arc::clone(&fixture.store) as _, Arc::clone(fixture.rules.tokens()) as _));
    let mut session = RespSession::new(service);
    assert_eq!(say(&mut session, "PING"), "+PONG");
    let (secret, line) = token("read");
    fixture.apply(&format!("auth: {{tokens: [{line}]}}"));
    assert_eq!(say(&mut session, "PING"), "-NOAUTH Authentication required.");
    assert_eq!(say(&mut session, &format!("HELLO 2 AUTH me {secret}")).get(..7), Some("['serve"));
    assert_eq!(say(&mut session, "PING"), "+PONG");
}

/// Live settings over a store with this log, shared with a thread that applies them.
fn logged(log: &ManualLog) -> Arc<LiveSettings> {
    let store = MemoryStore::new(Arc::new(ManualClock::at(START)), Memory::default());
    Arc::new(LiveSettings::new(Arc::new(LoggedStore::new(Arc::new(store), log.clone()))))
}

#[test]
fn tokens_change_after_limits_are_durable() {
    let log = ManualLog::manual();
    let rules = logged(&log);
    let applying = {
        let rules = Arc::clone(&rules);
        std::thread::spawn(move || rules.apply(settings(TWO)))
    };
    log.wait_for_waiters(1);
    assert!(!rules.tokens().allows_anonymous(), "settings that are not durable grant no access");
    assert!(!applying.is_finished());
    log.sync_all();
    assert_eq!(applying.join().expect("it does not fail"), Ok(applied(2, 0, 0, 0)));
    assert!(rules.tokens().allows_anonymous());
}

#[test]
fn settings_are_rejected_when_the_log_fails() {
    let log = ManualLog::manual();
    let rules = logged(&log);
    log.fail("the disk is full");
    let SettingsRejected { flaws } = rules.apply(settings(TWO)).expect_err("they are not durable");
    assert_eq!(flaws[0].field, "store");
    assert!(flaws[0].message.contains("the disk is full"), "{}", flaws[0].message);
    assert!(!rules.tokens().allows_anonymous());
    assert!(rules.is_from_file("a"), "the limit exists and is managed by the file");
}

/// An activity, and live settings that configure it.
fn with_activity(over: ActivitySpec) -> (SettingsFixture, Activity) {
    let SettingsFixture { store, rules, limiter } = SettingsFixture::new();
    let activity = Activity::of_store(limiter.clone());
    let rules = rules.with_activity(activity.clone(), over);
    (SettingsFixture { store, rules, limiter }, activity)
}

/// The result of a future that does not wait.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

fn limited(activity: &Activity, user: &str) -> Option<Reason> {
    now(activity.is_active(user)).expect("a status").reason
}

#[test]
fn activity_section_is_a_file_limit() {
    let (fixture, activity) = with_activity(ActivitySpec::default());
    assert_eq!(fixture.apply("limits: []"), applied(0, 0, 0, 0));
    assert!(fixture.ids().is_empty(), "no request was made");
    assert_eq!(limited(&activity, "u"), None);
    assert!(fixture.ids().is_empty(), "asking makes nothing");
    let first = now(activity.set_active("u")).expect("room");
    assert_eq!(fixture.ids(), ["activity"]);
    assert!(!fixture.rules.is_from_file("activity"), "it was put because a task began");
    drop(first);

    assert_eq!(fixture.apply("activity: {max_concurrent_tasks: 1, window: 20s}"), applied(0, 1, 0, 0));
    assert!(fixture.rules.is_from_file("activity"));
    assert_eq!(activity.rules().window.as_secs(), 20);
    let held = fixture.limiter.limit("activity").expect("the limit exists").of("u").try_acquire();
    assert_eq!(limited(&activity, "v"), Some(Reason::Concurrency));
    // An edit takes effect at once and keeps the counts.
    assert_eq!(fixture.apply("activity: {max_concurrent_tasks: 2, window: 20s}"), applied(0, 1, 0, 0));
    assert_eq!(limited(&activity, "v"), None);
    assert_eq!(fixture.apply("activity: {max_concurrent_tasks: 2, window: 20s}"), applied(0, 0, 0, 1));
    // Without the section the defaults apply, and running tasks continue.
    assert_eq!(fixture.apply("limits: []"), applied(0, 0, 1, 0));
    assert_eq!((limited(&activity, "v"), activity.rules()), (None, activity::ActivityRules::default()));
    let other = now(activity.set_active("v")).expect("room");
    assert_eq!(
        fixture.store.get("activity").expect("a limit").spec(),
        &activity::ActivityRules::default().spec()
    );
    drop(other);
    assert_eq!(fixture.store.holders("activity", Some(b"u")).decided().expect("a limit").len(), 1);
    drop(held);
}

#[test]
fn environment_overrides_activity_section() {
    let over = ActivitySpec { max_concurrent_tasks: Some(Capacity::AtMost(0)), ..ActivitySpec::default() };
    let (fixture, activity) = with_activity(over);
    fixture.apply("activity: {max_concurrent_tasks: 9, window_requests: 2}");
    assert_eq!(activity.rules().window_requests, Capacity::AtMost(2));
    assert_eq!(limited(&activity, "u"), Some(Reason::Concurrency));
    fixture.apply("limits: []");
    assert_eq!(limited(&activity, "u"), Some(Reason::Concurrency), "also where nothing is written");
    // An invalid combination changes nothing.
    let over = ActivitySpec { window: Some(std::time::Duration::from_secs(900)), ..ActivitySpec::default() };
    let (fixture, _) = with_activity(over);
    assert_eq!(fixture.fails(settings("activity: {compat: true}")), ["activity.lease_ttl"]);
    assert!(fixture.ids().is_empty());
}

#[test]
fn activity_limit_under_limits_is_kept() {
    let text = "limits: [{id: activity, items: [{policy: day, limit: 9, per: key}, \
                {policy: concurrency, limit: -1, ttl: 60s, per: key}, {policy: concurrency, limit: 0, ttl: 60s}]}]";
    let (fixture, activity) = with_activity(ActivitySpec::default());
    assert_eq!(fixture.apply(text), applied(1, 0, 0, 0));
    assert_eq!(limited(&activity, "u"), Some(Reason::Concurrency));
    assert_eq!(fixture.store.get("activity").expect("a limit").spec().items[2].limit, Capacity::AtMost(0));
    let over = ActivitySpec { window_requests: Some(Capacity::AtMost(1)), ..ActivitySpec::default() };
    let (fixture, _) = with_activity(over);
    assert_eq!(fixture.fails(settings(text)), ["limits[0].id"], "two would speak of it");
}

#[test]
fn unsuitable_activity_limit_is_reported_and_not_charged() {
    let (fixture, activity) = with_activity(ActivitySpec::default());
    fixture.apply("limits: [{id: activity, items: [{policy: total, limit: 5}]}]");
    for error in [now(activity.set_active("u")).map(|_| ()), now(activity.is_active("u")).map(|_| ())] {
        let why = error.expect_err("there are no tasks").to_string();
        assert!(why.contains("'activity'") && why.contains("policy: concurrency, per: key"), "{why}");
    }
    let usage = fixture.store.usage("activity", None).decided().expect("a limit");
    assert_eq!(usage.count, Some(0));
}

/// Another process with the same store.
fn beside(fixture: &SettingsFixture, over: ActivitySpec) -> (LiveSettings, Activity) {
    let activity = Activity::of_store(fixture.limiter.clone());
    (LiveSettings::new(Arc::clone(&fixture.store) as _).with_activity(activity.clone(), over), activity)
}

#[test]
fn environment_is_applied_at_start_and_kept_by_other_processes() {
    let (fixture, _) = with_activity(ActivitySpec::default());
    let over = ActivitySpec { max_concurrent_tasks: Some(Capacity::AtMost(2)), ..ActivitySpec::default() };
    let (rules, _) = beside(&fixture, over);
    rules.apply_defaults().expect("valid input");
    let tasks = || fixture.store.get("activity").expect("a limit").spec().items[2].limit;
    assert_eq!(tasks(), Capacity::AtMost(2), "before the first request");
    assert!(rules.tokens().allows_anonymous());
    let (silent, activity) = beside(&fixture, ActivitySpec::default());
    silent.apply_defaults().expect("nothing is always possible");
    let _task = now(activity.set_active("u")).expect("room");
    assert_eq!((limited(&activity, "u"), tasks()), (None, Capacity::AtMost(2)));
    // A restart without overrides keeps the edit.
    let edited = activity::ActivityRules {
        max_concurrent_tasks: Capacity::AtMost(50),
        ..activity::ActivityRules::default()
    };
    fixture.store.put(edited.spec(), ExpectedVersion::Present).expect("an edit");
    let (again, activity) = beside(&fixture, ActivitySpec::default());
    again.apply_defaults().expect("nothing is always possible");
    let _task = now(activity.set_active("u")).expect("room");
    assert_eq!(tasks(), Capacity::AtMost(50));
    // A process with overrides applies them again on reload.
    rules.apply(settings("limits: []")).expect("valid input");
    assert_eq!(tasks(), Capacity::AtMost(2));
}

#[test]
fn only_a_file_retires_limits_of_another_file() {
    let fixture = SettingsFixture::new();
    assert_eq!(fixture.apply(TWO), applied(2, 0, 0, 0));
    let (without, _) = beside(&fixture, ActivitySpec::default());
    without.apply_defaults().expect("nothing is always possible");
    assert_eq!(fixture.ids(), ["a", "b"], "who has no file removes nothing");
    assert!(without.is_from_file("a"), "and changes nothing that is written in one");
    let (other, _) = beside(&fixture, ActivitySpec::default());
    let found = other.apply(settings("limits: [{id: b, items: [{policy: total, limit: 5}]}]"));
    assert_eq!(found.expect("valid input").retired_foreign, ["a"]);
    other.apply(settings("limits: [{id: c, items: [{policy: total, limit: 5}]}]")).expect("valid input");
    assert!(without.is_from_file("c"), "whenever it came");
    // Limits of the process's own file are retired without a warning.
    assert!(other.apply(settings("limits: []")).expect("valid input").retired_foreign.is_empty());
    assert!(fixture.ids().is_empty());
}
