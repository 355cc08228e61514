//! A process with all its descendants, and what they have used together.
//!
//! ```text
//!            root ─────────────┐ own + reaped
//!            /   \             │
//!         child   child        │ own + reaped       used = everything that was ever added
//!          |        ✝          │
//!       grandchild   reaped by its parent: counted there, less what was counted before
//! ```
//!
//! Who has been seen in the tree stays in it, also when its parent ends and somebody else takes it over. New ones are children of members,
//! or are in a session that a member leads: only its descendants can be. So a daemon that forks twice is found, however fast it is, unless it
//! begins a session too.
//!
//! A tree may have a *keeper*, which is not in it: a process that has no children but the root and whoever is orphaned among its
//! descendants. Then all of them are children of somebody who is known, nobody gets lost, and what orphans used until they ended is known
//! too, from their keeper.
//!
//! Parents are looked at before their children. So nobody is counted by itself and by its parent in one look; and of those that ended in
//! the middle of one, the parent is *owed*: what it says more at the next look was counted before.
//!
//! Trees are looked at several times a second. So what is read of those who are known stays open, and nobody looks for new ones as long as no
//! process was started on the whole machine: the kernel tells which number it gave last.
//!
//! What is used is counted by differences, and they are never negative. What a member used before it ended is counted by then, up to
//! the last look, and the rest by its parent, if that one asks how it ended. Should one end whose parent does not ask, what it used
//! after the last look is lost, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;

use super::{Newest, ProcFs, ProcStat, Process, children_in, unless_gone};

/// How many members are read from files that stay open.
const MOST_OPEN: usize = 256;
/// After so many looks at the latest, new members are looked for whatever the kernel says of its numbers.
const FIND_EVERY: u32 = 16;
/// How often they are looked for after a number was given: who has one may not be there yet.
const FINDS: u32 = 2;

/// How thoroughly to look for new members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanDepth {
    /// Among the children of those that are known, if anybody was started; it costs as much as the tree is large.
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
    /// Who has the orphans, if that is somebody of ours.
    keeper: Option<ProcStat>,
    /// What is read of them again and again.
    files: BTreeMap<Process, Open>,
    most_open: usize,
    /// Which number was given last, when it was looked at last.
    newest: Newest,
    /// How often new members are still to be looked for, and after how many looks once more.
    finds: u32,
    find_in: u32,
    /// Sessions that were begun by members.
    sessions: BTreeSet<u32>,
    /// What all members have used, in ticks.
    used: u64,
    /// What was counted of those that ended in the middle of the last look.
    owed: Vec<Debt>,
}

/// The files of a process that stay open.
#[derive(Debug)]
struct Open {
    stat: File,
    /// Those of its first thread.
    children: Option<File>,
}

/// What was counted of somebody before whoever asked for it will say it again.
#[derive(Debug, Clone, Copy)]
struct Debt {
    /// Its nearest ancestor that is there.
    heir: Process,
    /// Whether it may have been the keeper who asked: its parent was gone as well.
    or_keeper: bool,
    ticks: u64,
}

impl ProcessTree {
    /// The tree below the process of this number; `None` if there is none. Its keeper, if it has one, has not asked for anybody yet.
    pub(crate) fn of(proc: &ProcFs, pid: u32, keeper: Option<u32>) -> io::Result<Option<ProcessTree>> {
        let keeper = keeper.map(|keeper| proc.stat(keeper)).transpose()?.flatten();
        let Some(root) = proc.stat(pid)? else { return Ok(None) };
        let mut tree = ProcessTree {
            proc: proc.clone(),
            root: root.process,
            members: BTreeMap::new(),
            keeper: None,
            files: BTreeMap::new(),
            // Only the kernel's own files say that their process is gone.
            most_open: if proc.is_real() { MOST_OPEN } else { 0 },
            newest: Newest::of(proc),
            finds: FINDS,
            find_in: 0,
            sessions: BTreeSet::new(),
            used: 0,
            owed: Vec::new(),
        };
        let mut present = BTreeMap::from([(pid, root)]);
        tree.find(ScanDepth::Whole, &mut present, keeper.as_ref())?;
        tree.take(present, keeper);
        Ok(Some(tree))
    }

