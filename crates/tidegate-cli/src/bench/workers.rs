//! Those who ask: a few threads, each with its share of the connections, all of them in a closed loop.
//!
//! ```text
//!   main ──shift──▶ thread ──▶ connection: ask, hear, count; ask, hear, count; …
//!        ◀─tally───        ──▶ connection: …
//! ```
//!
//! Connections stay open from the warm-up to what is measured. One that breaks is a failure for every question on it, and is
//! opened anew; while that does not succeed, every attempt is a failure, and there is a pause between attempts. So a server
//! that is gone costs some seconds and no more.

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

use super::connection::{Line, Place};
use super::nanoseconds;
use super::load_plan::Plan;
use super::random::Sequence;
use super::stop_signal::Stop;
use super::tally::Tally;
use super::stopwatch::now;
use super::wire::Ask;
use crate::Failure;

/// How long somebody waits who could not be connected.
const PAUSE: Duration = Duration::from_millis(50);
/// Somebody who could not be connected for so long gives up until the next shift.
const LONGEST_ABSENCE: Duration = Duration::from_secs(5);
/// How often whoever looks is told how far it is.
const GLANCE: Duration = Duration::from_millis(100);

/// What is asked about, and for how long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shift<'a> {
    pub(super) limit: &'a str,
    pub(super) lasts: Duration,
}

/// How far a shift is.
#[derive(Debug, Clone, Copy)]
pub(super) struct SoFar {
    pub(super) passed: Duration,
    pub(super) answered: u64,
}

/// Threads that ask when they are told to.
#[derive(Debug)]
pub(super) struct Crew {
    connections: usize,
    keys: usize,
    orders: Vec<Sender<Order>>,
    done: Receiver<Result<Tally, String>>,
    threads: Vec<JoinHandle<()>>,
    answered: Arc<AtomicU64>,
}

/// A shift, as a thread is told of it.
#[derive(Debug, Clone)]
struct Order {
    limit: String,
    lasts: Duration,
}

impl Crew {
    /// Opens so many connections.
    pub(super) fn hire(place: &Place, connections: usize, plan: &Plan, stop: &Stop) -> Result<Crew, Failure> {
        let answered = Arc::new(AtomicU64::new(0));
        let (tell, done) = mpsc::channel();
        let mut crew = Crew {
            connections,
            keys: plan.keys as usize,
            orders: Vec::new(),
            done,
            threads: Vec::new(),
            answered: Arc::clone(&answered),
        };
        let threads = threads(place).min(connections);
        for thread in 0..threads {
            // Some have one more than others.
            let share = connections / threads + usize::from(thread < connections % threads);
            let (order, orders) = mpsc::channel();
            let asker = Asker {
                place: place.clone(),
                pipeline: plan.pipeline,
                keys: plan.keys,
                stop: stop.clone(),
                answered: Arc::clone(&answered),
                seed: thread as u64,
            };
            let tell = tell.clone();
            let spawned = std::thread::Builder::new()
                .name(format!("bench-{thread}"))
                .spawn(move || asker.serve(share, &orders, &tell));
            crew.threads
                .push(spawned.map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?);
            crew.orders.push(order);
        }
        drop(tell);
        for _ in 0..threads {
            crew.hear(&mut |_| {}).map_err(|why| {
                Failure::Unreachable(format!(
                    "cannot reach {}: {why}\nis 'tidegate serve' running there? else give --server URL",
                    place.name()
                ))
            })?;
        }
        Ok(crew)
    }

    /// How many connections there are.
    pub(super) const fn connections(&self) -> usize {
        self.connections
    }

    /// Works one shift, and tells now and then how far it is.
    pub(super) fn work(&self, shift: &Shift<'_>, mut glance: impl FnMut(SoFar)) -> Tally {
        let mut whole = Tally::new(self.keys, shift.lasts);
        let began = now();
        self.answered.store(0, Ordering::Relaxed);
        for order in &self.orders {
            // A thread that is gone is missed below.
            let _told = order.send(Order { limit: shift.limit.to_owned(), lasts: shift.lasts });
        }
        for _ in &self.orders {
            let mut look = |answered| glance(SoFar { passed: now().duration_since(began), answered });
            match self.hear(&mut look) {
                Ok(tally) => whole.merge(&tally),
                Err(why) => whole.fail(&why, 1),
            }
        }
        whole
    }

