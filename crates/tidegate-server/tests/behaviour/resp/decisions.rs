//! `TG.ACQUIRE`, `TG.PEEK`, `TG.RELEASE`, `TG.RENEW`.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tidegate::Limiter;
use tidegate::catalog::Catalog;
use tidegate::limiter::ManualHolderClock;
use tidegate::store::Store;
use tidegate::store::Usage;
use tidegate_server::resp::{RespService, RespSession};

use crate::resp::fixture::{OPEN, ReplyTiming, RespFixture, StoreKind, check, say};

#[test]
fn grant_has_remaining_and_denial_has_retry_after() {
    check(
        "0s      TG.ACQUIRE login ada      -> [1, 5, 4, -1, 15001, '', '']
         1.5s    tg.acquire login ada 4    -> [1, 5, 0, -1, 15001, '', '']
         2s      Tg.Acquire login ada      -> [0, 5, 0, 13001, 14501, 'key/sliding-15s', '']
         2s      TG.ACQUIRE login bob 6    -> [0, 5, 5, -1, -1, 'key/sliding-15s', '']
         2s      TG.ACQUIRE login bob 0    -> [1, 5, 5, -1, -1, '', '']
         15.0005s TG.ACQUIRE login ada     -> [1, 5, 0, -1, 15001, '', '']",
    );
}

#[test]
fn peek_changes_nothing() {
    check(
        "0s  TG.PEEK login ada 5       -> [1, 5, 5, -1, -1, '', '']
         0s  TG.PEEK login ada         -> [1, 5, 5, -1, -1, '', '']
         0s  TG.ACQUIRE login ada 5    -> [1, 5, 0, -1, 15001, '', '']
         0s  TG.PEEK login ada         -> [0, 5, 0, 15001, 15001, 'key/sliding-15s', '']
         0s  TG.PEEK login ada 0       -> [1, 5, 0, -1, 15001, '', '']",
    );
}

#[test]
fn reply_shows_scarcest_or_binding_item() {
    check(
        "0s   TG.ACQUIRE sale ada      -> [1, 2, 1, -1, 10000, '', '']
         0s   TG.ACQUIRE sale ada      -> [1, 2, 0, -1, 10000, '', '']
         4s   TG.ACQUIRE sale ada      -> [0, 2, 0, 6000, 6000, 'key/interval-10s', '']
         4s   TG.ACQUIRE sale ada 11   -> [0, 10, 8, -1, -1, 'all/total', '']
         4s   TG.ACQUIRE sale '' 2     -> [1, 2, 0, -1, 10000, '', '']",
    );
}

#[test]
fn unlimited_and_unasked_items_are_minus_one() {
    check(
        "0s   TG.ACQUIRE free ada 18446744073709551615  -> [1, -1, -1, -1, -1, '', '']
         0s   TG.ACQUIRE asleep ada 3                   -> [1, -1, -1, -1, -1, '', '']",
    );
}

#[test]
fn request_id_is_charged_once() {
    check(
        "0s  TG.ACQUIRE login ada 2 REQ r1  -> [1, 5, 3, -1, 15001, '', '']
         1s  TG.ACQUIRE login ada 2 req r1  -> [1, 5, 3, -1, 15001, '', '']
         1s  TG.ACQUIRE login ada REQ r1    -> -ERR request_id was already granted with other asks
         1s  TG.ACQUIRE login ada REQ r2    -> [1, 5, 2, -1, 15001, '', '']
         1s  TG.ACQUIRE login ada REQ ''    -> -ERR request_id has 0 bytes; 1 to 256 are allowed",
    );
}

