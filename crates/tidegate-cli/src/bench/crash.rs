//! `tidegate bench --crash`: kill a server repeatedly under load and check that no limit is exceeded.
//!
//! ```text
//!   start ─▶ replay: lost and granted requests again ─▶ load ─▶ SIGKILL ─▶ start ─▶ … ─▶ start ─▶ sell out ─▶ count
//! ```
//!
//! The client counts grants over all runs of the server. A grant that arrived is sold, whatever the server remembers.
//! Sales must never exceed the limit. After everything is sold, the missing units were lost in crashes. Their number
//! is bounded: one slice per kill, plus the requests that had no reply.
//!
//! Every run sells at most its share, so that capacity is left for the last run. One kill in eight hits the server
//! during its recovery. Where the client cannot know, it assumes the best: a lease is free once its release was sent,
//! and a second has passed if it may have passed.

mod load;
mod report;
mod sales_ledger;
mod sell_out;
mod server_process;
pub(crate) mod tested_limit;

use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::runtime::Builder;

use super::publish_text;
use super::random::{SplitMix64, random_u64};
use super::stop_signal::BenchStopSignal;
use crate::args::{BenchArgs, ServerArgs};
use crate::remote::client::ServerClient;
use crate::remote::url::{ServerUrl, encoded};
use crate::remote::usage::UsageReply;
use crate::{Failure, print_message};
use report::CrashReport;
use sales_ledger::SalesLedger;
use server_process::{ServerAddresses, ServerProcess};
use tested_limit::zone_at_noon_now;

/// Longest load phase, in milliseconds.
const MAX_LOAD_MS: u32 = 200;
/// Longest time from start to kill during a start, in milliseconds.
const MAX_START_MS: u32 = 30;
/// One kill of this many hits a starting server.
const KILLS_PER_KILLED_START: u32 = 8;

/// Runs the crash test and reports the result.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let stop = BenchStopSignal::listen()?;
    let seed = args.crashing.seed.unwrap_or_else(|| random_u64() >> 32);
    let folder = StoreDirectory::of(args.crashing.store_dir.as_deref())?;
    let store = args.crashing.store.clone().unwrap_or_else(|| format!("disk:{}", folder.path.display()));
    let mut limits = args.crashing.limits.clone();
    limits.sort();
    limits.dedup();
    let mut crash_run = CrashRun {
        store,
        kills: args.crashing.kills,
        timeout: args.timeout,
        ledger: Rc::new(RefCell::new(SalesLedger::open(&limits, args.crashing.kills))),
        random: SplitMix64::from(seed),
        recoveries: Vec::new(),
        stop,
    };
    let done = crash_run.all();
    clear_progress();
    if let Err(why) = done {
        if crash_run.stop.is_requested() {
            folder.remove()?;
        } else {
            folder.keep();
        }
        return Err(why);
    }
    let report = CrashReport::of(&crash_run, seed);
    publish_text(args.json.as_deref(), &report.text(), &report.json())?;
    let result = report.result();
    if result.is_ok() {
        folder.remove()?;
    } else {
        folder.keep();
    }
    result
}

/// The state of a crash test.
struct CrashRun {
    store: String,
    kills: u32,
    timeout: Duration,
    ledger: Rc<RefCell<SalesLedger>>,
    random: SplitMix64,
    /// Recovery time of each start after a kill.
    recoveries: Vec<Duration>,
    stop: BenchStopSignal,
}

