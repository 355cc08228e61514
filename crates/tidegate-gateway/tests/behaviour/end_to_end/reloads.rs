//! New settings while requests are under way: nobody is cut off, and nothing is forgotten.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use tidegate_gateway::Counted;

use super::fixture::{Backend, Stage, file, get, response, wait_until};
use super::http_client::{FAR_TOO_LONG, Wire};

/// C-F6: who came without a limit is known to the limit that comes.
#[test]
fn a_limit_that_comes_knows_who_is_there() {
    let backend = Backend::echo();
    let text = |most: i64| file("", &format!("rateLimit: {{maxConnections: {most}}}"), &[&backend]);
    let stage = Stage::new(&text(-1));
    let mut open: Vec<Wire> = (0..10).map(|_| stage.client()).collect();
    for client in &mut open {
        assert_eq!(client.ask(get("a.test")).status(), 200);
    }
    let reloaded = stage.reload(&text(5));
    assert_eq!(reloaded.overfull.len(), 1, "{reloaded:?}");
    assert_eq!((reloaded.overfull[0].most, reloaded.overfull[0].open), (5, 10));
    while open.len() > 4 {
        let answer = stage.ask(get("a.test"));
        assert_eq!(
            (answer.status(), answer.text().as_str()),
            (429, "Too Many Connections"),
            "{}",
            open.len()
        );
        for client in &mut open {
            assert_eq!(client.ask(get("a.test")).status(), 200, "nobody is cut off");
        }
        open.pop();
        let left = open.len() as u64;
        wait_until("one has left", || stage.counted(Counted::Backend("b")) == left);
    }
    assert_eq!(stage.ask(get("a.test")).status(), 200, "four are left");
    drop(open);
    stage.end();
}

