//! Recovery: restores the memory store from the log.
//!
//! Records are applied in log order. Rows are merged, so the overlap of a snapshot with the log after it does
//! no harm. After a crash, every key of a limit with an allowance is assumed to have used the allowance now,
//! because that usage has no record.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use tidegate::clock::Clock;
use tidegate::store::Lsn;
use tidegate::store::journal::Journal;
use tidegate::store::memory::restore::{Restore, RestoreError};
use tidegate::store::{Memory, MemoryStore};
use tidegate_core::{Amount, Timestamp};

use crate::ceilings;
use crate::directory::Directory;
use crate::limit_records::{LimitLogState, LimitRecords};
use crate::record::{LogRecord, RecordReader};
use crate::store::DiskOptions;
use crate::wal::{self, OpenError, PreviousRun, ReplayEntry, WriteAheadLog};

/// The error of a build whose fingerprints differ from those in the store.
const INCOMPATIBLE_FINGERPRINTS: &str = "this program was built for processors with AES instructions only (as with `-C target-cpu=native`), and makes \
                            other fingerprints of keys than a store on disk has; build it without";

/// The result of opening a store.
#[derive(Debug, Clone)]
pub struct RecoveryReport {
    /// How the previous process left the store.
    pub previous_run: PreviousRun,
    /// The bytes of log and snapshot that were read.
    pub read_bytes: u64,
    /// The length of the torn tail that was cut off.
    pub cut_bytes: u64,
    /// The number of records.
    pub records: u64,
    /// The duration of the recovery.
    pub took: Duration,
}

pub(crate) struct RecoveredStore {
    pub(crate) memory: MemoryStore,
    pub(crate) log: Arc<WriteAheadLog>,
    pub(crate) limit_records: Arc<LimitRecords>,
    pub(crate) recovery: RecoveryReport,
}

/// The state of the replay.
struct RecordReplay {
    restoring: Option<Restore>,
    /// For each limit, the usage per item that keys may have without a record.
    unwritten: HashMap<u64, Vec<Amount>>,
    records: u64,
    /// The reason, if the rows exceed the memory budget.
    out_of_memory: Option<String>,
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a recovery takes is restored to people, and decides nothing"
)]
pub(crate) fn open(
    directory: Arc<dyn Directory>,
    clock: &Arc<dyn Clock>,
    options: &DiskOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<RecoveredStore, OpenError> {
    let started = Instant::now();
    let location = directory.location();
    if !Restore::knows_fingerprints() {
        // Every key would start with zero usage, and its units would be granted again.
        return Err(OpenError::Rejected {
            file: location,
            offset: 0,
            reason: INCOMPATIBLE_FINGERPRINTS.to_owned(),
        });
    }
    let mut replay =
        RecordReplay { restoring: None, unwritten: HashMap::new(), records: 0, out_of_memory: None };
    let log_options = wal::LogOptions { segment_bytes: options.segment_bytes };
    let opening = WriteAheadLog::open(directory, log_options, &mut |entry| match entry {
        ReplayEntry::Identity { secret } => {
            let memory = Memory { capacity_bytes: options.capacity_bytes, secret: halves(secret) };
            replay.restoring = Some(Restore::new(Arc::clone(clock), memory));
            Ok(())
        }
        ReplayEntry::Snapshot(payload) | ReplayEntry::Block { payload, .. } => replay.read(payload),
        ReplayEntry::Progress { read, total } => {
            progress(read, total);
            Ok(())
        }
    });
    let (log, opened) = opening.map_err(|error| match replay.out_of_memory.take() {
        Some(reason) => OpenError::Crowded { reason },
        None => error,
    })?;
    let log = Arc::new(log);
    advance_clock(&**clock, Timestamp::from_ticks(opened.time));
    let rejected =
        |why: &str| OpenError::Rejected { file: location.clone(), offset: 0, reason: why.to_owned() };
    let restore_error = |why: RestoreError| match why {
        RestoreError::Crowded { .. } => OpenError::Crowded { reason: why.to_string() },
        why => rejected(&why.to_string()),
    };
    let RecordReplay { restoring, unwritten, records, .. } = replay;
    let mut restoring = restoring.ok_or_else(|| rejected("it has no identity"))?;
    restoring.saw(Timestamp::from_ticks(opened.time));
    if opened.previous_run == PreviousRun::Crashed {
        assume_unwritten_usage(&mut restoring, &unwritten).map_err(restore_error)?;
    }
    let mut known = HashMap::new();
    for (generation, limit) in restoring.limits() {
        // Earlier usage without records is in the rows or in the limit's assumed usage.
        known.insert(generation, Arc::new(LimitLogState::new(&limit, None, Lsn(0))));
    }
    let limit_records = Arc::new(LimitRecords::new(Arc::clone(&log), known));
    let journal: Arc<dyn Journal> = Arc::<LimitRecords>::clone(&limit_records);
    let memory = restoring.finish(journal).map_err(restore_error)?;
    let recovery = RecoveryReport {
        previous_run: opened.previous_run,
        read_bytes: opened.read_bytes,
        cut_bytes: opened.cut_bytes,
        records,
        took: started.elapsed(),
    };
    Ok(RecoveredStore { memory, log, limit_records, recovery })
}

impl RecordReplay {
    fn read(&mut self, payload: &[u8]) -> Result<(), String> {
        let restoring = self.restoring.as_mut().ok_or("records before an identity")?;
        let mut records = RecordReader::new(payload);
        loop {
            let record =
                records.next(&|id| restoring.limit(id)).map_err(|illegible| illegible.to_string())?;
            let Some(record) = record else { return Ok(()) };
            self.records += 1;
            if let LogRecord::Put { text, unwritten } = &record {
                self.unwritten.insert(text.generation, unwritten.clone());
            }
            let restored = record.restore_into(restoring);
            restored.map_err(|why| {
                let reason = why.to_string();
                if let RestoreError::Crowded { .. } = why {
                    self.out_of_memory = Some(reason.clone());
                }
                reason
            })?;
        }
    }
}

/// Assumes that every key has used what needs no record.
fn assume_unwritten_usage(
    restoring: &mut Restore,
    unwritten: &HashMap<u64, Vec<Amount>>,
) -> Result<(), RestoreError> {
    let now = restoring.now();
    let limits: Vec<_> = restoring.limits().collect();
    for (generation, limit) in limits {
        let allowances = unwritten.get(&generation).map_or(&[][..], |allowances| allowances);
        let assumed = ceilings::assumed_usage(&limit, allowances, now);
        if !assumed.is_empty() {
            restoring.haunt(generation, limit.version(), assumed, now)?;
        }
    }
    Ok(())
}

/// Ensures that the clock is not behind the latest time in the log.
#[expect(
    clippy::disallowed_methods,
    reason = "a clock that was set back catches up within a millisecond, without a notification"
)]
fn advance_clock(clock: &dyn Clock, seen: Timestamp) {
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
