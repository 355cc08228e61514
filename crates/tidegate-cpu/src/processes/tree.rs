//! A process with all its descendants, and the CPU time that they have used together.
//!
//! ```text
//!            root ─────────────┐ own + reaped
//!            /   \             │
//!         child   child        │ own + reaped       used = sum of all increments
//!          |        ✝          │
//!       grandchild   reaped by its parent: counted there, less what was counted before
//! ```
//!
//! A process that was seen in the tree stays in it, also after its parent ends and it is reparented. New members are children of members,
//! or belong to a session that a member leads: only descendants can join such a session. So a daemon that forks twice is found, unless it
//! also starts a session of its own.
//!
//! A tree may have a *subreaper*, which is not a member. Its only children are the root and orphaned descendants of the root. Then every
//! member is a child of a known process, no member is lost, and the subreaper's counters include the time of ended orphans.
//!
//! A scan reads parents before their children, so one scan never counts a process both by itself and through its parent. When a process
//! ends during a scan, its parent reports the same time again at the next scan. That time is kept as a [`PendingReap`] and subtracted then.
//!
//! A tree is scanned several times a second, so the files of known members stay open. New members are searched only after a process was
//! started somewhere on the machine. The kernel shows the last process number that it assigned.
//!
//! Usage is the sum of differences and never decreases. The time of an ended member counts by its own counter up to the last scan. The rest
//! counts by its parent's counter, once the parent waits for it. If the parent never waits, the time after the last scan is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;

use super::{LastPid, ProcFs, ProcStat, Process, children_in, none_if_gone};

/// Number of members whose files stay open.
const MAX_OPEN_MEMBERS: usize = 256;
/// Search for new members after at most this many scans, whatever the kernel reports about process numbers.
const SEARCH_EVERY: u32 = 16;
/// Number of searches after the last process number changed. The new process may not be visible at the first one.
const SEARCHES_PER_START: u32 = 2;

/// How thoroughly a scan searches for new members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanDepth {
    /// Among the children of known processes, and only if a process was started. The cost grows with the tree.
    Near,
    /// Among all processes of the machine.
    Whole,
}

/// A process with all its descendants.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    proc: ProcFs,
    root: Process,
    members: BTreeMap<u32, ProcStat>,
    /// The process that adopts orphans of the tree, if it is our watchdog.
    subreaper: Option<ProcStat>,
    /// Files of the members that stay open.
    files: BTreeMap<Process, OpenProcFiles>,
    max_open_members: usize,
    /// The last process number that the kernel assigned.
    last_pid: LastPid,
    /// How many searches for new members are still due, and after how many scans the next one is due anyway.
    searches_due: u32,
    scans_until_search: u32,
    /// Sessions that members started.
    sessions: BTreeSet<u32>,
    /// CPU time of all members, in ticks.
    used: u64,
    /// Time of processes that ended during the last scan.
    pending_reaps: Vec<PendingReap>,
}

/// Open files of one process.
#[derive(Debug)]
struct OpenProcFiles {
    stat: File,
    /// The file of its first thread.
    children: Option<File>,
}

/// CPU time of an ended process that was counted already. Its reaper reports the same time again.
#[derive(Debug, Clone, Copy)]
struct PendingReap {
    /// The nearest living ancestor.
    reaper: Process,
    /// Whether the subreaper may have waited for the process instead: the direct parent was gone as well.
    or_subreaper: bool,
    ticks: u64,
}

impl ProcessTree {
    /// The tree below the process with this number, or `None` if there is no such process. The subreaper, if any, has not reaped a
    /// member yet.
    pub(crate) fn of(proc: &ProcFs, pid: u32, subreaper: Option<u32>) -> io::Result<Option<ProcessTree>> {
        let subreaper = subreaper.map(|subreaper| proc.stat(subreaper)).transpose()?.flatten();
        let Some(root) = proc.stat(pid)? else { return Ok(None) };
        let mut tree = ProcessTree {
            proc: proc.clone(),
            root: root.process,
            members: BTreeMap::new(),
            subreaper: None,
            files: BTreeMap::new(),
            // Only files of a real procfs fail once their process is gone.
            max_open_members: if proc.is_real() { MAX_OPEN_MEMBERS } else { 0 },
            last_pid: LastPid::of(proc),
            searches_due: SEARCHES_PER_START,
            scans_until_search: 0,
            sessions: BTreeSet::new(),
            used: 0,
            pending_reaps: Vec::new(),
        };
        let mut present = BTreeMap::from([(pid, root)]);
        tree.find_members(ScanDepth::Whole, &mut present, subreaper.as_ref())?;
        tree.record(present, subreaper);
        Ok(Some(tree))
    }

