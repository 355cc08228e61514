//! The benchmarked servers. Each runs on core 0 and listens on ports that are free.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use crate::TaskResult;

/// CPU core of the benchmarked server.
pub(super) const SERVERS_CORE: &str = "0";
pub(super) const READY_WITHIN: Duration = Duration::from_secs(10);

/// Paths of programs and generated files.
pub(super) struct BenchPaths {
    pub(super) tidegate: PathBuf,
    pub(super) throttlecrab: PathBuf,
    pub(super) folder: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// Tidegate with the memory store.
    Tidegate,
    /// Tidegate with the disk store in a new directory.
    OnDisk,
    Redis,
    Nginx,
    Throttlecrab,
}

/// A server that stops when it is dropped.
pub(super) struct RunningServer {
    pub(super) peer: Peer,
    child: Child,
    /// The process that serves requests.
    worker: u32,
    http: SocketAddr,
    resp: SocketAddr,
    /// Kept open: a closed pipe would end the server at its next log line.
    _log: Option<BufReader<ChildStderr>>,
}

/// Waits for the readiness line.
fn wait_until_ready(mut log: BufReader<ChildStderr>, peer: Peer) -> TaskResult<BufReader<ChildStderr>> {
    let mut output = String::new();
    while !output.contains("tidegate ready") {
        if log.read_line(&mut output)? == 0 {
            return Err(format!("{} did not start: {output}", peer.name()).into());
        }
    }
    Ok(log)
}

impl Peer {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Peer::Tidegate => "Tidegate",
            Peer::OnDisk => "Tidegate on disk",
            Peer::Redis => "Redis",
            Peer::Nginx => "nginx `return 200`",
            Peer::Throttlecrab => "throttlecrab-server",
        }
    }

    /// Whether it is a Tidegate server, which prints a readiness line.
    const fn is_tidegate(self) -> bool {
        matches!(self, Peer::Tidegate | Peer::OnDisk)
    }

    /// The store URL.
    fn store_url(self, paths: &BenchPaths) -> TaskResult<String> {
        if self != Peer::OnDisk {
            return Ok("memory:".to_owned());
        }
        let folder = paths.folder.join("store");
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        Ok(format!("disk:{}", folder.display()))
    }

    pub(super) fn start(self, paths: &BenchPaths) -> TaskResult<RunningServer> {
        let (http, resp) = (unused_address()?, unused_address()?);
        let words = self.command(paths, http, resp)?;
        let mut command = Command::new("taskset");
        command.args(["-c", SERVERS_CORE]).args(&words).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(if self.is_tidegate() { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn().map_err(|error| format!("cannot run taskset: {error}"))?;
        let log = child.stderr.take().map(BufReader::new);
        let log = log.map(|log| wait_until_ready(log, self)).transpose()?;
        let here = if matches!(self, Peer::Redis) { resp } else { http };
        let start = Instant::now();
        while TcpStream::connect(here).is_err() {
            if start.elapsed() > READY_WITHIN || child.try_wait()?.is_some() {
                return Err(format!("{} does not answer at {here}", self.name()).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let worker = if self == Peer::Nginx { only_child(child.id())? } else { child.id() };
        Ok(RunningServer { peer: self, child, worker, http, resp, _log: log })
    }

    fn command(self, paths: &BenchPaths, http: SocketAddr, resp: SocketAddr) -> TaskResult<Vec<String>> {
        let text = |path: &PathBuf| path.display().to_string();
        let settings = text(&paths.folder.join("serve.yaml"));
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let (http_text, resp_port, http_port) =
            (http.to_string(), resp.port().to_string(), http.port().to_string());
        Ok(match self {
            Peer::Tidegate | Peer::OnDisk => words(&[
                &text(&paths.tidegate),
                "serve",
                "--workers",
                "1",
                // The peers do not persist anything.
                "--store",
                &self.store_url(paths)?,
                "--config",
                &settings,
                "--http",
                &http_text,
                "--resp",
                &resp.to_string(),
            ]),
            Peer::Redis => words(&["redis-server", "--port", &resp_port, "--save", "", "--appendonly", "no"]),
            Peer::Nginx => {
                let file = paths.folder.join("nginx.conf");
                let folder = text(&paths.folder);
                std::fs::write(&file, nginx(http, &folder))?;
                words(&["nginx", "-p", &folder, "-c", &text(&file), "-e", "/dev/null"])
            }
            Peer::Throttlecrab => words(&[
                &text(&paths.throttlecrab),
                "--http",
                "--http-host",
                "127.0.0.1",
                "--http-port",
                &http_port,
            ]),
        })
    }
}

fn nginx(http: SocketAddr, folder: &str) -> String {
    format!(
        "daemon off; worker_processes 1; pid {folder}/nginx.pid;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; default_type text/plain;\n\
         client_body_temp_path {folder}/nginx-body; proxy_temp_path {folder}/nginx-proxy;\n\
         fastcgi_temp_path {folder}/nginx-fastcgi; uwsgi_temp_path {folder}/nginx-uwsgi; scgi_temp_path {folder}/nginx-scgi;\n\
         server {{ listen {http}; location / {{ return 200; }} }} }}\n"
    )
}

/// An unused loopback port.
pub(super) fn unused_address() -> TaskResult<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// The worker process of nginx.
pub(super) fn only_child(parent: u32) -> TaskResult<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(path)?;
    let first = children.split_whitespace().next().ok_or("nginx has no worker")?;
    Ok(first.parse()?)
}

impl RunningServer {
    pub(super) fn http(&self) -> SocketAddr {
        self.http
    }

    pub(super) fn resp(&self) -> SocketAddr {
        self.resp
    }

    /// CPU time used so far, in microseconds.
    pub(super) fn processor_time(&self) -> TaskResult<f64> {
        processor_time(self.worker)
    }

    /// Resident memory in bytes.
    pub(super) fn resident(&self) -> TaskResult<u64> {
        resident(self.worker)
    }
}

/// CPU time of a process, in microseconds.
pub(super) fn processor_time(pid: u32) -> TaskResult<f64> {
    const TICKS_A_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The program name is in parentheses and may contain blanks.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let [user, system] = [11, 12].map(|at| fields.get(at).and_then(|ticks| ticks.parse::<f64>().ok()));
    let ticks = user.zip(system).ok_or("/proc/PID/stat has no CPU times")?;
    Ok((ticks.0 + ticks.1) * 1e6 / TICKS_A_SECOND)
}

/// Resident memory of a process in bytes.
pub(super) fn resident(pid: u32) -> TaskResult<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        // SIGTERM, because nginx stops its worker only then.
        let _signaled = Command::new("kill").arg(self.child.id().to_string()).status();
        let _exited = self.child.wait();
    }
}
