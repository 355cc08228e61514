//! A directory in memory, for tests: it fails when it is told to, and it can be crashed.
//!
//! It knows for every file what is durable and what was only written, and the same for names. A **crash image** is a copy in which
//! everything durable is there and everything else is up to chance: see [`Simulated::crash`]. A simulation that was
//! [recorded](Simulated::recorded) can be crashed after any of its calls, long after the run is over.
//!
//! A failed sync is modelled on what kernels do: what could not be written is still read back, and a later sync that succeeds does
//! not mean that it was written after all. Only writing it again helps.
//!
//! It is public because the tests of other crates need it. It is no store of anybody's data: all of it is gone with the process.

mod disk_model;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use disk_model::{Change, Dice, Disk};

use super::{File, Files, Guard, Purpose};

/// A call that can be made to fail, or to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// [`Files::list`].
    List,
    /// [`Files::open`].
    Open,
    /// [`Files::create`].
    Create,
    /// [`Files::rename`].
    Rename,
    /// [`Files::remove`].
    Remove,
    /// [`Files::sync_names`].
    SyncNames,
    /// [`Files::lock`].
    Lock,
    /// [`File::length`] and [`File::read_at`].
    Read,
    /// [`File::write_at`].
    Write,
    /// [`File::reserve`].
    Reserve,
    /// [`File::sync`].
    Sync,
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The device has a fault (`EIO`). A write that meets it may have written a part.
    Broken,
    /// There is no room (`ENOSPC`).
    Full,
    /// This user may not (`EACCES`).
    Forbidden,
    /// Nobody may write here (`EROFS`).
    ReadOnly,
}

impl Trouble {
    fn error(self) -> io::Error {
        io::Error::from(match self {
            Trouble::Broken => rustix::io::Errno::IO,
            Trouble::Full => rustix::io::Errno::NOSPC,
            Trouble::Forbidden => rustix::io::Errno::ACCESS,
            Trouble::ReadOnly => rustix::io::Errno::ROFS,
        })
    }
}

/// How often a rule applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lasting {
    /// To one call.
    Once,
    /// To every call from then on.
    ForGood,
}

/// A directory in memory, for tests.
#[derive(Debug)]
pub struct Simulated {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    disk: Disk,
    /// Everything that happened, if it is recorded.
    record: Option<Record>,
    rules: Vec<Rule>,
    holds: Vec<(u64, Call)>,
    next_hold: u64,
    /// What waits for a hold.
    waiting: Vec<Call>,
    locked: Vec<String>,
    room: Option<u64>,
    randoms: u64,
}

/// What happened to a disk since it was as it was.
#[derive(Debug)]
struct Record {
    base: Disk,
    changes: Vec<Change>,
}

impl Record {
    fn of(base: &Disk) -> Record {
        Record { base: base.clone(), changes: Vec::new() }
    }

    /// The disk after so many changes.
    fn disk_after(&self, changes: usize) -> Disk {
        let mut disk = self.base.clone();
        self.changes.iter().take(changes).for_each(|change| disk.apply(change));
        disk
    }
}

#[derive(Debug)]
struct Rule {
    call: Call,
    /// How many calls pass before it applies.
    pass: u64,
    trouble: Trouble,
    lasting: Lasting,
}

impl Default for Simulated {
    fn default() -> Simulated {
        Simulated::new()
    }
}

impl Simulated {
    /// An empty directory.
    pub fn new() -> Simulated {
        Simulated::of(Disk::default(), None)
    }

    /// An empty directory that remembers everything that is done to it, for [`Simulated::crash_after`].
    pub fn recorded() -> Simulated {
        let disk = Disk::default();
        let record = Record::of(&disk);
        Simulated::of(disk, Some(record))
    }