    /// Scans the tree and updates its members and its usage.
    pub(crate) fn refresh(&mut self, depth: ScanDepth) -> io::Result<()> {
        // Read parents before their children.
        let subreaper = self.subreaper.as_ref().map(|subreaper| subreaper.process);
        let subreaper = subreaper.map(|subreaper| self.read_stat(subreaper)).transpose()?.flatten();
        let mut present = BTreeMap::new();
        let mut known: Vec<Process> = self.members.values().map(|stat| stat.process).collect();
        known.sort_by_key(|process| process.started);
        for process in known {
            if let Some(stat) = self.read_stat(process)? {
                present.insert(stat.process.pid, stat);
            }
        }
        if self.may_have_new_members() || depth == ScanDepth::Whole || present.is_empty() {
            self.find_members(depth, &mut present, subreaper.as_ref())?;
        }
        self.record(present, subreaper);
        Ok(())
    }

    /// The state of a process, or `None` if it is gone.
    fn read_stat(&mut self, process: Process) -> io::Result<Option<ProcStat>> {
        if let Some(open) = self.files.get(&process) {
            return none_if_gone(self.proc.stat_in(&open.stat, process.pid));
        }
        if self.files.len() >= self.max_open_members {
            return self.proc.stat_of(process);
        }
        // Open before the check: what is read now belongs to the open file.
        let Some(file) = self.proc.open(process.pid)? else { return Ok(None) };
        let children = self.proc.open_children(process.pid, process.pid)?;
        let stat =
            none_if_gone(self.proc.stat_in(&file, process.pid))?.filter(|stat| stat.process == process);
        if stat.is_some() {
            self.files.insert(process, OpenProcFiles { stat: file, children });
        }
        Ok(stat)
    }

    /// Process numbers of the children, or `None` if this kernel does not list them.
    fn children(&self, stat: &ProcStat, is_subreaper: bool) -> io::Result<Option<Vec<u32>>> {
        let open = self.files.get(&stat.process).and_then(|open| open.children.as_ref());
        match open {
            // All children of the subreaper belong to its first thread: it adopts orphans there and started the root there.
            Some(file) if is_subreaper || stat.threads == 1 => {
                Ok(Some(none_if_gone(children_in(file))?.unwrap_or_default()))
            }
            _ => self.proc.children(stat),
        }
    }

    /// Whether the tree may have new members.
    fn may_have_new_members(&mut self) -> bool {
        if self.last_pid.has_changed() {
            self.searches_due = SEARCHES_PER_START;
        }
        if self.searches_due > 0 || self.scans_until_search == 0 {
            self.searches_due = self.searches_due.saturating_sub(1);
            self.scans_until_search = SEARCH_EVERY;
            return true;
        }
        self.scans_until_search -= 1;
        false
    }

    /// Adds new members to `present`.
    fn find_members(
        &self,
        depth: ScanDepth,
        present: &mut BTreeMap<u32, ProcStat>,
        subreaper: Option<&ProcStat>,
    ) -> io::Result<()> {
        let is_listed = match (subreaper, depth) {
            // Every member descends from the subreaper.
            (Some(_), _) => self.find_children(present, subreaper)?,
            // When no member is left, orphans may remain whose parents ended before they were seen.
            (None, ScanDepth::Near) => !present.is_empty() && self.find_children(present, subreaper)?,
            (None, ScanDepth::Whole) => false,
        };
        if is_listed { Ok(()) } else { self.find_descendants(present, subreaper) }
    }

    /// The root process.
    pub(crate) fn root(&self) -> Process {
        self.root
    }

    /// The members of the last scan, including zombies.
    pub(crate) fn members(&self) -> impl Iterator<Item = &ProcStat> {
        self.members.values()
    }

    /// Whether this process was a member at the last scan.
    pub(crate) fn has_member(&self, process: Process) -> bool {
        self.members.get(&process.pid).is_some_and(|stat| stat.process == process)
    }

    /// Whether our watchdog adopts the orphans of the tree.
    pub(crate) fn has_subreaper(&self) -> bool {
        self.subreaper.is_some()
    }

    /// CPU time of all members, in ticks. It never decreases.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Adds the children of present members, and their children. Returns `false` if the kernel does not list children.
    fn find_children(
        &self,
        present: &mut BTreeMap<u32, ProcStat>,
        subreaper: Option<&ProcStat>,
    ) -> io::Result<bool> {
        let mut queue: Vec<u32> = present.keys().copied().collect();
        queue.extend(subreaper.map(|subreaper| subreaper.process.pid));
        while let Some(parent) = queue.pop() {
            let member = present.get(&parent);
            let Some(stat) = member.or(subreaper) else { continue };
            let Some(children) = self.children(stat, member.is_none())? else { return Ok(false) };
            for child in children.into_iter().filter(|child| !present.contains_key(child)).collect::<Vec<_>>()
            {
                // It may have ended meanwhile, and its number may belong to another process.
                if let Some(stat) = self.proc.stat(child)?.filter(|stat| stat.parent == parent) {
                    present.insert(child, stat);
                    queue.push(child);
                }
            }
        }
        Ok(true)
    }

