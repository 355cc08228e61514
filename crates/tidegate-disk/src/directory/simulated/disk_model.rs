//! The state of a simulated disk, and the states that a crash may leave.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The unit that a disk writes atomically.
const SECTOR: usize = 512;

/// A change of the disk. Files are identified by number, because names can change.
#[derive(Debug, Clone)]
pub(super) enum DiskChange {
    Create { name: String },
    Rename { from: String, to: String },
    Remove { name: String },
    SyncNames,
    Write { file: usize, offset: usize, bytes: Arc<[u8]> },
    Reserve { file: usize, length: usize },
    Sync { file: usize },
    SyncFailed { file: usize },
}

#[derive(Debug, Clone, Default)]
pub(super) struct DiskModel {
    contents: Vec<FileContent>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    unsynced_names: Vec<NameChange>,
}

/// The content of one file.
#[derive(Debug, Clone, Default)]
struct FileContent {
    /// As programs read it.
    current: Vec<u8>,
    /// As it is certainly on the disk.
    durable: Vec<u8>,
    unsynced: Vec<UnsyncedWrite>,
}

#[derive(Debug, Clone)]
struct UnsyncedWrite {
    effect: WriteEffect,
    fate: SyncFate,
}

#[derive(Debug, Clone)]
enum WriteEffect {
    Bytes { offset: usize, bytes: Arc<[u8]> },
    Length(usize),
}

/// Whether a later sync will write the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SyncFate {
    Pending,
    /// A sync failed, and later ones no longer include this write.
    Lost,
}

/// A change of names: one is removed, one is added, or both.
#[derive(Debug, Clone)]
struct NameChange {
    removed: Option<String>,
    added: Option<(String, usize)>,
}

impl DiskModel {
    pub(super) fn apply(&mut self, change: &DiskChange) {
        match change {
            DiskChange::Create { name } => {
                self.contents.push(FileContent::default());
                let file = self.contents.len() - 1;
                self.change_name(NameChange { removed: None, added: Some((name.clone(), file)) });
            }
            DiskChange::Rename { from, to } => {
                let file = self.names[from];
                self.change_name(NameChange { removed: Some(from.clone()), added: Some((to.clone(), file)) });
            }
            DiskChange::Remove { name } => {
                self.change_name(NameChange { removed: Some(name.clone()), added: None });
            }
            DiskChange::SyncNames => {
                self.durable_names = self.names.clone();
                self.unsynced_names.clear();
            }
            DiskChange::Write { file, offset, bytes } => {
                let effect = WriteEffect::Bytes { offset: *offset, bytes: Arc::clone(bytes) };
                self.contents[*file].write(effect);
            }
            DiskChange::Reserve { file, length } => self.contents[*file].write(WriteEffect::Length(*length)),
            DiskChange::Sync { file } => self.contents[*file].sync(),
            DiskChange::SyncFailed { file } => {
                self.contents[*file].unsynced.iter_mut().for_each(|each| each.fate = SyncFate::Lost);
            }
        }
    }

    fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.unsynced_names.push(change);
    }

    /// Returns one possible state after a crash.
    pub(super) fn image(&self, rng: &mut CrashRng) -> DiskModel {
        let policy = CrashPolicy::of(rng);
        let mut names = self.durable_names.clone();
        for change in &self.unsynced_names {
            if policy.keeps(rng) {
                change.apply(&mut names);
            }
        }
        let content = |content: &FileContent, rng: &mut CrashRng| {
            let durable = content.image(policy, rng);
            FileContent { current: durable.clone(), durable, unsynced: Vec::new() }
        };
        let contents = self.contents.iter().map(|each| content(each, rng)).collect();
        DiskModel { contents, durable_names: names.clone(), names, unsynced_names: Vec::new() }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    pub(super) fn content(&self, file: usize) -> &[u8] {
        &self.contents[file].current
    }

    pub(super) fn bytes(&self, name: &str) -> Option<&[u8]> {
        Some(self.content(self.find(name)?))
    }

    pub(super) fn used(&self) -> u64 {
        self.names.values().map(|file| self.contents[*file].current.len() as u64).sum()
    }

    pub(super) fn put(&mut self, name: &str, bytes: Vec<u8>) {
        self.contents.push(FileContent { current: bytes.clone(), durable: bytes, unsynced: Vec::new() });
        let file = self.contents.len() - 1;
        self.names.insert(name.to_owned(), file);
        self.durable_names.insert(name.to_owned(), file);
    }

    pub(super) fn take(&mut self, name: &str) {
        self.names.remove(name);
        self.durable_names.remove(name);
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        if let Some(name) = &self.removed {
            names.remove(name);
        }
        if let Some((name, file)) = &self.added {
            names.insert(name.clone(), *file);
        }
    }
}

