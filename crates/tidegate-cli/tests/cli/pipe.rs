use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;

use serde_json::Value;

use crate::{Files, example, run, run_bytes, tidegate};

/// Replays messages and returns what passed and the statistics.
fn replay(args: &[&str], input: &str) -> (String, Value) {
    let run = run(&[&["pipe", "--time-field", "t", "--stats"], args].concat(), input);
    assert_eq!(run.code, Some(0), "{}", run.err);
    (run.out, serde_json::from_str(&run.err).expect("statistics"))
}

/// So many messages, each made from its number.
fn many(count: usize, message: impl Fn(usize) -> String) -> String {
    (0..count).map(message).collect::<Vec<_>>().concat()
}

/// Checks a replay message by message: `time user -> pass | global | user`. A user `-` sends no name.
#[track_caller]
fn check(args: &[&str], timeline: &str) {
    let steps: Vec<Vec<&str>> = timeline
        .lines()
        .map(|line| line.split_whitespace().collect())
        .filter(|step: &Vec<_>| !step.is_empty())
        .collect();
    let message = |(index, step): (usize, &Vec<&str>)| match step[1] {
        "-" => format!("{{\"t\":{},\"n\":{index}}}\n", step[0]),
        user => format!("{{\"t\":{},\"user_id\":\"{user}\",\"n\":{index}}}\n", step[0]),
    };
    let messages: Vec<String> = steps.iter().enumerate().map(message).collect();
    let (out, stats) = replay(args, &messages.concat());
    let passing = messages.iter().zip(&steps).filter(|(_, step)| step[2] == "pass");
    assert_eq!(out, passing.map(|(message, _)| &**message).collect::<String>(), "{timeline}");
    let count = |fate| steps.iter().filter(|step| step[2] == fate).count();
    assert_eq!(stats["processed"], steps.len());
    assert_eq!(stats["passed"], count("pass"));
    assert_eq!(stats["dropped"], count("global") + count("user"));
    assert_eq!(stats["dropped_global"], count("global"));
    assert_eq!(stats["dropped_user"], count("user"));
    assert_eq!(stats["errors"], 0);
}

#[test]
fn b04_the_window_is_closed_at_both_ends() {
    check(
        &["--per-key", "1/60s"],
        "
        0          ada pass
        60.0       ada user
        60.0000001 ada pass",
    );
}

#[test]
fn b06_b07_the_third_message_is_refused_for_any_user() {
    check(
        &["--global", "2/60s"],
        "
        0 ada pass
        0 bob pass
        0 cem global
        1 ada global",
    );
}

#[test]
fn b07_the_fourth_message_of_a_user_is_refused_and_others_pass() {
    check(
        &["--per-key", "3/60s"],
        "
        0 ada pass
        0 ada pass
        0 ada pass
        0 ada user
        0 bob pass",
    );
}

#[test]
fn b08_refusals_are_not_recorded() {
    let hammering = "30 ada user\n".repeat(10);
    check(&["--per-key", "1/60s"], &format!("0 ada pass\n{hammering}60.001 ada pass"));
}

#[test]
fn b06_a_message_that_both_refuse_counts_as_global() {
    // By waits the user's window of an hour would bind; the document asks in order.
    check(
        &["--global", "1/60s", "--per-key", "1/1h"],
        "
        0  ada pass
        1  ada global
        61 ada user
        61 bob pass",
    );
}

#[test]
fn b12_messages_without_a_user_share_one() {
    check(
        &["--per-key", "2/60s"],
        "
        0 -            pass
        0 unknown_user pass
        0 -            user
        0 ada          pass",
    );
    let (out, stats) = replay(&["--per-key", "1/60s"], "{\"t\":0,\"user_id\":null}\n{\"t\":0}\n");
    assert_eq!((&*out, &stats["dropped_user"]), ("{\"t\":0,\"user_id\":null}\n", &1.into()));
}

#[test]
fn b14_zero_refuses_everything_and_unlimited_nothing() {
    check(&["--per-key", "0/60s"], "0 ada user\n0 bob user");
    check(&["--global", "0/60s"], "0 ada global\n0 bob global");
    let flood = "0 ada pass\n".repeat(500);
    check(&["--global", "unlimited", "--per-key", "-1/60s"], &flood);
}