    /// Looks who is there and what they have used.
    pub(crate) fn refresh(&mut self, depth: ScanDepth) -> io::Result<()> {
        // Parents before their children.
        let keeper = self.keeper.as_ref().map(|keeper| keeper.process);
        let keeper = keeper.map(|keeper| self.look(keeper)).transpose()?.flatten();
        let mut present = BTreeMap::new();
        let mut known: Vec<Process> = self.members.values().map(|stat| stat.process).collect();
        known.sort_by_key(|process| process.started);
        for process in known {
            if let Some(stat) = self.look(process)? {
                present.insert(stat.process.pid, stat);
            }
        }
        if self.may_have_grown() || depth == ScanDepth::Whole || present.is_empty() {
            self.find(depth, &mut present, keeper.as_ref())?;
        }
        self.take(present, keeper);
        Ok(())
    }

    /// What is known of a process; `None` if it is gone.
    fn look(&mut self, process: Process) -> io::Result<Option<ProcStat>> {
        if let Some(open) = self.files.get(&process) {
            return unless_gone(self.proc.stat_in(&open.stat, process.pid));
        }
        if self.files.len() >= self.most_open {
            return self.proc.look(process);
        }
        // Opened first and looked at then: what is seen now is what is open.
        let Some(file) = self.proc.open(process.pid)? else { return Ok(None) };
        let children = self.proc.open_children(process.pid, process.pid)?;
        let stat = unless_gone(self.proc.stat_in(&file, process.pid))?.filter(|stat| stat.process == process);
        if stat.is_some() {
            self.files.insert(process, Open { stat: file, children });
        }
        Ok(stat)
    }

    /// The numbers of a process's children; `None` if this kernel does not tell.
    fn children(&self, stat: &ProcStat, is_keeper: bool) -> io::Result<Option<Vec<u32>>> {
        let open = self.files.get(&stat.process).and_then(|open| open.children.as_ref());
        match open {
            // Those of a keeper are all with its first thread: orphans are, and it started the root.
            Some(file) if is_keeper || stat.threads == 1 => {
                Ok(Some(unless_gone(children_in(file))?.unwrap_or_default()))
            }
            _ => self.proc.children(stat),
        }
    }

    /// Whether there may be new members.
    fn may_have_grown(&mut self) -> bool {
        if self.newest.has_changed() {
            self.finds = FINDS;
        }
        if self.finds > 0 || self.find_in == 0 {
            self.finds = self.finds.saturating_sub(1);
            self.find_in = FIND_EVERY;
            return true;
        }
        self.find_in -= 1;
        false
    }

    /// Adds whoever belongs to those who are present.
    fn find(
        &self,
        depth: ScanDepth,
        present: &mut BTreeMap<u32, ProcStat>,
        keeper: Option<&ProcStat>,
    ) -> io::Result<()> {
        let is_told = match (keeper, depth) {
            // Everybody is below it.
            (Some(_), _) => self.find_near(present, keeper)?,
            // Where everybody is gone, somebody may be left whose parents ended before they were seen.
            (None, ScanDepth::Near) => !present.is_empty() && self.find_near(present, keeper)?,
            (None, ScanDepth::Whole) => false,
        };
        if is_told { Ok(()) } else { self.find_whole(present, keeper) }
    }

    /// Its root.
    pub(crate) fn root(&self) -> Process {
        self.root
    }

    /// Who was there at the last look, the ended ones that nobody has asked for included.
    pub(crate) fn members(&self) -> impl Iterator<Item = &ProcStat> {
        self.members.values()
    }

    /// Whether this process was in it at the last look.
    pub(crate) fn has(&self, process: Process) -> bool {
        self.members.get(&process.pid).is_some_and(|stat| stat.process == process)
    }

    /// Whether somebody of ours has the orphans.
    pub(crate) fn is_kept(&self) -> bool {
        self.keeper.is_some()
    }

    /// What all members together have used, in ticks. It never becomes less.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Adds the children of those who are present, and theirs; `false` if the kernel does not tell.
    fn find_near(
        &self,
        present: &mut BTreeMap<u32, ProcStat>,
        keeper: Option<&ProcStat>,
    ) -> io::Result<bool> {
        let mut ask: Vec<u32> = present.keys().copied().collect();
        ask.extend(keeper.map(|keeper| keeper.process.pid));
        while let Some(parent) = ask.pop() {
            let member = present.get(&parent);
            let Some(stat) = member.or(keeper) else { continue };
            let Some(children) = self.children(stat, member.is_none())? else { return Ok(false) };
            for child in children.into_iter().filter(|child| !present.contains_key(child)).collect::<Vec<_>>()
            {
                // It may have ended since, and its number may be another's.
                if let Some(stat) = self.proc.stat(child)?.filter(|stat| stat.parent == parent) {
                    present.insert(child, stat);
                    ask.push(child);
                }
            }
        }
        Ok(true)
    }

