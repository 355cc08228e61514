//! `cargo xtask bench gateway`: the gateway, nginx and HAProxy over real sockets, in the same run.
//!
//! One proxy at a time runs on core 0. The load generator and the backend (an nginx with a static response) share core 1. The
//! table compares requests per second and CPU time per request.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::figures::{Measurement, median, parse_wrk};
use super::load::{CLIENTS_CORE, SECONDS, pinned};
use super::peers::{READY_WITHIN, SERVERS_CORE, only_child, processor_time, resident, unused_address};
use super::servers::{BenchEffort, prepare};
use crate::TaskResult;
use crate::workspace::Workspace;

/// Connections of the load generator.
const CONNECTIONS: u32 = 64;
/// Idle connections during the memory measurement.
const IDLE: u64 = 5_000;
/// Memory target per idle connection, in KiB.
const MOST_KIBIBYTES: f64 = 20.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proxy {
    Tidegate,
    /// Tidegate without limits.
    Unlimited,
    Nginx,
    Haproxy,
}

impl Proxy {
    const fn name(self) -> &'static str {
        match self {
            Proxy::Tidegate => "Tidegate",
            Proxy::Unlimited => "Tidegate without limits",
            Proxy::Nginx => "nginx",
            Proxy::Haproxy => "HAProxy",
        }
    }
}

/// A proxy or backend that stops when it is dropped.
struct RunningProxy {
    child: Child,
    /// The process that serves requests.
    worker: u32,
    address: SocketAddr,
}

impl Drop for RunningProxy {
    fn drop(&mut self) {
        // SIGTERM, because nginx stops its worker only then.
        let _signaled = Command::new("kill").arg(self.child.id().to_string()).status();
        let _exited = self.child.wait();
    }
}

/// Two proxies under the same load.
struct ProxyComparison {
    name: &'static str,
    path: &'static str,
    ours: Proxy,
    theirs: Proxy,
    at_least: f64,
    goal: Option<f64>,
    p99_at_most: Option<f64>,
}

const COMPARISONS: [ProxyComparison; 5] = [
    ProxyComparison {
        name: "proxied, four levels of limits",
        path: "/",
        ours: Proxy::Tidegate,
        theirs: Proxy::Nginx,
        at_least: 0.7,
        goal: Some(1.0),
        p99_at_most: Some(1.5),
    },
    ProxyComparison {
        name: "proxied, four levels of limits",
        path: "/",
        ours: Proxy::Tidegate,
        theirs: Proxy::Haproxy,
        at_least: 0.7,
        goal: Some(1.0),
        p99_at_most: None,
    },
    ProxyComparison {
        name: "refused (429)",
        path: "/refused",
        ours: Proxy::Tidegate,
        theirs: Proxy::Nginx,
        at_least: 0.9,
        goal: Some(1.0),
        p99_at_most: None,
    },
    ProxyComparison {
        name: "refused (429)",
        path: "/refused",
        ours: Proxy::Tidegate,
        theirs: Proxy::Haproxy,
        at_least: 0.9,
        goal: Some(1.0),
        p99_at_most: None,
    },
    ProxyComparison {
        name: "limits on beside limits off",
        path: "/",
        ours: Proxy::Tidegate,
        theirs: Proxy::Unlimited,
        at_least: 0.97,
        goal: None,
        p99_at_most: None,
    },
];

/// Runs every comparison and prints a Markdown table.
pub(crate) fn run(effort: BenchEffort) -> TaskResult {
    let workspace = Workspace::load()?;
    let folder = prepare(&workspace)?;
    let tidegate = workspace.target.join("release/tidegate");
    let endpoint = endpoint(&folder)?;
    println!("\n| what | proxy | rate /s | CPU us/request | p50 ms | p99 ms | ratio | bar |");
    println!("|---|---|---|---|---|---|---|---|");
    for pair in &COMPARISONS {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..effort.rounds() {
            for (proxy, measurements) in [(pair.ours, &mut ours), (pair.theirs, &mut theirs)] {
                let running = start(proxy, endpoint.address, &folder, &tidegate)?;
                measurements.push(run_load(&running, pair.path)?);
            }
        }
        print_comparison(pair, &median(ours), &median(theirs));
    }
    measure_idle_memory(endpoint.address, &folder, &tidegate)
}