#[test]
fn the_defaults_are_a_hundred_and_ten_a_minute() {
    let messages = many(300, |n| format!("{{\"t\":0,\"user_id\":\"u{}\"}}\n", n % 20));
    let (_, stats) = replay(&[], &messages);
    assert_eq!((&stats["passed"], &stats["dropped_global"]), (&100.into(), &200.into()));
    let messages: String = (0..30).map(|_| "{\"t\":0,\"user_id\":\"u\"}\n").collect();
    let (_, stats) = replay(&[], &messages);
    assert_eq!((&stats["passed"], &stats["dropped_user"]), (&10.into(), &20.into()));
}

#[test]
fn b13_statistics_tell_what_the_window_holds() {
    let (_, stats) = replay(
        &["--global", "5/60s"],
        "{\"t\":0,\"user_id\":1}\n{\"t\":100,\"user_id\":2}\n{\"t\":101,\"user_id\":3}\nx\n\n",
    );
    let fields: Vec<&String> = stats.as_object().expect("an object").keys().collect();
    let mut wanted = vec![
        "processed",
        "passed",
        "dropped",
        "dropped_global",
        "dropped_user",
        "errors",
        "current_global",
        "active_users",
        "mean_us",
    ];
    wanted.sort_unstable();
    assert_eq!(fields, wanted);
    assert_eq!((&stats["processed"], &stats["passed"], &stats["errors"]), (&4.into(), &3.into(), &1.into()));
    assert_eq!((&stats["current_global"], &stats["active_users"]), (&2.into(), &2.into()));
    assert!(stats["mean_us"].as_f64().is_some_and(|mean| mean > 0.0));
}

#[test]
fn large_limits_are_bucketed_and_still_count() {
    let messages = many(1000, |n| format!("{{\"t\":{n},\"user_id\":\"u\"}}\n"));
    let (out, stats) = replay(&["--global", "2000000/1h", "--per-key", "1000001/1h"], &messages);
    assert_eq!((out.lines().count(), &stats["current_global"]), (1000, &1000.into()));
}

#[test]
fn time_that_goes_back_is_the_latest_time_seen() {
    check(
        &["--per-key", "2/10s"],
        "
        100 ada pass
        5   ada pass
        90  ada user
        110 ada user
        110.000000001 ada pass",
    );
    let input = "{\"ts\":9}\n{\"ts\":8}\n{\"ts\":7}\n";
    let said = run(&["pipe", "--time-field", "ts"], input);
    assert_eq!((said.code, &*said.out), (Some(0), input));
    let told =
        "pipe: message 2: goes back in time; it and others like it are decided at the latest time seen\n";
    assert_eq!(said.err, told);
}

#[test]
fn times_are_text_or_numbers_at_a_path() {
    let input = r#"{"meta":{"sent":{"t":"2026-02-17T00:00:00+08:00"}},"user_id":"a"}
{"meta":{"sent":{"t":1771257660}},"user_id":"a"}
{"meta":{"sent":{"t":1771257660.000000001}},"user_id":"a"}
{"meta":{"sent":7},"user_id":"a"}
{"meta":{},"user_id":"a"}
{"meta":{"sent":{"t":"yesterday"}},"user_id":"a"}
{"meta":{"sent":{"t":-1}},"user_id":"a"}
"#;
    let run = run(&["pipe", "--time-field", "meta.sent.t", "--per-key", "1/60s", "--stats"], input);
    let lines: Vec<&str> = input.lines().collect();
    assert_eq!(run.out, format!("{}\n{}\n", lines[0], lines[2]));
    assert!(
        run.err.starts_with(
            r#"{"processed":7,"passed":2,"dropped":1,"dropped_global":0,"dropped_user":1,"errors":4,"#
        ),
        "{}",
        run.err
    );
}