    fn of(disk: Disk, record: Option<Record>) -> Simulated {
        let state = State {
            disk,
            record,
            rules: Vec::new(),
            holds: Vec::new(),
            next_hold: 0,
            waiting: Vec::new(),
            locked: Vec::new(),
            room: None,
            randoms: 0,
        };
        Simulated { shared: Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() }) }
    }

    /// What the machine may find after the power failed now. Each write since the last sync was kept, dropped, or torn: cut off at some
    /// byte or some sector, or missing some sectors; in any order. Each name that was made, changed or removed since names were synced
    /// was or was not. The seed decides.
    pub fn crash(&self, seed: u64) -> Simulated {
        Simulated::of(self.lock_state().disk.image(&mut Dice::new(seed)), None)
    }

    /// The same, as if the power had failed after this many [changes](Simulated::changes). It is recorded too.
    ///
    /// # Panics
    /// If the directory is not [recorded](Simulated::recorded).
    pub fn crash_after(&self, changes: usize, seed: u64) -> Simulated {
        let disk = self.disk_after(changes).image(&mut Dice::new(seed));
        let record = Record::of(&disk);
        Simulated::of(disk, Some(record))
    }

    /// What another process finds after this one was killed when it had made this many changes: everything that was written, durable or
    /// not. It is recorded too.
    ///
    /// # Panics
    /// If the directory is not [recorded](Simulated::recorded).
    pub fn killed_after(&self, changes: usize) -> Simulated {
        let disk = self.disk_after(changes);
        let record = Record::of(&disk);
        Simulated::of(disk, Some(record))
    }

    fn disk_after(&self, changes: usize) -> Disk {
        let state = self.lock_state();
        state.record.as_ref().expect("only a recorded directory knows its past").disk_after(changes)
    }

    /// How often the directory or a file of it was changed or synced so far. Zero if it is not recorded.
    pub fn changes(&self) -> usize {
        self.lock_state().record.as_ref().map_or(0, |record| record.changes.len())
    }

    /// What another process finds after this one was killed: everything that was written, durable or not, and no locks.
    pub fn killed(&self) -> Simulated {
        Simulated::of(self.lock_state().disk.clone(), None)
    }

    /// Makes a call fail, after this many of its kind have passed.
    pub fn fail(&self, call: Call, pass: u64, trouble: Trouble, lasting: Lasting) {
        self.lock_state().rules.push(Rule { call, pass, trouble, lasting });
    }

    /// Takes all rules back.
    pub fn repair(&self) {
        self.lock_state().rules.clear();
    }

    /// Lets files grow to this many bytes together, or without end.
    pub fn set_room(&self, bytes: Option<u64>) {
        self.lock_state().room = bytes;
    }

    /// How many bytes all files have together.
    pub fn used(&self) -> u64 {
        self.lock_state().disk.used()
    }

    /// Lets calls of this kind wait until the hold is dropped.
    pub fn hold(&self, call: Call) -> Hold {
        let mut state = self.lock_state();
        let number = state.next_hold;
        state.next_hold += 1;
        state.holds.push((number, call));
        Hold { shared: Arc::clone(&self.shared), number, call }
    }

    /// The names there are, sorted.
    pub fn names(&self) -> Vec<String> {
        self.lock_state().disk.names()
    }

    /// The bytes of a file. `None` if there is none of this name.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        self.lock_state().disk.bytes(name).map(<[u8]>::to_vec)
    }

    /// Puts a file there as if it had always been; what a disk does to it, or an operator. It is not recorded.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        self.lock_state().disk.put(name, bytes);
    }

    /// Takes a file away as if it had never been. It is not recorded.
    pub fn take(&self, name: &str) {
        self.lock_state().disk.take(name);
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.shared.lock_state()
    }
}

impl Shared {
    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for holds, then applies the rules.
    fn begin(&self, call: Call) -> (MutexGuard<'_, State>, io::Result<()>) {
        let mut state = self.lock_state();
        if state.is_held(call) {
            state.waiting.push(call);
            self.changed.notify_all();
            while state.is_held(call) {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let place = state.waiting.iter().position(|waiting| *waiting == call);
            place.map(|place| state.waiting.swap_remove(place));
        }
        let outcome = state.judge(call);
        (state, outcome)
    }
}

impl State {
    fn is_held(&self, call: Call) -> bool {
        self.holds.iter().any(|(_, held)| *held == call)
    }

    /// Whether a rule lets this call fail. A rule that passes it counts it.
    fn judge(&mut self, call: Call) -> io::Result<()> {
        for index in 0..self.rules.len() {
            let rule = &mut self.rules[index];
            if rule.call != call {
                continue;
            }
            if rule.pass > 0 {
                rule.pass -= 1;
                continue;
            }
            let error = rule.trouble.error();
            if rule.lasting == Lasting::Once {
                self.rules.remove(index);
            }
            return Err(error);
        }
        Ok(())
    }

    fn apply(&mut self, change: Change) {
        self.disk.apply(&change);
        if let Some(record) = &mut self.record {
            record.changes.push(change);
        }
    }

