//! Pipelines: many commands at once, split anywhere.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::store::{Lsn, Unavailable};
use tidegate_server::resp::frame::MAX_FRAME_BYTES;
use tidegate_server::resp::session::MAX_OUTPUT_BYTES;
use tidegate_server::resp::{FeedNext, FeedOutcome, SessionCounts};
use tidegate_testkit::test_scale::cases;

use crate::resp::fixture::{
    ConversationEnd, OPEN, ReplyTiming, RespFixture, StoreKind, converse, encode, read_aloud, ready, words,
};

/// Commands of every kind, ending with `QUIT`.
fn everything() -> Vec<u8> {
    let lines = [
        "TG.ACQUIRE login ada 2",
        "TG.PEEK login ada",
        "TG.ACQUIRE nobody ada",
        "TG.ACQUIRE login ada 9",
        "CL.THROTTLE ada 2 30 60",
        "THROTTLE ada 3 30 60 3",
        "PING",
        "TG.ACQUIRE login ada REQ r1",
        "TG.ACQUIRE login ada REQ r1",
        "TG.ACQUIRE login ada REQ",
        "TG.RENEW x 1000",
        "TG.RELEASE x",
        "HELLO 3",
        "TG.RENEW x 1000",
        "GET x",
        "ECHO hello",
        "TG.ACQUIRE sale ada",
        "SELECT 0",
        "COMMAND COUNT",
        "CLIENT ID",
    ];
    let mut bytes: Vec<u8> = lines.iter().flat_map(|line| words(line)).collect();
    bytes.extend_from_slice(b"\r\n*0\r\n*-1\r\nTG.PEEK sale ada\r\nPING 'a b'\r\n");
    bytes.extend(words("QUIT"));
    bytes.extend(words("PING"));
    bytes
}

fn replies(timing: ReplyTiming, pieces: &[&[u8]]) -> (String, ConversationEnd) {
    let fixture = RespFixture::new(StoreKind::Map, timing, OPEN);
    let (output, end) = converse(&mut fixture.session(), pieces.iter().copied());
    (output.escape_ascii().to_string(), end)
}

