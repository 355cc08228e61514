//! `tidegate serve` as whoever starts and stops it meets it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::remote::Serving;
use crate::{Files, feed, tidegate};

/// Longer than anything takes here.
const FAR_TOO_LONG: Duration = Duration::from_secs(60);

fn refused(args: &[&str], code: i32) -> String {
    let nowhere = Files::new();
    feed(tidegate(&[&["serve"], args].concat()).current_dir(nowhere.path("")), "").failed(code)
}

#[test]
fn strangers_are_not_let_in_by_accident() {
    for door in ["--http", "--resp"] {
        for place in ["0.0.0.0:0", "[::]:0"] {
            let other = if door == "--http" { "--resp" } else { "--http" };
            let why = refused(&[door, place, other, "127.0.0.1:0"], 2);
            assert!(why.contains("nobody would need a token") && why.contains("--insecure"), "{why}");
        }
    }
}

#[test]
fn a_server_without_a_door_is_a_mistake() {
    let why = refused(&["--http", "off", "--resp", "off"], 2);
    assert!(why.contains("both doors are off"), "{why}");
}

#[test]
fn what_cannot_be_is_told_before_anything_starts() {
    let place = tempfile::tempdir().expect("a place");
    let folder = place.path().display().to_string();
    assert!(refused(&["--config", &folder], 2).contains("it is not a file"));
    let missing = place.path().join("none.yaml").display().to_string();
    assert!(refused(&["--config", &missing], 2).contains("none.yaml"));
    assert!(refused(&["--workers", "0"], 2).contains("from 1 to 1024"));
    assert!(refused(&["--workers", "99999999999"], 2).contains("from 1 to 1024"));
    assert!(refused(&["--store", "floppy:"], 2).contains("memory:"));
    let broken = place.path().join("broken.yaml");
    std::fs::write(&broken, "limits: [{id: a, items: [{policy: dya, limit: 1}]}]").expect("a file");
    assert!(refused(&["--config", &broken.display().to_string()], 2).contains("did you mean 'day'?"));
}

#[test]
fn an_address_is_taken_once() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let here = taken.local_addr().expect("an address").to_string();
    let why = refused(&["--http", &here, "--resp", "off"], 1);
    assert!(why.contains(&here) && why.contains("the address is in use"), "{why}");
}

/// Whoever reads the log may stop reading. That is no reason to stop answering, or not to end.
#[test]
fn nobody_waits_for_whoever_reads_the_log() {
    let serving = Serving::with(&["--log-level", "debug"]);
    let address = serving.url().trim_start_matches("http://").to_owned();
    // Each of these is a line of the log, and all of them are more than a pipe holds.
    for _ in 0..2_000 {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        stream.set_read_timeout(Some(FAR_TOO_LONG)).expect("a socket");
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            .expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    serving.end_unheard();
}
