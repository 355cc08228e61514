//! Limits and tokens from a file: applied together, and the file wins.

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

use crate::resp::stage::{START, say};

/// LiveSettings, the store they are for, and somebody who asks it.
struct Scene {
    store: Arc<MemoryStore>,
    rules: LiveSettings,
    limiter: Limiter,
}

impl Scene {
    fn new() -> Scene {
        let clock = Arc::new(ManualClock::at(START));
        let store = Arc::new(MemoryStore::new(clock, Memory::default()));
        let full: Arc<dyn LimitStore> = Arc::clone(&store) as _;
        Scene { rules: LiveSettings::new(Arc::clone(&full)), limiter: Limiter::new(full), store }
    }

    #[track_caller]
    fn apply(&self, text: &str) -> SettingsApplied {
        self.rules.apply(settings(text)).expect("they make sense")
    }

    #[track_caller]
    fn fails(&self, settings: Settings) -> Vec<String> {
        let SettingsRejected { flaws } = self.rules.apply(settings).expect_err("they make no sense");
        flaws.into_iter().map(|flaw| flaw.field).collect()
    }

    fn takes(&self, id: &str, count: u64) -> bool {
        match self.limiter.ask(id, b"u").count(count).try_acquire() {
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
fn an_edit_changes_what_it_changes() {
    let scene = Scene::new();
    assert_eq!(scene.apply(TWO), applied(2, 0, 0, 0));
    assert!(scene.takes("a", 3) && scene.takes("b", 3));
    let b = scene.store.get("b").expect("it is written");

    let next = "limits:
  - {id: a, items: [{policy: total, limit: 4}]}
  - {id: b, items: [{policy: total, limit: 5}]}
  - {id: c, items: [{policy: total, limit: 1}]}
";
    assert_eq!(scene.apply(next), applied(1, 1, 0, 1));
    assert!(scene.takes("a", 1) && !scene.takes("a", 1), "three of four were taken before");
    assert!(Arc::ptr_eq(&b, &scene.store.get("b").expect("it is written")), "it was not touched");
    assert_eq!(scene.rules.in_force().limits.len(), 3);
    assert_eq!(scene.apply(next), applied(0, 0, 0, 3));
}

#[test]
fn what_is_no_longer_written_is_unknown_and_may_come_back() {
    let scene = Scene::new();
    scene.apply(TWO);
    assert!(scene.takes("b", 5));
    let one = "limits: [{id: a, items: [{policy: total, limit: 5}]}]";
    assert_eq!(scene.apply(one), applied(0, 0, 1, 1));
    assert_eq!(scene.ids(), ["a"]);
    assert!(!scene.rules.is_from_file("b"));
    assert_eq!(scene.apply(TWO), applied(1, 0, 0, 1));
    assert!(!scene.takes("b", 1), "an edit that is undone does not oversell");
    assert!(scene.rules.is_from_file("b"));
}

#[test]
fn the_file_wins() {
    let scene = Scene::new();
    for limit in [total("a", 9), total("b", 5), total("mine", 5)] {
        scene.store.put(limit, ExpectedVersion::Absent).expect("a new limit");
    }
    assert!(scene.takes("a", 5) && !scene.rules.is_from_file("a"));
    assert_eq!(scene.apply(TWO), applied(0, 1, 0, 1), "one says something else, one says the same");
    assert!(!scene.takes("a", 1), "its counts are kept");
    assert!(scene.rules.is_from_file("a") && scene.rules.is_from_file("b"));
    assert!(!scene.rules.is_from_file("mine"));
    assert_eq!(scene.apply("limits: []"), applied(0, 0, 2, 0));
    assert_eq!(scene.ids(), ["mine"], "what was never written stays");
}

#[test]
fn what_fails_changes_nothing() {
    let scene = Scene::new();
    scene.apply(&format!("{TWO}auth: {{tokens: []}}"));
    let before = scene.rules.in_force();

    let mut bad = settings("auth: {tokens: []}");
    bad.limits = vec![total("new", 1), LimitSpec::named("empty"), total("cl.throttle/1/1/1", 1)];
    assert_eq!(scene.fails(bad), ["limits[2].id"]);
    let mut bad = settings("limits: []");
    bad.limits = vec![total("new", 1), LimitSpec::named("empty"), total("new", 2)];
    assert_eq!(scene.fails(bad), ["limits[1].items", "limits[2].id"]);
    let mut bad = settings("limits: [{id: new, items: [{policy: total, limit: 1}]}]");
    let token = tidegate_server::settings::TokenSpec {
        name: "ops".to_owned(),
        sha256: "12".to_owned(),
        role: Role::Admin,
        prefix: String::new(),
    };
    bad.tokens = Some(vec![token]);
    assert_eq!(scene.fails(bad), ["auth.tokens[0].sha256"]);

    assert_eq!(scene.ids(), ["a", "b"]);
    assert!(scene.rules.is_from_file("a") && !scene.rules.is_from_file("new"));
    assert_eq!(scene.rules.tokens().identify(None), Caller::Anonymous, "nobody was let in");
    assert!(Arc::ptr_eq(&before, &scene.rules.in_force()));
}

#[test]
fn nobody_comes_in_before_it_is_known_who_may() {
    let scene = Scene::new();
    assert_eq!(scene.rules.tokens().identify(None), Caller::Anonymous);
    scene.apply("limits: []");
    assert!(scene.rules.tokens().allows_anonymous());
}

#[test]
fn an_edit_does_not_let_strangers_in_where_strangers_come() {
    let store: Arc<dyn LimitStore> =
        Arc::new(MemoryStore::new(Arc::new(ManualClock::at(START)), Memory::default()));
    let rules = LiveSettings::new(store).require_tokens();
    rules.apply(settings("auth: {tokens: []}")).expect("it makes sense");
    let unfit = rules.apply(settings(TWO)).expect_err("everybody would come in");
    assert_eq!(unfit.flaws[0].field, "auth");
    assert!(!rules.tokens().allows_anonymous());
}

#[test]
fn sections_that_are_read_once_wait_for_a_restart() {
    let scene = Scene::new();
    let needs = |text: &str| scene.apply(text).needs_restart;
    assert!(needs("server: {workers: 1}\nstore: {memory: 1GiB}").is_empty(), "this is the start");
    assert_eq!(needs("server: {workers: 2}\nstore: {memory: 1GiB}"), ["server"]);
    assert_eq!(needs("limits: []"), ["server", "store"]);
    assert!(needs("server: {workers: 1}\nstore: {memory: 1GiB}").is_empty(), "it is as it was");
}

#[test]
fn limits_may_be_edited_over_the_api_beside_the_file() {
    let scene = Scene::new();
    scene.apply(TWO);
    scene.store.apply(vec![Edit::Put(total("mine", 1), ExpectedVersion::Absent)]).expect("a new limit");
    assert_eq!(scene.apply(TWO), applied(0, 0, 0, 2));
    assert_eq!(scene.ids(), ["a", "b", "mine"]);
}

const OUTSIDE: &str = "-NOAUTH Authentication required.";

/// A token that everybody may read here, and its place in a file.
fn token(role: &str) -> (String, String) {
    let new = NewToken::generate().expect("randomness");
    let line = format!("{{name: t, sha256: {}, role: {role}}}", new.sha256);
    (new.secret, line)
}

#[test]
fn who_came_in_with_a_token_leaves_with_it() {
    let scene = Scene::new();
    let (one, one_line) = token("decide");
    let (two, two_line) = token("read");
    let file = |tokens: &str| format!("{TWO}auth: {{tokens: [{tokens}]}}");
    scene.apply(&file(&format!("{one_line}, {two_line}")));
    let door =
        Arc::new(RespService::new(Arc::clone(&scene.store) as _, Arc::clone(scene.rules.tokens()) as _));
    let mut sessions = [one, two].map(|secret| {
        let mut session = RespSession::new(Arc::clone(&door));
        assert_eq!(say(&mut session, &format!("AUTH {secret}")), "+OK");
        assert!(!format!("{session:?}").contains(&secret), "a secret is not kept");
        session
    });
    let mut ask = |which: usize, line: &str| say(&mut sessions[which], line);
    scene.apply(&file(&two_line));
    assert_eq!(ask(0, "TG.PEEK a u"), OUTSIDE, "its token is gone");
    assert_eq!(ask(1, "TG.PEEK a u"), "[1, 5, 5, -1, -1, '', '']", "nobody else notices");
    scene.apply(&file(&format!("{one_line}, {}", two_line.replace("role: read", "role: decide"))));
    assert_eq!(ask(0, "PING"), "+PONG", "it is back");
    assert_eq!(ask(1, "TG.ACQUIRE a u"), "[1, 5, 4, -1, -1, '', '']", "and means more");
    scene.apply(&file(&two_line.replace("role: read", "role: decide, prefix: b")));
    assert!(ask(1, "TG.ACQUIRE a u").starts_with("-NOPERM"), "or less");
    scene.apply(TWO);
    assert_eq!(ask(0, "PING"), "+PONG", "nobody needs one");
    assert_eq!(ask(1, "TG.ACQUIRE a u"), "[1, 5, 3, -1, -1, '', '']");
    scene.apply(&file(""));
    assert_eq!((ask(0, "PING"), ask(1, "PING")), (OUTSIDE.to_owned(), OUTSIDE.to_owned()));
}

#[test]
fn a_guest_of_an_open_door_leaves_when_it_closes() {
    let scene = Scene::new();
    scene.apply(TWO);
    let door =
        Arc::new(RespService::new(Arc::clone(&scene.store) as _, Arc::clone(scene.rules.tokens()) as _));
    let mut session = RespSession::new(door);
    assert_eq!(say(&mut session, "PING"), "+PONG");
    let (secret, line) = token("read");
    scene.apply(&format!("auth: {{tokens: [{line}]}}"));
    assert_eq!(say(&mut session, "PING"), "-NOAUTH Authentication required.");
    assert_eq!(say(&mut session, &format!("HELLO 2 AUTH me {secret}")).get(..7), Some("['serve"));
    assert_eq!(say(&mut session, "PING"), "+PONG");
}

/// LiveSettings over a store with this log, shared with a thread that applies them.
fn logged(log: &ManualLog) -> Arc<LiveSettings> {
    let store = MemoryStore::new(Arc::new(ManualClock::at(START)), Memory::default());
    Arc::new(LiveSettings::new(Arc::new(LoggedStore::new(Arc::new(store), log.clone()))))
}

#[test]
fn rules_are_applied_when_the_limits_are_durable() {
    let log = ManualLog::manual();
    let rules = logged(&log);
    let applying = {
        let rules = Arc::clone(&rules);
        std::thread::spawn(move || rules.apply(settings(TWO)))
    };
    log.wait_for_waiters(1);
    assert!(!rules.tokens().allows_anonymous(), "nobody comes in by rules that may be forgotten");
    assert!(!applying.is_finished());
    log.sync_all();
    assert_eq!(applying.join().expect("it does not fail"), Ok(applied(2, 0, 0, 0)));
    assert!(rules.tokens().allows_anonymous());
}

#[test]
fn rules_that_cannot_be_written_down_are_not_applied() {
    let log = ManualLog::manual();
    let rules = logged(&log);
    log.fail("the disk is full");
    let SettingsRejected { flaws } = rules.apply(settings(TWO)).expect_err("they are not durable");
    assert_eq!(flaws[0].field, "store");
    assert!(flaws[0].message.contains("the disk is full"), "{}", flaws[0].message);
    assert!(!rules.tokens().allows_anonymous());
    assert!(rules.is_from_file("a"), "it is there, and nobody else changes it");
}

/// An activity, and rules that tell it its numbers.
fn with_activity(over: ActivitySpec) -> (Scene, Activity) {
    let Scene { store, rules, limiter } = Scene::new();
    let activity = Activity::of_store(limiter.clone());
    let rules = rules.with_activity(activity.clone(), over);
    (Scene { store, rules, limiter }, activity)
}

/// What is answered at once.
fn now<T>(told: impl Future<Output = T>) -> T {
    match pin!(told).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(told) => told,
        Poll::Pending => panic!("it waits"),
    }
}

fn limited(activity: &Activity, user: &str) -> Option<Reason> {
    now(activity.is_active(user)).expect("a status").reason
}

#[test]
fn the_section_activity_is_a_limit_of_the_file() {
    let (scene, activity) = with_activity(ActivitySpec::default());
    assert_eq!(scene.apply("limits: []"), applied(0, 0, 0, 0));
    assert!(scene.ids().is_empty(), "nobody has asked");
    assert_eq!(limited(&activity, "u"), None);
    assert!(scene.ids().is_empty(), "asking makes nothing");
    let first = now(activity.set_active("u")).expect("room");
    assert_eq!(scene.ids(), ["activity"]);
    assert!(!scene.rules.is_from_file("activity"), "it was put because a task began");
    drop(first);

    assert_eq!(scene.apply("activity: {max_concurrent_tasks: 1, window: 20s}"), applied(0, 1, 0, 0));
    assert!(scene.rules.is_from_file("activity"));
    assert_eq!(activity.rules().window.as_secs(), 20);
    let held = scene.limiter.ask("activity", "u").try_acquire();
    assert_eq!(limited(&activity, "v"), Some(Reason::Concurrency));
    // An edit acts at once, and what is counted stays.
    assert_eq!(scene.apply("activity: {max_concurrent_tasks: 2, window: 20s}"), applied(0, 1, 0, 0));
    assert_eq!(limited(&activity, "v"), None);
    assert_eq!(scene.apply("activity: {max_concurrent_tasks: 2, window: 20s}"), applied(0, 0, 0, 1));
    // Whoever takes the section out gets the document's numbers, and those who run go on.
    assert_eq!(scene.apply("limits: []"), applied(0, 0, 1, 0));
    assert_eq!((limited(&activity, "v"), activity.rules()), (None, activity::Rules::default()));
    let other = now(activity.set_active("v")).expect("room");
    assert_eq!(scene.store.get("activity").expect("a limit").spec(), &activity::Rules::default().spec());
    drop(other);
    assert_eq!(scene.store.holders("activity", Some(b"u")).decided().expect("a limit").len(), 1);
    drop(held);
}

#[test]
fn the_environment_goes_over_the_section() {
    let over = ActivitySpec { max_concurrent_tasks: Some(Capacity::AtMost(0)), ..ActivitySpec::default() };
    let (scene, activity) = with_activity(over);
    scene.apply("activity: {max_concurrent_tasks: 9, window_requests: 2}");
    assert_eq!(activity.rules().window_requests, Capacity::AtMost(2));
    assert_eq!(limited(&activity, "u"), Some(Reason::Concurrency));
    scene.apply("limits: []");
    assert_eq!(limited(&activity, "u"), Some(Reason::Concurrency), "also where nothing is written");
    // What makes no sense together changes nothing.
    let over = ActivitySpec { window: Some(std::time::Duration::from_secs(900)), ..ActivitySpec::default() };
    let (scene, _) = with_activity(over);
    assert_eq!(scene.fails(settings("activity: {compat: true}")), ["activity.lease_ttl"]);
    assert!(scene.ids().is_empty());
}

#[test]
fn a_limit_that_is_written_under_its_own_name_is_left_alone() {
    let text = "limits: [{id: activity, items: [{policy: day, limit: 9, per: key}, \
                {policy: concurrency, limit: -1, ttl: 60s, per: key}, {policy: concurrency, limit: 0, ttl: 60s}]}]";
    let (scene, activity) = with_activity(ActivitySpec::default());
    assert_eq!(scene.apply(text), applied(1, 0, 0, 0));
    assert_eq!(limited(&activity, "u"), Some(Reason::Concurrency));
    assert_eq!(scene.store.get("activity").expect("a limit").spec().items[2].limit, Capacity::AtMost(0));
    let over = ActivitySpec { window_requests: Some(Capacity::AtMost(1)), ..ActivitySpec::default() };
    let (scene, _) = with_activity(over);
    assert_eq!(scene.fails(settings(text)), ["limits[0].id"], "two would speak of it");
}

#[test]
fn a_limit_that_cannot_keep_tasks_is_told_as_that_and_charged_nothing() {
    let (scene, activity) = with_activity(ActivitySpec::default());
    scene.apply("limits: [{id: activity, items: [{policy: total, limit: 5}]}]");
    for error in [now(activity.set_active("u")).map(|_| ()), now(activity.is_active("u")).map(|_| ())] {
        let why = error.expect_err("there are no tasks").to_string();
        assert!(why.contains("'activity'") && why.contains("policy: concurrency, per: key"), "{why}");
    }
    let usage = scene.store.usage("activity", None).decided().expect("a limit");
    assert_eq!(usage.count, Some(0));
}

/// Another process with the same store.
fn beside(scene: &Scene, over: ActivitySpec) -> (LiveSettings, Activity) {
    let activity = Activity::of_store(scene.limiter.clone());
    (LiveSettings::new(Arc::clone(&scene.store) as _).with_activity(activity.clone(), over), activity)
}

#[test]
fn the_environment_is_put_at_the_start_and_left_alone_by_those_who_say_nothing() {
    let (scene, _) = with_activity(ActivitySpec::default());
    let over = ActivitySpec { max_concurrent_tasks: Some(Capacity::AtMost(2)), ..ActivitySpec::default() };
    let (rules, _) = beside(&scene, over);
    rules.apply_defaults().expect("they make sense");
    let tasks = || scene.store.get("activity").expect("a limit").spec().items[2].limit;
    assert_eq!(tasks(), Capacity::AtMost(2), "before anybody asks");
    assert!(rules.tokens().allows_anonymous());
    let (silent, activity) = beside(&scene, ActivitySpec::default());
    silent.apply_defaults().expect("nothing is always possible");
    let _task = now(activity.set_active("u")).expect("room");
    assert_eq!((limited(&activity, "u"), tasks()), (None, Capacity::AtMost(2)));
    // Nor is an edit undone by whoever starts again and says nothing.
    let edited = activity::Rules { max_concurrent_tasks: Capacity::AtMost(50), ..activity::Rules::default() };
    scene.store.put(edited.spec(), ExpectedVersion::Present).expect("an edit");
    let (again, activity) = beside(&scene, ActivitySpec::default());
    again.apply_defaults().expect("nothing is always possible");
    let _task = now(activity.set_active("u")).expect("room");
    assert_eq!(tasks(), Capacity::AtMost(50));
    // Caller has numbers says them again when settings are read again.
    rules.apply(settings("limits: []")).expect("they make sense");
    assert_eq!(tasks(), Capacity::AtMost(2));
}

#[test]
fn only_a_file_takes_what_another_file_gave() {
    let scene = Scene::new();
    assert_eq!(scene.apply(TWO), applied(2, 0, 0, 0));
    let (without, _) = beside(&scene, ActivitySpec::default());
    without.apply_defaults().expect("nothing is always possible");
    assert_eq!(scene.ids(), ["a", "b"], "who has no file removes nothing");
    assert!(without.is_from_file("a"), "and changes nothing that is written in one");
    let (other, _) = beside(&scene, ActivitySpec::default());
    let found = other.apply(settings("limits: [{id: b, items: [{policy: total, limit: 5}]}]"));
    assert_eq!(found.expect("they make sense").retired_foreign, ["a"]);
    other.apply(settings("limits: [{id: c, items: [{policy: total, limit: 5}]}]")).expect("they make sense");
    assert!(without.is_from_file("c"), "whenever it came");
    // What it gave itself it may take without a word.
    assert!(other.apply(settings("limits: []")).expect("they make sense").retired_foreign.is_empty());
    assert!(scene.ids().is_empty());
}