#[test]
fn command_errors_keep_the_connection() {
    check(
        "0s  TG.ACQUIRE nobody ada             -> -NOLIMIT unknown limit 'nobody'
         0s  TG.PEEK nobody ada                -> -NOLIMIT unknown limit 'nobody'
         0s  TG.ACQUIRE '' ada                 -> -NOLIMIT unknown limit ''
         0s  TG.ACQUIRE login                  -> -ERR wrong number of arguments for 'tg.acquire' command
         0s  TG.ACQUIRE login a 1 REQ r x      -> -ERR wrong number of arguments for 'tg.acquire' command
         0s  TG.ACQUIRE login ada REQ          -> -ERR syntax error
         0s  TG.ACQUIRE login ada 1 REQ        -> -ERR syntax error
         0s  TG.ACQUIRE login ada REQ r 1      -> -ERR syntax error
         0s  TG.ACQUIRE login ada 1 NOT r      -> -ERR syntax error
         0s  TG.PEEK login ada 1 REQ           -> -ERR wrong number of arguments for 'tg.peek' command
         0s  TG.ACQUIRE login ada -1           -> -ERR value is not an integer or out of range
         0s  TG.ACQUIRE login ada +1           -> -ERR value is not an integer or out of range
         0s  TG.ACQUIRE login ada 01           -> -ERR value is not an integer or out of range
         0s  TG.ACQUIRE login ada 1.5          -> -ERR value is not an integer or out of range
         0s  TG.ACQUIRE login ada ''           -> -ERR value is not an integer or out of range
         0s  TG.ACQUIRE login ada 18446744073709551616 -> -ERR value is not an integer or out of range
         0s  TG.ACQUIRE cl.throttle ada        -> -ERR limits of this name belong to CL.THROTTLE and THROTTLE
         0s  TG.ACQUIRE cl.throttle/1/1/1 ada  -> -ERR limits of this name belong to CL.THROTTLE and THROTTLE
         0s  TG.ACQUIRE cl.throttles ada       -> -NOLIMIT unknown limit 'cl.throttles'
         0s  TG.PEEK login ada                 -> [1, 5, 5, -1, -1, '', '']",
    );
}

#[test]
fn keys_are_any_bytes_up_to_the_bound() {
    let fixture = RespFixture::plain();
    let mut session = fixture.session();
    let mut ask = |key: &[u8]| {
        let command = crate::resp::fixture::encode(&[b"TG.ACQUIRE", b"login".as_slice(), key, b"5"]);
        crate::resp::fixture::read_aloud(&crate::resp::fixture::converse(&mut session, [&command[..]]).0)
    };
    for key in [b"".as_slice(), b"\0", b"\r\n", b"\xff\xfe", "schlüssel".as_bytes(), &[b'k'; 1024]] {
        assert_eq!(ask(key), "[1, 5, 0, -1, 15001, '', '']", "{key:?}");
    }
    assert_eq!(ask(&[b'k'; 1025]), "-ERR limit_key has 1025 bytes; at most 1024 are allowed");
}

#[test]
fn limit_id_that_is_not_utf8_is_unknown() {
    let mut session = RespFixture::plain().session();
    let command = crate::resp::fixture::encode(&[b"TG.PEEK".as_slice(), b"\xff\r\n+OK", b"ada"]);
    let (output, _) = crate::resp::fixture::converse(&mut session, [&command[..]]);
    assert_eq!(String::from_utf8_lossy(&output), "-NOLIMIT unknown limit '\\xff\\r\\n+OK'\r\n");
}

/// The lease in a reply of `TG.ACQUIRE`.
fn lease(output: &str) -> String {
    let lease = output.rsplit('\'').nth(1).expect("the last word is in quotes").to_owned();
    assert_eq!(lease.len(), 32, "{output}");
    lease
}

