//! The configuration of `docs/how-to/nginx.md`, in a real nginx.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStderr, Command, Stdio};

use super::read;
use crate::remote::TestServer;
use crate::{Files, run};

/// One request per client.
const LIMIT: &str = "limits: [{id: web, items: [{policy: total, limit: 1, per: key}]}]\n";

/// nginx with a backend that answers `hello`, until the end of the test.
struct Nginx {
    process: Child,
    address: String,
    /// Kept open, so that nginx can go on writing.
    _errors: BufReader<ChildStderr>,
    _files: Files,
}

impl Nginx {
    /// With the `server` section of the guide in front of this server. With a token, by step 3 of the guide.
    fn of_guide(server: &TestServer, token: Option<&str>) -> Nginx {
        let text = read("docs/how-to/nginx.md");
        let blocks: Vec<&str> =
            text.split("```nginx\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        let [section, directive, location] = blocks[..] else { panic!("the guide has three blocks") };
        let files = Files::new();
        let mut section = section.to_owned();
        if let Some(token) = token {
            let path = files.write("token.conf", &directive.replace("tg_…", token));
            let begin = section.find("    location = /_limit").expect("the location of the gate");
            let end = begin + section[begin..].find("    }\n").expect("its end") + "    }\n".len();
            let location = location.replace("/etc/nginx/tidegate-token.conf", &path);
            section.replace_range(begin..end, &location);
        }
        let (address, backend) = (free_address(), free_address());
        let section = section.replace("listen 80;", &format!("listen {address};"));
        let section =
            section.replace("127.0.0.1:7700", server.http_address()).replace("127.0.0.1:8080", &backend);
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {};\n", files.path(kind).display()))
            .concat();
        let pid = files.path("pid").display().to_string();
        let config = format!(
            "daemon off;\nmaster_process off;\npid {pid};\nerror_log stderr notice;\nevents {{}}\nhttp {{\naccess_log off;\n\
             {temporary}{section}\nserver {{ listen {backend}; location / {{ return 200 hello; }} }}\n}}\n"
        );
        let path = files.write("nginx.conf", &config);
        let mut process =
            Command::new("nginx").args(["-c", &path]).stderr(Stdio::piped()).spawn().expect("nginx starts");
        let mut errors = BufReader::new(process.stderr.take().expect("it was piped"));
        // nginx logs this after it listens.
        let mut log = String::new();
        while !log.contains("event method") {
            assert!(errors.read_line(&mut log).expect("text") > 0, "nginx ended: {log}");
        }
        Nginx { process, address, _errors: errors, _files: files }
    }

    /// Status, `Retry-After` and body of the response to a request.
    fn get(&self, more: &[&str]) -> (String, String, String) {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--max-time", "50", "--write-out", "\n%{http_code}\n%header{retry-after}"]);
        let output =
            curl.args(more).arg(format!("http://{}/", self.address)).output().expect("there is curl");
        let text = String::from_utf8(output.stdout).expect("text");
        let mut lines = text.rsplitn(3, '\n').map(str::to_owned);
        let mut next = || lines.next().expect("three parts");
        let (retry_after, status, body) = (next(), next(), next());
        (status, retry_after, body)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.process.kill();
        let _ended = self.process.wait();
    }
}

/// An address that no other test listens on.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.80:0").expect("a free port");
    listener.local_addr().expect("it is bound").to_string()
}

/// Whether nginx is missing. The test is then reported as skipped.
fn is_skipped() -> bool {
    let is_missing = Command::new("nginx").arg("-v").stderr(Stdio::null()).status().is_err();
    if is_missing {
        tidegate_testkit::skip("nginx is not installed");
    }
    is_missing
}

fn signal(server: &TestServer, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", server.id())]).status();
    assert!(status.expect("there is a shell").success());
}

#[test]
fn nginx_of_guide_refuses_and_survives_outage() {
    if is_skipped() {
        return;
    }
    let server = TestServer::with_limits(&LIMIT.replace("policy: total", "policy: interval, window: 1h"));
    let nginx = Nginx::of_guide(&server, None);
    assert_eq!(nginx.get(&[]), ("200".to_owned(), String::new(), "hello".to_owned()));
    for request in [&["--data", "body"][..], &["--head"], &["--header", "X-Forwarded-For: 192.0.2.7"]] {
        let (status, retry_after, _) = nginx.get(request);
        let seconds: u32 = retry_after.parse().expect("seconds");
        assert!(status == "429" && (3000..=3600).contains(&seconds), "{status} {retry_after}");
    }
    signal(&server, "STOP");
    assert_eq!(nginx.get(&[]).0, "503", "a silent server");
    signal(&server, "CONT");
    server.kill();
    assert_eq!(nginx.get(&[]).0, "503", "no server");
}

#[test]
fn nginx_of_guide_sends_token_to_server_only() {
    if is_skipped() {
        return;
    }
    let printed = run(&["token", "new", "--name", "nginx", "--role", "decide", "--prefix", "web"], "").done();
    let token = printed.lines().find(|line| line.starts_with("tg_")).expect("the token");
    let entry = &printed[printed.find("auth:").expect("the entry for the settings file")..];
    let files = Files::new();
    let server =
        TestServer::with_args(&["--config", &files.write("tidegate.yaml", &format!("{LIMIT}{entry}"))]);
    let nginx = Nginx::of_guide(&server, Some(token));
    assert_eq!(nginx.get(&["--user", "ada:secret"]).0, "200");
    // A total never comes back, so there is no Retry-After.
    assert_eq!(nginx.get(&[]).0, "429");
    drop(nginx);
    assert_eq!(Nginx::of_guide(&server, None).get(&[]).0, "503", "the server wants a token");
}
