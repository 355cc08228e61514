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
use super::protected_processes::check_tree;
use super::{EnforceError, Enforcer, is_forbidden, now};
use crate::cgroups::FilesystemRoots;
use crate::meter::cores_in;
use crate::processes::{PidHandle, ProcFs, Process, ProcessState, ProcessTree, ScanDepth, ticks};
use crate::watchdog::{CpuWatchdog, Undo, UndoList};

/// Maximum number of scans for processes that were started while others were stopped.
const MAX_PASSES: u32 = 16;
/// Every this many scans, all processes of the machine are scanned.
const FULL_SCAN_EVERY: u32 = 50;
/// Longest time between two scans of a tree with low usage, unless the period is longer.
const MAX_IDLE_SCAN_INTERVAL: Duration = Duration::from_millis(800);
/// Number of processes that are held by pidfds all the time. Others are looked up for every signal.
const MAX_OPEN_PIDFDS: usize = 256;

/// Stops and continues a process tree, so that it uses no more than the limit. It needs only the permission to send signals to the
/// tree.
#[derive(Debug)]
pub struct SignalEnforcer {
    pid: u32,
    shared_order: Arc<SharedOrder>,
    state: WorkerState,
}

#[derive(Debug)]
enum WorkerState {
    /// No limit is active.
    Idle(Box<SignalWorker>),
    /// A thread enforces the limit.
    Running(JoinHandle<SignalWorker>),
    /// The thread has failed.
    Failed,
}

/// The tree below the process with this number, if it may be limited. For a watched command, the watchdog adopts orphans.
pub(super) fn tree_of(
    roots: &FilesystemRoots,
    pid: u32,
    watchdog: &CpuWatchdog,
) -> Result<ProcessTree, EnforceError> {
    let tree = ProcessTree::of(&roots.processes(), pid, watchdog.subreaper_of(pid));
    let tree = tree.map_err(|error| EnforceError::Failed { operation: "scan the process tree", error })?;
    let tree = tree.ok_or(EnforceError::Gone { pid })?;
    check_tree(&roots.processes(), &tree, watchdog.subreaper_of(pid).is_some())?;
    Ok(tree)
}

impl SignalEnforcer {
    /// Prepares limits for the tree below the process with this number. No limit is active yet.
    pub fn new(
        roots: &FilesystemRoots,
        pid: u32,
        watchdog: &CpuWatchdog,
    ) -> Result<SignalEnforcer, EnforceError> {
        let tree = tree_of(roots, pid, watchdog)?;
        let target = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(EnforceError::Gone { pid })?;
        match test_kill_process(target).map_err(io::Error::from) {
            Err(error) if is_forbidden(&error) => return Err(EnforceError::NotOurs { pid }),
            _ => {}
        }
        let proc = roots.processes();
        let worker = SignalWorker {
            undo_list: UndoList::new(watchdog, &proc),
            proc,
            tree,
            duty_cycle: DutyCycle::new(cores_in(roots)?, Rate::ZERO),
            scans: 1,
            pidfds: BTreeMap::new(),
            registered: BTreeSet::new(),
            stopped: BTreeSet::new(),
            not_permitted: BTreeSet::new(),
        };
        Ok(SignalEnforcer {
            pid,
            shared_order: Arc::new(SharedOrder::default()),
            state: WorkerState::Idle(Box::new(worker)),
        })
    }

    /// Sets the length of the averaging window. A longer window allows fewer stops. Call it before the first limit.
    #[must_use]
    pub fn with_window(mut self, window: Duration) -> SignalEnforcer {
        if let WorkerState::Idle(worker) = &mut self.state {
            worker.duty_cycle.set_window(window);
        }
        self
    }
}

impl Enforcer for SignalEnforcer {
    fn apply(&mut self, limit: Rate) -> Result<(), EnforceError> {
        self.shared_order.set(SignalOrder::Enforce(limit));
        if let WorkerState::Running(thread) = &self.state {
            return if thread.is_finished() {
                self.restore().and(Err(EnforceError::Gone { pid: self.pid }))
            } else {
                Ok(())
            };
        }
        let WorkerState::Idle(worker) = std::mem::replace(&mut self.state, WorkerState::Failed) else {
            return Err(EnforceError::Gone { pid: self.pid });
        };
        let shared_order = Arc::clone(&self.shared_order);
        let thread = thread::Builder::new()
            .name("cpu-signals".to_owned())
            .spawn(move || worker.run_thread(&shared_order));
        self.state = WorkerState::Running(
            thread.map_err(|error| EnforceError::Failed { operation: "start a thread", error })?,
        );
        Ok(())
    }

