//! Limits a process tree by stopping it for a part of the time.
//!
//! A thread stops and continues the tree several times a second. [`DutyCycle`] decides how often, and for how long the tree runs.
//! A process that is already stopped at its first turn was stopped by someone else and stays as it is. After all members are stopped, the
//! tree is scanned again, because a process may have been started meanwhile.
//!
//! Some programs stop themselves when they see a stopped child (`su` does). A process that we stopped once and that is found stopped is
//! therefore continued with the others. Otherwise it would stay stopped forever.
//!
//! A tree that uses less than its limit is scanned less often. Its usage in between is charged all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, test_kill_process};
use rustix::time::{ClockId, clock_gettime};
use tidegate_core::budget::Rate;

use super::duty_cycle::DutyCycle;
use super::protected_processes::refuse_in_tree;
use super::{EnforceError, Enforcer, is_forbidden, now};
use crate::cgroups::FilesystemRoots;
use crate::meter::cores_in;
use crate::processes::{PidHandle, ProcFs, Process, ProcessState, ProcessTree, ScanDepth, ticks};
use crate::watchdog::{CpuWatchdog, Undo, UndoList};

/// Maximum number of scans for processes that were started while others were stopped.
const MOST_PASSES: u32 = 16;
/// Every this many scans, all processes of the machine are scanned.
const WHOLE_EVERY: u32 = 50;
/// Longest time between two scans of a tree with low usage, unless the period is longer.
const LONGEST_REST: Duration = Duration::from_millis(800);
/// Number of processes that are held by pidfds all the time. Others are looked up for every signal.
const MOST_HOLDS: usize = 256;

/// Stops and continues a process tree, so that it uses no more than the limit. It needs only the permission to send signals to the
/// tree.
#[derive(Debug)]
pub struct SignalEnforcer {
    pid: u32,
    desk: Arc<WatchdogState>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// No limit is active.
    Resting(Box<Worker>),
    /// A thread enforces the limit.
    Working(JoinHandle<Worker>),
    /// The thread has failed.
    Lost,
}

/// The tree below the process with this number, if it may be limited. For a watched command, the watchdog adopts orphans.
pub(super) fn tree_of(
    roots: &FilesystemRoots,
    pid: u32,
    guardian: &CpuWatchdog,
) -> Result<ProcessTree, EnforceError> {
    let tree = ProcessTree::of(&roots.processes(), pid, guardian.keeper_of(pid));
    let tree = tree.map_err(|error| EnforceError::Failed { doing: "look at the process tree", error })?;
    let tree = tree.ok_or(EnforceError::Gone { pid })?;
    refuse_in_tree(&roots.processes(), &tree, guardian.keeper_of(pid).is_some())?;
    Ok(tree)
}

impl SignalEnforcer {
    /// Prepares limits for the tree below the process with this number. No limit is active yet.
    pub fn over(
        roots: &FilesystemRoots,
        pid: u32,
        guardian: &CpuWatchdog,
    ) -> Result<SignalEnforcer, EnforceError> {
        let tree = tree_of(roots, pid, guardian)?;
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(EnforceError::Gone { pid })?;
        match test_kill_process(raw).map_err(io::Error::from) {
            Err(error) if is_forbidden(&error) => return Err(EnforceError::NotOurs { pid }),
            _ => {}
        }
        let proc = roots.processes();
        let worker = Worker {
            trail: UndoList::new(guardian, &proc),
            proc,
            tree,
            duty: DutyCycle::new(cores_in(roots)?, Rate::ZERO),
            looks: 1,
            holds: BTreeMap::new(),
            noted: BTreeSet::new(),
            stopped: BTreeSet::new(),
            foreign: BTreeSet::new(),
        };
        Ok(SignalEnforcer {
            pid,
            desk: Arc::new(WatchdogState::default()),
            state: State::Resting(Box::new(worker)),
        })
    }

    /// Sets the length of the averaging window. A longer window allows fewer stops. Call it before the first limit.
    #[must_use]
    pub fn over_a_window_of(mut self, window: Duration) -> SignalEnforcer {
        if let State::Resting(worker) = &mut self.state {
            worker.duty.set_window(window);
        }
        self
    }
}

impl Enforcer for SignalEnforcer {
    fn apply(&mut self, limit: Rate) -> Result<(), EnforceError> {
        self.desk.order(Order::Keep(limit));
        if let State::Working(thread) = &self.state {
            return if thread.is_finished() {
                self.restore().and(Err(EnforceError::Gone { pid: self.pid }))
            } else {
                Ok(())
            };
        }
        let State::Resting(worker) = std::mem::replace(&mut self.state, State::Lost) else {
            return Err(EnforceError::Gone { pid: self.pid });
        };
        let desk = Arc::clone(&self.desk);
        let thread = thread::Builder::new().name("cpu-signals".to_owned()).spawn(move || worker.work(&desk));
        self.state =
            State::Working(thread.map_err(|error| EnforceError::Failed { doing: "start a thread", error })?);
        Ok(())
    }