    fn hear(&self, look: &mut dyn FnMut(u64)) -> Result<Tally, String> {
        loop {
            match self.done.recv_timeout(GLANCE) {
                Ok(done) => return done,
                Err(RecvTimeoutError::Timeout) => look(self.answered.load(Ordering::Relaxed)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err("a thread of the tool has ended".to_owned());
                }
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.orders.clear();
        for thread in self.threads.drain(..) {
            // Who has panicked has said so.
            let _ended = thread.join();
        }
    }
}

/// On the machine of the server half of the cores are the server's.
fn threads(place: &Place) -> usize {
    let cores = available_parallelism().map_or(1, NonZeroUsize::get);
    if place.is_loopback() { (cores / 2).max(1) } else { cores }
}

/// What a thread knows.
#[derive(Debug)]
struct Asker {
    place: Place,
    pipeline: usize,
    keys: u32,
    stop: Stop,
    answered: Arc<AtomicU64>,
    seed: u64,
}

impl Asker {
    /// Opens the connections, says so, and works shifts until there are no more.
    fn serve(self, share: usize, orders: &Receiver<Order>, tell: &Sender<Result<Tally, String>>) {
        let opened = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string());
        let opened = opened.and_then(|runtime| {
            let lines = runtime.block_on(self.open(share))?;
            Ok((runtime, lines))
        });
        let (runtime, mut lines) = match opened {
            Ok(opened) => opened,
            Err(why) => return drop(tell.send(Err(why))),
        };
        let asker = Rc::new(self);
        let ready = Tally::new(0, Duration::ZERO);
        if tell.send(Ok(ready)).is_err() {
            return;
        }
        for order in orders {
            let tally = asker.work(&runtime, &mut lines, order);
            if tell.send(Ok(tally)).is_err() {
                return;
            }
        }
    }

    async fn open(&self, share: usize) -> Result<Vec<Option<Line>>, String> {
        let mut lines = Vec::with_capacity(share);
        for _ in 0..share {
            lines.push(Some(Line::open(&self.place).await?));
        }
        Ok(lines)
    }

    /// One shift on all connections.
    fn work(self: &Rc<Asker>, runtime: &Runtime, lines: &mut Vec<Option<Line>>, order: Order) -> Tally {
        let tally = Rc::new(RefCell::new(Tally::new(self.keys as usize, order.lasts)));
        let until = now() + order.lasts;
        let order = Rc::new(order);
        let all = LocalSet::new();
        let worked = all.run_until(async {
            let mut loops = JoinSet::new();
            for (number, line) in lines.drain(..).enumerate() {
                let seed = Sequence::from(((number as u64) << 32) | self.seed);
                let closed = Loop {
                    asker: Rc::clone(self),
                    order: Rc::clone(&order),
                    tally: Rc::clone(&tally),
                    until,
                };
                loops.spawn_local(closed.run(line, seed));
            }
            let mut kept = Vec::new();
            while let Some(line) = loops.join_next().await {
                kept.push(line.unwrap_or_default());
            }
            kept
        });
        *lines = runtime.block_on(worked);
        drop(all);
        tally.borrow().clone()
    }
}

/// One connection's closed loop.
struct Loop {
    asker: Rc<Asker>,
    order: Rc<Order>,
    tally: Rc<RefCell<Tally>>,
    until: Instant,
}

impl Loop {
    async fn run(self, mut line: Option<Line>, mut sequence: Sequence) -> Option<Line> {
        let mut keys = Vec::with_capacity(self.asker.pipeline);
        let (mut is_first, mut absent_since) = (true, None);
        // Once at least, so that a shift says something on the slowest of machines.
        while is_first || now() < self.until && !self.asker.stop.is_asked() {
            is_first = false;
            let Some(open) = &mut line else {
                let since = *absent_since.get_or_insert_with(now);
                line = self.reopen().await;
                if line.is_none() && now().duration_since(since) > LONGEST_ABSENCE {
                    break;
                }
                continue;
            };
            absent_since = None;
            keys.clear();
            keys.extend((0..self.asker.pipeline).map(|_| sequence.below(self.asker.keys)));
            if let Err(lost) = self.batch(open, &keys).await {
                let mut tally = self.tally.borrow_mut();
                tally.unanswered += lost.questions;
                tally.fail(&lost.why, lost.questions);
                line = None;
            }
        }
        line
    }

    /// Some questions at once, and their answers.
    async fn batch(&self, line: &mut Line, keys: &[u32]) -> Result<(), Lost> {
        for key in keys {
            line.ask(Ask { limit: &self.order.limit, key: &name(*key), request_id: None });
        }
        let sent = now();
        line.send().await.map_err(|why| Lost { why, questions: keys.len() as u64 })?;
        for (index, key) in keys.iter().enumerate() {
            let reply = line.hear().await;
            let reply = reply.map_err(|why| Lost { why, questions: (keys.len() - index) as u64 })?;
            let heard = now();
            let mut tally = self.tally.borrow_mut();
            match reply {
                Ok(answer) if answer.allowed => tally.grant(*key as usize),
                Ok(_) => tally.refused += 1,
                Err(why) => {
                    tally.fail(&why, 1);
                    continue;
                }
            }
            tally.in_time += u64::from(heard <= self.until);
            tally.latencies.record(nanoseconds(heard.duration_since(sent)));
        }
        self.asker.answered.fetch_add(keys.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    async fn reopen(&self) -> Option<Line> {
        match Line::open(&self.asker.place).await {
            Ok(line) => Some(line),
            Err(why) => {
                self.tally.borrow_mut().fail(&why, 1);
                tokio::time::sleep(PAUSE).await;
                None
            }
        }
    }
}

/// Why a connection is of no more use, and how many questions on it have no answer.
struct Lost {
    why: String,
    questions: u64,
}

/// What a key is called.
fn name(key: u32) -> String {
    format!("key-{key}")
}