    fn restore(&mut self) -> Result<(), EnforceError> {
        self.shared_order.set(SignalOrder::Stop);
        if let WorkerState::Running(thread) = std::mem::replace(&mut self.state, WorkerState::Failed) {
            let panicked = |_| EnforceError::Failed {
                operation: "stop the signal thread",
                error: io::Error::other("the thread panicked"),
            };
            self.state = WorkerState::Idle(Box::new(thread.join().map_err(panicked)?));
        }
        if let WorkerState::Idle(worker) = &mut self.state {
            worker.continue_and_clear()?;
        }
        self.shared_order.take_failure().map_or(Ok(()), Err)
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
enum SignalOrder {
    /// Enforce this limit.
    Enforce(Rate),
    /// Continue all processes and end the thread.
    #[default]
    Stop,
}

/// CPU time of the current thread so far.
fn own_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Passes orders to the thread, and its failure back.
#[derive(Debug, Default)]
struct SharedOrder {
    order_with_failure: Mutex<OrderWithFailure>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct OrderWithFailure {
    order: SignalOrder,
    failure: Option<EnforceError>,
}

impl SharedOrder {
    fn set(&self, order: SignalOrder) {
        let before = std::mem::replace(&mut self.lock().order, order);
        // Do not wake the thread for an unchanged order.
        if before != order {
            self.changed.notify_all();
        }
    }

    fn take_failure(&self) -> Option<EnforceError> {
        self.lock().failure.take()
    }

    /// Waits for this time, or until the order changes.
    fn wait(&self, order: SignalOrder, time: Option<Duration>) {
        let same = |order_with_failure: &mut OrderWithFailure| order_with_failure.order == order;
        let order_with_failure = self.lock();
        match time {
            Some(time) => drop(self.changed.wait_timeout_while(order_with_failure, time, same)),
            None => drop(self.changed.wait_while(order_with_failure, same)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, OrderWithFailure> {
        // The slot holds plain values, so a panic cannot leave it half-written.
        self.order_with_failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that stops and continues the tree.
#[derive(Debug)]
struct SignalWorker {
    proc: ProcFs,
    tree: ProcessTree,
    duty_cycle: DutyCycle,
    undo_list: UndoList,
    scans: u32,
    pidfds: BTreeMap<Process, PidHandle>,
    /// Processes whose undo step is in the journal.
    registered: BTreeSet<Process>,
    /// Processes that we stopped.
    stopped: BTreeSet<Process>,
    /// Processes that we may not signal.
    not_permitted: BTreeSet<Process>,
}

impl SignalWorker {
    fn run_thread(mut self: Box<Self>, shared_order: &SharedOrder) -> SignalWorker {
        if let Err(error) = self.enforce(shared_order) {
            shared_order.lock().failure = Some(error);
        }
        // Continue all processes even after an error. An undo that fails stays in the journal.
        let _continued = self.continue_and_clear();
        *self
    }

    /// Enforces the limit until the order or the tree ends.
    fn enforce(&mut self, shared_order: &SharedOrder) -> Result<(), EnforceError> {
        let (mut last, mut counted, mut spent) = (now(), self.tree.used(), own_time());
        let mut idle_time = Duration::ZERO;
        loop {
            let order = shared_order.lock().order;
            let SignalOrder::Enforce(limit) = order else { return Ok(()) };
            self.duty_cycle.set_limit(limit);
            if self.duty_cycle.is_free() {
                self.continue_stopped()?;
                shared_order.wait(order, None);
                self.scan()?;
                (last, counted) = (now(), self.tree.used());
                continue;
            }
            let (run, period) = (self.duty_cycle.run(), self.duty_cycle.period());
            let began = now();
            if !run.is_zero() {
                self.continue_stopped()?;
                shared_order.wait(order, Some(if run < period { run } else { period.max(idle_time) }));
            }
            if run < period {
                self.stop_members()?;
            } else {
                self.scan()?;
                self.continue_self_stopped()?;
            }
            let stopped = now();
            if self.tree.members().all(|stat| stat.state == ProcessState::Ended) {
                return Ok(());
            }
            if run < period {
                shared_order
                    .wait(order, Some(period.saturating_sub(stopped.saturating_duration_since(began))));
            }
            let ran = if run.is_zero() { Duration::ZERO } else { stopped.saturating_duration_since(began) };
            let (end, used) = (now(), self.tree.used());
            let is_busy = run < period || used > counted;
            idle_time = if is_busy {
                Duration::ZERO
            } else {
                (period.max(idle_time) * 2).min(MAX_IDLE_SCAN_INTERVAL)
            };
            self.duty_cycle.account(end.saturating_duration_since(last), ran, ticks(used - counted));
            (last, counted) = (end, used);
            let before = std::mem::replace(&mut spent, own_time());
            self.duty_cycle.record_cost(spent.saturating_sub(before));
        }
    }

    /// Scans the tree and drops state of processes that are gone.
    fn scan(&mut self) -> Result<(), EnforceError> {
        let depth =
            if self.scans.is_multiple_of(FULL_SCAN_EVERY) { ScanDepth::Whole } else { ScanDepth::Near };
        self.scans = self.scans.wrapping_add(1);
        self.tree
            .refresh(depth)
            .map_err(|error| EnforceError::Failed { operation: "scan the process tree", error })?;
        let SignalWorker { tree, pidfds, registered, stopped, not_permitted, undo_list, .. } = self;
        pidfds.retain(|process, _| tree.has_member(*process));
        stopped.retain(|process| tree.has_member(*process));
        not_permitted.retain(|process| tree.has_member(*process));
        if registered.iter().any(|process| !tree.has_member(*process)) {
            registered.retain(|process| tree.has_member(*process));
            undo_list
                .forget(|undo| matches!(undo, Undo::Continue { process } if !tree.has_member(*process)))?;
        }
        Ok(())
    }

    /// Stops all members, including those that start meanwhile.
    fn stop_members(&mut self) -> Result<(), EnforceError> {
        // Stop known processes before the scan: one scan then shows their usage and the new members.
        let ran: Vec<Process> =
            self.registered.iter().copied().filter(|process| self.is_running_member(*process)).collect();
        let mut visited: BTreeSet<Process> = ran.iter().copied().collect();
        for process in ran {
            self.stop_one(process)?;
        }
        for _ in 0..MAX_PASSES {
            self.scan()?;
            let living = self
                .tree
                .members()
                .filter(|stat| stat.state == ProcessState::Living)
                .map(|stat| stat.process);
            let next: Vec<Process> = living
                .filter(|process| !visited.contains(process) && !self.not_permitted.contains(process))
                .collect();
            if next.is_empty() {
                break;
            }
            let unregistered: Vec<Process> =
                next.iter().copied().filter(|process| !self.registered.contains(process)).collect();
            if !unregistered.is_empty() {
                self.undo_list.register(
                    unregistered.iter().map(|process| Undo::Continue { process: *process }).collect(),
                )?;
                self.registered.extend(unregistered);
            }
            for process in next {
                visited.insert(process);
                self.stop_one(process)?;
            }
        }
        self.stopped.extend(self.self_stopped());
        Ok(())
    }

    fn is_running_member(&self, process: Process) -> bool {
        !self.stopped.contains(&process) && !self.not_permitted.contains(&process)
    }

    fn stop_one(&mut self, process: Process) -> Result<(), EnforceError> {
        self.stopped.insert(process);
        self.send(process, Signal::STOP)
    }

    /// Known processes that are stopped: by us, or by themselves after they saw a stopped child.
    fn self_stopped(&self) -> Vec<Process> {
        let stopped =
            self.tree.members().filter(|stat| stat.state == ProcessState::Stopped).map(|stat| stat.process);
        stopped.filter(|process| self.registered.contains(process)).collect()
    }

    /// Continues processes that are stopped during the running part of a period.
    fn continue_self_stopped(&mut self) -> Result<(), EnforceError> {
        for process in self.self_stopped() {
            self.send(process, Signal::CONT)?;
        }
        Ok(())
    }

    /// Continues all processes that we stopped.
    fn continue_stopped(&mut self) -> Result<(), EnforceError> {
        for process in std::mem::take(&mut self.stopped) {
            self.send(process, Signal::CONT)?;
        }
        Ok(())
    }

    /// Continues all processes and removes all undo steps.
    fn continue_and_clear(&mut self) -> Result<(), EnforceError> {
        self.stopped.clear();
        self.registered.clear();
        self.pidfds.clear();
        Ok(self.undo_list.undo_all()?)
    }

    fn send(&mut self, process: Process, signal: Signal) -> Result<(), EnforceError> {
        let sent = self.open_pidfd(process).and_then(|()| match self.pidfds.get(&process) {
            Some(open_pidfd) => open_pidfd.signal(&self.proc, signal),
            None => self.proc.signal(process, signal),
        });
        match sent {
            Ok(_) => Ok(()),
            // The process may now belong to another user. The others stay limited.
            Err(error) if is_forbidden(&error) => {
                self.not_permitted.insert(process);
                self.stopped.remove(&process);
                Ok(())
            }
            Err(error) => Err(EnforceError::Failed { operation: "send a signal", error }),
        }
    }

    /// Opens a pidfd for the process, unless too many are open.
    fn open_pidfd(&mut self, process: Process) -> io::Result<()> {
        if self.pidfds.len() < MAX_OPEN_PIDFDS && !self.pidfds.contains_key(&process) {
            let held = self.proc.open_pidfd(process)?;
            self.pidfds.extend(held.map(|open_pidfd| (process, open_pidfd)));
        }
        Ok(())
    }
}