    /// Adds everybody who descends from those who are present, or is in a session that a member began.
    fn find_whole(&self, present: &mut BTreeMap<u32, ProcStat>, keeper: Option<&ProcStat>) -> io::Result<()> {
        let keeper = keeper.map(|keeper| keeper.process.pid);
        let mut others = Vec::new();
        for pid in self.proc.all()? {
            if !present.contains_key(&pid) && Some(pid) != keeper {
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
                    || Some(stat.parent) == keeper
            };
            let (found, rest): (Vec<_>, Vec<_>) = others.into_iter().partition(is_ours);
            if found.is_empty() {
                return Ok(());
            }
            present.extend(found.into_iter().map(|stat| (stat.process.pid, stat)));
            others = rest;
        }
    }

    /// Counts what was used since the last look.
    fn take(&mut self, present: BTreeMap<u32, ProcStat>, keeper: Option<ProcStat>) {
        let mut reaped = self.reaped(&present, keeper.as_ref());
        for debt in std::mem::take(&mut self.owed) {
            pay(&mut reaped, debt, keeper.as_ref());
        }
        for stat in present.values() {
            let before = self.known(stat.process).map_or(0, |known| known.own);
            self.used = self.used.saturating_add(stat.own.saturating_sub(before));
        }
        for gone in self.members.values().filter(|known| !is_there(&present, known.process)) {
            // What was counted of it while it was there is not counted again by whoever asked for it.
            let Some(heir) = self.heir(gone, &present, keeper.as_ref()) else { continue };
            let debt = Debt {
                heir,
                or_keeper: heir.pid != gone.parent,
                ticks: gone.own.saturating_add(gone.reaped),
            };
            self.owed.extend(pay(&mut reaped, debt, keeper.as_ref()));
        }
        self.used = reaped.values().fold(self.used, |used, more| used.saturating_add(*more));
        self.sessions.extend(present.values().map(|stat| stat.process.pid));
        // The name of a session may be given again when the last of its processes has ended.
        self.sessions.retain(|session| present.values().any(|stat| stat.session == *session));
        self.members = present;
        self.keeper = keeper;
        let ProcessTree { files, members, keeper, .. } = self;
        let keeper = keeper.as_ref().map(|keeper| keeper.process);
        files.retain(|process, _| is_there(members, *process) || Some(*process) == keeper);
    }

    /// What those who are there have heard of others since the last look who ended.
    fn reaped(&self, present: &BTreeMap<u32, ProcStat>, keeper: Option<&ProcStat>) -> BTreeMap<Process, u64> {
        let before = |process: Process| self.known(process).map_or(0, |known| known.reaped);
        let all = present.values().chain(keeper);
        all.map(|stat| (stat.process, stat.reaped.saturating_sub(before(stat.process)))).collect()
    }

    /// What was known of a process at the last look.
    fn known(&self, process: Process) -> Option<&ProcStat> {
        let member = self.members.get(&process.pid);
        member.into_iter().chain(&self.keeper).find(|known| known.process == process)
    }

    /// The nearest ancestor that is still there: it has asked for those between, as they had asked for this one.
    fn heir(
        &self,
        gone: &ProcStat,
        present: &BTreeMap<u32, ProcStat>,
        keeper: Option<&ProcStat>,
    ) -> Option<Process> {
        let mut parent = gone.parent;
        // No line of ancestors is longer than the tree; parents that were reused could make a circle.
        for _ in 0..=self.members.len() {
            if let Some(keeper) = keeper.filter(|keeper| keeper.process.pid == parent) {
                return Some(keeper.process);
            }
            let known = self.members.get(&parent)?;
            if is_there(present, known.process) {
                return Some(known.process);
            }
            parent = known.parent;
        }
        None
    }
}

/// Takes a debt off what was heard; what is left of it.
fn pay(reaped: &mut BTreeMap<Process, u64>, mut debt: Debt, keeper: Option<&ProcStat>) -> Option<Debt> {
    let keeper = keeper.filter(|_| debt.or_keeper).map(|keeper| keeper.process);
    for payer in [Some(debt.heir), keeper].into_iter().flatten() {
        if let Some(heard) = reaped.get_mut(&payer) {
            let paid = debt.ticks.min(*heard);
            *heard -= paid;
            debt.ticks -= paid;
        }
    }
    (debt.ticks > 0).then_some(debt)
}

fn is_there(present: &BTreeMap<u32, ProcStat>, process: Process) -> bool {
    present.get(&process.pid).is_some_and(|stat| stat.process == process)
}