impl CrashRun {
    fn all(&mut self) -> Result<(), Failure> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| Failure::Failed(format!("cannot wait for sockets: {error}")))?;
        for kill in 0..self.kills {
            if self.stop.is_requested() {
                return Err(Failure::Failed("stopped before the end".to_owned()));
            }
            show_progress(kill + 1, self.kills);
            if kill > 0 && self.random.below(KILLS_PER_KILLED_START) == 0 {
                self.kill_during_start()?;
            } else {
                let (mut server, addresses) = self.start(kill > 0)?;
                self.prepare(&addresses)?;
                let moment = Duration::from_millis(u64::from(self.random.below(MAX_LOAD_MS)));
                runtime.block_on(self.run_until_killed(&mut server, &addresses, moment))?;
            }
        }
        let (server, addresses) = self.start(true)?;
        self.prepare(&addresses)?;
        runtime.block_on(sell_out::sell_out(&self.ledger, &addresses, self.timeout))?;
        server.end()
    }

    fn start(&mut self, is_recovery: bool) -> Result<(ServerProcess, ServerAddresses), Failure> {
        let (server, addresses, took) = ServerProcess::start(&self.store)?;
        if is_recovery {
            self.recoveries.push(took);
        }
        Ok((server, addresses))
    }

    /// Kills a server while it starts.
    fn kill_during_start(&mut self) -> Result<(), Failure> {
        let within = Duration::from_millis(u64::from(self.random.below(MAX_START_MS)));
        ServerProcess::start_and_kill(&self.store, within)
    }

    /// Creates missing limits and repeats granted requests, which must not be charged again.
    fn prepare(&self, addresses: &ServerAddresses) -> Result<(), Failure> {
        let url = ServerUrl::parse(&format!("http://{}", addresses.http)).map_err(Failure::Failed)?;
        let server =
            ServerClient::new(&ServerArgs { server: Some(url), token_file: None, timeout: self.timeout })?;
        self.make_limits(&server)?;
        let granted = std::mem::take(&mut self.ledger.borrow_mut().granted);
        let before = self.counted(&server)?;
        let mut refused = 0;
        for request in &granted {
            let body = serde_json::json!({"limit_id": request.limit.id(), "limit_key": request.key, "request_id": request.id});
            let reply: AllowedReply = server.post("/v1/acquire", &body.to_string())?.read()?;
            refused += u64::from(!reply.allowed);
        }
        let charged = self.counted(&server)?.saturating_sub(before);
        let mut ledger = self.ledger.borrow_mut();
        ledger.replayed += granted.len() as u64;
        ledger.charged_twice += charged.max(refused);
        Ok(())
    }

    /// Creates missing limits. A second creation means that the server lost the limit.
    fn make_limits(&self, server: &ServerClient) -> Result<(), Failure> {
        let mut ledger = self.ledger.borrow_mut();
        let zone = zone_at_noon_now();
        for limit in ledger.limits() {
            let is_missing = server.get(&format!("/v1/limits/{}", encoded(limit.id()))).is_err();
            if is_missing {
                server.post("/v1/limits", &limit.definition(&zone).to_string())?;
                ledger.account(limit).made += 1;
            }
        }
        Ok(())
    }

    /// Sums the server's counts of the limits whose count equals the number of charges.
    fn counted(&self, server: &ServerClient) -> Result<u64, Failure> {
        let mut sum = 0;
        for limit in self.ledger.borrow().limits().into_iter().filter(|limit| limit.is_counted()) {
            let usage: UsageReply =
                server.get(&format!("/v1/limits/{}/usage", encoded(limit.id())))?.read()?;
            sum += usage.policy_status.iter().map(|status| status.current_count).sum::<u64>();
        }
        Ok(sum)
    }

    /// Runs load against the server and kills it.
    async fn run_until_killed(
        &self,
        server: &mut ServerProcess,
        addresses: &ServerAddresses,
        moment: Duration,
    ) -> Result<(), Failure> {
        load::run_load(&self.ledger, addresses, self.timeout, async {
            tokio::time::sleep(moment).await;
            self.ledger.borrow_mut().is_killed = true;
            server.kill()
        })
        .await
    }
}

#[derive(Debug, serde::Deserialize)]
struct AllowedReply {
    allowed: bool,
}

/// The data directory of the server.
struct StoreDirectory {
    path: PathBuf,
    is_temporary: bool,
}

impl StoreDirectory {
    fn of(given: Option<&Path>) -> Result<StoreDirectory, Failure> {
        let (path, is_temporary) = match given {
            Some(path) => (path.to_owned(), false),
            None => (std::env::temp_dir().join(format!("tidegate-crash-{:016x}", random_u64())), true),
        };
        let what = path.display();
        std::fs::create_dir_all(&path)
            .map_err(|error| Failure::BadInput(format!("cannot make the directory {what}: {error}")))?;
        let mut found = std::fs::read_dir(&path)
            .map_err(|error| Failure::BadInput(format!("cannot read the directory {what}: {error}")))?;
        if found.next().is_some() {
            let why =
                format!("{what} is not empty; the test would change its counts; give another --store-dir");
            return Err(Failure::BadInput(why));
        }
        Ok(StoreDirectory { path, is_temporary })
    }

    /// Keeps a temporary directory for analysis, unless it is empty.
    fn keep(&self) {
        if self.is_temporary && std::fs::remove_dir(&self.path).is_err() {
            print_message(&format!("the server's data is kept in {}", self.path.display()));
        }
    }

    fn remove(&self) -> Result<(), Failure> {
        if !self.is_temporary {
            return Ok(());
        }
        std::fs::remove_dir_all(&self.path)
            .map_err(|error| Failure::Failed(format!("cannot remove {}: {error}", self.path.display())))
    }
}

/// Shows progress on a terminal.
fn show_progress(kill: u32, kills: u32) {
    if io::stderr().is_terminal() {
        let _unseen = write!(io::stderr().lock(), "\r\u{1b}[Kkill {kill} of {kills}");
    }
}

fn clear_progress() {
    if io::stderr().is_terminal() {
        let _unseen = write!(io::stderr().lock(), "\r\u{1b}[K");
    }
}
