//! Authentication and permissions of sessions.

use tidegate_server::tokens::Role;

use crate::resp::fixture::{ReplyTiming, RespFixture, StoreKind, TokenTable, play, say, words};

const TOKENS: TokenTable = TokenTable(&[
    ("r", Role::Read, None),
    ("d", Role::Decide, None),
    ("a", Role::Admin, None),
    ("shop", Role::Decide, Some("shop/")),
    ("cell", Role::Decide, Some("cl.throttle/")),
]);

fn run_script(story: &str) {
    let fixture = RespFixture::new(StoreKind::Map, ReplyTiming::Now, TOKENS);
    play(&fixture, &mut fixture.session(), story);
}

#[test]
fn unauthenticated_commands_are_refused() {
    run_script(
        "0s  PING                  -> -NOAUTH Authentication required.
         0s  TG.ACQUIRE login ada  -> -NOAUTH Authentication required.
         0s  TG.RELEASE x          -> -NOAUTH Authentication required.
         0s  CL.THROTTLE a 1 1 1   -> -NOAUTH Authentication required.
         0s  INFO                  -> -NOAUTH Authentication required.
         0s  COMMAND               -> -NOAUTH Authentication required.
         0s  CLIENT ID             -> -NOAUTH Authentication required.
         0s  AUTH x                -> -WRONGPASS invalid username-password pair or user is disabled.
         0s  AUTH me x             -> -WRONGPASS invalid username-password pair or user is disabled.
         0s  HELLO 3 AUTH me x     -> -WRONGPASS invalid username-password pair or user is disabled.
         0s  PING                  -> -NOAUTH Authentication required.
         0s  AUTH d                -> +OK
         0s  PING                  -> +PONG
         0s  AUTH x                -> -WRONGPASS invalid username-password pair or user is disabled.
         0s  PING                  -> +PONG
         0s  QUIT                  -> +OK",
    );
    let fixture = RespFixture::new(StoreKind::Map, ReplyTiming::Now, TOKENS);
    let mut session = fixture.session();
    assert!(say(&mut session, "HELLO 3").starts_with("-NOAUTH HELLO must be called"));
    assert!(say(&mut session, "HELLO 3 AUTH me d SETNAME x").starts_with("{'server': "));
    assert_eq!(say(&mut session, "TG.PEEK login ada"), "[1, 5, 5, -1, -1, '', '']");
}

#[test]
fn roles_include_lower_ones() {
    run_script(
        "0s  AUTH me r             -> +OK
         0s  PING                  -> +PONG
         0s  TG.PEEK login ada     -> [1, 5, 5, -1, -1, '', '']
         0s  TG.ACQUIRE login ada  -> -NOPERM a token of role read may not run the 'tg.acquire' command
         0s  TG.RELEASE x          -> -NOPERM a token of role read may not run the 'tg.release' command
         0s  TG.RENEW x 1          -> -NOPERM a token of role read may not run the 'tg.renew' command
         0s  THROTTLE a 1 1 1      -> -NOPERM a token of role read may not run the 'throttle' command
         0s  AUTH d                -> +OK
         0s  TG.ACQUIRE login ada  -> [1, 5, 4, -1, 15001, '', '']
         0s  TG.RELEASE x          -> 0
         0s  THROTTLE a 1 1 1      -> [1, 1, 0, 1, 0]
         0s  AUTH a                -> +OK
         0s  TG.ACQUIRE login ada  -> [1, 5, 3, -1, 15001, '', '']",
    );
}

#[test]
fn token_prefix_restricts_limits() {
    run_script(
        "0s  AUTH shop                -> +OK
         0s  TG.ACQUIRE shop/cart ada -> [1, 3, 2, -1, -1, '', '']
         0s  TG.ACQUIRE login ada     -> -NOPERM this token is for other limits
         0s  TG.PEEK login ada        -> -NOPERM this token is for other limits
         0s  TG.PEEK nobody ada       -> -NOPERM this token is for other limits
         0s  TG.PEEK shop/nobody ada  -> -NOLIMIT unknown limit 'shop/nobody'
         0s  CL.THROTTLE a 1 1 1      -> -NOPERM this token is for other limits
         0s  AUTH cell                -> +OK
         0s  CL.THROTTLE a 1 1 1      -> [0, 2, 1, -1, 1]
         0s  TG.PEEK shop/cart ada    -> -NOPERM this token is for other limits",
    );
}

#[test]
fn anonymous_sessions_need_no_token() {
    let mut session = RespFixture::plain().session();
    assert!(say(&mut session, "AUTH x").starts_with("-ERR AUTH <password> called without any password"));
    assert_eq!(say(&mut session, "PING"), "+PONG");
}

#[test]
fn failed_authentications_are_counted() {
    let fixture = RespFixture::new(StoreKind::Map, ReplyTiming::Now, TOKENS);
    let mut session = fixture.session();
    let mut failed = |line: &str| session.feed(&words(line), &mut Vec::new()).counts.failed_auths;
    let lines = ["PING", "AUTH x", "HELLO 3 AUTH me x", "HELLO 3", "AUTH r", "PING", "TG.ACQUIRE login ada"];
    assert_eq!(lines.map(&mut failed), [1, 1, 1, 1, 0, 0, 0]);
}