    fn restore(&mut self) -> Result<(), EnforceError> {
        self.desk.order(Order::End);
        if let State::Working(thread) = std::mem::replace(&mut self.state, State::Lost) {
            let lost = |_| EnforceError::Failed {
                doing: "stop limiting",
                error: io::Error::other("the thread panicked"),
            };
            self.state = State::Resting(Box::new(thread.join().map_err(lost)?));
        }
        if let State::Resting(worker) = &mut self.state {
            worker.let_go()?;
        }
        self.desk.failure().map_or(Ok(()), Err)
    }
}

impl Drop for SignalEnforcer {
    fn drop(&mut self) {
        // An undo that fails now stays in the undo journal.
        let _restored = self.restore();
    }
}

/// What the thread has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Order {
    /// Enforce this limit.
    Keep(Rate),
    /// Continue all processes and end the thread.
    #[default]
    End,
}

/// CPU time of the current thread so far.
fn own_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Passes orders to the thread, and its failure back.
#[derive(Debug, Default)]
struct WatchdogState {
    paper: Mutex<Paper>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Paper {
    order: Order,
    failure: Option<EnforceError>,
}

impl WatchdogState {
    fn order(&self, order: Order) {
        let before = std::mem::replace(&mut self.paper().order, order);
        // Do not wake the thread for an unchanged order.
        if before != order {
            self.changed.notify_all();
        }
    }

    fn failure(&self) -> Option<EnforceError> {
        self.paper().failure.take()
    }

    /// Waits for this time, or until the order changes.
    fn wait(&self, order: Order, time: Option<Duration>) {
        let same = |paper: &mut Paper| paper.order == order;
        let paper = self.paper();
        match time {
            Some(time) => drop(self.changed.wait_timeout_while(paper, time, same)),
            None => drop(self.changed.wait_while(paper, same)),
        }
    }

    fn paper(&self) -> MutexGuard<'_, Paper> {
        // The slot holds plain values, so a panic cannot leave it half-written.
        self.paper.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that stops and continues the tree.
#[derive(Debug)]
struct Worker {
    proc: ProcFs,
    tree: ProcessTree,
    duty: DutyCycle,
    trail: UndoList,
    looks: u32,
    holds: BTreeMap<Process, PidHandle>,
    /// Processes whose undo step is in the journal.
    noted: BTreeSet<Process>,
    /// Processes that we stopped.
    stopped: BTreeSet<Process>,
    /// Processes that we may not signal.
    foreign: BTreeSet<Process>,
}

impl Worker {
    fn work(mut self: Box<Self>, desk: &WatchdogState) -> Worker {
        if let Err(error) = self.keep(desk) {
            desk.paper().failure = Some(error);
        }
        // Continue all processes even after an error. An undo that fails stays in the journal.
        let _let_go = self.let_go();
        *self
    }

    /// Enforces the limit until the order or the tree ends.
    fn keep(&mut self, desk: &WatchdogState) -> Result<(), EnforceError> {
        let (mut last, mut counted, mut spent) = (now(), self.tree.used(), own_time());
        let mut rest = Duration::ZERO;
        loop {
            let order = desk.paper().order;
            let Order::Keep(limit) = order else { return Ok(()) };
            self.duty.set_limit(limit);
            if self.duty.is_free() {
                self.go_on()?;
                desk.wait(order, None);
                self.look()?;
                (last, counted) = (now(), self.tree.used());
                continue;
            }
            let (run, period) = (self.duty.run(), self.duty.period());
            let began = now();
            if !run.is_zero() {
                self.go_on()?;
                desk.wait(order, Some(if run < period { run } else { period.max(rest) }));
            }
            if run < period {
                self.stop()?;
            } else {
                self.look()?;
                self.wake()?;
            }
            let stopped = now();
            if self.tree.members().all(|stat| stat.doing == ProcessState::Ended) {
                return Ok(());
            }
            if run < period {
                desk.wait(order, Some(period.saturating_sub(stopped.saturating_duration_since(began))));
            }
            let ran = if run.is_zero() { Duration::ZERO } else { stopped.saturating_duration_since(began) };
            let (end, used) = (now(), self.tree.used());
            let is_busy = run < period || used > counted;
            rest = if is_busy { Duration::ZERO } else { (period.max(rest) * 2).min(LONGEST_REST) };
            self.duty.account(end.saturating_duration_since(last), ran, ticks(used - counted));
            (last, counted) = (end, used);
            let before = std::mem::replace(&mut spent, own_time());
            self.duty.spend(spent.saturating_sub(before));
        }
    }