#[test]
fn pipeline_replies_do_not_depend_on_splits() {
    let bytes = everything();
    let whole = replies(ReplyTiming::Now, &[&bytes]);
    assert_eq!(whole.1, ConversationEnd::Closed);
    assert!(whole.0.ends_with("a b\\r\\n+OK\\r\\n"), "{}", whole.0);
    for at in 0..=bytes.len() {
        let (one, two) = bytes.split_at(at);
        assert_eq!(replies(ReplyTiming::Now, &[one, two]), whole, "split at {at}");
        assert_eq!(replies(ReplyTiming::Later, &[one, two]), whole, "split at {at}, decided elsewhere");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(replies(ReplyTiming::Now, &single), whole, "byte by byte");
    assert_eq!(replies(ReplyTiming::Durable, &[&bytes]), whole, "durable");
}

#[test]
fn consecutive_decisions_are_one_batch() {
    let fixture = RespFixture::plain();
    let mut session = fixture.session();
    let pipeline = |lines: &[&str]| lines.iter().flat_map(|line| words(line)).collect::<Vec<u8>>();
    let decisions = pipeline(&["TG.ACQUIRE login ada"; 64]);
    converse(&mut session, [&decisions[..]]);
    assert_eq!(fixture.store.batches(), 1);
    let mixed =
        pipeline(&["TG.ACQUIRE login ada", "TG.PEEK sale b", "TG.ACQUIRE nobody c", "TG.PEEK login d 0"]);
    converse(&mut session, [&mixed[..]]);
    assert_eq!(fixture.store.batches(), 1, "whatever is asked");
    let throttles = pipeline(&["THROTTLE a 1 1 1", "TG.PEEK login ada", "CL.THROTTLE a 1 1 1"]);
    converse(&mut session, [&throttles[..]]);
    assert_eq!(fixture.store.batches(), 1, "one batch over all limits");
    let parted =
        pipeline(&["TG.PEEK login ada", "TG.PEEK login b", "PING", "TG.PEEK login ada", "TG.PEEK login b"]);
    let (output, _) = converse(&mut session, [&parted[..]]);
    assert_eq!(fixture.store.batches(), 2, "what is between is answered between");
    let denied = "[0, 5, 0, 15001, 15001, 'key/sliding-15s', '']";
    assert_eq!(
        read_aloud(&output),
        format!("{denied} [1, 5, 5, -1, -1, '', ''] +PONG {denied} [1, 5, 5, -1, -1, '', '']")
    );
}

#[test]
fn long_pipeline_is_several_batches() {
    let fixture = RespFixture::plain();
    let bytes: Vec<u8> = std::iter::repeat_n(words("TG.PEEK login ada"), 3000).flatten().collect();
    let (output, _) = converse(&mut fixture.session(), [&bytes[..]]);
    assert_eq!(fixture.store.batches(), 3);
    assert_eq!(output, b"*7\r\n:1\r\n:5\r\n:5\r\n:-1\r\n:-1\r\n$0\r\n\r\n$0\r\n\r\n".repeat(3000));
}

#[test]
fn deferred_replies_carry_their_lsn() {
    let fixture = RespFixture::new(StoreKind::Map, ReplyTiming::Durable, OPEN);
    let mut session = fixture.session();
    let bytes =
        [words("TG.ACQUIRE login a"), words("PING"), words("TG.ACQUIRE login b"), words("PING")].concat();
    let mut output = b"+OK\r\n".to_vec();
    let FeedOutcome { durable, deferred, .. } = session.feed(&bytes, &mut output);
    assert_eq!(durable, Some(Lsn(2)), "the later of the two");
    let deferrals: Vec<_> =
        deferred.iter().map(|it| (read_aloud(&output[it.span.clone()]), it.replies, it.lsn)).collect();
    let granted = "[1, 5, 4, -1, 15001, '', '']".to_owned();
    assert_eq!(deferrals, [(granted.clone(), 1, Lsn(1)), (granted, 1, Lsn(2))]);
    let FeedOutcome { durable, deferred, .. } = session.feed(&words("PING"), &mut Vec::new());
    assert_eq!((durable, deferred), (None, vec![]));
}

#[test]
fn adjacent_deferred_replies_are_merged_and_fail_separately() {
    let fixture = RespFixture::new(StoreKind::Map, ReplyTiming::Durable, OPEN);
    let mut session = fixture.session();
    let line =
        ["TG.ACQUIRE login a", "TG.ACQUIRE login b", "TG.RELEASE 0123456789abcdef0123456789abcdef", "PING"];
    let mut output = Vec::new();
    let FeedOutcome { deferred, .. } = session.feed(&line.map(words).concat(), &mut output);
    let [pledge] = &deferred[..] else { panic!("one run of replies: {deferred:?}") };
    assert_eq!((pledge.span.clone(), pledge.replies), (0..output.len() - b"+PONG\r\n".len(), 3));
    let mut errors = Vec::new();
    pledge.write_errors(&Unavailable { reason: "no\r\nroom".to_owned() }, session.protocol(), &mut errors);
    let error = "-UNAVAILABLE the store cannot answer: no  room";
    assert_eq!(read_aloud(&errors), [error; 3].join(" "));
}

#[test]
fn commands_wait_behind_a_pending_store_call() {
    let fixture = RespFixture::new(StoreKind::Map, ReplyTiming::Later, OPEN);
    let mut session = fixture.session();
    let first = words("TG.ACQUIRE login ada");
    let bytes = [first.clone(), words("PING")].concat();
    let mut output = Vec::new();
    let fed = session.feed(&bytes, &mut output);
    assert_eq!((fed.consumed, output.len()), (first.len(), 0));
    assert!(matches!(fed.then, FeedNext::Wait(_)));
    let again = session.feed(&bytes[first.len()..], &mut output);
    assert_eq!((again.consumed, output.len()), (0, 0), "nothing is looked at meanwhile");
    assert!(matches!(again.then, FeedNext::Read));
}

/// Commands with large replies must not fill the memory.
#[test]
fn large_output_is_written_before_more_input_is_processed() {
    let fixture = RespFixture::plain();
    let mut session = fixture.session();
    let bytes = b"COMMAND\r\n".repeat(MAX_FRAME_BYTES / 9);
    let mut output = Vec::new();
    let fed = session.feed(&bytes, &mut output);
    assert!(matches!(fed.then, FeedNext::Feed) && fed.consumed < bytes.len());
    assert!((MAX_OUTPUT_BYTES..MAX_OUTPUT_BYTES + MAX_FRAME_BYTES).contains(&output.len()));
    let (all, end) = converse(&mut fixture.session(), [&bytes[..]]);
    assert_eq!(end, ConversationEnd::Open);
    assert_eq!(all.windows(5).filter(|five| five == b"+fast").count(), bytes.len() / 9 * 15);
}

#[track_caller]
fn hangs_up(bytes: impl AsRef<[u8]>, reason: &str) {
    for timing in [ReplyTiming::Now, ReplyTiming::Later] {
        let fixture = RespFixture::new(StoreKind::Map, timing, OPEN);
        let bytes = [&words("TG.PEEK login ada"), bytes.as_ref(), &words("PING")].concat();
        let (output, end) = converse(&mut fixture.session(), [&bytes[..]]);
        let expected = format!("[1, 5, 5, -1, -1, '', ''] -ERR {reason}");
        assert_eq!((read_aloud(&output), end), (expected, ConversationEnd::Closed));
    }
}

#[test]
fn protocol_error_is_reported_and_closes() {
    hangs_up("*1025\r\n", "Protocol error: invalid multibulk length");
    hangs_up("*2147483647\r\n", "Protocol error: invalid multibulk length");
    hangs_up("*1\r\n$536870912\r\n", "Protocol error: a frame has at most 65536 bytes");
    hangs_up("*1\r\n$-1\r\n", "Protocol error: invalid bulk length");
    hangs_up("*1\r\n:1\r\n", "Protocol error: expected '$', got ':'");
    hangs_up("*1\r\n\r\r\n", "Protocol error: expected '$', got '\\r'");
    hangs_up("*1\r\n$1\r\nxyz", "Protocol error: a bulk string must end where its length says");
    hangs_up("*".to_owned() + &"9".repeat(30), "Protocol error: too big mbulk count string");
    hangs_up("*1\r\n$".to_owned() + &"9".repeat(30), "Protocol error: too big bulk count string");
    hangs_up("x".repeat(70_000), "Protocol error: too big inline request");
    hangs_up("PING \"\r\n", "Protocol error: unbalanced quotes in request");
}

/// A browser that is tricked into sending a POST to this port must not get to the body.
#[test]
fn unknown_inline_command_closes() {
    hangs_up(
        "POST / HTTP/1.1\r\nHost: x\r\n\r\n",
        "unknown command 'POST', with args beginning with: '/' 'HTTP/1.1'",
    );
    hangs_up("\u{0}\u{1}\n", "unknown command '\\x00\\x01', with args beginning with:");
    hangs_up("$4\r\nPING\r\n", "unknown command '$4', with args beginning with:");
    let mut session = RespFixture::plain().session();
    let (output, end) = converse(&mut session, [b"PING a b c\r\nPING\r\n".as_slice()]);
    let expected = "-ERR wrong number of arguments for 'ping' command +PONG";
    assert_eq!(
        (read_aloud(&output).as_str(), end),
        (expected, ConversationEnd::Open),
        "a known one may be mistaken"
    );
}

/// Valid and invalid arguments.
fn arguments() -> impl Strategy<Value = Vec<u8>> {
    let known = [
        "TG.ACQUIRE",
        "TG.PEEK",
        "TG.RELEASE",
        "TG.RENEW",
        "CL.THROTTLE",
        "THROTTLE",
        "PING",
        "HELLO",
        "COMMAND",
        "CLIENT",
        "INFO",
        "login",
        "sale",
        "builds",
        "nobody",
        "ada",
        "REQ",
        "0",
        "1",
        "5",
        "-1",
        "3",
        "AUTH",
        "SETNAME",
        "18446744073709551615",
        "9223372036854775807",
    ];
    prop_oneof![
        8 => prop::sample::select(known.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..20),
    ]
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn every_command_gets_one_reply_in_any_pieces(
        commands in vec(vec(arguments(), 1..7), 1..12),
        sizes in vec(1usize..60, 1..20),
    ) {
        let bytes: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
        let whole = replies(ReplyTiming::Now, &[&bytes]);
        let mut pieces = Vec::new();
        let mut rest = &bytes[..];
        for size in sizes.iter().cycle() {
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            pieces.push(piece);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(replies(ReplyTiming::Now, &pieces), whole.clone());
        prop_assert_eq!(replies(ReplyTiming::Later, &pieces), whole);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..400), at in 0usize..400) {
        let (one, two) = bytes.split_at(at.min(bytes.len()));
        prop_assert_eq!(replies(ReplyTiming::Now, &[one, two]), replies(ReplyTiming::Now, &[&bytes]));
    }
}

#[test]
fn feed_reports_counts() {
    for timing in [ReplyTiming::Now, ReplyTiming::Later] {
        let fixture = RespFixture::new(StoreKind::Memory, timing, OPEN);
        let mut session = fixture.session();
        let mut input: Vec<u8> = [
            "TG.ACQUIRE login ada 3",
            "TG.ACQUIRE login ada 3",
            "TG.PEEK login ada 3",
            "TG.PEEK login ada",
            "TG.ACQUIRE nobody ada",
            "PING",
            "GET x",
            "THROTTLE ada 1 1 60",
            "QUIT",
        ]
        .iter()
        .flat_map(|line| words(line))
        .collect();
        let mut sum = SessionCounts::default();
        loop {
            let mut output = Vec::new();
            let FeedOutcome { consumed, then, counts, .. } = session.feed(&input, &mut output);
            input.drain(..consumed);
            sum.commands += counts.commands;
            sum.granted += counts.granted;
            sum.refused += counts.refused;
            sum.failed_auths += counts.failed_auths;
            match then {
                FeedNext::Wait(awaited) => session.resume(ready(awaited.resolve()), &mut output),
                FeedNext::Close => break,
                FeedNext::Read | FeedNext::Feed => {}
            }
        }
        assert_eq!(sum, SessionCounts { commands: 9, granted: 2, refused: 1, failed_auths: 0 }, "{timing:?}");
    }
}
