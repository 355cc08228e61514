//! The worker pool: a few threads, each with its share of the connections, all in a closed loop.
//!
//! ```text
//!   main ──task──▶ thread ──▶ connection: send, receive, count; send, receive, count; …
//!        ◀─tally──        ──▶ connection: …
//! ```
//!
//! Connections stay open from the warm-up to the measured run. When a connection breaks, each of its pending requests
//! is a failure and the connection is reopened. Every failed attempt to reconnect is a failure too, with a pause
//! between attempts and a maximum total time. So a run against a dead server ends within seconds.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{JoinHandle, available_parallelism};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, LocalSet};

use super::connection::{BenchConnection, BenchEndpoint};
use super::load_plan::LoadPlan;
use super::nanoseconds;
use super::random::SplitMix64;
use super::stop_signal::BenchStopSignal;
use super::stopwatch::now;
use super::tally::LoadTally;
use super::wire::WireAsk;
use crate::Failure;

/// Pause between two attempts to connect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// A connection that cannot be reopened for this long gives up until the next run.
const MAX_RECONNECT_TIME: Duration = Duration::from_secs(5);
/// Interval of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// One run: a limit and a duration.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadRun<'a> {
    pub(super) limit: &'a str,
    pub(super) lasts: Duration,
}

/// Progress of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunProgress {
    pub(super) passed: Duration,
    pub(super) answered: u64,
}

/// Threads with open connections that execute load runs.
#[derive(Debug)]
pub(super) struct WorkerPool {
    connections: usize,
    keys: usize,
    tasks: Vec<Sender<WorkerTask>>,
    done: Receiver<Result<LoadTally, String>>,
    threads: Vec<JoinHandle<()>>,
    answered: Arc<AtomicU64>,
}

/// A run as sent to a thread.
#[derive(Debug, Clone)]
struct WorkerTask {
    limit: String,
    lasts: Duration,
}

impl WorkerPool {
    /// Starts the threads and opens the connections.
    pub(super) fn start(
        endpoint: &BenchEndpoint,
        connections: usize,
        plan: &LoadPlan,
        stop: &BenchStopSignal,
    ) -> Result<WorkerPool, Failure> {
        let answered = Arc::new(AtomicU64::new(0));
        let (results, done) = mpsc::channel();
        let mut pool = WorkerPool {
            connections,
            keys: plan.keys as usize,
            tasks: Vec::new(),
            done,
            threads: Vec::new(),
            answered: Arc::clone(&answered),
        };
        let threads = threads(endpoint).min(connections);
        for thread in 0..threads {
            // The first threads take the remainder.
            let share = connections / threads + usize::from(thread < connections % threads);
            let (task, tasks) = mpsc::channel();
            let worker = LoadWorker {
                endpoint: endpoint.clone(),
                pipeline: plan.pipeline,
                keys: plan.keys,
                stop: stop.clone(),
                answered: Arc::clone(&answered),
                seed: thread as u64,
            };
            let results = results.clone();
            let spawned = std::thread::Builder::new()
                .name(format!("bench-{thread}"))
                .spawn(move || worker.serve(share, &tasks, &results));
            pool.threads
                .push(spawned.map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?);
            pool.tasks.push(task);
        }
        drop(results);
        for _ in 0..threads {
            pool.receive(&mut |_| {}).map_err(|why| {
                Failure::Unreachable(format!(
                    "cannot reach {}: {why}\nis 'tidegate serve' running there? else give --server URL",
                    endpoint.name()
                ))
            })?;
        }
        Ok(pool)
    }

    /// The number of connections.
    pub(super) const fn connections(&self) -> usize {
        self.connections
    }

    /// Executes one run and reports progress at intervals.
    pub(super) fn work(&self, run: &LoadRun<'_>, mut on_progress: impl FnMut(RunProgress)) -> LoadTally {
        let mut whole = LoadTally::new(self.keys, run.lasts);
        let started_at = now();
        self.answered.store(0, Ordering::Relaxed);
        for task in &self.tasks {
            // A missing thread is detected below.
            let _told = task.send(WorkerTask { limit: run.limit.to_owned(), lasts: run.lasts });
        }
        for _ in &self.tasks {
            let mut look =
                |answered| on_progress(RunProgress { passed: now().duration_since(started_at), answered });
            match self.receive(&mut look) {
                Ok(tally) => whole.merge(&tally),
                Err(why) => whole.fail(&why, 1),
            }
        }
        whole
    }

    fn receive(&self, look: &mut dyn FnMut(u64)) -> Result<LoadTally, String> {
        loop {
            match self.done.recv_timeout(PROGRESS_INTERVAL) {
                Ok(done) => return done,
                Err(RecvTimeoutError::Timeout) => look(self.answered.load(Ordering::Relaxed)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err("a worker thread has ended".to_owned());
                }
            }
        }
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.tasks.clear();
        for thread in self.threads.drain(..) {
            // A panic was already printed.
            let _ended = thread.join();
        }
    }
}

/// On the server's machine half of the cores are left to the server.
fn threads(endpoint: &BenchEndpoint) -> usize {
    let cores = available_parallelism().map_or(1, NonZeroUsize::get);
    if endpoint.is_loopback() { (cores / 2).max(1) } else { cores }
}

/// The state of one worker thread.
#[derive(Debug)]
struct LoadWorker {
    endpoint: BenchEndpoint,
    pipeline: usize,
    keys: u32,
    stop: BenchStopSignal,
    answered: Arc<AtomicU64>,
    seed: u64,
}

