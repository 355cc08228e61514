//! `tidegate bench --crash`: a server that is killed again and again under load, and whether it ever sold anything twice.
//!
//! ```text
//!   start ─▶ calm: lost questions again, told ones again ─▶ load ─▶ SIGKILL ─▶ start ─▶ … ─▶ start ─▶ sell out ─▶ count
//! ```
//!
//! Counted from outside, over all lives: an answer that arrived as granted was sold, whatever the server remembers. What was sold
//! may never be above the limit. Once everything else is sold too, what is missing was lost in crashes, and that has a bound: a slice
//! for each kill, and the questions that were under way and have no answer.
//!
//! Decided: every life sells at most its share, so that something is left to be sold twice in the last one. One kill in eight comes
//! before the server is ready, in the middle of its recovery. The tool is generous where it cannot know: a lease whose
//! release was sent is free, a second that may have passed has passed.

mod load;
mod sales_ledger;
mod server_process;
mod sell_out;
pub(crate) mod tested_limit;
mod report;

use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::runtime::Builder;

use super::publish_text;
use super::random::{Sequence, surprise};
use super::stop_signal::Stop;
use crate::args::{BenchArgs, ServerArgs};
use crate::remote::client::Server;
use crate::remote::url::{Url, encoded};
use crate::remote::usage::Usage;
use crate::{Failure, say};
use sales_ledger::Book;
use server_process::{Child, Ready};
use tested_limit::middle_of_the_day;
use report::CrashReport;

/// A life under load is no longer than this, in milliseconds.
const LONGEST_LIFE: u32 = 200;
/// A server that is killed while it starts is killed within this, in milliseconds.
const LONGEST_START_TO_KILL: u32 = 30;
/// One kill of so many comes while the server starts.
const KILLS_PER_KILLED_START: u32 = 8;

/// Kills a server, counts, and says what came of it.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let stop = Stop::listen()?;
    let seed = args.crashing.seed.unwrap_or_else(|| surprise() >> 32);
    let folder = Folder::of(args.crashing.store_dir.as_deref())?;
    let store = args.crashing.store.clone().unwrap_or_else(|| format!("disk:{}", folder.path.display()));
    let mut laws = args.crashing.laws.clone();
    laws.sort();
    laws.dedup();
    let mut crashes = Crashes {
        store,
        kills: args.crashing.kills,
        timeout: args.timeout,
        book: Rc::new(RefCell::new(Book::open(&laws, args.crashing.kills))),
        random: Sequence::from(seed),
        recoveries: Vec::new(),
        stop,
    };
    let done = crashes.all();
    clear();
    if let Err(why) = done {
        if crashes.stop.is_asked() {
            folder.remove()?;
        } else {
            folder.keep();
        }
        return Err(why);
    }
    let report = CrashReport::of(&crashes, seed);
    publish_text(args.json.as_deref(), &report.text(), &report.json())?;
    let judged = report.judged();
    if judged.is_ok() {
        folder.remove()?;
    } else {
        folder.keep();
    }
    judged
}

/// A run, as far as it is.
struct Crashes {
    store: String,
    kills: u32,
    timeout: Duration,
    book: Rc<RefCell<Book>>,
    random: Sequence,
    /// How long each start after a kill took.
    recoveries: Vec<Duration>,
    stop: Stop,
}