    /// Adds all descendants of present members, and all processes in sessions that a member started.
    fn find_descendants(
        &self,
        present: &mut BTreeMap<u32, ProcStat>,
        subreaper: Option<&ProcStat>,
    ) -> io::Result<()> {
        let subreaper = subreaper.map(|subreaper| subreaper.process.pid);
        let mut others = Vec::new();
        for pid in self.proc.all()? {
            if !present.contains_key(&pid) && Some(pid) != subreaper {
                others.extend(self.proc.stat(pid)?.filter(|stat| !stat.is_kernel));
            }
        }
        let mut sessions = self.sessions.clone();
        loop {
            sessions.extend(
                present.values().filter(|stat| stat.session == stat.process.pid).map(|stat| stat.session),
            );
            let is_ours = |stat: &ProcStat| {
                present.contains_key(&stat.parent)
                    || sessions.contains(&stat.session)
                    || Some(stat.parent) == subreaper
            };
            let (found, rest): (Vec<_>, Vec<_>) = others.into_iter().partition(is_ours);
            if found.is_empty() {
                return Ok(());
            }
            present.extend(found.into_iter().map(|stat| (stat.process.pid, stat)));
            others = rest;
        }
    }

    /// Adds what was used since the last scan.
    fn record(&mut self, present: BTreeMap<u32, ProcStat>, subreaper: Option<ProcStat>) {
        let mut reaped = self.newly_reaped(&present, subreaper.as_ref());
        for pending in std::mem::take(&mut self.pending_reaps) {
            settle_pending(&mut reaped, pending, subreaper.as_ref());
        }
        for stat in present.values() {
            let before = self.last_stat(stat.process).map_or(0, |last_stat| last_stat.own);
            self.used = self.used.saturating_add(stat.own.saturating_sub(before));
        }
        for gone in self.members.values().filter(|last_stat| !contains(&present, last_stat.process)) {
            // Its own counter was counted already. The reaper's counter must not count it again.
            let Some(reaper) = self.nearest_ancestor(gone, &present, subreaper.as_ref()) else { continue };
            let pending = PendingReap {
                reaper,
                or_subreaper: reaper.pid != gone.parent,
                ticks: gone.own.saturating_add(gone.reaped),
            };
            self.pending_reaps.extend(settle_pending(&mut reaped, pending, subreaper.as_ref()));
        }
        self.used = reaped.values().fold(self.used, |used, more| used.saturating_add(*more));
        self.sessions.extend(present.values().map(|stat| stat.process.pid));
        // A session number can be reused after its last process has ended.
        self.sessions.retain(|session| present.values().any(|stat| stat.session == *session));
        self.members = present;
        self.subreaper = subreaper;
        let ProcessTree { files, members, subreaper, .. } = self;
        let subreaper = subreaper.as_ref().map(|subreaper| subreaper.process);
        files.retain(|process, _| contains(members, *process) || Some(*process) == subreaper);
    }

    /// How much the reaped time of each process grew since the last scan.
    fn newly_reaped(
        &self,
        present: &BTreeMap<u32, ProcStat>,
        subreaper: Option<&ProcStat>,
    ) -> BTreeMap<Process, u64> {
        let before = |process: Process| self.last_stat(process).map_or(0, |last_stat| last_stat.reaped);
        let all = present.values().chain(subreaper);
        all.map(|stat| (stat.process, stat.reaped.saturating_sub(before(stat.process)))).collect()
    }

    /// The state of a process at the last scan.
    fn last_stat(&self, process: Process) -> Option<&ProcStat> {
        let member = self.members.get(&process.pid);
        member.into_iter().chain(&self.subreaper).find(|last_stat| last_stat.process == process)
    }

    /// The nearest living ancestor. It has waited for the processes in between, and they had waited for this one.
    fn nearest_ancestor(
        &self,
        gone: &ProcStat,
        present: &BTreeMap<u32, ProcStat>,
        subreaper: Option<&ProcStat>,
    ) -> Option<Process> {
        let mut parent = gone.parent;
        // A chain of ancestors is at most as long as the tree. Reused parent numbers could form a cycle.
        for _ in 0..=self.members.len() {
            if let Some(subreaper) = subreaper.filter(|subreaper| subreaper.process.pid == parent) {
                return Some(subreaper.process);
            }
            let last_stat = self.members.get(&parent)?;
            if contains(present, last_stat.process) {
                return Some(last_stat.process);
            }
            parent = last_stat.parent;
        }
        None
    }
}

/// Subtracts counted time from the reaped time of its reaper. Returns what is left to subtract.
fn settle_pending(
    reaped: &mut BTreeMap<Process, u64>,
    mut pending: PendingReap,
    subreaper: Option<&ProcStat>,
) -> Option<PendingReap> {
    let subreaper = subreaper.filter(|_| pending.or_subreaper).map(|subreaper| subreaper.process);
    for payer in [Some(pending.reaper), subreaper].into_iter().flatten() {
        if let Some(unclaimed) = reaped.get_mut(&payer) {
            let paid = pending.ticks.min(*unclaimed);
            *unclaimed -= paid;
            pending.ticks -= paid;
        }
    }
    (pending.ticks > 0).then_some(pending)
}

fn contains(present: &BTreeMap<u32, ProcStat>, process: Process) -> bool {
    present.get(&process.pid).is_some_and(|stat| stat.process == process)
}
