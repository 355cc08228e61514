//! Connection commands: `HELLO`, `AUTH`, `CLIENT`, `COMMAND`, `INFO`, `QUIT`.

use crate::resp::fixture::{ConversationEnd, RespFixture, check, converse, read_aloud, say};

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn connection_commands_match_redis() {
    check(
        "0s  PING              -> +PONG
         0s  ping hello        -> 'hello'
         0s  PING a b          -> -ERR wrong number of arguments for 'ping' command
         0s  ECHO hello        -> 'hello'
         0s  ECHO              -> -ERR wrong number of arguments for 'echo' command
         0s  SELECT 0          -> +OK
         0s  SELECT 1          -> -ERR DB index is out of range
         0s  SELECT -1         -> -ERR DB index is out of range
         0s  SELECT x          -> -ERR value is not an integer or out of range
         0s  CLIENT ID         -> 1
         0s  CLIENT GETNAME    -> nil2
         0s  CLIENT SETNAME me -> +OK
         0s  CLIENT GETNAME    -> 'me'
         0s  CLIENT SETNAME ä  -> -ERR Client names cannot contain spaces, newlines or special characters.
         0s  CLIENT SETNAME    -> -ERR wrong number of arguments for 'client|setname' command
         0s  CLIENT INFO       -> 'id=1 name=me db=0 resp=2\\n'
         0s  CLIENT SETINFO LIB-NAME x -> +OK
         0s  CLIENT NO-EVICT on -> +OK
         0s  CLIENT KILL x     -> -ERR unknown subcommand 'KILL'
         0s  CLIENT            -> -ERR wrong number of arguments for 'client' command
         0s  GET ada           -> -ERR unknown command 'GET', with args beginning with: 'ada'
         0s  ''                -> -ERR unknown command '', with args beginning with:",
    );
}

#[test]
fn hello_changes_the_protocol() {
    let fixture = RespFixture::plain();
    let mut session = fixture.session();
    let about = |open: &str, close: &str, colon: &str, proto: u8| {
        format!(
            "{open}'server'{colon} 'tidegate', 'version'{colon} '{VERSION}', 'proto'{colon} {proto}, 'id'{colon} 1, \
             'mode'{colon} 'standalone', 'role'{colon} 'master', 'modules'{colon} []{close}"
        )
    };
    assert_eq!(say(&mut session, "HELLO"), about("[", "]", ",", 2));
    assert_eq!(say(&mut session, "CLIENT GETNAME"), "nil2");
    assert_eq!(say(&mut session, "hello 3 setname me"), about("{", "}", ":", 3));
    assert_eq!(say(&mut session, "CLIENT INFO"), r"=txt:id=1 name=me db=0 resp=3\n");
    assert_eq!(say(&mut session, "TG.RENEW x 1000"), "nil");
    assert_eq!(say(&mut session, "COMMAND DOCS"), "{}");
    assert_eq!(say(&mut session, "HELLO 4"), "-NOPROTO unsupported protocol version");
    assert_eq!(say(&mut session, "HELLO x"), "-ERR Protocol version is not an integer or out of range");
    assert_eq!(say(&mut session, "HELLO 2 AUTH me"), "-ERR Syntax error in HELLO option 'AUTH'");
    assert_eq!(
        say(&mut session, "HELLO 2 AUTH me x"),
        "-WRONGPASS invalid username-password pair or user is disabled."
    );
    assert_eq!(say(&mut session, "HELLO 2 SETNAME"), "-ERR Syntax error in HELLO option 'SETNAME'");
    assert_eq!(say(&mut session, "HELLO 2 NOW"), "-ERR Syntax error in HELLO option 'NOW'");
    assert_eq!(say(&mut session, "HELLO"), about("{", "}", ":", 3), "mistakes changed nothing");
    assert_eq!(say(&mut session, "HELLO 2"), about("[", "]", ",", 2));
}

#[test]
fn command_lists_all_commands() {
    let mut session = RespFixture::plain().session();
    assert_eq!(say(&mut session, "COMMAND COUNT"), "15");
    assert_eq!(say(&mut session, "COMMAND DOCS PING"), "[]");
    assert_eq!(
        say(&mut session, "COMMAND INFO ping nothing TG.PEEK cl.throttle TG.RELEASE"),
        "[['ping', -1, [+fast], 0, 0, 0], nil2, ['tg.peek', -3, [+fast], 0, 0, 0], \
         ['cl.throttle', -5, [+fast], 1, 1, 1], ['tg.release', 2, [+fast], 0, 0, 0]]"
    );
    assert_eq!(say(&mut session, "COMMAND").matches("+fast").count(), 15);
    let list = say(&mut session, "COMMAND LIST");
    assert!(list.starts_with("['tg.acquire', 'tg.peek',"), "{list}");
    assert_eq!(
        say(&mut session, "COMMAND LIST FILTERBY"),
        "-ERR wrong number of arguments for 'command|list' command"
    );
    assert_eq!(say(&mut session, "COMMAND GETKEYS"), "-ERR unknown subcommand 'GETKEYS'");
}

#[test]
fn info_describes_the_server() {
    let mut session = RespFixture::plain().session();
    let info = say(&mut session, "INFO server");
    assert!(
        info.contains(&format!("tidegate_version:{VERSION}\\r\\n")) && info.contains("loading:0"),
        "{info}"
    );
}

#[test]
fn quit_is_answered_and_closes() {
    let mut session = RespFixture::plain().session();
    let (output, end) = converse(&mut session, [b"PING\r\nQUIT\r\nPING\r\n".as_slice()]);
    assert_eq!((read_aloud(&output).as_str(), end), ("+PONG +OK", ConversationEnd::Closed));
    let mut output = Vec::new();
    let fed = session.feed(b"PING\r\n", &mut output);
    assert!(
        matches!(fed.then, tidegate_server::resp::FeedNext::Close) && output.is_empty(),
        "it stays closed"
    );
}

#[test]
fn connections_have_ids() {
    let fixture = RespFixture::plain();
    let (mut first, mut second) = (fixture.session(), fixture.session());
    assert_eq!(say(&mut second, "CLIENT ID"), "2");
    assert_eq!(say(&mut first, "CLIENT ID"), "1");
}
