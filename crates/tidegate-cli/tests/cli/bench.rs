//! `tidegate bench` against real servers. The tests check the report, not the speed.

mod crash;
mod faulty_servers;

use std::io::Read;
use std::process::Command;

use serde_json::Value;

use crate::remote::TestServer;
use crate::{Files, feed, run, tidegate};

fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Runs a short bench and returns its JSON report.
fn bench_json(serving: &TestServer, args: &[&str]) -> Value {
    let run = serving.run(&[&["bench", "--duration", "50ms", "--json", "-"], args].concat());
    assert_eq!(run.code, Some(0), "{}", run.err);
    parse_json(&run.out)
}

fn has_no_limits(serving: &TestServer) -> bool {
    serving.run(&["limit", "list", "--json"]).done() == "{\"limits\":[]}\n"
}

#[test]
fn http_and_resp_are_measured_and_limits_are_deleted() {
    let serving = TestServer::start();
    let resp = ["--server", serving.resp(), "--http", serving.url()];
    for (door, args) in
        [("http", &[][..]), ("resp", &resp), ("resp", &[&resp[..], &["--pipeline", "16"]].concat())]
    {
        let message = bench_json(&serving, &[&["--concurrency", "1,3"], args].concat());
        assert_eq!(message["door"], door);
        let levels = message["levels"].as_array().expect("levels");
        assert_eq!(levels.len(), 2);
        for (level, concurrency) in levels.iter().zip([1, 3]) {
            assert_eq!(
                (&level["concurrency"], &level["failed"]),
                (&concurrency.into(), &0.into()),
                "{level}"
            );
            assert_eq!(level["success_percent"].to_string(), "100.0", "{level}");
            assert_eq!(level["server_counted"], level["allowed"], "{level}");
            let latency = |name: &str| level["latency_ns"][name].as_u64().expect("a number");
            assert!(latency("p50") <= latency("p99") && latency("p99") <= latency("p999"), "{level}");
            assert!(latency("p999") <= latency("max") && latency("max") > 0, "{level}");
        }
        assert_eq!(message["verdict"]["clean"], true, "{message}");
    }
    assert!(has_no_limits(&serving));
}

#[test]
fn limit_is_granted_to_the_last_unit() {
    let serving = TestServer::start();
    // Enough requests to exceed the capacity of each key.
    let sold = |args: &[&str]| {
        loop {
            let message = bench_json(&serving, &[&["--concurrency", "4", "--keys", "5"], args].concat());
            let level = &message["levels"][0];
            if level["refused"].as_u64() > Some(100) {
                // Each connection has at most one late reply, and there are twenty times 50 ms in a second.
                let number = |name: &str| level[name].as_u64().expect("a number");
                let decided = number("allowed") + number("refused");
                let rate = number("decisions_per_second");
                assert!((20 * (decided - 4)..=20 * decided).contains(&rate), "{level}");
                return (level["allowed"].as_u64(), level["limit"].clone());
            }
        }
    };
    let limit = |total: u64, per_key: u64| serde_json::json!({"total": total, "per_key": per_key});
    assert_eq!(sold(&["--total", "7", "--per-key", "100"]), (Some(7), limit(7, 100)));
    assert_eq!(sold(&["--total", "100", "--per-key", "1"]), (Some(5), limit(100, 1)));
    assert_eq!(sold(&["--total", "11"]).1, limit(11, 3));
}

#[test]
fn text_report_has_table_and_verdict() {
    let serving = TestServer::start();
    let files = Files::new();
    let svg = files.path("load.svg").display().to_string();
    let kept = files.path("load.json").display().to_string();
    let args = ["bench", "--duration", "50ms", "--concurrency", "2", "--svg", &svg, "--json", &kept];
    let out = serving.run(&args).done();
    let lines: Vec<_> = out.lines().collect();
    assert!(lines[0].starts_with("CONCURRENCY  DECISIONS/S") && lines[0].ends_with("P99.9"), "{out}");
    assert!(lines[1].trim_start().starts_with("2 ") && lines[1].contains("  100.00 %  "), "{out}");
    assert!(
        lines[3].starts_with("0 failures in ") && lines[3].ends_with("; no grants above the limit."),
        "{out}"
    );
    assert_eq!((lines[4], lines.len()), ("The server's counts match the grants.", 5));
    assert!(!out.contains('\u{1b}'), "no colour and no bar into a pipe");
    let picture = std::fs::read_to_string(&svg).expect("a picture");
    assert!(picture.contains(&format!("Load on {}", serving.url())), "{picture}");
    let kept = parse_json(&std::fs::read_to_string(&kept).expect("a file"));
    assert_eq!(kept["levels"][0]["concurrency"], 2);
}

