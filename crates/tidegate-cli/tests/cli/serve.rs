//! `tidegate serve`: start and stop.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::remote::TestServer;
use crate::{Files, feed, tidegate};

/// Longer than any test takes.
const TIMEOUT: Duration = Duration::from_secs(60);

fn refused(args: &[&str], code: i32) -> String {
    let nowhere = Files::new();
    feed(tidegate(&[&["serve"], args].concat()).current_dir(nowhere.path("")), "").failed(code)
}

#[test]
fn public_address_without_tokens_is_refused() {
    for flag in ["--http", "--resp"] {
        for address in ["0.0.0.0:0", "[::]:0"] {
            let other = if flag == "--http" { "--resp" } else { "--http" };
            let why = refused(&[flag, address, other, "127.0.0.1:0"], 2);
            assert!(why.contains("no tokens are configured") && why.contains("--insecure"), "{why}");
        }
    }
}

#[test]
fn server_without_addresses_is_refused() {
    let why = refused(&["--http", "off", "--resp", "off"], 2);
    assert!(why.contains("HTTP and RESP are both off"), "{why}");
}

#[test]
fn invalid_settings_are_refused_at_start() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let folder = directory.path().display().to_string();
    assert!(refused(&["--config", &folder], 2).contains("it is not a file"));
    let missing = directory.path().join("none.yaml").display().to_string();
    assert!(refused(&["--config", &missing], 2).contains("none.yaml"));
    assert!(refused(&["--workers", "0"], 2).contains("from 1 to 1024"));
    assert!(refused(&["--workers", "99999999999"], 2).contains("from 1 to 1024"));
    assert!(refused(&["--store", "floppy:"], 2).contains("memory:"));
    let broken = directory.path().join("broken.yaml");
    std::fs::write(&broken, "limits: [{id: a, items: [{policy: dya, limit: 1}]}]").expect("a file");
    assert!(refused(&["--config", &broken.display().to_string()], 2).contains("did you mean 'day'?"));
}

#[test]
fn address_in_use_is_refused() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let here = taken.local_addr().expect("an address").to_string();
    let why = refused(&["--http", &here, "--resp", "off"], 1);
    assert!(why.contains(&here) && why.contains("the address is in use"), "{why}");
}

/// The reader of the log may stop reading. The server must still answer and stop.
#[test]
fn blocked_log_does_not_block_the_server() {
    let serving = TestServer::with_args(&["--log-level", "debug"]);
    let address = serving.url().trim_start_matches("http://").to_owned();
    // Each request logs a line, and together they exceed a pipe's capacity.
    for _ in 0..2_000 {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            .expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    serving.stop_without_reading();
}
