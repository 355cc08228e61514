//! A directory in memory, for tests: it fails when it is told to, and it can be crashed.
//!
//! It knows for every file what is durable and what was only written, and the same for names. A **crash image** is a copy in which
//! everything durable is there and everything else is up to chance: see [`SimulatedDirectory::crash`]. A simulation that was
//! [recorded](SimulatedDirectory::recorded) can be crashed after any of its calls, long after the run is over.
//!
//! A failed sync is modelled on what kernels do: what could not be written is still read back, and a later sync that succeeds does
//! not mean that it was written after all. Only writing it again helps.
//!
//! It is public because the tests of other crates need it. It is no store of anybody's data: all of it is gone with the process.

mod disk_model;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use disk_model::{DiskChange, DiskModel, SeededRng};

use super::{Directory, DirectoryFile, DirectoryLock, OpenMode};

/// A call that can be made to fail, or to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskCall {
    /// [`Directory::list`].
    List,
    /// [`Directory::open`].
    Open,
    /// [`Directory::create`].
    Create,
    /// [`Directory::rename`].
    Rename,
    /// [`Directory::remove`].
    Remove,
    /// [`Directory::sync_names`].
    SyncNames,
    /// [`Directory::lock`].
    Lock,
    /// [`DirectoryFile::length`] and [`DirectoryFile::read_at`].
    Read,
    /// [`DirectoryFile::write_at`].
    Write,
    /// [`DirectoryFile::reserve`].
    Reserve,
    /// [`DirectoryFile::sync`].
    Sync,
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// The device has a fault (`EIO`). A write that meets it may have written a part.
    IoError,
    /// There is no room (`ENOSPC`).
    Full,
    /// This user may not (`EACCES`).
    PermissionDenied,
    /// Nobody may write here (`EROFS`).
    ReadOnly,
}

impl DiskFault {
    fn error(self) -> io::Error {
        io::Error::from(match self {
            DiskFault::IoError => rustix::io::Errno::IO,
            DiskFault::Full => rustix::io::Errno::NOSPC,
            DiskFault::PermissionDenied => rustix::io::Errno::ACCESS,
            DiskFault::ReadOnly => rustix::io::Errno::ROFS,
        })
    }
}

/// How often a rule applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultDuration {
    /// To one call.
    Once,
    /// To every call from then on.
    Permanent,
}

/// A directory in memory, for tests.
#[derive(Debug)]
pub struct SimulatedDirectory {
    shared: Arc<SharedDisk>,
}

#[derive(Debug)]
struct SharedDisk {
    state: Mutex<DiskState>,
    changed: Condvar,
}

#[derive(Debug)]
struct DiskState {
    disk: DiskModel,
    /// Everything that happened, if it is recorded.
    record: Option<ChangeHistory>,
    rules: Vec<FaultRule>,
    holds: Vec<(u64, DiskCall)>,
    next_hold_id: u64,
    /// What waits for a hold.
    waiting: Vec<DiskCall>,
    locked: Vec<String>,
    capacity: Option<u64>,
    random_calls: u64,
}

/// What happened to a disk since it was as it was.
#[derive(Debug)]
struct ChangeHistory {
    base: DiskModel,
    changes: Vec<DiskChange>,
}

impl ChangeHistory {
    fn of(base: &DiskModel) -> ChangeHistory {
        ChangeHistory { base: base.clone(), changes: Vec::new() }
    }

    /// The disk after so many changes.
    fn disk_after(&self, changes: usize) -> DiskModel {
        let mut disk = self.base.clone();
        self.changes.iter().take(changes).for_each(|change| disk.apply(change));
        disk
    }
}

#[derive(Debug)]
struct FaultRule {
    call: DiskCall,
    /// How many calls pass before it applies.
    pass: u64,
    fault: DiskFault,
    duration: FaultDuration,
}

impl Default for SimulatedDirectory {
    fn default() -> SimulatedDirectory {
        SimulatedDirectory::new()
    }
}

impl SimulatedDirectory {
    /// An empty directory.
    pub fn new() -> SimulatedDirectory {
        SimulatedDirectory::of(DiskModel::default(), None)
    }

    /// An empty directory that remembers everything that is done to it, for [`SimulatedDirectory::crash_after`].
    pub fn recorded() -> SimulatedDirectory {
        let disk = DiskModel::default();
        let record = ChangeHistory::of(&disk);
        SimulatedDirectory::of(disk, Some(record))
    }

    fn of(disk: DiskModel, record: Option<ChangeHistory>) -> SimulatedDirectory {
        let state = DiskState {
            disk,
            record,
            rules: Vec::new(),
            holds: Vec::new(),
            next_hold_id: 0,
            waiting: Vec::new(),
            locked: Vec::new(),
            capacity: None,
            random_calls: 0,
        };
        SimulatedDirectory {
            shared: Arc::new(SharedDisk { state: Mutex::new(state), changed: Condvar::new() }),
        }
    }