/// C-F5: a hundred reloads under load, none of which lets anybody in twice or drops a request.
#[test]
fn a_hundred_reloads_under_load_let_nobody_in_twice() {
    const MOST: usize = 6;
    let backend = Backend::saying(response("ok"));
    let text = |turn: usize| {
        let extra = if turn.is_multiple_of(2) { "" } else { ", {host: other.test, backend: b}" };
        file(
            &format!("rateLimit: {{maxQps: {}}}", 10_000_000 + turn),
            &format!("rateLimit: {{maxConnections: {MOST}, maxQps: {}}}", 20_000_000 + turn / 3),
            &[&backend],
        )
        .replace("{backend: b}", &format!("{{backend: b}}{extra}"))
    };
    let stage = Stage::with(&text(0), 2);
    let (live, highest, refused, served) =
        (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..10 {
            threads.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let mut client = stage.client();
                    let answer = client.ask(get("a.test"));
                    if answer.status() == 429 {
                        assert_eq!(answer.text(), "Too Many Connections");
                        refused.fetch_add(1, Ordering::SeqCst);
                        continue;
                    }
                    highest.fetch_max(live.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    for _ in 0..5 {
                        assert_eq!(client.ask(get("a.test")).status(), 200, "who is in is served");
                        served.fetch_add(1, Ordering::SeqCst);
                    }
                    live.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
        for turn in 1..=100 {
            let before = served.load(Ordering::SeqCst);
            stage.reload(&text(turn));
            wait_until("it goes on", || served.load(Ordering::SeqCst) > before + 10);
        }
        is_over.store(true, Ordering::SeqCst);
    });
    assert!(highest.load(Ordering::SeqCst) <= MOST, "{highest:?}");
    assert!(refused.load(Ordering::SeqCst) > 0, "there were more than may be");
    stage.end();
}

/// A request that is under way ends as it began, wherever the next one goes.
#[test]
fn requests_under_way_are_not_moved() {
    let (arrived, arrivals) = channel();
    let (go, may_go) = channel::<()>();
    let may_go = Mutex::new(may_go);
    let old = Backend::new(move |_, wire| {
        arrived.send(()).expect("somebody waits");
        let _told = may_go.lock().expect("no panic").recv_timeout(FAR_TOO_LONG);
        wire.shout(response("old"));
        true
    });
    let new = Backend::saying(response("new"));
    let stage = Stage::new(&file("", "", &[&old]));
    let mut client = stage.client();
    client.say(get("a.test"));
    arrivals.recv_timeout(FAR_TOO_LONG).expect("it is at the old one");
    stage.reload(&file("", "", &[&new]));
    assert_eq!(stage.ask(get("a.test")).text(), "new");
    go.send(()).expect("it waits");
    assert_eq!(client.hear().text(), "old");
    assert_eq!(client.ask(get("a.test")).text(), "new", "the same connection");
    drop(client);
    stage.end();
}

/// Routes and backends that are gone are gone, also on connections that are open.
#[test]
fn a_route_that_is_gone_is_gone() {
    let backend = Backend::saying(response("ok"));
    let stage = Stage::new(&file("", "", &[&backend]));
    let mut client = stage.client();
    assert_eq!(client.ask(get("a.test")).status(), 200);
    let other = file("", "", &[&backend])
        .replace("name: b", "name: c")
        .replace("{backend: b}", "{path: /x, backend: c}");
    stage.reload(&other);
    assert_eq!(client.ask(get("a.test")).status(), 404);
    assert_eq!(client.ask("GET /x HTTP/1.1\r\nHost: a\r\n\r\n").status(), 200);
    stage.reload(&file("", "", &[&backend]));
    assert_eq!(client.ask(get("a.test")).status(), 200);
    drop(client);
    stage.end();
}

/// Limits hold for the next request on connections that are open.
#[test]
fn a_new_limit_holds_at_once() {
    let backend = Backend::saying(response("ok"));
    let stage = Stage::new(&file("", "", &[&backend]));
    let mut client = stage.client();
    for _ in 0..3 {
        stage.reload(&file("rateLimit: {maxQps: 0}", "", &[&backend]));
        assert_eq!(client.ask(get("a.test")).status(), 429);
        stage.reload(&file("", "", &[&backend]));
        assert_eq!(client.ask(get("a.test")).status(), 200);
        stage.reload(&file("rateLimit: {maxQpsPerClient: 0}", "", &[&backend]));
        assert_eq!(client.ask(get("a.test")).status(), 429);
        stage.reload(&file(
            "rateLimit: {maxQpsPerClient: 0}",
            "rateLimit: {maxQpsPerClient: unlimited}",
            &[&backend],
        ));
        assert_eq!(client.ask(get("a.test")).status(), 200);
    }
    drop(client);
    stage.end();
}

/// C23: a file with anything wrong leaves all as it is.
#[test]
fn a_file_with_errors_changes_nothing() {
    let backend = Backend::saying(response("ok"));
    let directory = std::env::temp_dir().join(format!("tidegate-over-sockets-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join("gateway.yaml");
    let good = file("rateLimit: {maxConnections: 100}", "", &[&backend]);
    std::fs::write(&path, &good).expect("a file");
    let stage = Stage::new(&good);
    let reloader = Arc::new(stage.gateway.reloader(&path, Box::new(|_| None)));
    let mut client = stage.client();
    for (wrong, told) in [
        ("server: {rateLimit: {maxQps: -2}}\nbackends: [{name: x}]\nroutes: [{backend: y}]\n", 3),
        ("server: {rateLimit", 1),
        ("", 1),
    ] {
        std::fs::write(&path, wrong).expect("a file");
        let unused = reloader.reload_now().expect_err("it makes no sense");
        assert!(unused.errors.len() >= told, "{unused:?}");
        assert_eq!(client.ask(get("a.test")).status(), 200);
    }
    let tls = good.clone() + "tls: {certificate: /nowhere/cert.pem, key: /nowhere/key.pem}\n";
    std::fs::write(&path, tls.replace("maxConnections: 100", "maxConnections: 0")).expect("a file");
    let unused = reloader.reload_now().expect_err("there is no certificate");
    assert!(unused.text.contains("/nowhere/cert.pem"), "{unused}");
    assert_eq!(stage.ask(get("a.test")).status(), 200, "no half of it is in force");
    std::fs::write(&path, good.replace("maxConnections: 100", "maxConnections: 0")).expect("a file");
    assert_eq!(reloader.reload_now().expect("it makes sense").changed, 1);
    assert_eq!(stage.ask(get("a.test")).status(), 429);
    assert_eq!(client.ask(get("a.test")).status(), 200);
    std::fs::remove_dir_all(&directory).expect("it is there");
    drop((client, reloader));
    stage.end();
}

/// What waits for a restart waits until there is one, or until the settings say again what runs.
#[test]
fn what_waits_for_a_restart_is_told_as_long_as_it_waits() {
    let backend = Backend::echo();
    let text = file("", "", &[&backend]);
    let stage = Stage::new(&text);
    let elsewhere = text.replace("listen: 127.0.0.1:0", "listen: 127.0.0.1:19");
    let told =
        [&elsewhere, &elsewhere, &text, &text, &elsewhere].map(|text| stage.reload(text).needs_restart);
    assert_eq!(told, [true, true, false, false, true]);
    stage.end();
}