fn print_comparison(pair: &ProxyComparison, ours: &Measurement, theirs: &Measurement) {
    let ratio = ours.rate / theirs.rate;
    let verdict = match pair.goal {
        Some(goal) if ratio >= goal => "met, with its goal",
        _ if ratio >= pair.at_least => "met",
        _ => "missed",
    };
    let row = |what: &str, proxy: Proxy, measurement: &Measurement, rest: &str| {
        let Measurement { rate, micros, p50, p99 } = measurement;
        println!("| {what} | {} | {rate:.0} | {micros:.2} | {p50} | {p99} | {rest} |", proxy.name());
    };
    row(pair.name, pair.ours, ours, &format!("{ratio:.2} | {} {verdict}", pair.at_least));
    let times = ours.p99.over(theirs.p99);
    let slowest = times.map_or(String::new(), |times| format!(", p99 {times:.2}x"));
    let of_slowest = times.zip(pair.p99_at_most).map_or(String::new(), |(times, most)| {
        format!("p99 at most {most}x, {}", if times <= most { "met" } else { "missed" })
    });
    let cost = format!("CPU {:.2}x{slowest} | {of_slowest}", ours.micros / theirs.micros);
    row("", pair.theirs, theirs, &cost);
}

/// Runs the load for about five seconds.
fn run_load(running: &RunningProxy, path: &str) -> TaskResult<Measurement> {
    let before = processor_time(running.worker)?;
    let (url, connections) = (format!("http://{}{path}", running.address), CONNECTIONS.to_string());
    let seconds = format!("{SECONDS}s");
    let text = pinned("wrk", &["-t1", "-c", &connections, "-d", &seconds, "--latency", &url])?;
    let refused = text.contains("Non-2xx");
    if text.contains("Socket errors") || refused != (path == "/refused") {
        return Err(format!("unexpected responses:\n{text}").into());
    }
    let (rate, p50, p99) = parse_wrk(&text).ok_or(text)?;
    #[expect(clippy::cast_precision_loss, reason = "a measurement for people")]
    let requests = rate * SECONDS as f64;
    Ok(Measurement { rate, micros: (processor_time(running.worker)? - before) / requests, p50, p99 })
}

/// Measures the memory of an idle connection.
fn measure_idle_memory(endpoint: SocketAddr, folder: &Path, tidegate: &Path) -> TaskResult {
    println!("\n| idle connections | RSS above the empty gateway, KiB each | bar |\n|---|---|---|");
    let running = start(Proxy::Tidegate, endpoint, folder, tidegate)?;
    let before = resident(running.worker)?;
    let mut open = Vec::new();
    for _ in 0..IDLE {
        let mut stream = TcpStream::connect(running.address)?;
        // Each connection has served one request.
        std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        let mut answer = [0; 512];
        if std::io::Read::read(&mut stream, &mut answer)? == 0 {
            return Err("the gateway closed a connection".into());
        }
        open.push(stream);
    }
    let grown = resident(running.worker)?.saturating_sub(before) / IDLE;
    #[expect(clippy::cast_precision_loss, reason = "a measurement for people")]
    let kibibytes = grown as f64 / 1024.0;
    let verdict = if kibibytes < MOST_KIBIBYTES { "met" } else { "missed" };
    println!("| {IDLE} | {kibibytes:.2} | under {MOST_KIBIBYTES}, {verdict} |");
    drop(open);
    Ok(())
}

/// Starts the backend.
fn endpoint(folder: &Path) -> TaskResult<RunningProxy> {
    let address = unused_address()?;
    let file = folder.join("endpoint.conf");
    let body = "return 200 \"hello, this is a small response of a backend\\n\";";
    std::fs::write(
        &file,
        nginx(folder, "endpoint", "", &format!("listen {address}; location / {{ {body} }}")),
    )?;
    spawn(CLIENTS_CORE, &nginx_words(folder, &file), address, true)
}

fn start(proxy: Proxy, endpoint: SocketAddr, folder: &Path, tidegate: &Path) -> TaskResult<RunningProxy> {
    let address = unused_address()?;
    let words = match proxy {
        Proxy::Tidegate | Proxy::Unlimited => {
            let file = folder.join("gateway.yaml");
            std::fs::write(&file, gateway(address, endpoint, proxy == Proxy::Tidegate))?;
            let words = ["gateway", "--workers", "1", "--access-log", "off", "--config"];
            let mut all = vec![tidegate.display().to_string()];
            all.extend(words.map(str::to_owned));
            all.push(file.display().to_string());
            all
        }
        Proxy::Nginx => {
            let file = folder.join("proxy.conf");
            std::fs::write(&file, nginx_proxy(folder, address, endpoint))?;
            nginx_words(folder, &file)
        }
        Proxy::Haproxy => {
            let file = folder.join("haproxy.cfg");
            std::fs::write(&file, haproxy(address, endpoint))?;
            vec!["haproxy".to_owned(), "-f".to_owned(), file.display().to_string()]
        }
    };
    spawn(SERVERS_CORE, &words, address, proxy == Proxy::Nginx)
}

