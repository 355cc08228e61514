//! What is on a simulated disk, and what may be left of it.

use std::collections::BTreeMap;
use std::sync::Arc;

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// Something that happened to the disk. Files are known by their number, so that names can change.
#[derive(Debug, Clone)]
pub(super) enum Change {
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
pub(super) struct Disk {
    contents: Vec<Content>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    unsynced_names: Vec<NameChange>,
}

/// What is in one file.
#[derive(Debug, Clone, Default)]
struct Content {
    /// As programs see it.
    now: Vec<u8>,
    /// As the disk has it for certain.
    durable: Vec<u8>,
    unsynced: Vec<Unsynced>,
}

#[derive(Debug, Clone)]
struct Unsynced {
    piece: Piece,
    fate: Fate,
}

#[derive(Debug, Clone)]
enum Piece {
    Bytes { offset: usize, bytes: Arc<[u8]> },
    Length(usize),
}

/// What a sync will do for a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Open,
    /// A sync failed: later ones do not know of it any more.
    Forgotten,
}

/// What becomes of a name: it leads to this file, or nowhere.
#[derive(Debug, Clone)]
struct NameChange {
    gone: Option<String>,
    leads: Option<(String, usize)>,
}

impl Disk {
    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Create { name } => {
                self.contents.push(Content::default());
                let file = self.contents.len() - 1;
                self.change_name(NameChange { gone: None, leads: Some((name.clone(), file)) });
            }
            Change::Rename { from, to } => {
                let file = self.names[from];
                self.change_name(NameChange { gone: Some(from.clone()), leads: Some((to.clone(), file)) });
            }
            Change::Remove { name } => self.change_name(NameChange { gone: Some(name.clone()), leads: None }),
            Change::SyncNames => {
                self.durable_names = self.names.clone();
                self.unsynced_names.clear();
            }
            Change::Write { file, offset, bytes } => {
                let piece = Piece::Bytes { offset: *offset, bytes: Arc::clone(bytes) };
                self.contents[*file].write(piece);
            }
            Change::Reserve { file, length } => self.contents[*file].write(Piece::Length(*length)),
            Change::Sync { file } => self.contents[*file].sync(),
            Change::SyncFailed { file } => {
                self.contents[*file].unsynced.iter_mut().for_each(|each| each.fate = Fate::Forgotten);
            }
        }
    }

    fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.unsynced_names.push(change);
    }

    /// One of the things a crash may leave.
    pub(super) fn image(&self, dice: &mut Dice) -> Disk {
        let mood = Mood::of(dice);
        let mut names = self.durable_names.clone();
        for change in &self.unsynced_names {
            if mood.keeps(dice) {
                change.apply(&mut names);
            }
        }
        let content = |content: &Content, dice: &mut Dice| {
            let durable = content.image(mood, dice);
            Content { now: durable.clone(), durable, unsynced: Vec::new() }
        };
        let contents = self.contents.iter().map(|each| content(each, dice)).collect();
        Disk { contents, durable_names: names.clone(), names, unsynced_names: Vec::new() }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    pub(super) fn content(&self, file: usize) -> &[u8] {
        &self.contents[file].now
    }

    pub(super) fn bytes(&self, name: &str) -> Option<&[u8]> {
        Some(self.content(self.find(name)?))
    }

    pub(super) fn used(&self) -> u64 {
        self.names.values().map(|file| self.contents[*file].now.len() as u64).sum()
    }

    pub(super) fn put(&mut self, name: &str, bytes: Vec<u8>) {
        self.contents.push(Content { now: bytes.clone(), durable: bytes, unsynced: Vec::new() });
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
        if let Some(name) = &self.gone {
            names.remove(name);
        }
        if let Some((name, file)) = &self.leads {
            names.insert(name.clone(), *file);
        }
    }
}

impl Content {
    fn write(&mut self, piece: Piece) {
        piece.apply(&mut self.now);
        self.unsynced.push(Unsynced { piece, fate: Fate::Open });
    }

    fn sync(&mut self) {
        let (synced, mut left): (Vec<_>, Vec<_>) =
            self.unsynced.drain(..).partition(|each| each.fate == Fate::Open);
        for each in synced {
            each.piece.apply(&mut self.durable);
            // What was written over and is durable now cannot come back.
            left.retain(|old| !each.piece.covers(&old.piece));
        }
        self.unsynced = left;
    }

    fn image(&self, mood: Mood, dice: &mut Dice) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        let mut pieces: Vec<&Piece> = self.unsynced.iter().map(|each| &each.piece).collect();
        dice.shuffle(&mut pieces);
        for piece in pieces {
            match piece {
                Piece::Length(_) if mood.keeps(dice) => piece.apply(&mut bytes),
                Piece::Length(_) => {}
                Piece::Bytes { offset, bytes: written } => {
                    for (from, to) in mood.kept_ranges(*offset, written.len(), dice) {
                        write(&mut bytes, offset + from, &written[from..to]);
                    }
                }
            }
        }
        bytes
    }
}

impl Piece {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Piece::Bytes { offset, bytes } => write(content, *offset, bytes),
            Piece::Length(length) => content.resize((*length).max(content.len()), 0),
        }
    }

    fn covers(&self, other: &Piece) -> bool {
        match (self, other) {
            (Piece::Bytes { offset, bytes }, Piece::Bytes { offset: from, bytes: old }) => {
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

/// How an image treats what was not synced: mostly each thing by itself, sometimes all alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    KeepsAll,
    DropsAll,
    Mixed,
}

impl Mood {
    fn of(dice: &mut Dice) -> Mood {
        match dice.below(8) {
            0 => Mood::KeepsAll,
            1 => Mood::DropsAll,
            _ => Mood::Mixed,
        }
    }

    fn keeps(self, dice: &mut Dice) -> bool {
        match self {
            Mood::KeepsAll => true,
            Mood::DropsAll => false,
            Mood::Mixed => dice.below(2) == 0,
        }
    }

    /// Which parts of a write of this length at this offset are on the disk.
    fn kept_ranges(self, offset: usize, length: usize, dice: &mut Dice) -> Vec<(usize, usize)> {
        let choice = match self {
            Mood::KeepsAll => 0,
            Mood::DropsAll => 1,
            Mood::Mixed => dice.below(6),
        };
        match choice {
            0 => vec![(0, length)],
            1 => Vec::new(),
            2 | 3 => vec![(0, dice.below(length + 1))],
            4 => {
                let sectors = sectors(offset, length);
                let kept = dice.below(sectors.len() + 1);
                sectors.into_iter().take(kept).collect()
            }
            _ => sectors(offset, length).into_iter().filter(|_| dice.below(2) == 0).collect(),
        }
    }
}

/// The parts of a write, cut where sectors of the file end.
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

/// Seeded chance (splitmix64).
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub(super) fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not zero.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.throw() % end as u64).expect("below a usize")
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
