//! Replies do not depend on how the input is split.

use crate::resp::fixture::words;
use crate::serve::fixture::{Client, ServerFixture, acquire, peek, post, wide};

/// Requests of every kind, on the fast path and for hyper; the last one ends the connection.
fn http_conversation(key: &str) -> Vec<u8> {
    let mut all = acquire("twice", key);
    all.extend(b"GET /healthz HTTP/1.1\r\nHost: h\r\nX-Nothing: 1\r\n\r\n");
    all.extend(b"HEAD /healthz HTTP/1.1\r\n\r\n");
    all.extend(post("/v1/acquire", "{"));
    all.extend(b"GET /nowhere HTTP/1.1\r\nConnection: keep-alive\r\n\r\n");
    let body = format!("{{\"limit_id\":\"twice\",\"limit_key\":\"{key}\"}}");
    let (first, second) = body.split_at(7);
    let chunks = format!("7\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n", second.len());
    all.extend(
        format!("POST /v1/acquire HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}").bytes(),
    );
    all.extend(peek("twice", key));
    all.extend(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n");
    all
}

fn resp_conversation(key: &str) -> Vec<u8> {
    let mut all = words(&format!("TG.ACQUIRE twice {key}"));
    all.extend(format!("TG.ACQUIRE twice {key}\r\n").bytes());
    all.extend(b"*0\r\n\r\n*-1\r\n");
    all.extend(words("ECHO hello"));
    all.extend(words("HELLO 3"));
    all.extend(words(&format!("TG.ACQUIRE twice {key}")));
    all.extend(words("NO.SUCH thing"));
    all.extend(words("QUIT"));
    all
}

/// All responses without dates.
fn http_answers(client: &mut Client) -> Vec<String> {
    let mut answers = Vec::new();
    // A response to HEAD has a content-length and no body.
    while answers.len() < 2
        && let Some(answer) = client.answer()
    {
        answers.push(format!("{} {}", answer.status, answer.text()));
    }
    let rest = client.rest();
    let text = String::from_utf8(rest).expect("text");
    let lines = text.lines().filter(|line| !line.to_lowercase().starts_with("date: "));
    answers.extend(lines.map(ToOwned::to_owned));
    answers
}

fn resp_answers(client: &mut Client) -> String {
    let output = String::from_utf8(client.rest()).expect("text");
    // Every connection has its own id.
    let (before, after) = output.split_once("$2\r\nid\r\n:").expect("HELLO says it");
    format!("{before}{}", after.split_once("\r\n").expect("the number ends").1)
}

/// Sends one piece at a time. Between two of them another connection is answered, so that each piece arrives alone.
fn say_in_pieces(
    fixture: &ServerFixture,
    client: &mut Client,
    bytes: &[u8],
    ends: impl Iterator<Item = usize>,
) {
    let (mut other, mut start) = (fixture.resp(), 0);
    for end in ends.chain([bytes.len()]) {
        client.say(&bytes[start..end]);
        assert_eq!(other.command("PING"), "+PONG");
        start = end;
    }
}

#[test]
fn http_replies_do_not_depend_on_splits() {
    let fixture = ServerFixture::single(wide());
    // All keys have the same length, so all inputs do.
    let whole = http_conversation("k-00000");
    let mut client = fixture.http();
    client.say(&whole);
    let expected = http_answers(&mut client);
    assert_eq!(expected.concat().matches("HTTP/1.1 ").count(), 6, "{expected:#?}");
    assert!(expected[0].contains("\"allowed\":true"), "{expected:#?}");
    assert!(expected.iter().any(|line| line.contains("\"allowed\":false")), "the third is refused");
    for split in 0..=whole.len() {
        let conversation = http_conversation(&format!("k-{:05}", split + 1));
        let mut client = fixture.http();
        say_in_pieces(&fixture, &mut client, &conversation, [split].into_iter());
        assert_eq!(http_answers(&mut client), expected, "split at {split}");
    }
    fixture.end();
}

#[test]
fn resp_replies_do_not_depend_on_splits() {
    let fixture = ServerFixture::single(wide());
    let whole = resp_conversation("k-00000");
    let mut client = fixture.resp();
    client.say(&whole);
    let expected = resp_answers(&mut client);
    assert!(expected.ends_with("+OK\r\n"), "{expected:?}");
    for split in 0..=whole.len() {
        let conversation = resp_conversation(&format!("k-{:05}", split + 1));
        let mut client = fixture.resp();
        say_in_pieces(&fixture, &mut client, &conversation, [split].into_iter());
        assert_eq!(resp_answers(&mut client), expected, "split at {split}");
    }
    fixture.end();
}

#[test]
fn byte_by_byte_input_is_answered_like_one_write() {
    let fixture = ServerFixture::single(wide());
    let (http, resp) = (http_conversation("bytes-1"), resp_conversation("bytes-2"));
    let mut client = fixture.http();
    client.say(&http_conversation("bytes-0"));
    let expected = http_answers(&mut client);
    let mut client = fixture.http();
    say_in_pieces(&fixture, &mut client, &http, 0..http.len());
    assert_eq!(http_answers(&mut client), expected);

    let mut client = fixture.resp();
    client.say(&resp_conversation("bytes-3"));
    let expected = resp_answers(&mut client);
    let mut client = fixture.resp();
    say_in_pieces(&fixture, &mut client, &resp, 0..resp.len());
    assert_eq!(resp_answers(&mut client), expected);
    fixture.end();
}

#[test]
fn body_may_arrive_long_after_its_head() {
    let fixture = ServerFixture::single(wide());
    let request = acquire("twice", "late");
    let end = request.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let mut client = fixture.http();
    client.say(&request[..end]);
    // Another connection is answered in between, so the head arrives alone.
    fixture.is_well();
    fixture.is_well();
    client.say(&request[end..]);
    assert_eq!(client.answer().expect("an answer").status, 200);
    fixture.end();
}

#[test]
fn deep_pipeline_is_answered_in_order() {
    let fixture = ServerFixture::new(wide());
    let (mut http, mut resp) = (fixture.http(), fixture.resp());
    let asks: Vec<u8> = (0..2_000).flat_map(|number| words(&format!("ECHO {number}"))).collect();
    resp.say(&asks);
    for number in 0..2_000 {
        assert_eq!(resp.reply().expect("a reply"), format!("'{number}'"));
    }
    let asks: Vec<u8> = (0..2_000)
        .flat_map(|number| format!("GET /v1/limits/no-{number} HTTP/1.1\r\n\r\n").into_bytes())
        .collect();
    http.say(&asks);
    for number in 0..2_000 {
        let answer = http.answer().expect("an answer");
        assert!(answer.text().contains(&format!("'no-{number}'")), "{answer:?}");
    }
    fixture.end();
}

#[test]
fn replies_do_not_wait_for_later_waiting_requests() {
    let fixture = ServerFixture::new(wide());
    let mut holder = fixture.http();
    let lease =
        holder.ask(&acquire("builds", "ada")).json()["lease"]["id"].as_str().expect("a lease").to_owned();
    let mut client = fixture.http();
    let mut both = peek("free", "ada");
    both.extend(crate::serve::fixture::patient("builds", "bob", 60_000));
    client.say(&both);
    assert_eq!(client.answer().expect("the first answer").status, 200);
    assert_eq!(fixture.limiter.waiting_in_all(), 1);
    let released = holder.ask(&post("/v1/release", &format!("{{\"lease_id\":\"{lease}\"}}")));
    assert_eq!(released.text(), "{\"released\":true}");
    assert_eq!(client.answer().expect("the second answer").json()["allowed"], true);
    fixture.end();
}