impl FileContent {
    fn write(&mut self, effect: WriteEffect) {
        effect.apply(&mut self.current);
        self.unsynced.push(UnsyncedWrite { effect, fate: SyncFate::Pending });
    }

    fn sync(&mut self) {
        let (synced, mut left): (Vec<_>, Vec<_>) =
            self.unsynced.drain(..).partition(|each| each.fate == SyncFate::Pending);
        for each in synced {
            each.effect.apply(&mut self.durable);
            // Data that was overwritten durably cannot come back.
            left.retain(|old| !each.effect.covers(&old.effect));
        }
        self.unsynced = left;
    }

    fn image(&self, policy: CrashPolicy, rng: &mut CrashRng) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        let mut effects: Vec<&WriteEffect> = self.unsynced.iter().map(|each| &each.effect).collect();
        rng.shuffle(&mut effects);
        for effect in effects {
            match effect {
                WriteEffect::Length(_) if policy.keeps(rng) => effect.apply(&mut bytes),
                WriteEffect::Length(_) => {}
                WriteEffect::Bytes { offset, bytes: written } => {
                    for (from, to) in policy.kept_ranges(*offset, written.len(), rng) {
                        write(&mut bytes, offset + from, &written[from..to]);
                    }
                }
            }
        }
        bytes
    }
}

impl WriteEffect {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            WriteEffect::Bytes { offset, bytes } => write(content, *offset, bytes),
            WriteEffect::Length(length) => content.resize((*length).max(content.len()), 0),
        }
    }

    fn covers(&self, other: &WriteEffect) -> bool {
        match (self, other) {
            (WriteEffect::Bytes { offset, bytes }, WriteEffect::Bytes { offset: from, bytes: old }) => {
                offset <= from && offset + bytes.len() >= from + old.len()
            }
            _ => false,
        }
    }
}

fn write(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(bytes);
}

/// How a crash image treats unsynced changes: usually one by one, sometimes all alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CrashPolicy {
    KeepAll,
    DropAll,
    Mixed,
}

impl CrashPolicy {
    fn of(rng: &mut CrashRng) -> CrashPolicy {
        match rng.below(8) {
            0 => CrashPolicy::KeepAll,
            1 => CrashPolicy::DropAll,
            _ => CrashPolicy::Mixed,
        }
    }

    fn keeps(self, rng: &mut CrashRng) -> bool {
        match self {
            CrashPolicy::KeepAll => true,
            CrashPolicy::DropAll => false,
            CrashPolicy::Mixed => rng.below(2) == 0,
        }
    }

    /// The parts of a write that reach the disk.
    fn kept_ranges(self, offset: usize, length: usize, rng: &mut CrashRng) -> Vec<(usize, usize)> {
        let choice = match self {
            CrashPolicy::KeepAll => 0,
            CrashPolicy::DropAll => 1,
            CrashPolicy::Mixed => rng.below(6),
        };
        match choice {
            0 => vec![(0, length)],
            1 => Vec::new(),
            2 | 3 => vec![(0, rng.below(length + 1))],
            4 => {
                let sectors = sectors(offset, length);
                let kept = rng.below(sectors.len() + 1);
                sectors.into_iter().take(kept).collect()
            }
            _ => sectors(offset, length).into_iter().filter(|_| rng.below(2) == 0).collect(),
        }
    }
}

/// Splits a write at the sector boundaries of the file.
fn sectors(offset: usize, length: usize) -> Vec<(usize, usize)> {
    let mut parts = Vec::new();
    let mut from = 0;
    while from < length {
        let to = length.min(from + SECTOR - (offset + from) % SECTOR);
        parts.push((from, to));
        from = to;
    }
    parts
}

/// A seeded random number generator (splitmix64).
#[derive(Debug)]
pub(super) struct CrashRng(u64);

impl CrashRng {
    pub(super) fn new(seed: u64) -> CrashRng {
        CrashRng(seed)
    }

    pub(super) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which must not be zero.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next_u64() % end as u64).expect("below a usize")
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