    /// Scans the tree and drops state of processes that are gone.
    fn look(&mut self) -> Result<(), EnforceError> {
        let depth = if self.looks.is_multiple_of(WHOLE_EVERY) { ScanDepth::Whole } else { ScanDepth::Near };
        self.looks = self.looks.wrapping_add(1);
        self.tree
            .refresh(depth)
            .map_err(|error| EnforceError::Failed { doing: "look at the process tree", error })?;
        let Worker { tree, holds, noted, stopped, foreign, trail, .. } = self;
        holds.retain(|process, _| tree.has(*process));
        stopped.retain(|process| tree.has(*process));
        foreign.retain(|process| tree.has(*process));
        if noted.iter().any(|process| !tree.has(*process)) {
            noted.retain(|process| tree.has(*process));
            trail.forget(|undo| matches!(undo, Undo::Continue { process } if !tree.has(*process)))?;
        }
        Ok(())
    }

    /// Stops all members, including those that start meanwhile.
    fn stop(&mut self) -> Result<(), EnforceError> {
        // Stop known processes before the scan: one scan then shows their usage and the new members.
        let ran: Vec<Process> = self.noted.iter().copied().filter(|process| self.has_run(*process)).collect();
        let mut asked: BTreeSet<Process> = ran.iter().copied().collect();
        for process in ran {
            self.stop_one(process)?;
        }
        for _ in 0..MOST_PASSES {
            self.look()?;
            let living = self
                .tree
                .members()
                .filter(|stat| stat.doing == ProcessState::Living)
                .map(|stat| stat.process);
            let next: Vec<Process> = living
                .filter(|process| !asked.contains(process) && !self.foreign.contains(process))
                .collect();
            if next.is_empty() {
                break;
            }
            let fresh: Vec<Process> =
                next.iter().copied().filter(|process| !self.noted.contains(process)).collect();
            if !fresh.is_empty() {
                self.trail
                    .note(fresh.iter().map(|process| Undo::Continue { process: *process }).collect())?;
                self.noted.extend(fresh);
            }
            for process in next {
                asked.insert(process);
                self.stop_one(process)?;
            }
        }
        self.stopped.extend(self.followers());
        Ok(())
    }

    fn has_run(&self, process: Process) -> bool {
        !self.stopped.contains(&process) && !self.foreign.contains(&process)
    }

    fn stop_one(&mut self, process: Process) -> Result<(), EnforceError> {
        self.stopped.insert(process);
        self.send(process, Signal::STOP)
    }

    /// Known processes that are stopped: by us, or by themselves after they saw a stopped child.
    fn followers(&self) -> Vec<Process> {
        let stopped =
            self.tree.members().filter(|stat| stat.doing == ProcessState::Stopped).map(|stat| stat.process);
        stopped.filter(|process| self.noted.contains(process)).collect()
    }

    /// Continues processes that are stopped during the running part of a period.
    fn wake(&mut self) -> Result<(), EnforceError> {
        for process in self.followers() {
            self.send(process, Signal::CONT)?;
        }
        Ok(())
    }

    /// Continues all processes that we stopped.
    fn go_on(&mut self) -> Result<(), EnforceError> {
        for process in std::mem::take(&mut self.stopped) {
            self.send(process, Signal::CONT)?;
        }
        Ok(())
    }

    /// Continues all processes and removes all undo steps.
    fn let_go(&mut self) -> Result<(), EnforceError> {
        self.stopped.clear();
        self.noted.clear();
        self.holds.clear();
        Ok(self.trail.back()?)
    }

    fn send(&mut self, process: Process, signal: Signal) -> Result<(), EnforceError> {
        let sent = self.hold(process).and_then(|()| match self.holds.get(&process) {
            Some(hold) => hold.signal(&self.proc, signal),
            None => self.proc.signal(process, signal),
        });
        match sent {
            Ok(_) => Ok(()),
            // The process may now belong to another user. The others stay limited.
            Err(error) if is_forbidden(&error) => {
                self.foreign.insert(process);
                self.stopped.remove(&process);
                Ok(())
            }
            Err(error) => Err(EnforceError::Failed { doing: "send a signal", error }),
        }
    }

    /// Opens a pidfd for the process, unless too many are open.
    fn hold(&mut self, process: Process) -> io::Result<()> {
        if self.holds.len() < MOST_HOLDS && !self.holds.contains_key(&process) {
            let held = self.proc.hold(process)?;
            self.holds.extend(held.map(|hold| (process, hold)));
        }
        Ok(())
    }
}