#[test]
fn keys_are_found_at_a_path_and_need_not_be_text() {
    let passes = |key: &str, input: &str| run(&["pipe", "--key", key, "--per-key", "1/1h"], input).done();
    let nested = "{\"a\":{\"b\":{\"c\":\"x\"}}}\n{\"a\":{\"b\":{\"c\":\"y\"}}}\n{\"a\":{\"b\":{\"c\":\"x\",\"d\":1}}}\n";
    assert_eq!(passes("a.b.c", nested).lines().count(), 2);
    let through_scalars = "{\"a\":1}\n{\"a\":{\"b\":[]}}\n{}\n";
    assert_eq!(passes("a.b.c", through_scalars).lines().count(), 1, "all are of unknown_user");
    let kinds = "{\"k\":1}\n{\"k\":1.0}\n{\"k\":true}\n{\"k\":[1, 2]}\n{\"k\":{\"a\":1}}\n{\"k\":\"1\"}\n{\"k\":\"\"}\n";
    assert_eq!(passes("k", kinds).lines().count(), 6, "the text 1 is the number 1");
    let escaped = "{\"k\":\"\\u00e9\"}\n{\"k\":\"é\"}\n{\"\\u006b\":\"é\"}\n";
    assert_eq!(passes("k", escaped).lines().count(), 1, "one name however it is written");
    let twice = "{\"k\":\"a\",\"k\":\"b\"}\n{\"k\":\"b\"}\n";
    assert_eq!(passes("k", twice).lines().count(), 1, "the last of two counts");
    let others = "[1,2]\n\"text\"\n7\nnull\n";
    assert_eq!(passes("k", others), "[1,2]\n", "JSON without a key is of unknown_user");
}

#[test]
fn bytes_pass_as_they_are() {
    let input = b"{\"user_id\": \"a\"}\r\n\r\n \t\n{ \"user_id\" :\"b\" }\n{\"t\":\"\xf0\x9f\xa7\xa7\"}";
    let output = run_bytes(&["pipe"], input);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        output.stdout,
        b"{\"user_id\": \"a\"}\r\n{ \"user_id\" :\"b\" }\n{\"t\":\"\xf0\x9f\xa7\xa7\"}"
    );
    assert!(output.stderr.is_empty());
}

/// Lines that are errors, wherever in the line it is that makes them so.
const ERRORS: [&[u8]; 14] = [
    b"nonsense\n",
    b"{\"user_id\":\"a\"\n",
    b"{\"user_id\":\"a\"}}\n",
    b"{\"user_id\":\"a\",}\n",
    b"{\"user_id\":\"a\",\"x\":01}\n",
    b"{\"user_id\":\"a\",\"x\":[1,]}\n",
    b"{\"user_id\":\"a\",\"x\":\"\\q\"}\n",
    b"{\"user_id\":\"a\",\"x\":nul}\n",
    b"{\"user_id\":\"a\",\"x\":\"\xff\"}\n",
    b"{\"user_id\":\"a\",\"x\":\"\0\"}\n",
    b"\0\n",
    b"{\"user_id\":\"\\ud800\"}\n",
    b"{\"user_id\":\"a\"} {}\n",
    b"{'user_id':'a'}\n",
];

#[test]
fn what_is_not_json_is_dropped_or_passes_uncharged() {
    let good: &[u8] = b"{\"user_id\":\"a\"}\n";
    let input = [ERRORS.concat(), good.to_vec(), ERRORS.concat()].concat();
    let output = run_bytes(&["pipe", "--per-key", "1/1h", "--stats"], &input);
    assert_eq!(output.stdout, good);
    let stats = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        stats.starts_with(
            r#"{"processed":29,"passed":1,"dropped":0,"dropped_global":0,"dropped_user":0,"errors":28,"#
        ),
        "{stats}"
    );
    let output = run_bytes(&["pipe", "--per-key", "1/1h", "--stats", "--on-error", "pass"], &input);
    assert_eq!(output.stdout, input);
    let stats = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        stats.starts_with(
            r#"{"processed":29,"passed":1,"dropped":0,"dropped_global":0,"dropped_user":0,"errors":28,"#
        ),
        "{stats}"
    );
}

#[test]
fn users_with_long_names_are_users_like_any_other() {
    let message = |length: usize, end: char| format!("{{\"user_id\":\"{}{end}\"}}\n", "k".repeat(length));
    let (short, long, other) = (message(1023, 'a'), message(5000, 'a'), message(5000, 'b'));
    let input = format!("{short}{long}{long}{other}{other}{short}");
    let run = run(&["pipe", "--per-key", "1/1h", "--stats"], &input);
    assert!(run.out == format!("{short}{long}{other}"), "each passes once");
    assert!(run.err.contains("\"dropped_user\":3,\"errors\":0,"), "{}", run.err);
}

