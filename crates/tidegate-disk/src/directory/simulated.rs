//! A directory in memory for tests, with fault injection and simulated crashes.
//!
//! It tracks which bytes and which names are durable. A **crash image** is a copy that contains everything
//! durable and a random part of the rest: see [`SimulatedDirectory::crash`]. A
//! [recorded](SimulatedDirectory::recorded) directory can be crashed after any of its past changes.
//!
//! A failed sync behaves as in kernels: the lost data can still be read, and a later successful sync does not
//! write it. Only writing it again makes it durable.
//!
//! The type is public for the tests of other crates. It stores nothing beyond the life of the process.

mod disk_model;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use disk_model::{CrashRng, DiskChange, DiskModel};

use super::{Directory, DirectoryFile, DirectoryLock, OpenMode};

/// A call that can fail or be held.
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

/// An injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// An I/O error of the device (`EIO`). A failing write may write a part.
    IoError,
    /// No space left (`ENOSPC`).
    Full,
    /// Permission denied (`EACCES`).
    PermissionDenied,
    /// A read-only file system (`EROFS`).
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

/// How often a fault occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultDuration {
    /// Once.
    Once,
    /// In every call from then on.
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
    /// All changes, if they are recorded.
    record: Option<ChangeHistory>,
    rules: Vec<FaultRule>,
    holds: Vec<(u64, DiskCall)>,
    next_hold_id: u64,
    /// Calls that are blocked by a hold.
    waiting: Vec<DiskCall>,
    locked: Vec<String>,
    capacity: Option<u64>,
    random_calls: u64,
}

/// The changes of a disk since its base state.
#[derive(Debug)]
struct ChangeHistory {
    base: DiskModel,
    changes: Vec<DiskChange>,
}

impl ChangeHistory {
    fn of(base: &DiskModel) -> ChangeHistory {
        ChangeHistory { base: base.clone(), changes: Vec::new() }
    }

    /// The disk after this many changes.
    fn disk_after(&self, changes: usize) -> DiskModel {
        let mut disk = self.base.clone();
        self.changes.iter().take(changes).for_each(|change| disk.apply(change));
        disk
    }
}

#[derive(Debug)]
struct FaultRule {
    call: DiskCall,
    /// How many calls pass before the fault occurs.
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
    /// Creates an empty directory.
    pub fn new() -> SimulatedDirectory {
        SimulatedDirectory::of(DiskModel::default(), None)
    }

    /// Creates an empty directory that records its changes, for [`SimulatedDirectory::crash_after`].
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

    /// A possible state after a power failure now. Each unsynced write is kept, dropped or torn: cut at a
    /// byte or a sector, or with missing sectors, in any order. Each unsynced change of a name is kept or
    /// dropped. The seed decides.
    pub fn crash(&self, seed: u64) -> SimulatedDirectory {
        SimulatedDirectory::of(self.lock_state().disk.image(&mut CrashRng::new(seed)), None)
    }

    /// A possible state after a power failure that follows this many [changes](SimulatedDirectory::changes).
    /// It is recorded too.
    ///
    /// # Panics
    /// If the directory is not [recorded](SimulatedDirectory::recorded).
    pub fn crash_after(&self, changes: usize, seed: u64) -> SimulatedDirectory {
        let disk = self.disk_after(changes).image(&mut CrashRng::new(seed));
        let record = ChangeHistory::of(&disk);
        SimulatedDirectory::of(disk, Some(record))
    }

    /// The state that another process finds after this one was killed when it had made this many changes: all
    /// written data, durable or not. It is recorded too.
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

    /// The number of changes and syncs so far. Zero if they are not recorded.
    pub fn changes(&self) -> usize {
        self.lock_state().record.as_ref().map_or(0, |record| record.changes.len())
    }

    /// The state that another process finds after this one was killed: all written data and no locks.
    pub fn killed(&self) -> SimulatedDirectory {
        SimulatedDirectory::of(self.lock_state().disk.clone(), None)
    }

    /// Makes a call fail after `pass` calls of its kind.
    pub fn fail(&self, call: DiskCall, pass: u64, fault: DiskFault, duration: FaultDuration) {
        self.lock_state().rules.push(FaultRule { call, pass, fault, duration });
    }

    /// Removes all faults.
    pub fn repair(&self) {
        self.lock_state().rules.clear();
    }

    /// Limits the total size of all files, or removes the limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock_state().capacity = bytes;
    }

    /// The total size of all files.
    pub fn used(&self) -> u64 {
        self.lock_state().disk.used()
    }

    /// Blocks calls of this kind until the hold is dropped.
    pub fn hold(&self, call: DiskCall) -> CallHold {
        let mut state = self.lock_state();
        let number = state.next_hold_id;
        state.next_hold_id += 1;
        state.holds.push((number, call));
        CallHold { shared: Arc::clone(&self.shared), number, call }
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.lock_state().disk.names()
    }

    /// The content of a file, or `None` if it does not exist.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        self.lock_state().disk.bytes(name).map(<[u8]>::to_vec)
    }

    /// Sets a file directly and durably, as an operator or a defect would. The change is not recorded.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        self.lock_state().disk.put(name, bytes);
    }

    /// Removes a file directly and durably. The change is not recorded.
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

    /// Waits for holds, then applies the fault rules.
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

    /// Returns the fault of the first rule that applies. Every rule counts the calls that it lets pass.
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
        let mut rng = CrashRng::new(state.random_calls);
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
            // Half of the bytes are written: callers must not rely on either outcome.
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

/// Converts a file offset to an index.
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

/// Blocks calls while it exists.
#[derive(Debug)]
pub struct CallHold {
    shared: Arc<SharedDisk>,
    number: u64,
    call: DiskCall,
}

impl CallHold {
    /// Waits until a call is blocked by this hold.
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