    /// Whether a file may grow to this length.
    fn judge_room(&self, file: usize, length: usize) -> io::Result<()> {
        let growth = length.saturating_sub(self.disk.content(file).len()) as u64;
        match self.room {
            Some(room) if growth > 0 && self.disk.used() + growth > room => Err(Trouble::Full.error()),
            _ => Ok(()),
        }
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.disk.find(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

impl Files for Simulated {
    fn place(&self) -> String {
        "simulated directory".to_owned()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let (state, outcome) = self.shared.begin(Call::List);
        outcome.map(|()| state.disk.names())
    }

    fn open(&self, name: &str, purpose: Purpose) -> io::Result<Box<dyn File>> {
        let (state, outcome) = self.shared.begin(Call::Open);
        outcome?;
        let file = state.find(name)?;
        Ok(Box::new(SimulatedFile { shared: Arc::clone(&self.shared), file, purpose }))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        let (mut state, outcome) = self.shared.begin(Call::Create);
        outcome?;
        if state.disk.find(name).is_some() {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        state.apply(Change::Create { name: name.to_owned() });
        let file = state.find(name)?;
        Ok(Box::new(SimulatedFile { shared: Arc::clone(&self.shared), file, purpose: Purpose::Writing }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (mut state, outcome) = self.shared.begin(Call::Rename);
        outcome?;
        state.find(from)?;
        state.apply(Change::Rename { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let (mut state, outcome) = self.shared.begin(Call::Remove);
        outcome?;
        state.find(name)?;
        state.apply(Change::Remove { name: name.to_owned() });
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let (mut state, outcome) = self.shared.begin(Call::SyncNames);
        outcome?;
        state.apply(Change::SyncNames);
        Ok(())
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Guard>> {
        let (mut state, outcome) = self.shared.begin(Call::Lock);
        outcome?;
        if state.locked.iter().any(|locked| locked == name) {
            return Err(io::Error::from(io::ErrorKind::WouldBlock));
        }
        if state.disk.find(name).is_none() {
            state.apply(Change::Create { name: name.to_owned() });
        }
        state.locked.push(name.to_owned());
        Ok(Box::new(SimulatedGuard { shared: Arc::clone(&self.shared), name: name.to_owned() }))
    }

    fn random(&self) -> io::Result<[u8; 16]> {
        let mut state = self.lock_state();
        state.randoms += 1;
        let mut dice = Dice::new(state.randoms);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&dice.throw().to_le_bytes());
        bytes[8..].copy_from_slice(&dice.throw().to_le_bytes());
        Ok(bytes)
    }
}

/// A file in memory.
#[derive(Debug)]
struct SimulatedFile {
    shared: Arc<Shared>,
    file: usize,
    purpose: Purpose,
}

impl SimulatedFile {
    fn may_write(&self) -> io::Result<()> {
        match self.purpose {
            Purpose::Writing => Ok(()),
            Purpose::Reading => Err(io::Error::from(rustix::io::Errno::BADF)),
        }
    }
}

impl File for SimulatedFile {
    fn length(&self) -> io::Result<u64> {
        let (state, outcome) = self.shared.begin(Call::Read);
        outcome.map(|()| state.disk.content(self.file).len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let (state, outcome) = self.shared.begin(Call::Read);
        outcome?;
        let content = state.disk.content(self.file);
        let from = place(offset).min(content.len());
        let count = buffer.len().min(content.len() - from);
        buffer[..count].copy_from_slice(&content[from..from + count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (mut state, outcome) = self.shared.begin(Call::Write);
        self.may_write()?;
        let offset = place(offset);
        let outcome = outcome.and_then(|()| state.judge_room(self.file, offset + bytes.len()));
        let written = match &outcome {
            Ok(()) => bytes,
            // Half of it is there, and whoever failed must not count on the other half being absent or present.
            Err(_) => &bytes[..bytes.len() / 2],
        };
        let fits = state.judge_room(self.file, offset + written.len()).is_ok();
        if fits && !written.is_empty() {
            state.apply(Change::Write { file: self.file, offset, bytes: written.into() });
        }
        outcome
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        let (mut state, outcome) = self.shared.begin(Call::Reserve);
        outcome?;
        self.may_write()?;
        state.judge_room(self.file, place(length))?;
        state.apply(Change::Reserve { file: self.file, length: place(length) });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let (mut state, outcome) = self.shared.begin(Call::Sync);
        let file = self.file;
        state.apply(if outcome.is_ok() { Change::Sync { file } } else { Change::SyncFailed { file } });
        outcome
    }
}

/// A place in memory.
fn place(offset: u64) -> usize {
    usize::try_from(offset).expect("simulated files fit into memory")
}

#[derive(Debug)]
struct SimulatedGuard {
    shared: Arc<Shared>,
    name: String,
}

impl Guard for SimulatedGuard {}

impl Drop for SimulatedGuard {
    fn drop(&mut self) {
        self.shared.lock_state().locked.retain(|locked| *locked != self.name);
    }
}

/// Calls wait for as long as this is there.
#[derive(Debug)]
pub struct Hold {
    shared: Arc<Shared>,
    number: u64,
    call: Call,
}

impl Hold {
    /// Waits until somebody waits for this.
    pub fn wait_for_caller(&self) {
        let mut state = self.shared.lock_state();
        while !state.waiting.contains(&self.call) {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.lock_state().holds.retain(|(number, _)| *number != self.number);
        self.shared.changed.notify_all();
    }
}
