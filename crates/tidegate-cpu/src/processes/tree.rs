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
//! or are in a session that a member leads: only its descendants can be. So a daemon that forks twice is found, however fast it is.
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
    /// Sessions that were begun by members.
    sessions: BTreeSet<u32>,
    /// What all members have used, in ticks.
    used: u64,
    /// What was counted of those that ended in the middle of the last look, by who has asked for them meanwhile.
    owed: BTreeMap<Process, u64>,
}

impl Tree {
    /// The tree below the process of this number; `None` if there is none.
    pub(crate) fn of(proc: &Proc, pid: u32) -> io::Result<Option<Tree>> {
        let Some(root) = proc.stat(pid)? else { return Ok(None) };
        let mut tree = Tree {
            proc: proc.clone(),
            root: root.process,
            members: BTreeMap::new(),
            sessions: BTreeSet::new(),
            used: 0,
            owed: BTreeMap::new(),
        };
        let mut present = BTreeMap::from([(pid, root)]);
        tree.find_whole(&mut present)?;
        tree.take(present);
        Ok(Some(tree))
    }

    /// Looks who is there and what they have used.
    pub(crate) fn refresh(&mut self, depth: Depth) -> io::Result<()> {
        let mut present = BTreeMap::new();
        let mut known: Vec<&Stat> = self.members.values().collect();
        known.sort_by_key(|stat| stat.process.started);
        for known in known {
            if let Some(stat) = self.proc.look(known.process)? {
                present.insert(stat.process.pid, stat);
            }
        }
        // Where everybody is gone, somebody may be left whose parents ended before they were seen.
        if depth == Depth::Whole || present.is_empty() || !self.find_near(&mut present)? {
            self.find_whole(&mut present)?;
        }
        self.take(present);
        Ok(())
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

    /// What all members together have used, in ticks. It never becomes less.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Adds the children of those who are present, and theirs; `false` if the kernel does not tell.
    fn find_near(&self, present: &mut BTreeMap<u32, Stat>) -> io::Result<bool> {
        let mut ask: Vec<u32> = present.keys().copied().collect();
        while let Some(parent) = ask.pop() {
            let Some(children) = self.proc.children(&present[&parent])? else { return Ok(false) };
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
    fn find_whole(&self, present: &mut BTreeMap<u32, Stat>) -> io::Result<()> {
        let mut others = Vec::new();
        for pid in self.proc.all()? {
            if !present.contains_key(&pid) {
                others.extend(self.proc.stat(pid)?.filter(|stat| !stat.is_kernel));
            }
        }
        let mut sessions = self.sessions.clone();
        loop {
            sessions.extend(
                present.values().filter(|stat| stat.session == stat.process.pid).map(|stat| stat.session),
            );
            let is_ours =
                |stat: &Stat| present.contains_key(&stat.parent) || sessions.contains(&stat.session);
            let (found, rest): (Vec<_>, Vec<_>) = others.into_iter().partition(is_ours);
            if found.is_empty() {
                return Ok(());
            }
            present.extend(found.into_iter().map(|stat| (stat.process.pid, stat)));
            others = rest;
        }
    }

    /// Counts what was used since the last look.
    fn take(&mut self, present: BTreeMap<u32, Stat>) {
        let mut reaped: BTreeMap<u32, u64> = BTreeMap::new();
        for stat in present.values() {
            let before = self.members.get(&stat.process.pid).filter(|known| known.process == stat.process);
            let (own, of_children) = before.map_or((0, 0), |known| (known.own, known.reaped));
            let owed = self.owed.get(&stat.process).copied().unwrap_or_default();
            self.used = self.used.saturating_add(stat.own.saturating_sub(own));
            reaped.insert(stat.process.pid, stat.reaped.saturating_sub(of_children).saturating_sub(owed));
        }
        self.owed.clear();
        for gone in self.members.values().filter(|known| !is_there(&present, known.process)) {
            // What was counted of it while it was there is not counted again by whoever asked for it.
            let Some(heir) = self.heir(gone, &present) else { continue };
            let counted = gone.own.saturating_add(gone.reaped);
            let by_heir = reaped.entry(heir.pid).or_default();
            if counted > *by_heir {
                *self.owed.entry(heir).or_default() += counted - *by_heir;
            }
            *by_heir = by_heir.saturating_sub(counted);
        }
        self.used = reaped.values().fold(self.used, |used, more| used.saturating_add(*more));
        self.sessions.extend(present.values().map(|stat| stat.process.pid));
        // The name of a session may be given again when the last of its processes has ended.
        self.sessions.retain(|session| present.values().any(|stat| stat.session == *session));
        self.members = present;
    }

    /// The nearest ancestor that is still there: it has asked for those between, as they had asked for this one.
    fn heir(&self, gone: &Stat, present: &BTreeMap<u32, Stat>) -> Option<Process> {
        let mut parent = gone.parent;
        // No line of ancestors is longer than the tree; parents that were reused could make a circle.
        for _ in 0..=self.members.len() {
            let known = self.members.get(&parent)?;
            if is_there(present, known.process) {
                return Some(known.process);
            }
            parent = known.parent;
        }
        None
    }
}

fn is_there(present: &BTreeMap<u32, Stat>, process: Process) -> bool {
    present.get(&process.pid).is_some_and(|stat| stat.process == process)
}