    /// What the machine may find after the power failed now. Each write since the last sync was kept, dropped, or torn: cut off at some
    /// byte or some sector, or missing some sectors; in any order. Each name that was made, changed or removed since names were synced
    /// was or was not. The seed decides.
    pub fn crash(&self, seed: u64) -> SimulatedDirectory {
        SimulatedDirectory::of(self.lock_state().disk.image(&mut SeededRng::new(seed)), None)
    }

    /// The same, as if the power had failed after this many [changes](SimulatedDirectory::changes). It is recorded too.
    ///
    /// # Panics
    /// If the directory is not [recorded](SimulatedDirectory::recorded).
    pub fn crash_after(&self, changes: usize, seed: u64) -> SimulatedDirectory {
        let disk = self.disk_after(changes).image(&mut SeededRng::new(seed));
        let record = ChangeHistory::of(&disk);
        SimulatedDirectory::of(disk, Some(record))
    }

    /// What another process finds after this one was killed when it had made this many changes: everything that was written, durable or
    /// not. It is recorded too.
    ///
    /// # Panics
    /// If the directory is not [recorded](SimulatedDirectory::recorded).
    pub fn killed_after(&self, changes: usize) -> SimulatedDirectory {
        let disk = self.disk_after(changes);
        let record = ChangeHistory::of(&disk);
        SimulatedDirectory::of(disk, Some(record))
    }

    fn disk_after(&self, changes: usize) -> DiskModel {
        let state = self.lock_state();
        state.record.as_ref().expect("only a recorded directory knows its past").disk_after(changes)
    }

    /// How often the directory or a file of it was changed or synced so far. Zero if it is not recorded.
    pub fn changes(&self) -> usize {
        self.lock_state().record.as_ref().map_or(0, |record| record.changes.len())
    }

    /// What another process finds after this one was killed: everything that was written, durable or not, and no locks.
    pub fn killed(&self) -> SimulatedDirectory {
        SimulatedDirectory::of(self.lock_state().disk.clone(), None)
    }

    /// Makes a call fail, after this many of its kind have passed.
    pub fn fail(&self, call: DiskCall, pass: u64, fault: DiskFault, duration: FaultDuration) {
        self.lock_state().rules.push(FaultRule { call, pass, fault, duration });
    }

    /// Takes all rules back.
    pub fn repair(&self) {
        self.lock_state().rules.clear();
    }

    /// Lets files grow to this many bytes together, or without end.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock_state().capacity = bytes;
    }

    /// How many bytes all files have together.
    pub fn used(&self) -> u64 {
        self.lock_state().disk.used()
    }

    /// Lets calls of this kind wait until the hold is dropped.
    pub fn hold(&self, call: DiskCall) -> CallHold {
        let mut state = self.lock_state();
        let number = state.next_hold_id;
        state.next_hold_id += 1;
        state.holds.push((number, call));
        CallHold { shared: Arc::clone(&self.shared), number, call }
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

    fn lock_state(&self) -> MutexGuard<'_, DiskState> {
        self.shared.lock_state()
    }
}

impl SharedDisk {
    fn lock_state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for holds, then applies the rules.
    fn start_call(&self, call: DiskCall) -> (MutexGuard<'_, DiskState>, io::Result<()>) {
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
        let outcome = state.apply_rules(call);
        (state, outcome)
    }
}

impl DiskState {
    fn is_held(&self, call: DiskCall) -> bool {
        self.holds.iter().any(|(_, held)| *held == call)
    }

    /// Whether a rule lets this call fail. A rule that passes it counts it.
    fn apply_rules(&mut self, call: DiskCall) -> io::Result<()> {
        for index in 0..self.rules.len() {
            let rule = &mut self.rules[index];
            if rule.call != call {
                continue;
            }
            if rule.pass > 0 {
                rule.pass -= 1;
                continue;
            }
            let error = rule.fault.error();
            if rule.duration == FaultDuration::Once {
                self.rules.remove(index);
            }
            return Err(error);
        }
        Ok(())
    }

    fn apply(&mut self, change: DiskChange) {
        self.disk.apply(&change);
        if let Some(record) = &mut self.record {
            record.changes.push(change);
        }
    }

