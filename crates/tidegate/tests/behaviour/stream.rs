//! The stream limiter. The timelines are the test vectors of the specification; `b04` and the like number its requirements.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt};
use tidegate::clock::{Clock, ManualClock};
use tidegate::limiter::ManualHolderClock;
use tidegate::model::{Timestamp, Wait};
use tidegate::stream::{LimitExt, MessageDecision, MessageRate, RefusedBy, StreamLimiter, StreamRules, User};

const MINUTE: Duration = Duration::from_secs(60);

fn rules(global: MessageRate, user: MessageRate) -> StreamRules {
    StreamRules { global, user }
}

fn per_user(limit: u64) -> StreamRules {
    rules(MessageRate::unlimited(MINUTE), MessageRate::of(limit, MINUTE))
}

/// A message: its arrival, its user, and its expected fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Message {
    at: Timestamp,
    user: Option<&'static str>,
    fate: &'static str,
}

/// Parses one `seconds user fate` line per message. The user `-` means none.
fn messages(timeline: &'static str) -> Vec<Message> {
    let lines = timeline.lines().map(str::trim).filter(|line| !line.is_empty());
    let message = |line: &'static str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [at, user, fate] = words[..] else { panic!("'{line}' is not a time, a user and a fate") };
        Message { at: instant(at), user: (user != "-").then_some(user), fate }
    };
    lines.map(message).collect()
}

/// The exact instant of decimal seconds.
fn instant(seconds: &str) -> Timestamp {
    let (whole, decimals) = seconds.split_once('.').unwrap_or((seconds, ""));
    Timestamp::from_ticks(format!("{whole}{decimals:0<9}").parse().expect("a number of seconds"))
}

/// The messages as a stream. Each arrival moves the clock.
fn arriving(messages: &[Message], clock: &Arc<ManualClock>) -> impl Stream<Item = Message> + use<> {
    let clock = Arc::clone(clock);
    stream::iter(messages.to_vec()).inspect(move |message| clock.set(message.at))
}

/// Runs a timeline through a limiter. Compares the passed messages, the observer's calls and the statistics.
#[track_caller]
fn check(rules: StreamRules, timeline: &'static str) -> StreamLimiter {
    let expected = messages(timeline);
    let clock = Arc::new(ManualClock::at(Timestamp::EPOCH));
    let limiter = StreamLimiter::with_clock(rules, Arc::clone(&clock)).expect("rules that can be kept");
    let refused = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&refused);
    let limited = arriving(&expected, &clock).limited(&limiter, |message| message.user.into()).observed(
        move |message, refusal| {
            let by = match refusal.by {
                RefusedBy::Global => "global",
                RefusedBy::User => "user",
            };
            notes.lock().expect("no thread panicked").push(Message { fate: by, ..*message });
        },
    );
    let passed = finish(limited);
    let of = |fate: &dyn Fn(&str) -> bool| -> Vec<Message> {
        expected.iter().copied().filter(|message| fate(message.fate)).collect()
    };
    assert_eq!(passed, of(&|fate| fate == "pass"));
    assert_eq!(*refused.lock().expect("no thread panicked"), of(&|fate| fate != "pass"));
    let stats = limiter.stats();
    assert_eq!(stats.processed, expected.len() as u64);
    assert_eq!(stats.passed, passed.len() as u64);
    assert_eq!(stats.dropped, stats.dropped_global + stats.dropped_user);
    assert_eq!(stats.dropped_global, of(&|fate| fate == "global").len() as u64);
    assert_eq!(stats.dropped_user, of(&|fate| fate == "user").len() as u64);
    limiter
}

/// Collects a stream.
fn finish<T>(stream: impl Stream<Item = T>) -> Vec<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(stream.collect())
}

#[test]
fn b04_window_is_closed_at_both_ends() {
    check(
        per_user(1),
        "0          ada pass
         60.0       ada user
         60.0000001 ada pass",
    );
}

#[test]
fn b06_b07_third_message_is_refused_for_any_user() {
    check(
        rules(MessageRate::of(2, MINUTE), MessageRate::of(10, MINUTE)),
        "0 ada pass
         0 bob pass
         0 cem global
         1 ada global",
    );
}

#[test]
fn b06_message_refused_by_both_counts_as_global() {
    check(
        rules(MessageRate::of(1, MINUTE), MessageRate::of(1, MINUTE)),
        "0 ada pass
         1 ada global",
    );
    // Also if the user's rule has the longer wait.
    check(
        rules(MessageRate::of(1, Duration::from_secs(1)), MessageRate::of(1, MINUTE)),
        "0   ada pass
         0.5 ada global
         1.5 ada user",
    );
}

#[test]
fn b07_fourth_message_of_user_is_refused() {
    check(
        per_user(3),
        "0 ada pass
         0 ada pass
         0 ada pass
         0 ada user
         0 bob pass",
    );
}

#[test]
fn b08_refused_message_charges_nothing() {
    check(
        rules(MessageRate::of(2, MINUTE), MessageRate::of(1, MINUTE)),
        "0      ada pass
         30     ada user
         30     ada user
         30     ada user
         31     bob pass
         60.001 ada pass",
    );
}