#[test]
fn lease_is_renewed_and_released_once() {
    for kind in [StoreKind::Map, StoreKind::Memory] {
        for timing in [ReplyTiming::Now, ReplyTiming::Durable, ReplyTiming::Later] {
            let fixture = RespFixture::new(kind, timing, OPEN);
            let mut session = fixture.session();
            let granted = say(&mut session, "TG.ACQUIRE builds ada");
            assert!(granted.starts_with("[1, 1, 0, -1, -1, '', '"), "{granted}");
            let lease = lease(&granted);
            assert_eq!(
                say(&mut session, "TG.ACQUIRE builds bob"),
                "[0, 1, 0, -1, -1, 'all/concurrency', '']"
            );
            let mut renew = |ttl: &str| say(&mut session, &format!("TG.RENEW {lease} {ttl}"));
            assert_eq!(renew("1500"), "1700000001500");
            fixture.clock.advance(Duration::from_nanos(999_999));
            assert_eq!(renew("1500"), "1700000001500", "rounded down");
            assert_eq!(renew("0"), "-ERR ttl must be from 1ms to 36525d (a century)");
            assert_eq!(renew("18446744073709551615"), "-ERR ttl must be from 1ms to 36525d (a century)");
            assert_eq!(renew("-1"), "-ERR value is not an integer or out of range");
            let release = format!("TG.RELEASE {lease}");
            assert_eq!(say(&mut session, &release), "1");
            assert_eq!(say(&mut session, &release), "0");
            assert_eq!(say(&mut session, &format!("TG.RENEW {lease} 1500")), "nil2");
        }
    }
}

/// A waiter on another protocol is woken by a release over RESP, whenever the store replies.
#[test]
fn release_wakes_waiters() {
    for timing in [ReplyTiming::Now, ReplyTiming::Durable, ReplyTiming::Later] {
        let fixture = RespFixture::new(StoreKind::Map, timing, OPEN);
        let limiter = Limiter::builder()
            .store(Arc::clone(&fixture.store) as _)
            .holder_clock(ManualHolderClock::new())
            .build()
            .expect("no mistakes");
        let service =
            RespService::new(Arc::clone(&fixture.store) as _, Arc::new(OPEN)).with_limiter(limiter.clone());
        let mut session = RespSession::new(Arc::new(service));
        let lease = lease(&say(&mut session, "TG.ACQUIRE builds ada"));
        let mut waiter = pin!(
            limiter.limit("builds").expect("the limit exists").of("bob").within(Duration::from_secs(10))
        );
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiter.as_mut().poll(&mut context).is_pending());
        assert_eq!(say(&mut session, &format!("TG.RELEASE {lease}")), "1");
        assert!(waiter.as_mut().poll(&mut context).is_ready(), "{timing:?}");
    }
}

#[test]
fn malformed_lease_is_gone() {
    check(
        "0s  TG.RELEASE x                                    -> 0
         0s  TG.RELEASE ''                                   -> 0
         0s  TG.RELEASE 00000000000000000000000000000000     -> 0
         0s  TG.RENEW x 1000                                 -> nil2
         0s  TG.RENEW ffffffffffffffffffffffffffffffff 1000  -> nil2
         0s  TG.RELEASE                                      -> -ERR wrong number of arguments for 'tg.release' command
         0s  TG.RENEW x                                      -> -ERR wrong number of arguments for 'tg.renew' command",
    );
}

#[test]
fn store_outage_is_an_error() {
    let fixture = RespFixture::new(StoreKind::Map, ReplyTiming::Never, OPEN);
    let mut session = fixture.session();
    let unavailable = "-UNAVAILABLE the store cannot answer: nobody  there";
    let lease = "0".repeat(32);
    for command in [
        "TG.ACQUIRE login ada",
        "TG.PEEK login ada",
        &format!("TG.RELEASE {lease}"),
        &format!("TG.RENEW {lease} 5"),
    ] {
        assert_eq!(say(&mut session, command), unavailable, "{command}");
    }
    // A limit that allows during an outage grants; its numbers are unknown.
    for command in ["TG.ACQUIRE lenient ada", "TG.PEEK lenient ada 7", "TG.ACQUIRE asleep ada"] {
        assert_eq!(say(&mut session, command), "[1, -1, -1, -1, -1, '', '']", "{command}");
    }
    assert_eq!(say(&mut session, "PING"), "+PONG");
}

#[test]
fn store_counts_match_replies() {
    let fixture = RespFixture::plain();
    say(&mut fixture.session(), "TG.ACQUIRE shop/cart ada 2");
    let Usage { count, .. } = fixture.store.usage("shop/cart", Some(b"ada")).now().expect("it is known");
    assert_eq!(count, Some(2));
    assert!(fixture.store.get("shop/cart").is_some());
}
