//! The output of the examples.

#![allow(dead_code, reason = "tests do not call the examples' `main` functions")]

use std::future::Future;

#[path = "../../../../examples/axum-service/main.rs"]
mod axum_service;
#[path = "../../../../examples/chat-throttle/main.rs"]
mod chat_throttle;
#[path = "../../../../examples/llm-budget/main.rs"]
mod llm_budget;
#[path = "../../../../examples/login/main.rs"]
mod login;
#[path = "../../../../examples/workers/main.rs"]
mod workers;

/// Compares the output line by line. Indentation and empty lines do not count.
#[track_caller]
fn check(output: &[u8], expected: &str) {
    let output = std::str::from_utf8(output).expect("text");
    let lines = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
    };
    assert_eq!(lines(output), lines(expected), "\n{output}");
}

async fn run<'a, F>(out: &'a mut Vec<u8>, example: impl FnOnce(&'a mut Vec<u8>) -> F)
where
    F: Future<Output = Result<(), Box<dyn std::error::Error>>>,
{
    example(out).await.expect("the example succeeds");
}

#[test]
fn login() {
    let mut out = Vec::new();
    login::example(&mut out).expect("the example succeeds");
    check(
        &out,
        "0 s  ada from 192.0.2.7: admitted
         1 s  ada from 192.0.2.7: admitted
         2 s  ada from 192.0.2.7: admitted
         3 s  ada from 192.0.2.7: admitted
         4 s  ada from 192.0.2.7: admitted
         5 s  ada from 192.0.2.7: too many tries for this user, try again in 11 s
         9 s  ada from 192.0.2.7: too many tries for this user, try again in 7 s
         15 s  ada from 192.0.2.7: too many tries for this user, try again in 1 s
         16 s  ada from 192.0.2.7: admitted
         16 s  25 users from 203.0.113.9: 20 admitted
         16 s  bob from 203.0.113.9: too many tries for this address, try again in 16 s
         16 s  bob from 192.0.2.8: admitted",
    );
}

#[tokio::test]
async fn llm_budget() {
    let mut out = Vec::new();
    run(&mut out, llm_budget::example).await;
    check(
        &out,
        "a short question: held 2000 with 8000 available, cost 350, 9650 left
         a long essay: held 6000 with 3650 available, cost 7500, 2150 left
         a summary: refused, it may cost 3000 and 2150 are left
         another summary: held 2000 with 150 available, cost 1800, 350 left",
    );
}

#[tokio::test]
async fn workers() {
    let mut out = Vec::new();
    run(&mut out, workers::example).await;
    check(
        &out,
        "index (2) starts
         thumbnails (1) starts
         ping (1) does not wait
         index (2) is done
         thumbnails (1) is done
         video (4) starts
         video (4) is done
         mail (1) starts
         report (2) starts
         mail (1) is done
         report (2) is done",
    );
}

#[tokio::test]
async fn axum_service() {
    let mut out = Vec::new();
    run(&mut out, axum_service::example).await;
    let passed = |left| {
        format!(
            "GET /
             HTTP/1.1 200 OK
             ratelimit-policy: \"key/sliding-60s\";q=3;w=60
             ratelimit: \"key/sliding-60s\";r={left};t=61\n"
        )
    };
    let refused = "GET /
         HTTP/1.1 429 Too Many Requests
         ratelimit-policy: \"key/sliding-60s\";q=3;w=60
         ratelimit: \"key/sliding-60s\";r=0;t=61
         retry-after: 61
         GET /health
         HTTP/1.1 200 OK";
    check(&out, &[&*passed(2), &*passed(1), &*passed(0), refused].concat());
}

#[tokio::test]
async fn chat_throttle() {
    let mut out = Vec::new();
    run(&mut out, chat_throttle::example).await;
    check(
        &out,
        "0 s  ada: hello
         1 s  bob: hello ada
         2 s  mallory: buy now
         3 s  mallory: buy now
         10 s  ada: ignore him
         20 s  somebody: who am I?
         61 s  ada: one minute later
         to mallory, who said 'buy now': that was quick, try again in 59 s
         to bob, who said 'goodnight': the room is busy, try again in 31 s
         7 of 9 passed, 4 users are active",
    );
}