#[test]
fn b12_messages_without_user_share_one_key() {
    check(
        per_user(1),
        "0 -            pass
         1 -            user
         1 unknown_user user
         1 ada          pass",
    );
}

#[test]
fn b13_statistics_report_window_counts() {
    let limiter = check(
        rules(MessageRate::of(3, MINUTE), MessageRate::of(2, MINUTE)),
        "0      ada pass
         10     ada pass
         20     ada user
         20     bob pass
         30     cem global
         60.001 cem pass",
    );
    let stats = limiter.stats();
    assert_eq!((stats.current_global, stats.active_users), (3, 3), "one of ada's has left its window");
    limiter.reset();
    let stats = limiter.stats();
    assert_eq!((stats.current_global, stats.active_users), (0, 0));
    assert_eq!((stats.processed, stats.passed), (6, 4), "what has been done stays done");
}

#[test]
fn b14_zero_refuses_all_and_unlimited_refuses_none() {
    check(rules(MessageRate::unlimited(MINUTE), MessageRate::of(0, MINUTE)), "0 ada user\n 0 bob user");
    check(rules(MessageRate::of(0, MINUTE), MessageRate::unlimited(MINUTE)), "0 ada global\n 0 bob global");
    let limiter = check(
        rules(MessageRate::unlimited(MINUTE), MessageRate::unlimited(MINUTE)),
        "0 ada pass\n 0 ada pass\n 0 ada pass\n 0 bob pass",
    );
    assert_eq!(limiter.stats().current_global, 4, "counted all the same");
}

#[test]
fn b02_defaults_are_100_and_10_per_minute() {
    let limiter = StreamLimiter::with_clock(StreamRules::default(), ManualClock::at(Timestamp::EPOCH))
        .expect("valid rules");
    let flood = stream::iter(0..30_u64).map(|n| n % 20).flat_map(|user| stream::iter([user; 10]));
    let passed = finish(flood.limited(&limiter, |user| user.to_string().into()));
    assert_eq!(passed.len(), 100);
    assert_eq!(limiter.stats().active_users, 10);
}

#[test]
fn b15_windows_may_differ_in_length() {
    check(
        rules(MessageRate::of(1, Duration::from_secs(1)), MessageRate::of(2, MINUTE)),
        "0  ada pass
         1  ada global
         2  ada pass
         4  ada user
         4  bob pass",
    );
}

#[test]
fn b_f9_refusal_reports_wait() {
    let clock = Arc::new(ManualClock::at(Timestamp::EPOCH));
    let limiter = StreamLimiter::with_clock(per_user(1), Arc::clone(&clock)).expect("valid rules");
    assert_eq!(limiter.admit("ada"), MessageDecision::Passed);
    clock.advance(Duration::from_secs(20));
    let MessageDecision::Refused(refusal) = limiter.admit("ada") else { panic!("the window is full") };
    let wait = refusal.retry_after().expect("it will fit");
    assert_eq!(wait, Duration::from_nanos(40_000_000_001), "the window is closed");
    clock.advance(Duration::from_secs(40));
    assert_ne!(limiter.admit("ada"), MessageDecision::Passed);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(limiter.admit("ada"), MessageDecision::Passed);

    let never = StreamLimiter::new(per_user(0)).expect("valid rules");
    let MessageDecision::Refused(refusal) = never.admit("ada") else { panic!("nothing passes") };
    assert_eq!((refusal.wait, refusal.retry_after()), (Wait::Never, None));
}

#[test]
fn three_of_ten_concurrent_messages_pass() {
    for _ in 0..50 {
        let limiter =
            StreamLimiter::with_clock(per_user(3), ManualClock::at(Timestamp::EPOCH)).expect("valid rules");
        let start = Barrier::new(10);
        let passed = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    let stream = stream::iter([()]).limited(&limiter, |()| "ada".into());
                    start.wait();
                    passed.fetch_add(finish(stream).len(), Ordering::SeqCst);
                });
            }
        });
        assert_eq!(passed.into_inner(), 3);
        assert_eq!(limiter.stats().dropped_user, 7, "each is counted once");
    }
}

#[test]
fn streams_of_one_limiter_share_counts() {
    let limiter =
        StreamLimiter::with_clock(per_user(3), ManualClock::at(Timestamp::EPOCH)).expect("valid rules");
    let of_ada = |count| stream::iter(vec!["ada"; count]).limited(&limiter, |user| (*user).into());
    assert_eq!(finish(of_ada(2)).len(), 2);
    assert_eq!(finish(of_ada(2)).len(), 1);
}

#[test]
fn user_name_of_any_length_is_counted() {
    let long = "x".repeat(2000);
    let other = format!("{}y", &long[1..]);
    let limiter =
        StreamLimiter::with_clock(per_user(1), ManualClock::at(Timestamp::EPOCH)).expect("valid rules");
    assert_eq!(limiter.admit(&*long), MessageDecision::Passed);
    assert_ne!(limiter.admit(long.clone()), MessageDecision::Passed);
    assert_eq!(limiter.admit(&*other), MessageDecision::Passed);
    assert_ne!(User::from(&*long), User::from(&*other));
}