impl LoadWorker {
    /// Opens the connections, reports the outcome, and executes tasks until the channel closes.
    fn serve(self, share: usize, tasks: &Receiver<WorkerTask>, results: &Sender<Result<LoadTally, String>>) {
        let opened = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string());
        let opened = opened.and_then(|runtime| {
            let connections = runtime.block_on(self.open(share))?;
            Ok((runtime, connections))
        });
        let (runtime, mut connections) = match opened {
            Ok(opened) => opened,
            Err(why) => return drop(results.send(Err(why))),
        };
        let worker = Rc::new(self);
        let ready = LoadTally::new(0, Duration::ZERO);
        if results.send(Ok(ready)).is_err() {
            return;
        }
        for task in tasks {
            let tally = worker.work(&runtime, &mut connections, task);
            if results.send(Ok(tally)).is_err() {
                return;
            }
        }
    }

    async fn open(&self, share: usize) -> Result<Vec<Option<BenchConnection>>, String> {
        let mut connections = Vec::with_capacity(share);
        for _ in 0..share {
            connections.push(Some(BenchConnection::open(&self.endpoint).await?));
        }
        Ok(connections)
    }

    /// Executes one run on all connections.
    fn work(
        self: &Rc<LoadWorker>,
        runtime: &Runtime,
        connections: &mut Vec<Option<BenchConnection>>,
        task: WorkerTask,
    ) -> LoadTally {
        let tally = Rc::new(RefCell::new(LoadTally::new(self.keys as usize, task.lasts)));
        let until = now() + task.lasts;
        let task = Rc::new(task);
        let all = LocalSet::new();
        let worked = all.run_until(async {
            let mut loops = JoinSet::new();
            for (number, connection) in connections.drain(..).enumerate() {
                let seed = SplitMix64::from(((number as u64) << 32) | self.seed);
                let closed = ClosedLoop {
                    worker: Rc::clone(self),
                    task: Rc::clone(&task),
                    tally: Rc::clone(&tally),
                    until,
                };
                loops.spawn_local(closed.run(connection, seed));
            }
            let mut kept = Vec::new();
            while let Some(connection) = loops.join_next().await {
                kept.push(connection.unwrap_or_default());
            }
            kept
        });
        *connections = runtime.block_on(worked);
        drop(all);
        tally.borrow().clone()
    }
}

/// The closed loop of one connection.
struct ClosedLoop {
    worker: Rc<LoadWorker>,
    task: Rc<WorkerTask>,
    tally: Rc<RefCell<LoadTally>>,
    until: Instant,
}

impl ClosedLoop {
    async fn run(
        self,
        mut connection: Option<BenchConnection>,
        mut sequence: SplitMix64,
    ) -> Option<BenchConnection> {
        let mut keys = Vec::with_capacity(self.worker.pipeline);
        let (mut is_first, mut disconnected_since) = (true, None);
        // At least one batch, so that a run has a result on the slowest machine.
        while is_first || now() < self.until && !self.worker.stop.is_requested() {
            is_first = false;
            let Some(open) = &mut connection else {
                let since = *disconnected_since.get_or_insert_with(now);
                connection = self.reopen().await;
                if connection.is_none() && now().duration_since(since) > MAX_RECONNECT_TIME {
                    break;
                }
                continue;
            };
            disconnected_since = None;
            keys.clear();
            keys.extend((0..self.worker.pipeline).map(|_| sequence.below(self.worker.keys)));
            if let Err(lost) = self.batch(open, &keys).await {
                let mut tally = self.tally.borrow_mut();
                tally.unanswered += lost.requests;
                tally.fail(&lost.why, lost.requests);
                connection = None;
            }
        }
        connection
    }

    /// Sends a batch and receives its replies.
    async fn batch(&self, connection: &mut BenchConnection, keys: &[u32]) -> Result<(), LostRequests> {
        for key in keys {
            connection.queue(WireAsk { limit: &self.task.limit, key: &name(*key), request_id: None });
        }
        let sent = now();
        connection.send().await.map_err(|why| LostRequests { why, requests: keys.len() as u64 })?;
        for (index, key) in keys.iter().enumerate() {
            let reply = connection.receive().await;
            let reply = reply.map_err(|why| LostRequests { why, requests: (keys.len() - index) as u64 })?;
            let received_at = now();
            let mut tally = self.tally.borrow_mut();
            match reply {
                Ok(answer) if answer.allowed => tally.grant(*key as usize),
                Ok(_) => tally.refused += 1,
                Err(why) => {
                    tally.fail(&why, 1);
                    continue;
                }
            }
            tally.in_time += u64::from(received_at <= self.until);
            tally.latencies.record(nanoseconds(received_at.duration_since(sent)));
        }
        self.worker.answered.fetch_add(keys.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    async fn reopen(&self) -> Option<BenchConnection> {
        match BenchConnection::open(&self.worker.endpoint).await {
            Ok(connection) => Some(connection),
            Err(why) => {
                self.tally.borrow_mut().fail(&why, 1);
                tokio::time::sleep(RECONNECT_PAUSE).await;
                None
            }
        }
    }
}

/// Why a connection broke, and how many of its requests have no reply.
struct LostRequests {
    why: String,
    requests: u64,
}

/// The name of a key.
fn name(key: u32) -> String {
    format!("key-{key}")
}
