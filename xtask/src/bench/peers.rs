//! Those who are measured: each started on the first core, at ports that the kernel chose or that nobody else uses.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;

/// Where servers run; whoever asks runs on another.
pub(super) const SERVERS_CORE: &str = "0";
pub(super) const READY_WITHIN: Duration = Duration::from_secs(10);

/// Where programs and files are.
pub(super) struct Places {
    pub(super) tidegate: PathBuf,
    pub(super) throttlecrab: PathBuf,
    pub(super) folder: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// With its rows in memory.
    Tidegate,
    /// With a store in a directory that is new each time.
    OnDisk,
    Redis,
    Nginx,
    Throttlecrab,
}

/// A server that runs until it is dropped.
pub(super) struct Running {
    pub(super) peer: Peer,
    child: Child,
    /// The process that does the work.
    worker: u32,
    http: SocketAddr,
    resp: SocketAddr,
    /// Kept open, so that the server has somebody to talk to.
    _log: Option<BufReader<ChildStderr>>,
}

/// Waits for the line that says that a server is ready.
fn ready(mut log: BufReader<ChildStderr>, peer: Peer) -> Outcome<BufReader<ChildStderr>> {
    let mut said = String::new();
    while !said.contains("tidegate ready") {
        if log.read_line(&mut said)? == 0 {
            return Err(format!("{} did not start: {said}", peer.name()).into());
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

    /// Whether it says when it is ready.
    const fn is_ours(self) -> bool {
        matches!(self, Peer::Tidegate | Peer::OnDisk)
    }

    /// Where it keeps its rows.
    fn store(self, places: &Places) -> Outcome<String> {
        if self != Peer::OnDisk {
            return Ok("memory:".to_owned());
        }
        let folder = places.folder.join("store");
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        Ok(format!("disk:{}", folder.display()))
    }

    pub(super) fn start(self, places: &Places) -> Outcome<Running> {
        let (http, resp) = (free()?, free()?);
        let words = self.command(places, http, resp)?;
        let mut command = Command::new("taskset");
        command.args(["-c", SERVERS_CORE]).args(&words).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(if self.is_ours() { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn().map_err(|error| format!("cannot run taskset: {error}"))?;
        let log = child.stderr.take().map(BufReader::new);
        let log = log.map(|log| ready(log, self)).transpose()?;
        let here = if matches!(self, Peer::Redis) { resp } else { http };
        let start = Instant::now();
        while TcpStream::connect(here).is_err() {
            if start.elapsed() > READY_WITHIN || child.try_wait()?.is_some() {
                return Err(format!("{} does not answer at {here}", self.name()).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let worker = if self == Peer::Nginx { only_child(child.id())? } else { child.id() };
        Ok(Running { peer: self, child, worker, http, resp, _log: log })
    }

    fn command(self, places: &Places, http: SocketAddr, resp: SocketAddr) -> Outcome<Vec<String>> {
        let text = |path: &PathBuf| path.display().to_string();
        let settings = text(&places.folder.join("serve.yaml"));
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let (http_text, resp_port, http_port) =
            (http.to_string(), resp.port().to_string(), http.port().to_string());
        Ok(match self {
            Peer::Tidegate | Peer::OnDisk => words(&[
                &text(&places.tidegate),
                "serve",
                "--workers",
                "1",
                // The others keep nothing, so neither does it where it is beside them.
                "--store",
                &self.store(places)?,
                "--config",
                &settings,
                "--http",
                &http_text,
                "--resp",
                &resp.to_string(),
            ]),
            Peer::Redis => words(&["redis-server", "--port", &resp_port, "--save", "", "--appendonly", "no"]),
            Peer::Nginx => {
                let file = places.folder.join("nginx.conf");
                let folder = text(&places.folder);
                std::fs::write(&file, nginx(http, &folder))?;
                words(&["nginx", "-p", &folder, "-c", &text(&file), "-e", "/dev/null"])
            }
            Peer::Throttlecrab => words(&[
                &text(&places.throttlecrab),
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

/// A port that is free now.
pub(super) fn free() -> Outcome<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// nginx works in a child of its first process.
pub(super) fn only_child(parent: u32) -> Outcome<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(path)?;
    let first = children.split_whitespace().next().ok_or("nginx has no worker")?;
    Ok(first.parse()?)
}

impl Running {
    pub(super) fn http(&self) -> SocketAddr {
        self.http
    }

    pub(super) fn resp(&self) -> SocketAddr {
        self.resp
    }

    /// The processor time it has used, in microseconds.
    pub(super) fn processor_time(&self) -> Outcome<f64> {
        processor_time(self.worker)
    }

    /// The memory that is really there, in bytes.
    pub(super) fn resident(&self) -> Outcome<u64> {
        resident(self.worker)
    }
}

/// The processor time that a process has used, in microseconds.
pub(super) fn processor_time(pid: u32) -> Outcome<f64> {
    const TICKS_A_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program is in parentheses and may have blanks in it.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let [user, system] = [11, 12].map(|at| fields.get(at).and_then(|ticks| ticks.parse::<f64>().ok()));
    let ticks = user.zip(system).ok_or("the kernel does not say how long it ran")?;
    Ok((ticks.0 + ticks.1) * 1e6 / TICKS_A_SECOND)
}

/// The memory of a process that is really there, in bytes.
pub(super) fn resident(pid: u32) -> Outcome<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

impl Drop for Running {
    fn drop(&mut self) {
        // nginx ends its worker only if it is asked kindly.
        let _asked = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ended = self.child.wait();
    }
}
