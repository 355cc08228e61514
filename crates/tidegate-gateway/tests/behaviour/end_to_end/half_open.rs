//! Half-open sockets: one side is gone, or says no more, and the other does not know it. Whatever was being done then ends, and nothing stays
//! counted.

use tidegate_gateway::Counted;

use super::fixture::{Backend, Stage, file, get, response, wait_until};
use super::http_client::Wire;

/// All times short, so that whoever is silent is found out.
const SERVER: &str = "headerTimeout: 300ms; bodyTimeout: 300ms; idleTimeout: 300ms; tunnelTimeout: 300ms; rateLimit: {maxConnections: 100, maxConnectionsPerClient: 100}";
const BACKEND: &str = "responseTimeout: 300ms; rateLimit: {maxConnections: 100}";

const POST: &str = "POST /body HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\nhalf ";
const UPGRADE: &str = "GET /tunnel HTTP/1.1\r\nHost: a.test\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";

/// How far a client has come when it happens.
struct Stop {
    name: &'static str,
    /// What it has said,
    said: &'static str,
    /// and what is so by then.
    is_there: fn(&Stage, &mut Wire),
}

const STOPS: [Stop; 7] = [
    Stop { name: "it has said nothing", said: "", is_there: heard },
    Stop { name: "half a head", said: "GET / HTTP/1.1\r\nHo", is_there: heard },
    Stop { name: "half a body", said: POST, is_there: heard },
    Stop {
        name: "waiting for its answer",
        said: "GET /never HTTP/1.1\r\nHost: a.test\r\n\r\n",
        is_there: under_way,
    },
    Stop {
        name: "half of its answer",
        said: "GET /half HTTP/1.1\r\nHost: a.test\r\n\r\n",
        is_there: has_a_head,
    },
    Stop {
        name: "it has its answer",
        said: "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        is_there: has_its_answer,
    },
    Stop { name: "it has a tunnel", said: UPGRADE, is_there: has_a_head },
];

fn heard(_: &Stage, client: &mut Wire) {
    client.is_silent_for_a_moment();
}

fn under_way(stage: &Stage, _: &mut Wire) {
    wait_until("it is at the backend", || stage.gateway.under_way() == 1);
}

fn has_a_head(_: &Stage, client: &mut Wire) {
    assert!(client.head().starts_with("HTTP/1.1 "));
}

fn has_its_answer(_: &Stage, client: &mut Wire) {
    assert_eq!(client.hear().status(), 200);
}

/// What a client does that is half there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    /// It has said its last word, and goes on listening.
    SaysNoMore,
    /// It was cut off, and tells nobody until it is asked.
    Vanishes,
    /// It is there, and neither speaks nor listens any more.
    Sleeps,
}

fn backend() -> Backend {
    Backend::new(|request, wire| {
        match request.line.split(' ').nth(1) {
            Some("/never") => wire.is_over_somehow(),
            Some("/half") => {
                wire.say("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ");
                wire.is_over_somehow();
            }
            Some("/tunnel") => {
                wire.say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
                wire.is_over_somehow();
            }
            _ => {
                wire.say(response("ok"));
                return true;
            }
        }
        false
    })
}

fn halve(client: Wire, half: Half) -> Option<Wire> {
    match half {
        Half::Vanishes => {
            client.vanish();
            return None;
        }
        Half::SaysNoMore => client.say_no_more(),
        Half::Sleeps => {}
    }
    Some(client)
}

#[test]
fn half_open_sockets_leave_nothing_behind() {
    let backend = backend();
    let stage = Stage::new(&file(SERVER, BACKEND, &[&backend]));
    for half in [Half::SaysNoMore, Half::Vanishes, Half::Sleeps] {
        for Stop { name, said, is_there } in STOPS {
            let mut client = stage.client();
            client.say(said);
            wait_until("it is known", || stage.counted(Counted::Server) == 1);
            is_there(&stage, &mut client);
            // It is kept to the end: nothing of it closes because we forget it.
            let kept = halve(client, half);
            wait_until(&format!("{half:?} at {name}: nothing is counted"), || {
                stage.gateway.connections() == 0
                    && stage.counted(Counted::Server) == 0
                    && stage.counted(Counted::Backend("b")) == 0
                    && stage.counted(Counted::Client(b"127.0.0.1")) == 0
                    && stage.gateway.limits().store().leases() == 0
                    && stage.gateway.under_way() == 0
            });
            drop(kept);
            assert_eq!(stage.ask(get("a.test")).status(), 200, "{half:?} at {name}");
        }
    }
    stage.end();
}
