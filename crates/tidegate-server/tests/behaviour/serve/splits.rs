//! However a conversation is cut into pieces, what is answered is the same.

use crate::resp::stage::words;
use crate::serve::stage::{Client, Stage, acquire, peek, post, wide};

/// Requests of every kind that a lane or hyper reads, the last of which ends the connection.
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

/// Everything that is answered, but for dates.
fn http_answers(client: &mut Client) -> Vec<String> {
    let mut answers = Vec::new();
    // What HEAD is answered says a length, and has none.
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
    let said = String::from_utf8(client.rest()).expect("text");
    // Every connection has a number of its own.
    let (before, after) = said.split_once("$2\r\nid\r\n:").expect("HELLO says it");
    format!("{before}{}", after.split_once("\r\n").expect("the number ends").1)
}

/// Sends one piece after the other. Between two of them the only worker answers somebody else, so that each arrives alone.
fn say_in_pieces(stage: &Stage, client: &mut Client, bytes: &[u8], ends: impl Iterator<Item = usize>) {
    let (mut somebody, mut start) = (stage.resp(), 0);
    for end in ends.chain([bytes.len()]) {
        client.say(&bytes[start..end]);
        assert_eq!(somebody.tell("PING"), "+PONG");
        start = end;
    }
}

#[test]
fn http_answers_the_same_however_it_is_split() {
    let stage = Stage::single(wide());
    // Keys are of one length, so that conversations are too.
    let whole = http_conversation("k-00000");
    let mut client = stage.http();
    client.say(&whole);
    let expected = http_answers(&mut client);
    assert_eq!(expected.concat().matches("HTTP/1.1 ").count(), 6, "{expected:#?}");
    assert!(expected[0].contains("\"allowed\":true"), "{expected:#?}");
    assert!(expected.iter().any(|line| line.contains("\"allowed\":false")), "the third is refused");
    for split in 0..=whole.len() {
        let conversation = http_conversation(&format!("k-{:05}", split + 1));
        let mut client = stage.http();
        say_in_pieces(&stage, &mut client, &conversation, [split].into_iter());
        assert_eq!(http_answers(&mut client), expected, "split at {split}");
    }
    stage.end();
}

#[test]
fn resp_answers_the_same_however_it_is_split() {
    let stage = Stage::single(wide());
    let whole = resp_conversation("k-00000");
    let mut client = stage.resp();
    client.say(&whole);
    let expected = resp_answers(&mut client);
    assert!(expected.ends_with("+OK\r\n"), "{expected:?}");
    for split in 0..=whole.len() {
        let conversation = resp_conversation(&format!("k-{:05}", split + 1));
        let mut client = stage.resp();
        say_in_pieces(&stage, &mut client, &conversation, [split].into_iter());
        assert_eq!(resp_answers(&mut client), expected, "split at {split}");
    }
    stage.end();
}

#[test]
fn byte_by_byte_is_answered_like_all_at_once() {
    let stage = Stage::single(wide());
    let (http, resp) = (http_conversation("bytes-1"), resp_conversation("bytes-2"));
    let mut client = stage.http();
    client.say(&http_conversation("bytes-0"));
    let expected = http_answers(&mut client);
    let mut client = stage.http();
    say_in_pieces(&stage, &mut client, &http, 0..http.len());
    assert_eq!(http_answers(&mut client), expected);

    let mut client = stage.resp();
    client.say(&resp_conversation("bytes-3"));
    let expected = resp_answers(&mut client);
    let mut client = stage.resp();
    say_in_pieces(&stage, &mut client, &resp, 0..resp.len());
    assert_eq!(resp_answers(&mut client), expected);
    stage.end();
}

#[test]
fn a_body_may_come_long_after_its_head() {
    let stage = Stage::single(wide());
    let request = acquire("twice", "late");
    let end = request.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let mut client = stage.http();
    client.say(&request[..end]);
    // Somebody else is answered meanwhile, so the head has arrived alone.
    stage.is_well();
    stage.is_well();
    client.say(&request[end..]);
    assert_eq!(client.answer().expect("an answer").status, 200);
    stage.end();
}

#[test]
fn a_deep_pipeline_is_answered_in_order() {
    let stage = Stage::new(wide());
    let (mut http, mut resp) = (stage.http(), stage.resp());
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
    stage.end();
}

#[test]
fn what_was_answered_does_not_wait_for_who_waits_behind_it() {
    let stage = Stage::new(wide());
    let mut holder = stage.http();
    let lease =
        holder.ask(&acquire("builds", "ada")).json()["lease"]["id"].as_str().expect("a lease").to_owned();
    let mut client = stage.http();
    let mut both = peek("free", "ada");
    both.extend(crate::serve::stage::patient("builds", "bob", 60_000));
    client.say(&both);
    assert_eq!(client.answer().expect("the first answer").status, 200);
    assert_eq!(stage.limiter.waiting_in_all(), 1);
    let released = holder.ask(&post("/v1/release", &format!("{{\"lease_id\":\"{lease}\"}}")));
    assert_eq!(released.text(), "{\"released\":true}");
    assert_eq!(client.answer().expect("the second answer").json()["allowed"], true);
    stage.end();
}
