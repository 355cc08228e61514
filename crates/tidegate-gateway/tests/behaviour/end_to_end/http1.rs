//! Requests there and responses back: where they go, and what is changed on the way.

use std::fmt::Write;

use super::fixture::{Backend, Stage, get, response};
use super::http_client::Message;
use crate::fixture::DOCUMENT;

#[test]
fn a_request_and_its_response_pass() {
    let backend = Backend::new(|_, wire| {
        wire.say("HTTP/1.1 201 Made up\r\nX-One: 1\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 2\r\n\r\nhi");
        true
    });
    let stage = Stage::before(&backend);
    let mut client = stage.client();
    for _ in 0..3 {
        let answer =
            client.ask("GET /a/b?c=d&e HTTP/1.1\r\nHost: One.Test:80\r\nX-Two: 2\r\nAccept: */*\r\n\r\n");
        assert_eq!((answer.line.as_str(), answer.text().as_str()), ("HTTP/1.1 201 Made up", "hi"));
        assert_eq!(answer.values("set-cookie"), ["a=1", "b=2"]);
        assert_eq!((answer.field("x-one"), answer.field("connection")), (Some("1"), None));
    }
    let heard = backend.heard();
    assert_eq!((heard.len(), backend.connections()), (3, 1), "one connection serves all");
    assert_eq!(heard[0].line, "GET /a/b?c=d&e HTTP/1.1");
    assert_eq!(heard[0].field("host"), Some("One.Test:80"));
    assert_eq!((heard[0].field("x-two"), heard[0].field("accept")), (Some("2"), Some("*/*")));
    assert_eq!(heard[0].field("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(heard[0].field("x-forwarded-proto"), Some("http"));
    assert_eq!(heard[0].field("x-forwarded-host"), Some("One.Test:80"));
    assert_eq!(heard[0].field("via"), Some("1.1 tidegate"));
    drop(client);
    stage.end();
}

/// Three backends that say who they are, and a file with their ports.
fn document() -> (Vec<Backend>, Stage) {
    let backends = vec![Backend::saying(response("api")), Backend::saying(response("plain"))];
    let text = DOCUMENT
        .replace("8080", &backends[0].port().to_string())
        .replace("8081", &backends[1].port().to_string());
    (backends, Stage::new(&text))
}

/// C05: who is counted where, and how much each may.
#[test]
fn the_limits_of_document_002_hold() {
    for (host, most) in [
        ("api.example.com", 100),
        ("other.example.com", 50),
        ("plain.example.com", 10),
        ("mixed.example.com", 100),
    ] {
        let (backends, stage) = document();
        let mut client = stage.client();
        client.say(get(host).repeat(5 * most));
        let answers: Vec<Message> = (0..5 * most).map(|_| client.hear()).collect();
        let served = answers.iter().filter(|answer| answer.status() == 200).count();
        // Whoever takes longer than a second over this may be served more, and never less.
        assert!(served >= most, "{host}: {served}");
        let first = answers.iter().position(|answer| answer.status() == 429);
        assert!(first.is_none_or(|first| first >= most), "{host}: {first:?}");
        let refused = answers.iter().find(|answer| answer.status() == 429).expect("so many in one second");
        assert_eq!(refused.text(), "Too Many Requests");
        assert_eq!(refused.field("retry-after"), Some("1"));
        assert_eq!(refused.field("ratelimit-policy"), Some(format!("\"client\";q={most};w=1").as_str()));
        assert!(refused.field("ratelimit").is_some_and(|left| left.starts_with("\"client\";r=0")));
        assert_eq!(backends.iter().map(Backend::requests).sum::<usize>(), served, "nothing refused goes on");
        drop(client);
        stage.end();
    }
}

#[test]
fn connections_of_document_002_are_limited_where_they_go() {
    for (host, most) in [("plain.example.com", 5), ("other.example.com", 10), ("mixed.example.com", 10)] {
        let (_backends, stage) = document();
        let mut open: Vec<_> = (0..=most).map(|_| stage.client()).collect();
        let served = open.iter_mut().map(|client| client.ask(get(host))).take_while(|it| it.status() == 200);
        assert_eq!(served.count(), most, "{host}");
        let last = &mut open[most];
        last.is_over();
        drop(open);
        stage.end();
    }
}

/// C-F9: each request is routed and charged by its own host.
#[test]
fn every_request_of_a_connection_finds_its_own_way() {
    let (backends, stage) = document();
    let mut client = stage.client();
    for _ in 0..5 {
        assert_eq!(client.ask(get("plain.example.com")).text(), "plain");
        assert_eq!(client.ask(get("API.example.com:443")).text(), "api");
        let nowhere = client.ask(get("nobody.example.org"));
        assert_eq!((nowhere.status(), nowhere.closes()), (404, false));
    }
    assert_eq!((backends[0].requests(), backends[1].requests()), (5, 5));
    let limits = stage.gateway.limits();
    for whose in [
        tidegate_gateway::Counted::Route("plain.example.com"),
        tidegate_gateway::Counted::Backend("api-service"),
        tidegate_gateway::Counted::Server,
    ] {
        assert_eq!(limits.current_connections(whose), 1, "{whose:?}");
    }
    drop(client);
    stage.end();
}

#[test]
fn odd_targets_and_hosts_are_understood_or_refused() {
    let backend = Backend::echo();
    let stage = Stage::before(&backend);
    for (line, host, line_passed, host_passed) in [
        ("GET http://b.test/x?y HTTP/1.1", "a.test", "GET /x?y HTTP/1.1", "b.test"),
        ("GET HTTP://b.test:81 HTTP/1.1", "a.test", "GET / HTTP/1.1", "b.test:81"),
        ("OPTIONS * HTTP/1.1", "a.test", "OPTIONS * HTTP/1.1", "a.test"),
        ("GET /a//b;c/%20 HTTP/1.1", "[::1]:80", "GET /a//b;c/%20 HTTP/1.1", "[::1]:80"),
        ("PATCH /?/../ HTTP/1.1", "a.test.", "PATCH /?/../ HTTP/1.1", "a.test."),
        ("M-SEARCH / HTTP/1.1", "a.test", "M-SEARCH / HTTP/1.1", "a.test"),
    ] {
        let answer = stage.ask(format!("{line}\r\nHost: {host}\r\n\r\n")).echoed();
        assert_eq!((answer.line.as_str(), answer.field("host")), (line_passed, Some(host_passed)), "{line}");
        assert_eq!(answer.field("x-forwarded-host"), Some(host_passed));
    }
    let served = backend.requests();
    for (request, status) in [
        ("CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n", 405),
        ("TRACE / HTTP/1.1\r\nHost: a.test\r\n\r\n", 405),
        ("GET ftp://b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET http:///x HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET http://me@b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET b.test HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET * HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a.test\r\nHost: a.test\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: me@a.test\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a.test/x\r\n\r\n", 400),
        ("GET / HTTP/2.0\r\nHost: a.test\r\n\r\n", 505),
        ("GET / HTTP/1.2\r\nHost: a.test\r\n\r\n", 505),
        ("nonsense\r\n\r\n", 400),
    ] {
        let mut client = stage.client();
        assert_eq!(client.ask(request).status(), status, "{request:?}");
        client.is_over();
    }
    assert_eq!(backend.requests(), served, "none of it went on");
    stage.end();
}

#[test]
fn old_clients_are_served_as_they_know_it() {
    let backend = Backend::echo();
    let stage = Stage::before(&backend);
    let mut client = stage.client();
    let answer = client.ask("GET / HTTP/1.0\r\n\r\n");
    assert_eq!((answer.status(), answer.closes()), (200, true));
    assert_eq!(answer.echoed().field("via"), Some("1.0 tidegate"));
    client.is_over();
    let mut client = stage.client();
    for _ in 0..2 {
        let answer = client.ask("GET / HTTP/1.0\r\nHost: a.test\r\nConnection: Keep-Alive\r\n\r\n");
        assert_eq!(answer.field("connection"), Some("keep-alive"));
    }
    drop(client);
    let mut client = stage.client();
    assert!(client.ask("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n").closes());
    client.is_over();
    stage.end();
}

#[test]
fn old_clients_get_bodies_of_unknown_length_until_the_end() {
    let backend = Backend::saying(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n",
    );
    let stage = Stage::before(&backend);
    let mut client = stage.client();
    let answer = client.ask("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!((answer.text().as_str(), answer.closes(), answer.is_chunked), ("hello", true, false));
    assert_eq!(answer.field("transfer-encoding"), None);
    stage.end();
}

#[test]
fn responses_without_bodies_have_none() {
    for (head, length) in [
        ("HTTP/1.1 204 No Content\r\n\r\n", None),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\nETag: \"x\"\r\n\r\n", Some("500")),
        ("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", None),
    ] {
        let backend = Backend::saying(head);
        let stage = Stage::before(&backend);
        let mut client = stage.client();
        for _ in 0..2 {
            let answer = client.ask(get("a.test"));
            assert_eq!((answer.field("content-length"), answer.field("transfer-encoding")), (length, None));
        }
        assert_eq!(backend.connections(), 1);
        drop(client);
        stage.end();
    }
    for head in ["Content-Length: 12345", "Transfer-Encoding: chunked", "X: y"] {
        let backend = Backend::saying(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n"));
        let stage = Stage::before(&backend);
        let mut client = stage.client();
        for _ in 0..2 {
            client.say("HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\n");
            let answer = client.message(true).expect("a head");
            assert_eq!(answer.status(), 200);
            assert_eq!(answer.field("content-length"), head.strip_prefix("Content-Length: "));
        }
        drop(client);
        stage.end();
    }
}

#[test]
fn what_is_for_one_hop_stays_there() {
    let backend = Backend::new(|message, wire| {
        let fields = "Connection: close, X-Mine\r\nKeep-Alive: 5\r\nX-Mine: 1\r\nProxy-Authenticate: x\r\nUpgrade: h2c\r\nX-Kept: 1";
        wire.say(format!("HTTP/1.1 200 OK\r\n{fields}\r\nContent-Length: {}\r\n\r\n", message.line.len()));
        wire.say(&message.line);
        false
    });
    let stage = Stage::before(&backend);
    let mut client = stage.client();
    let request = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: X-Secret, keep-alive, host, x-forwarded-for\r\nConnection: via,content-length, x-forwarded-proto\r\nX-Secret: 1\r\nKeep-Alive: 3\r\nProxy-Connection: x\r\nProxy-Authorization: x\r\nTE: trailers\r\nTrailer: X\r\nUpgrade: websocket\r\nX-Kept: 2\r\nContent-Length: 3\r\n\r\nabc";
    for _ in 0..2 {
        let answer = client.ask(request);
        let names: Vec<String> = answer.fields.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
        assert_eq!(names, ["x-kept", "content-length"], "the client's own connection goes on");
    }
    assert_eq!(backend.connections(), 2, "the backend's does not");
    let heard = &backend.heard()[0];
    let mut names: Vec<String> = heard.fields.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
    names.sort();
    let expected = [
        "content-length",
        "host",
        "via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-kept",
    ];
    assert_eq!(names, expected);
    assert_eq!(heard.body, b"abc");
    drop(client);
    stage.end();
}

#[test]
fn requests_sent_at_once_are_answered_in_order() {
    let backend = Backend::new(|message, wire| {
        wire.say(response(&message.line));
        true
    });
    let text =
        super::fixture::file("", "", &[&backend]).replace("{backend: b}", "{path: /to/**, backend: b}");
    let stage = Stage::new(&text);
    let mut client = stage.client();
    let mut all = String::new();
    for number in 0..50 {
        let place = if number % 3 == 0 { "nowhere" } else { "to" };
        let (method, body) = if number % 5 == 0 { ("POST", "hello") } else { ("GET", "") };
        let length = body.len();
        write!(
            all,
            "{method} /{place}/{number} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .expect("text has room");
    }
    client.say(all);
    for number in 0..50 {
        let answer = client.hear();
        if number % 3 == 0 {
            assert_eq!(answer.status(), 404, "{number}");
        } else {
            let method = if number % 5 == 0 { "POST" } else { "GET" };
            assert_eq!(answer.text(), format!("{method} /to/{number} HTTP/1.1"));
        }
    }
    drop(client);
    stage.end();
}

/// What the gateway says itself is not lost when more was asked behind it.
#[test]
fn answers_of_the_gateway_come_before_what_was_asked_next() {
    let mut dead = Backend::echo();
    let stage = Stage::before(&dead);
    dead.end();
    let mut client = stage.client();
    client.say(get("a.test").repeat(3));
    for _ in 0..3 {
        assert_eq!(client.hear().status(), 502);
    }
    drop(client);
    stage.end();
}

/// What the gateway has to say is said, though half of another request is there.
#[test]
fn half_a_request_holds_no_answer_back() {
    let backend = Backend::echo();
    let text = super::fixture::file("", "", &[&backend]).replace("{backend: b}", "{path: /to, backend: b}");
    let stage = Stage::new(&text);
    let mut client = stage.client();
    client.say(get("a.test") + "GET /to HTTP/1.1\r\nHo");
    assert_eq!(client.hear().status(), 404);
    client.say("st: a\r\n\r\n");
    assert_eq!(client.hear().status(), 200);
    drop(client);
    stage.end();
}

#[test]
fn what_comes_before_the_response_is_no_response() {
    let backend = Backend::saying(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    );
    let stage = Stage::before(&backend);
    let mut client = stage.client();
    for _ in 0..3 {
        let mut answer = client.ask(get("a.test"));
        while answer.status() < 200 {
            answer = client.hear();
        }
        assert_eq!(answer.text(), "hi");
    }
    drop(client);
    stage.end();
}

#[test]
fn nonsense_of_backends_is_not_passed_on() {
    let head = |field: &str| format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\nhello");
    let many = "X-Many: 1\r\n".repeat(200);
    let large = format!("X: {}", "x".repeat(70_000));
    for said in [
        "nonsense\r\n\r\n".to_owned(),
        "HTTP/2.0 200 OK\r\n\r\n".to_owned(),
        head("Content-Length: 5\r\nContent-Length: 6"),
        head("Content-Length: 5\r\nTransfer-Encoding: chunked"),
        head("Transfer-Encoding: gzip, chunked"),
        head("Content-Length: -5"),
        head("Content-Length : 5"),
        head("X: a\rb\r\nContent-Length: 5"),
        head("X: a\0b\r\nContent-Length: 5"),
        head(&many),
        head(&large),
        "HTTP/1.1 200 O".to_owned(),
        String::new(),
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n".to_owned(),
    ] {
        let backend = Backend::closing(&said);
        let stage = Stage::before(&backend);
        let answer = stage.ask(get("a.test"));
        assert_eq!((answer.status(), answer.text().as_str()), (502, "Bad Gateway"), "{said:?}");
        stage.end();
    }
}

/// What a backend says without being asked is for nobody, least of all for the next client.
#[test]
fn nobody_gets_an_answer_to_what_others_asked() {
    let twice = Backend::new(|message, wire| {
        let path = message.line.split(' ').nth(1).unwrap_or_default();
        wire.shout([response(path), response("stray")].concat());
        true
    });
    let later = Backend::new(|message, wire| {
        let path = message.line.split(' ').nth(1).unwrap_or_default();
        wire.shout(response(path));
        wire.is_silent_for_a_moment();
        wire.shout(response("stray"));
        true
    });
    for backend in [twice, later] {
        let stage = Stage::before(&backend);
        let mut client = stage.client();
        for number in 0..5 {
            let answer = client.ask(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert_eq!(answer.text(), format!("/{number}"));
            client.is_silent_for(std::time::Duration::from_millis(50));
        }
        assert_eq!(backend.connections(), 5, "whoever says too much is not asked again");
        drop(client);
        stage.end();
    }
    // A body to HEAD is one, too.
    let backend = Backend::new(|message, wire| {
        wire.shout(response(&message.line));
        true
    });
    let stage = Stage::before(&backend);
    let mut client = stage.client();
    client.say("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.message(true).expect("a head").status(), 200);
    assert_eq!(client.ask(get("a")).text(), "GET / HTTP/1.1");
    drop(client);
    stage.end();
}