    /// Whether a file may grow to this length.
    fn check_capacity(&self, file: usize, length: usize) -> io::Result<()> {
        let growth = length.saturating_sub(self.disk.content(file).len()) as u64;
        match self.capacity {
            Some(capacity) if growth > 0 && self.disk.used() + growth > capacity => {
                Err(DiskFault::Full.error())
            }
            _ => Ok(()),
        }
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.disk.find(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

impl Directory for SimulatedDirectory {
    fn location(&self) -> String {
        "simulated directory".to_owned()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let (state, outcome) = self.shared.start_call(DiskCall::List);
        outcome.map(|()| state.disk.names())
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Box<dyn DirectoryFile>> {
        let (state, outcome) = self.shared.start_call(DiskCall::Open);
        outcome?;
        let file = state.find(name)?;
        Ok(Box::new(SimulatedFile { shared: Arc::clone(&self.shared), file, mode }))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DirectoryFile>> {
        let (mut state, outcome) = self.shared.start_call(DiskCall::Create);
        outcome?;
        if state.disk.find(name).is_some() {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        state.apply(DiskChange::Create { name: name.to_owned() });
        let file = state.find(name)?;
        Ok(Box::new(SimulatedFile { shared: Arc::clone(&self.shared), file, mode: OpenMode::ReadWrite }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (mut state, outcome) = self.shared.start_call(DiskCall::Rename);
        outcome?;
        state.find(from)?;
        state.apply(DiskChange::Rename { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let (mut state, outcome) = self.shared.start_call(DiskCall::Remove);
        outcome?;
        state.find(name)?;
        state.apply(DiskChange::Remove { name: name.to_owned() });
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let (mut state, outcome) = self.shared.start_call(DiskCall::SyncNames);
        outcome?;
        state.apply(DiskChange::SyncNames);
        Ok(())
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn DirectoryLock>> {
        let (mut state, outcome) = self.shared.start_call(DiskCall::Lock);
        outcome?;
        if state.locked.iter().any(|locked| locked == name) {
            return Err(io::Error::from(io::ErrorKind::WouldBlock));
        }
        if state.disk.find(name).is_none() {
            state.apply(DiskChange::Create { name: name.to_owned() });
        }
        state.locked.push(name.to_owned());
        Ok(Box::new(SimulatedDirectoryLock { shared: Arc::clone(&self.shared), name: name.to_owned() }))
    }

    fn random(&self) -> io::Result<[u8; 16]> {
        let mut state = self.lock_state();
        state.random_calls += 1;
        let mut rng = SeededRng::new(state.random_calls);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
        bytes[8..].copy_from_slice(&rng.next_u64().to_le_bytes());
        Ok(bytes)
    }
}

/// A file in memory.
#[derive(Debug)]
struct SimulatedFile {
    shared: Arc<SharedDisk>,
    file: usize,
    mode: OpenMode,
}

impl SimulatedFile {
    fn check_writable(&self) -> io::Result<()> {
        match self.mode {
            OpenMode::ReadWrite => Ok(()),
            OpenMode::Read => Err(io::Error::from(rustix::io::Errno::BADF)),
        }
    }
}

impl DirectoryFile for SimulatedFile {
    fn length(&self) -> io::Result<u64> {
        let (state, outcome) = self.shared.start_call(DiskCall::Read);
        outcome.map(|()| state.disk.content(self.file).len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let (state, outcome) = self.shared.start_call(DiskCall::Read);
        outcome?;
        let content = state.disk.content(self.file);
        let from = memory_offset(offset).min(content.len());
        let count = buffer.len().min(content.len() - from);
        buffer[..count].copy_from_slice(&content[from..from + count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (mut state, outcome) = self.shared.start_call(DiskCall::Write);
        self.check_writable()?;
        let offset = memory_offset(offset);
        let outcome = outcome.and_then(|()| state.check_capacity(self.file, offset + bytes.len()));
        let written = match &outcome {
            Ok(()) => bytes,
            // Half of it is there, and whoever failed must not count on the other half being absent or present.
            Err(_) => &bytes[..bytes.len() / 2],
        };
        let fits = state.check_capacity(self.file, offset + written.len()).is_ok();
        if fits && !written.is_empty() {
            state.apply(DiskChange::Write { file: self.file, offset, bytes: written.into() });
        }
        outcome
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        let (mut state, outcome) = self.shared.start_call(DiskCall::Reserve);
        outcome?;
        self.check_writable()?;
        state.check_capacity(self.file, memory_offset(length))?;
        state.apply(DiskChange::Reserve { file: self.file, length: memory_offset(length) });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let (mut state, outcome) = self.shared.start_call(DiskCall::Sync);
        let file = self.file;
        state.apply(if outcome.is_ok() {
            DiskChange::Sync { file }
        } else {
            DiskChange::SyncFailed { file }
        });
        outcome
    }
}

/// A place in memory.
fn memory_offset(offset: u64) -> usize {
    usize::try_from(offset).expect("simulated files fit into memory")
}

#[derive(Debug)]
struct SimulatedDirectoryLock {
    shared: Arc<SharedDisk>,
    name: String,
}

impl DirectoryLock for SimulatedDirectoryLock {}

impl Drop for SimulatedDirectoryLock {
    fn drop(&mut self) {
        self.shared.lock_state().locked.retain(|locked| *locked != self.name);
    }
}

/// Calls wait for as long as this is there.
#[derive(Debug)]
pub struct CallHold {
    shared: Arc<SharedDisk>,
    number: u64,
    call: DiskCall,
}

impl CallHold {
    /// Waits until somebody waits for this.
    pub fn wait_for_caller(&self) {
        let mut state = self.shared.lock_state();
        while !state.waiting.contains(&self.call) {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for CallHold {
    fn drop(&mut self) {
        self.shared.lock_state().holds.retain(|(number, _)| *number != self.number);
        self.shared.changed.notify_all();
    }
}