#[test]
fn refused_lines_are_appended_to_the_drops() {
    let files = Files::new();
    let drops = files.write("drops.ndjson", "before\n");
    let input =
        "{\"user_id\":\"a\",\"n\":1}\n{\"user_id\":\"a\",\"n\":2}\r\nbroken\n{\"user_id\":\"a\",\"n\":3}";
    let first = run(&["pipe", "--per-key", "1/1h", "--drops", &drops], input);
    assert_eq!((first.code, &*first.out), (Some(0), "{\"user_id\":\"a\",\"n\":1}\n"));
    let told = "pipe: message 3: is not JSON: expected value at column 1; dropped, and further errors are only counted\n";
    assert_eq!(first.err, told, "a message is not lost in silence");
    let dropped = std::fs::read_to_string(&drops).expect("drops");
    let expected = "before\n{\"user_id\":\"a\",\"n\":2}\r\n{\"user_id\":\"a\",\"n\":3}\n";
    assert_eq!(dropped, expected, "what is appended next begins a line");
    assert!(
        run(&["pipe", "--drops", "/nowhere/drops"], "")
            .failed(2)
            .starts_with("--drops: cannot open /nowhere/drops: ")
    );
}

#[test]
fn refusals_are_told_without_content_and_less_and_less() {
    let secret = "{\"user_id\":\"mallory\",\"text\":\"secret\"}\n";
    let args = ["pipe", "--per-key", "1/1h", "--drops", "/dev/null", "-v"];
    let run = run(&args, &secret.repeat(100_000));
    assert_eq!((run.code, &*run.out), (Some(0), secret));
    assert!(!run.err.contains("secret") && !run.err.contains("mallory"), "{}", run.err);
    assert!(run.err.starts_with("pipe: refused ") && run.err.lines().count() <= 17, "{}", run.err);
}

#[test]
fn a_line_longer_than_the_bound_is_an_error_and_the_next_one_is_read() {
    let long = format!("{{\"user_id\":\"a\",\"x\":\"{}\"}}\n", "x".repeat(17 << 20));
    let nearly = format!("{{\"user_id\":\"a\",\"x\":\"{}\"}}\n", "x".repeat(15 << 20));
    let short = "{\"user_id\":\"a\"}\n";
    let input = format!("{short}{long}{nearly}{short}");
    let run_it = run(&["pipe", "--stats", "-v"], &input);
    assert!(run_it.out == format!("{short}{nearly}{short}"), "{}", run_it.out.len());
    assert!(
        run_it.err.contains("longer than 16 MiB") && run_it.err.contains("\"processed\":4,\"passed\":3,"),
        "{}",
        run_it.err
    );
    let passing = run(&["pipe", "--on-error", "pass"], &input);
    assert!(
        passing.out == input && passing.err.starts_with("pipe: message 2: is longer than 16 MiB; passed on")
    );
}

#[test]
fn a_rate_that_cannot_be_kept_names_its_flag() {
    let said = run(&["pipe", "--per-key", "1/99999d"], "").failed(2);
    assert!(said.starts_with("--per-key: its window: must be from 1ms to 36525d"), "{said}");
}

#[test]
fn a_misspelt_time_field_is_told_once() {
    let run = run(&["pipe", "--time-field", "tss"], &"{\"ts\":1}\n".repeat(5));
    assert_eq!((run.code, &*run.out), (Some(0), ""));
    assert_eq!(run.err, "pipe: message 1: tss: is missing; dropped, and further errors are only counted\n");
}

#[test]
fn nesting_has_no_depth_that_breaks_it() {
    let deep = format!("{{\"user_id\":{}{}}}\n", "[".repeat(500), "]".repeat(500));
    assert_eq!(run(&["pipe"], &deep).done(), deep);
    let deeper = format!("{{\"x\":{}{}}}\n", "[".repeat(1_000_000), "]".repeat(1_000_000));
    assert!(run(&["pipe"], &deeper).done() == deeper);
}

#[test]
fn many_users_are_remembered_only_as_long_as_the_window() {
    let messages =
        many(200_000, |n| format!("{{\"t\":{}.{:03},\"user_id\":\"u{n}\"}}\n", n / 1000, n % 1000));
    let (out, stats) = replay(&["--global", "unlimited", "--per-key", "1/10s"], &messages);
    assert_eq!(out.lines().count(), 200_000);
    assert_eq!(stats["active_users"], 10_001, "a closed window of ten seconds");
}

#[test]
fn the_chat_example_has_all_kinds_of_refusals() {
    let messages = std::fs::read_to_string(example("chat-throttle/messages.ndjson")).expect("the example");
    let args = [
        "pipe",
        "--global",
        "8/10s",
        "--per-key",
        "3/60s",
        "--key",
        "user.id",
        "--time-field",
        "ts",
        "--stats",
    ];
    let stats = run(&args, &messages).err;
    assert!(
        stats.starts_with(
            r#"{"processed":17,"passed":10,"dropped":6,"dropped_global":4,"dropped_user":2,"errors":1,"#
        ),
        "{stats}"
    );
}