impl Crashes {
    fn all(&mut self) -> Result<(), Failure> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| Failure::Failed(format!("cannot wait for sockets: {error}")))?;
        for kill in 0..self.kills {
            if self.stop.is_asked() {
                return Err(Failure::Failed("stopped before the end".to_owned()));
            }
            show(kill + 1, self.kills);
            if kill > 0 && self.random.below(KILLS_PER_KILLED_START) == 0 {
                self.kill_a_start()?;
            } else {
                let (mut child, ready) = self.start(kill > 0)?;
                self.prepare(&ready)?;
                let moment = Duration::from_millis(u64::from(self.random.below(LONGEST_LIFE)));
                runtime.block_on(self.life(&mut child, &ready, moment))?;
            }
        }
        let (child, ready) = self.start(true)?;
        self.prepare(&ready)?;
        runtime.block_on(sell_out::sell_out(&self.book, &ready, self.timeout))?;
        child.end()
    }

    fn start(&mut self, is_recovery: bool) -> Result<(Child, Ready), Failure> {
        let (child, ready, took) = Child::start(&self.store)?;
        if is_recovery {
            self.recoveries.push(took);
        }
        Ok((child, ready))
    }

    /// Starts a server and does not let it finish that.
    fn kill_a_start(&mut self) -> Result<(), Failure> {
        let within = Duration::from_millis(u64::from(self.random.below(LONGEST_START_TO_KILL)));
        Child::start_and_kill(&self.store, within)
    }

    /// The limits are there, as they were; questions that were told before are answered again and charged once.
    fn prepare(&self, ready: &Ready) -> Result<(), Failure> {
        let url = Url::parse(&format!("http://{}", ready.http)).map_err(Failure::Failed)?;
        let server = Server::new(&ServerArgs { server: Some(url), token_file: None, timeout: self.timeout })?;
        self.make_limits(&server)?;
        let told = std::mem::take(&mut self.book.borrow_mut().told);
        let before = self.counted(&server)?;
        let mut refused = 0;
        for again in &told {
            let question = serde_json::json!({"limit_id": again.law.id(), "limit_key": again.key, "request_id": again.id});
            let answered: Allowed = server.post("/v1/acquire", &question.to_string())?.read()?;
            refused += u64::from(!answered.allowed);
        }
        let charged = self.counted(&server)?.saturating_sub(before);
        let mut book = self.book.borrow_mut();
        book.replayed += told.len() as u64;
        book.charged_twice += charged.max(refused);
        Ok(())
    }

    /// Makes the limits, once: one that is missing later was forgotten.
    fn make_limits(&self, server: &Server) -> Result<(), Failure> {
        let mut book = self.book.borrow_mut();
        let zone = middle_of_the_day();
        for law in book.laws() {
            let is_missing = server.get(&format!("/v1/limits/{}", encoded(law.id()))).is_err();
            if is_missing {
                server.post("/v1/limits", &law.limit(&zone).to_string())?;
                book.account(law).made += 1;
            }
        }
        Ok(())
    }

    /// What the server has counted of those limits whose counts say how often they were charged.
    fn counted(&self, server: &Server) -> Result<u64, Failure> {
        let mut sum = 0;
        for law in self.book.borrow().laws().into_iter().filter(|law| law.is_counted()) {
            let usage: Usage = server.get(&format!("/v1/limits/{}/usage", encoded(law.id())))?.read()?;
            sum += usage.policy_status.iter().map(|status| status.current_count).sum::<u64>();
        }
        Ok(sum)
    }

    /// A life under load, and its end.
    async fn life(&self, child: &mut Child, ready: &Ready, moment: Duration) -> Result<(), Failure> {
        load::under_load(&self.book, ready, self.timeout, async {
            tokio::time::sleep(moment).await;
            self.book.borrow_mut().is_killed = true;
            child.kill()
        })
        .await
    }
}

#[derive(Debug, serde::Deserialize)]
struct Allowed {
    allowed: bool,
}

/// Where the server keeps its counts.
struct Folder {
    path: PathBuf,
    is_ours: bool,
}

impl Folder {
    fn of(said: Option<&Path>) -> Result<Folder, Failure> {
        let (path, is_ours) = match said {
            Some(path) => (path.to_owned(), false),
            None => (std::env::temp_dir().join(format!("tidegate-crash-{:016x}", surprise())), true),
        };
        let what = path.display();
        std::fs::create_dir_all(&path)
            .map_err(|error| Failure::BadInput(format!("cannot make the directory {what}: {error}")))?;
        let mut found = std::fs::read_dir(&path)
            .map_err(|error| Failure::BadInput(format!("cannot read the directory {what}: {error}")))?;
        if found.next().is_some() {
            let why = format!(
                "{what} is not empty, and somebody's counts would be spent; give another --store-dir"
            );
            return Err(Failure::BadInput(why));
        }
        Ok(Folder { path, is_ours })
    }

    /// It may show what went wrong, unless there is nothing in it.
    fn keep(&self) {
        if self.is_ours && std::fs::remove_dir(&self.path).is_err() {
            say(&format!("what the server has written is kept in {}", self.path.display()));
        }
    }

    fn remove(&self) -> Result<(), Failure> {
        if !self.is_ours {
            return Ok(());
        }
        std::fs::remove_dir_all(&self.path)
            .map_err(|error| Failure::Failed(format!("cannot remove {}: {error}", self.path.display())))
    }
}

/// For somebody who looks.
fn show(kill: u32, kills: u32) {
    if io::stderr().is_terminal() {
        let _unseen = write!(io::stderr().lock(), "\r\u{1b}[Kkill {kill} of {kills}");
    }
}

fn clear() {
    if io::stderr().is_terminal() {
        let _unseen = write!(io::stderr().lock(), "\r\u{1b}[K");
    }
}
