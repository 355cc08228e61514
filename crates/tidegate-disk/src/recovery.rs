//! Recovery: what the log says, made a store again.
//!
//! Records are told to the memory store in the order in which they stand in the log. Rows are merged, so that it does not matter that a
//! snapshot and the log behind it say some things twice. After a crash every key of a limit with an allowance is taken to have used that
//! much, as of now: what was not written down cannot be known.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use tidegate::clock::Clock;
use tidegate::store::Lsn;
use tidegate::store::memory::journal::Journal;
use tidegate::store::memory::restoring::{Restore, RestoreError};
use tidegate::{Memory, MemoryStore};
use tidegate_core::{Amount, Timestamp};

use crate::ceilings;
use crate::directory::Files;
use crate::limit_records::{Ledger, Ledgers};
use crate::record::{Record, Records};
use crate::store::Options;
use crate::wal::{self, Before, Entry, Log, OpenError};

/// Why nothing can be read by a program that was built so.
const OTHER_PRINTS: &str = "this program was built for processors with AES instructions only (as with `-C target-cpu=native`), and makes \
                            other fingerprints of keys than a store on disk has; build it without";

/// What was found when a store was opened.
#[derive(Debug, Clone)]
pub struct Recovery {
    /// How it was left.
    pub before: Before,
    /// How many bytes of log and snapshot were read.
    pub read_bytes: u64,
    /// How many bytes of a torn tail were cut off.
    pub cut_bytes: u64,
    /// How many records were read.
    pub records: u64,
    /// How long it took.
    pub took: Duration,
}

pub(crate) struct Recovered {
    pub(crate) memory: MemoryStore,
    pub(crate) log: Arc<Log>,
    pub(crate) ledgers: Arc<Ledgers>,
    pub(crate) recovery: Recovery,
}

/// What is read so far.
struct Reading {
    restoring: Option<Restore>,
    /// What keys may have used of each item without a record, by limit.
    unwritten: HashMap<u64, Vec<Amount>>,
    records: u64,
    /// Why there was no room for a row, if there was none.
    crowded: Option<String>,
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a recovery takes is told to people, and decides nothing"
)]
pub(crate) fn open(
    files: Arc<dyn Files>,
    clock: &Arc<dyn Clock>,
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Recovered, OpenError> {
    let began = Instant::now();
    let place = files.place();
    if !Restore::knows_fingerprints() {
        // Every key would begin anew, and what was sold be sold again.
        return Err(OpenError::Rejected { file: place, offset: 0, reason: OTHER_PRINTS.to_owned() });
    }
    let mut reading = Reading { restoring: None, unwritten: HashMap::new(), records: 0, crowded: None };
    let log_options = wal::Options { segment_bytes: options.segment_bytes };
    let opening = Log::open(files, log_options, &mut |entry| match entry {
        Entry::Identity { secret } => {
            let memory = Memory { capacity_bytes: options.capacity_bytes, secret: halves(secret) };
            reading.restoring = Some(Restore::new(Arc::clone(clock), memory));
            Ok(())
        }
        Entry::Snapshot(payload) | Entry::Block { payload, .. } => reading.read(payload),
        Entry::Progress { read, total } => {
            progress(read, total);
            Ok(())
        }
    });
    let (log, opened) = opening.map_err(|error| match reading.crowded.take() {
        Some(reason) => OpenError::Crowded { reason },
        None => error,
    })?;
    let log = Arc::new(log);
    catch_up_with(&**clock, Timestamp::from_ticks(opened.time));
    let rejected = |why: &str| OpenError::Rejected { file: place.clone(), offset: 0, reason: why.to_owned() };
    let unrestorable = |why: RestoreError| match why {
        RestoreError::Crowded { .. } => OpenError::Crowded { reason: why.to_string() },
        why => rejected(&why.to_string()),
    };
    let Reading { restoring, unwritten, records, .. } = reading;
    let mut restoring = restoring.ok_or_else(|| rejected("it has no identity"))?;
    restoring.saw(Timestamp::from_ticks(opened.time));
    if opened.before == Before::Crashed {
        haunt(&mut restoring, &unwritten).map_err(unrestorable)?;
    }
    let mut known = HashMap::new();
    for (generation, limit) in restoring.limits() {
        // What keys may have used before is in their rows, or in their limit's ghost.
        known.insert(generation, Arc::new(Ledger::new(&limit, None, Lsn(0))));
    }
    let ledgers = Arc::new(Ledgers::new(Arc::clone(&log), known));
    let journal: Arc<dyn Journal> = Arc::<Ledgers>::clone(&ledgers);
    let memory = restoring.finish(journal).map_err(unrestorable)?;
    let recovery = Recovery {
        before: opened.before,
        read_bytes: opened.read_bytes,
        cut_bytes: opened.cut_bytes,
        records,
        took: began.elapsed(),
    };
    Ok(Recovered { memory, log, ledgers, recovery })
}

impl Reading {
    fn read(&mut self, payload: &[u8]) -> Result<(), String> {
        let restoring = self.restoring.as_mut().ok_or("records before an identity")?;
        let mut records = Records::new(payload);
        loop {
            let record =
                records.next(&|id| restoring.limit(id)).map_err(|illegible| illegible.to_string())?;
            let Some(record) = record else { return Ok(()) };
            self.records += 1;
            if let Record::Put { text, unwritten } = &record {
                self.unwritten.insert(text.generation, unwritten.clone());
            }
            let told = record.tell(restoring);
            told.map_err(|why| {
                let reason = why.to_string();
                if let RestoreError::Crowded { .. } = why {
                    self.crowded = Some(reason.clone());
                }
                reason
            })?;
        }
    }
}

/// Takes every key to have used what was not written down.
fn haunt(restoring: &mut Restore, unwritten: &HashMap<u64, Vec<Amount>>) -> Result<(), RestoreError> {
    let now = restoring.now();
    let limits: Vec<_> = restoring.limits().collect();
    for (generation, limit) in limits {
        let allowances = unwritten.get(&generation).map_or(&[][..], |allowances| allowances);
        let ghost = ceilings::ghost(&limit, allowances, now);
        if !ghost.is_empty() {
            restoring.haunt(generation, limit.version(), ghost, now)?;
        }
    }
    Ok(())
}

/// Sees to it that the clock is not behind what was seen before.
#[expect(
    clippy::disallowed_methods,
    reason = "a clock that was set back says so within a millisecond, and tells nobody"
)]
fn catch_up_with(clock: &dyn Clock, seen: Timestamp) {
    const TRIES: u32 = 100;
    clock.raise(seen);
    for _ in 0..TRIES {
        if clock.may_go_back() || clock.now() >= seen {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn halves(secret: [u8; 16]) -> [u64; 2] {
    let half = |at: usize| u64::from_le_bytes(secret[at..at + 8].try_into().expect("eight bytes"));
    [half(0), half(8)]
}