fn spawn(core: &str, words: &[String], address: SocketAddr, has_child: bool) -> TaskResult<RunningProxy> {
    let mut command = Command::new("taskset");
    command.args(["-c", core]).args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("cannot run taskset: {error}"))?;
    let start = Instant::now();
    while TcpStream::connect(address).is_err() {
        if start.elapsed() > READY_WITHIN || child.try_wait()?.is_some() {
            return Err(format!("`{}` does not answer at {address}", words.join(" ")).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let worker = if has_child { only_child(child.id())? } else { child.id() };
    Ok(RunningProxy { child, worker, address })
}

fn nginx_words(folder: &Path, file: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let file = file.display().to_string();
    ["nginx", "-p", &folder, "-c", &file, "-e", "/dev/null"].map(str::to_owned).to_vec()
}

fn nginx(folder: &Path, name: &str, http: &str, server: &str) -> String {
    let folder = folder.display();
    format!(
        "daemon off; worker_processes 1; pid {folder}/{name}.pid; error_log /dev/null crit;\n\
         events {{ worker_connections 16384; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; default_type text/plain;\n\
         client_body_temp_path {folder}/{name}-1; proxy_temp_path {folder}/{name}-2;\n\
         fastcgi_temp_path {folder}/{name}-3; uwsgi_temp_path {folder}/{name}-4; scgi_temp_path {folder}/{name}-5;\n\
         {http}\nserver {{ {server} }} }}\n"
    )
}

/// nginx with a request limit and a connection limit per client, and the same forwarded headers as the gateway.
fn nginx_proxy(folder: &Path, address: SocketAddr, endpoint: SocketAddr) -> String {
    let http = format!(
        "limit_req_zone $binary_remote_addr zone=client:10m rate=1000000r/s;\n\
         limit_req_zone $binary_remote_addr zone=tight:10m rate=1r/s;\n\
         limit_conn_zone $binary_remote_addr zone=conns:10m; limit_req_status 429; limit_conn_status 429;\n\
         upstream api {{ server {endpoint}; keepalive 256; keepalive_requests 1000000000; }}"
    );
    let pass = "limit_conn conns 60000; proxy_pass http://api; proxy_http_version 1.1; proxy_set_header Connection \"\";\n\
                proxy_set_header Host $host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n\
                proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Forwarded-Host $host;";
    let server = format!(
        "listen {address};\nlocation / {{ limit_req zone=client burst=1000000 nodelay; {pass} }}\n\
         location /refused {{ limit_req zone=tight; {pass} }}"
    );
    nginx(folder, "proxy", &http, &server)
}

fn haproxy(address: SocketAddr, endpoint: SocketAddr) -> String {
    format!(
        "global\n  nbthread 1\n  maxconn 9000\n\
         defaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n  http-reuse always\n\
         frontend all\n  bind {address}\n  option forwardfor\n\
         \x20 stick-table type ip size 1m expire 10s store http_req_rate(1s),conn_cur\n  http-request track-sc0 src\n\
         \x20 http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt 1000000000 }}\n\
         \x20 http-request deny deny_status 429 if {{ sc_conn_cur(0) gt 100000 }}\n\
         \x20 http-request deny deny_status 429 if {{ path /refused }} {{ sc_http_req_rate(0) gt 1 }}\n\
         \x20 default_backend api\n\
         backend api\n  server one {endpoint}\n"
    )
}

/// Four request limits, four connection limits, and one route that refuses nearly every request.
fn gateway(address: SocketAddr, endpoint: SocketAddr, limited: bool) -> String {
    let (all, own, tight) = if limited {
        (
            "rateLimit: {maxQps: 900000, maxConnections: 100000, maxQpsPerClient: 900000, maxConnectionsPerClient: 100000}",
            "rateLimit: {maxQps: 900000, maxConnections: 100000}",
            "rateLimit: {maxQps: 1, maxConnections: 100000}",
        )
    } else {
        ("rateLimit: {}", "rateLimit: {}", "rateLimit: {}")
    };
    let (host, port) = (endpoint.ip(), endpoint.port());
    format!(
        "server:\n  listen: {address}\n  {all}\n\
         backends:\n  - name: api\n    endpoints: [{{host: {host}, port: {port}}}]\n    {own}\n\
         routes:\n  - path: /**\n    backend: api\n    {own}\n  - path: /refused\n    backend: api\n    {tight}\n"
    )
}