// Below, the running process is the subject.

struct Live {
    child: Child,
    stdin: Option<std::process::ChildStdin>,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Live {
    fn start(args: &[&str]) -> Live {
        let mut child = tidegate(args).spawn().expect("it starts");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("piped"));
        Live { child, stdin, stdout: BufReader::new(stdout) }
    }

    fn send(&mut self, text: &str) {
        self.stdin.as_mut().expect("open").write_all(text.as_bytes()).expect("it reads");
    }

    fn receive(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it writes");
        line
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = std::process::Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs");
        assert!(sent.success());
    }

    /// What it said in the end, and its exit code.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.stdout.read_to_string(&mut out).expect("it writes");
        self.child.stderr.take().expect("piped").read_to_string(&mut err).expect("it writes");
        (self.child.wait().expect("it ends").code(), out, err)
    }
}

#[test]
fn a_line_is_written_before_the_next_one_comes() {
    let mut live = Live::start(&["pipe", "--stats"]);
    for n in 0..3 {
        let message = format!("{{\"user_id\":\"a\",\"n\":{n}}}\n");
        live.send(&message);
        assert_eq!(live.receive(), message);
    }
    live.send("{\"user_id\":\"a\",\"half\":");
    live.send("true}");
    drop(live.stdin.take());
    let (code, out, err) = live.end();
    assert_eq!((code, &*out), (Some(0), "{\"user_id\":\"a\",\"half\":true}"));
    assert!(err.starts_with("{\"processed\":4,\"passed\":4,"), "{err}");
    assert!(err.contains("\"current_global\":4,\"active_users\":1,"), "{err}");
}

#[test]
fn a_signal_ends_it_with_everything_read_finished() {
    for signal in ["TERM", "INT"] {
        let mut live = Live::start(&["pipe", "--stats"]);
        live.send("{\"n\":1}\n{\"n\":2}\n");
        assert_eq!((live.receive(), live.receive()), ("{\"n\":1}\n".to_owned(), "{\"n\":2}\n".to_owned()));
        live.signal(signal);
        let stdin = live.stdin.take();
        let (code, out, err) = live.end();
        drop(stdin);
        assert_eq!((code, &*out), (Some(0), ""), "{signal}");
        assert!(err.starts_with("{\"processed\":2,\"passed\":2,"), "{signal}: {err}");
    }
}

#[test]
fn a_signal_does_not_tear_a_line() {
    for on_error in ["drop", "pass"] {
        let mut live = Live::start(&["pipe", "--stats", "--on-error", on_error]);
        live.send("{\"n\":1}\n{\"n\":");
        assert_eq!(live.receive(), "{\"n\":1}\n");
        live.signal("TERM");
        let stdin = live.stdin.take();
        let (code, out, err) = live.end();
        drop(stdin);
        assert_eq!((code, &*out), (Some(0), ""), "{on_error}");
        assert!(err.starts_with("{\"processed\":1,\"passed\":1,"), "{on_error}: {err}");
    }
}

#[test]
fn drops_are_not_read_again() {
    let files = Files::new();
    let path = files.write("both.ndjson", "{\"n\":1}\n");
    let input = std::fs::File::open(&path).expect("just written");
    let output =
        tidegate(&["pipe", "--global", "0/1s", "--drops", &path]).stdin(input).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is also the input"));
}

#[test]
fn a_closed_output_ends_it_well() {
    let mut child = tidegate(&["pipe", "--global", "unlimited", "--stats"]).spawn().expect("it starts");
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().expect("piped");
    // Until it has noticed: another test may be starting a process, which holds our end for a moment.
    while stdin.write_all(b"{\"n\":1}\n").is_ok() {}
    let mut err = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut err).expect("it writes");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(err.starts_with("{\"processed\":"), "{err}");
}

#[test]
fn an_output_that_fails_is_a_failure() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a full device");
    let mut child = tidegate(&["pipe"]).stdout(full).spawn().expect("it starts");
    child.stdin.take().expect("piped").write_all(b"{\"n\":1}\n").expect("it reads");
    let mut err = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut err).expect("it writes");
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
    assert!(err.starts_with("cannot write to standard output: "), "{err}");
}
