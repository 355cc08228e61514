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
//! What is used is counted by differences, and they are never negative. What a member used before it ended is counted by then, up to
//! the last look, and the rest by its parent, if that one asks how it ended. Should one end whose parent does not ask, what it used
//! after the last look is lost, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::{Proc, Process, Stat};

/// How thoroughly to look for new members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Among the children of those that are known; it costs as much as the tree is large.
    Near,
    /// Among all processes of the machine.
    Whole,
}

/// A process with all its descendants.
#[derive(Debug)]
pub(crate) struct Tree {
    proc: Proc,
    root: Process,
    members: BTreeMap<u32, Stat>,
    /// Who has the orphans, if that is somebody of ours.
    keeper: Option<Stat>,
    /// Sessions that were begun by members.
    sessions: BTreeSet<u32>,
    /// What all members have used, in ticks.
    used: u64,
    /// What was counted of those that ended in the middle of the last look.
    owed: Vec<Debt>,
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

impl Tree {
    /// The tree below the process of this number; `None` if there is none. Its keeper, if it has one, has not asked for anybody yet.
    pub(crate) fn of(proc: &Proc, pid: u32, keeper: Option<u32>) -> io::Result<Option<Tree>> {
        let keeper = keeper.map(|keeper| proc.stat(keeper)).transpose()?.flatten();
        let Some(root) = proc.stat(pid)? else { return Ok(None) };
        let mut tree = Tree {
            proc: proc.clone(),
            root: root.process,
            members: BTreeMap::new(),
            keeper: None,
            sessions: BTreeSet::new(),
            used: 0,
            owed: Vec::new(),
        };
        let mut present = BTreeMap::from([(pid, root)]);
        tree.find(Depth::Whole, &mut present, keeper.as_ref())?;
        tree.take(present, keeper);
        Ok(Some(tree))
    }

    /// Looks who is there and what they have used.
    pub(crate) fn refresh(&mut self, depth: Depth) -> io::Result<()> {
        // Parents before their children.
        let keeper = self.keeper.as_ref().map(|keeper| self.proc.look(keeper.process)).transpose()?.flatten();
        let mut present = BTreeMap::new();
        let mut known: Vec<&Stat> = self.members.values().collect();
        known.sort_by_key(|stat| stat.process.started);
        for known in known {
            if let Some(stat) = self.proc.look(known.process)? {
                present.insert(stat.process.pid, stat);
            }
        }
        self.find(depth, &mut present, keeper.as_ref())?;
        self.take(present, keeper);
        Ok(())
    }

    /// Adds whoever belongs to those who are present.
    fn find(&self, depth: Depth, present: &mut BTreeMap<u32, Stat>, keeper: Option<&Stat>) -> io::Result<()> {
        let is_told = match (keeper, depth) {
            // Everybody is below it.
            (Some(_), _) => self.find_near(present, keeper)?,
            // Where everybody is gone, somebody may be left whose parents ended before they were seen.
            (None, Depth::Near) => !present.is_empty() && self.find_near(present, keeper)?,
            (None, Depth::Whole) => false,
        };
        if is_told { Ok(()) } else { self.find_whole(present, keeper) }
    }

    /// Its root.
    pub(crate) fn root(&self) -> Process {
        self.root
    }

    /// Who was there at the last look, the ended ones that nobody has asked for included.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Stat> {
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
    fn find_near(&self, present: &mut BTreeMap<u32, Stat>, keeper: Option<&Stat>) -> io::Result<bool> {
        let mut ask: Vec<u32> = present.keys().copied().collect();
        ask.extend(keeper.map(|keeper| keeper.process.pid));
        while let Some(parent) = ask.pop() {
            let Some(stat) = present.get(&parent).or(keeper) else { continue };
            let Some(children) = self.proc.children(stat)? else { return Ok(false) };
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
    fn find_whole(&self, present: &mut BTreeMap<u32, Stat>, keeper: Option<&Stat>) -> io::Result<()> {
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
            let is_ours = |stat: &Stat| {
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
    fn take(&mut self, present: BTreeMap<u32, Stat>, keeper: Option<Stat>) {
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
    }

    /// What those who are there have heard of others since the last look who ended.
    fn reaped(&self, present: &BTreeMap<u32, Stat>, keeper: Option<&Stat>) -> BTreeMap<Process, u64> {
        let before = |process: Process| self.known(process).map_or(0, |known| known.reaped);
        let all = present.values().chain(keeper);
        all.map(|stat| (stat.process, stat.reaped.saturating_sub(before(stat.process)))).collect()
    }

    /// What was known of a process at the last look.
    fn known(&self, process: Process) -> Option<&Stat> {
        let member = self.members.get(&process.pid);
        member.into_iter().chain(&self.keeper).find(|known| known.process == process)
    }

    /// The nearest ancestor that is still there: it has asked for those between, as they had asked for this one.
    fn heir(&self, gone: &Stat, present: &BTreeMap<u32, Stat>, keeper: Option<&Stat>) -> Option<Process> {
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
fn pay(reaped: &mut BTreeMap<Process, u64>, mut debt: Debt, keeper: Option<&Stat>) -> Option<Debt> {
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

fn is_there(present: &BTreeMap<u32, Stat>, process: Process) -> bool {
    present.get(&process.pid).is_some_and(|stat| stat.process == process)
}