#[test]
fn invalid_arguments_are_bad_input() {
    let file = "/nowhere/at/all.json";
    for (args, why) in [
        (&["--server", "ftp://localhost"][..], "must begin with http:// or redis://"),
        (&["--server", "grpc://localhost"], "not supported yet"),
        (&["--server", "https://localhost"], "would measure the encryption"),
        (&["--concurrency", "0"], "from 1 to 10000"),
        (&["--concurrency", "1,100000"], "from 1 to 10000"),
        (&["--duration", "0s"], "at least 1ms"),
        (&["--keys", "0"], "--keys"),
        (&["--pipeline", "2"], "--pipeline is for redis://"),
        (&["--total", "0"], "--total"),
        (&["--kills", "3"], "--crash"),
        (&["--crash", "--kills", "0"], "--kills"),
        (&["--crash", "--server", "http://localhost"], "--server"),
        (&["--crash", "--laws", "gravity"], "gravity"),
        (&["--crash", "--store-dir", env!("CARGO_MANIFEST_DIR")], "is not empty"),
    ] {
        let message = run(&[&["bench"], args].concat(), "").failed(2);
        assert!(message.contains(why), "{args:?}: {message}");
    }
    let serving = TestServer::start();
    let run = serving.run(&["bench", "--duration", "10ms", "--concurrency", "1", "--json", file]);
    assert_eq!(run.code, Some(2), "{}", run.err);
    assert!(run.err.contains("cannot write /nowhere/at/all.json"), "{}", run.err);
    assert!(!run.err.contains("decisions"), "nothing was measured before: {}", run.err);
    assert!(has_no_limits(&serving));
}

#[test]
fn unreachable_server_is_exit_code_4() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let message = run(&["bench", "--server", &format!("http://{address}")], "").failed(4);
    assert!(message.starts_with(&format!("cannot reach http://{address}: ")), "{message}");
    assert!(message.contains("give --server URL"), "{message}");
    // No server listens on the default port of this address.
    let message = run(&["bench", "--server", "redis://127.9.8.7:7701"], "").failed(4);
    assert!(message.contains("give --http URL") && !message.contains("--server"), "{message}");
    let serving = TestServer::start();
    let resp = format!("redis://{address}");
    let message = serving.run(&["bench", "--server", &resp, "--http", serving.url()]).failed(4);
    assert!(message.starts_with(&format!("cannot reach {resp}: ")), "{message}");
    assert!(has_no_limits(&serving));
}

#[test]
fn token_is_sent_over_http_and_resp() {
    let files = Files::new();
    let made =
        parse_json(&run(&["token", "new", "--role", "admin", "--prefix", "load/", "--json"], "").done());
    let settings = serde_json::json!({"auth": {"tokens": [made["token"]]}}).to_string();
    let config = files.write("tidegate.yaml", &settings);
    let serving = TestServer::with_args(&["--config", &config]);
    let secret = made["secret"].as_str().expect("a secret");
    let resp = ["--server", serving.resp(), "--http", serving.url()];
    for door in [&[][..], &resp] {
        let args =
            [&["bench", "--duration", "20ms", "--concurrency", "2", "--prefix", "load/"], door].concat();
        serving.run_with_token(secret, &args).done();
        let stranger = serving.run(&args).failed(1);
        assert!(stranger.contains("TIDEGATE_TOKEN"), "{stranger}");
    }
    let confined =
        serving.run_with_token(secret, &["bench", "--duration", "20ms", "--concurrency", "1"]).failed(1);
    assert!(confined.contains("'load/'"), "{confined}");
}

#[test]
fn interrupted_bench_deletes_its_limits() {
    let serving = TestServer::start();
    let mut command =
        tidegate(&["bench", "--duration", "1h", "--concurrency", "2", "--server", serving.url()]);
    let mut bench = command.spawn().expect("the binary starts");
    // The signal handlers are installed before the first limit is created.
    while has_no_limits(&serving) {}
    let message = Command::new("sh").args(["-c", &format!("kill -INT {}", bench.id())]).status();
    assert!(message.expect("there is a shell").success());
    let mut stderr_text = String::new();
    bench.stderr.take().expect("it was piped").read_to_string(&mut stderr_text).expect("text");
    assert_eq!(bench.wait().expect("it was started").code(), Some(1), "{stderr_text}");
    assert!(stderr_text.contains("stopped before the end; the test limits are deleted"), "{stderr_text}");
    assert!(has_no_limits(&serving));
}

#[test]
fn killed_server_fails_the_bench_quickly() {
    let serving = TestServer::start();
    let mut command =
        tidegate(&["bench", "--duration", "2s", "--concurrency", "2", "--server", serving.url()]);
    let bench = command.spawn().expect("the binary starts");
    while has_no_limits(&serving) {}
    let killed = Command::new("sh").args(["-c", &format!("kill -KILL {}", serving.id())]).status();
    assert!(killed.expect("there is a shell").success());
    let output = bench.wait_with_output().expect("it ends");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // Between the warm-up and the measured run no request is sent; then the server is only unreachable.
    match output.status.code() {
        Some(1) => {
            let message = out.contains("could not be read and were not compared");
            assert!(message && err.contains("the verdict is not clean"), "{out}{err}");
        }
        code => assert_eq!(code, Some(4), "{out}{err}"),
    }
    assert!(err.contains("127.0.0.1"), "{err}");
}

#[test]
fn environment_names_the_server() {
    let serving = TestServer::start();
    let args = ["bench", "--duration", "20ms", "--concurrency", "1", "--http", serving.url()];
    feed(tidegate(&args).env("TIDEGATE_SERVER", serving.resp()), "").done();
    let message = feed(tidegate(&["bench"]).env("TIDEGATE_SERVER", "localhost:7700"), "").failed(2);
    assert!(message.starts_with("TIDEGATE_SERVER must begin with http:// or redis://"), "{message}");
}