#[test]
fn invalid_rules_are_errors() {
    let error = StreamLimiter::new(per_user(1 << 63)).expect_err("nothing can count that far");
    assert!(error.to_string().contains("items[1]"), "{error}");
}

/// Counts its wakeups.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The number of messages per poll until the stream ended.
fn turns(limiter: &StreamLimiter, messages: impl Stream<Item = u32>) -> Vec<u64> {
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut limited = pin!(messages.limited(limiter, |_| "ada".into()));
    let (mut turns, mut before) = (Vec::new(), 0);
    loop {
        let polled = limited.as_mut().poll_next(&mut Context::from_waker(&waker));
        if let Poll::Ready(Some(_)) = polled {
            continue;
        }
        let processed = limiter.stats().processed;
        turns.push(processed - before);
        before = processed;
        match polled {
            Poll::Pending => assert_eq!(wakes.0.swap(0, Ordering::SeqCst), 1, "it asks for another turn"),
            Poll::Ready(_) => return turns,
        }
    }
}

#[test]
fn flooding_stream_yields_to_other_tasks() {
    for limit in [0, 1_000_000] {
        let limiter = StreamLimiter::with_clock(per_user(limit), ManualClock::at(Timestamp::EPOCH))
            .expect("valid rules");
        let turns = turns(&limiter, stream::iter(0..1000));
        assert_eq!(turns.iter().sum::<u64>(), 1000);
        assert!(turns.iter().all(|taken| *taken <= 128), "limit {limit}: {turns:?}");
    }
}

#[test]
fn delayed_messages_keep_their_order() {
    let clock = Arc::new(ManualClock::at(Timestamp::EPOCH));
    let holder_clock = ManualHolderClock::new();
    let ten_seconds = Duration::from_secs(10);
    let rules = rules(MessageRate::unlimited(ten_seconds), MessageRate::of(1, ten_seconds));
    let limiter =
        StreamLimiter::with_clocks(rules, Arc::clone(&clock), holder_clock.clone()).expect("valid rules");
    let messages = stream::iter(["ada 1", "ada 2", "bob 1", "ada 3"]);
    let patient = messages.limited(&limiter, |message| message[..3].into()).waiting(Duration::from_secs(60));
    let mut patient = pin!(patient);
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut next = || patient.as_mut().poll_next(&mut Context::from_waker(&waker));

    assert_eq!(next(), Poll::Ready(Some("ada 1")));
    assert_eq!(next(), Poll::Pending);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0, "nothing to do until then");
    assert_eq!(limiter.stats().processed, 1, "what waits has not been decided");
    let too_early = Duration::from_secs(10);
    clock.advance(too_early);
    holder_clock.advance(too_early);
    assert_eq!(next(), Poll::Pending, "the window is closed");
    let one_more = Duration::from_nanos(1);
    clock.advance(one_more);
    holder_clock.advance(one_more);
    assert!(wakes.0.load(Ordering::SeqCst) > 0);
    assert_eq!(next(), Poll::Ready(Some("ada 2")));
    assert_eq!(next(), Poll::Ready(Some("bob 1")));
    assert_eq!(next(), Poll::Pending);
    clock.advance(too_early + one_more);
    holder_clock.advance(too_early + one_more);
    assert_eq!(next(), Poll::Ready(Some("ada 3")));
    assert_eq!(next(), Poll::Ready(None));
    let stats = limiter.stats();
    assert_eq!((stats.processed, stats.passed, stats.dropped), (4, 4, 0));
}

#[test]
fn message_with_too_long_wait_is_dropped_at_once() {
    let limiter =
        StreamLimiter::with_clock(per_user(1), ManualClock::at(Timestamp::EPOCH)).expect("valid rules");
    let messages = stream::iter(["ada", "ada", "bob"]);
    let passed = finish(messages.limited(&limiter, |user| (*user).into()).waiting(Duration::from_secs(5)));
    assert_eq!(passed, ["ada", "bob"]);
    assert_eq!(limiter.stats().dropped_user, 1);
}

#[test]
fn empty_stream_is_pending() {
    let limiter =
        StreamLimiter::with_clock(per_user(1), ManualClock::at(Timestamp::EPOCH)).expect("valid rules");
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut limited = pin!(stream::pending::<u32>().limited(&limiter, |_| "ada".into()));
    assert!(limited.as_mut().poll_next(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0, "there is no spurious wakeup");
    assert_eq!(limited.size_hint(), (0, Some(0)));
}

#[test]
fn stream_uses_clock_of_its_limiter() {
    let clock = Arc::new(ManualClock::at(instant("100")));
    let limiter = StreamLimiter::with_clock(per_user(1), Arc::clone(&clock)).expect("valid rules");
    limiter.admit("ada");
    let MessageDecision::Refused(refusal) = limiter.admit("ada") else { panic!("the window is full") };
    assert_eq!(refusal.at, clock.now());
}
