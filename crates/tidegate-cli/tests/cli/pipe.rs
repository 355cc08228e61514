use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;

use serde_json::Value;

use crate::{Files, example, run, run_bytes, tidegate};

/// Replays messages. Returns the passed lines and the statistics.
fn replay(args: &[&str], input: &str) -> (String, Value) {
    let run = run(&[&["pipe", "--time-field", "t", "--stats"], args].concat(), input);
    assert_eq!(run.code, Some(0), "{}", run.err);
    (run.out, serde_json::from_str(&run.err).expect("statistics"))
}

/// A number of messages, each made from its index.
fn many(count: usize, message: impl Fn(usize) -> String) -> String {
    (0..count).map(message).collect::<Vec<_>>().concat()
}

/// Checks a replay message by message: `time user -> pass | global | user`. A user `-` is omitted.
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
fn window_is_closed_at_both_ends() {
    check(
        &["--per-key", "1/60s"],
        "
        0          ada pass
        60.0       ada user
        60.0000001 ada pass",
    );
}

#[test]
fn message_above_global_limit_is_refused() {
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
fn message_above_user_limit_is_refused() {
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
fn refused_message_is_not_counted() {
    let hammering = "30 ada user\n".repeat(10);
    check(&["--per-key", "1/60s"], &format!("0 ada pass\n{hammering}60.001 ada pass"));
}

#[test]
fn refusal_by_both_limits_counts_as_global() {
    // By wait alone the user's window of an hour would bind; the rules check global first.
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
fn messages_without_user_share_one_key() {
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
fn zero_refuses_everything_and_unlimited_nothing() {
    check(&["--per-key", "0/60s"], "0 ada user\n0 bob user");
    check(&["--global", "0/60s"], "0 ada global\n0 bob global");
    let flood = "0 ada pass\n".repeat(500);
    check(&["--global", "unlimited", "--per-key", "-1/60s"], &flood);
}

#[test]
fn default_rates_are_100_and_10_per_minute() {
    let messages = many(300, |n| format!("{{\"t\":0,\"user_id\":\"u{}\"}}\n", n % 20));
    let (_, stats) = replay(&[], &messages);
    assert_eq!((&stats["passed"], &stats["dropped_global"]), (&100.into(), &200.into()));
    let messages: String = (0..30).map(|_| "{\"t\":0,\"user_id\":\"u\"}\n").collect();
    let (_, stats) = replay(&[], &messages);
    assert_eq!((&stats["passed"], &stats["dropped_user"]), (&10.into(), &20.into()));
}

#[test]
fn statistics_have_current_window_counts() {
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
fn large_limit_is_bucketed_and_counts() {
    let messages = many(1000, |n| format!("{{\"t\":{n},\"user_id\":\"u\"}}\n"));
    let (out, stats) = replay(&["--global", "2000000/1h", "--per-key", "1000001/1h"], &messages);
    assert_eq!((out.lines().count(), &stats["current_global"]), (1000, &1000.into()));
}

#[test]
fn earlier_time_is_replaced_by_the_latest() {
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
    let stderr_text = run(&["pipe", "--time-field", "ts"], input);
    assert_eq!((stderr_text.code, &*stderr_text.out), (Some(0), input));
    let printed =
        "pipe: message 2: goes back in time; it and others like it are decided at the latest time seen\n";
    assert_eq!(stderr_text.err, printed);
}

#[test]
fn time_field_may_be_text_or_number() {
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
fn key_at_path_may_be_any_json() {
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
fn lines_pass_byte_for_byte() {
    let input = b"{\"user_id\": \"a\"}\r\n\r\n \t\n{ \"user_id\" :\"b\" }\n{\"t\":\"\xf0\x9f\xa7\xa7\"}";
    let output = run_bytes(&["pipe"], input);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        output.stdout,
        b"{\"user_id\": \"a\"}\r\n{ \"user_id\" :\"b\" }\n{\"t\":\"\xf0\x9f\xa7\xa7\"}"
    );
    assert!(output.stderr.is_empty());
}

/// Invalid lines of all kinds.
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
fn invalid_line_is_dropped_or_passed_uncharged() {
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
fn long_user_name_is_limited() {
    let message = |length: usize, end: char| format!("{{\"user_id\":\"{}{end}\"}}\n", "k".repeat(length));
    let (short, long, other) = (message(1023, 'a'), message(5000, 'a'), message(5000, 'b'));
    let input = format!("{short}{long}{long}{other}{other}{short}");
    let run = run(&["pipe", "--per-key", "1/1h", "--stats"], &input);
    assert!(run.out == format!("{short}{long}{other}"), "each passes once");
    assert!(run.err.contains("\"dropped_user\":3,\"errors\":0,"), "{}", run.err);
}

#[test]
fn refused_lines_are_appended_to_drops_file() {
    let files = Files::new();
    let drops = files.write("drops.ndjson", "before\n");
    let input =
        "{\"user_id\":\"a\",\"n\":1}\n{\"user_id\":\"a\",\"n\":2}\r\nbroken\n{\"user_id\":\"a\",\"n\":3}";
    let first = run(&["pipe", "--per-key", "1/1h", "--drops", &drops], input);
    assert_eq!((first.code, &*first.out), (Some(0), "{\"user_id\":\"a\",\"n\":1}\n"));
    let printed = "pipe: message 3: is not JSON: expected value at column 1; dropped, and further errors are only counted\n";
    assert_eq!(first.err, printed, "a message is not lost in silence");
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
fn refusals_are_logged_without_content_at_doubling() {
    let secret = "{\"user_id\":\"mallory\",\"text\":\"secret\"}\n";
    let args = ["pipe", "--per-key", "1/1h", "--drops", "/dev/null", "-v"];
    let run = run(&args, &secret.repeat(100_000));
    assert_eq!((run.code, &*run.out), (Some(0), secret));
    assert!(!run.err.contains("secret") && !run.err.contains("mallory"), "{}", run.err);
    assert!(run.err.starts_with("pipe: refused ") && run.err.lines().count() <= 17, "{}", run.err);
}

#[test]
fn overlong_line_is_an_error() {
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
fn invalid_rate_names_its_flag() {
    let stderr_text = run(&["pipe", "--per-key", "1/99999d"], "").failed(2);
    assert!(stderr_text.starts_with("--per-key: its window: must be from 1ms to 36525d"), "{stderr_text}");
}

#[test]
fn missing_time_field_is_reported_once() {
    let run = run(&["pipe", "--time-field", "tss"], &"{\"ts\":1}\n".repeat(5));
    assert_eq!((run.code, &*run.out), (Some(0), ""));
    assert_eq!(run.err, "pipe: message 1: tss: is missing; dropped, and further errors are only counted\n");
}

#[test]
fn deep_nesting_is_handled() {
    let deep = format!("{{\"user_id\":{}{}}}\n", "[".repeat(500), "]".repeat(500));
    assert_eq!(run(&["pipe"], &deep).done(), deep);
    let deeper = format!("{{\"x\":{}{}}}\n", "[".repeat(1_000_000), "]".repeat(1_000_000));
    assert!(run(&["pipe"], &deeper).done() == deeper);
}

#[test]
fn users_are_forgotten_after_the_window() {
    let messages =
        many(200_000, |n| format!("{{\"t\":{}.{:03},\"user_id\":\"u{n}\"}}\n", n / 1000, n % 1000));
    let (out, stats) = replay(&["--global", "unlimited", "--per-key", "1/10s"], &messages);
    assert_eq!(out.lines().count(), 200_000);
    assert_eq!(stats["active_users"], 10_001, "a closed window of ten seconds");
}

#[test]
fn chat_example_has_all_kinds_of_refusals() {
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

// The tests below run a live process.

struct RunningPipe {
    child: Child,
    stdin: Option<std::process::ChildStdin>,
    stdout: BufReader<std::process::ChildStdout>,
}

impl RunningPipe {
    fn start(args: &[&str]) -> RunningPipe {
        let mut child = tidegate(args).spawn().expect("it starts");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("piped"));
        RunningPipe { child, stdin, stdout: BufReader::new(stdout) }
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

    /// Its remaining standard error and its exit code.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.stdout.read_to_string(&mut out).expect("it writes");
        self.child.stderr.take().expect("piped").read_to_string(&mut err).expect("it writes");
        (self.child.wait().expect("it ends").code(), out, err)
    }
}

#[test]
fn line_is_written_immediately() {
    let mut live = RunningPipe::start(&["pipe", "--stats"]);
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
fn signal_finishes_lines_already_read() {
    for signal in ["TERM", "INT"] {
        let mut live = RunningPipe::start(&["pipe", "--stats"]);
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
fn signal_writes_no_partial_line() {
    for on_error in ["drop", "pass"] {
        let mut live = RunningPipe::start(&["pipe", "--stats", "--on-error", on_error]);
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
fn drops_file_equal_to_input_is_refused() {
    let files = Files::new();
    let path = files.write("both.ndjson", "{\"n\":1}\n");
    let input = std::fs::File::open(&path).expect("just written");
    let output =
        tidegate(&["pipe", "--global", "0/1s", "--drops", &path]).stdin(input).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is also the input"));
}

#[test]
fn closed_output_ends_successfully() {
    let mut child = tidegate(&["pipe", "--global", "unlimited", "--stats"]).spawn().expect("it starts");
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().expect("piped");
    // Retried, because another test may be starting a process, which inherits our end for a moment.
    while stdin.write_all(b"{\"n\":1}\n").is_ok() {}
    let mut err = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut err).expect("it writes");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(err.starts_with("{\"processed\":"), "{err}");
}

#[test]
fn failing_output_is_a_failure() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a full device");
    let mut child = tidegate(&["pipe"]).stdout(full).spawn().expect("it starts");
    child.stdin.take().expect("piped").write_all(b"{\"n\":1}\n").expect("it reads");
    let mut err = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut err).expect("it writes");
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
    assert!(err.starts_with("cannot write to standard output: "), "{err}");
}
