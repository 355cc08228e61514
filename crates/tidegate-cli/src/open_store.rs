//! Opens the store of a server.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::clock::SystemClock;
use tidegate::store::{LimitStore, Memory, MemoryStore};
use tidegate_disk::wal::PreviousRun;
use tidegate_disk::{DiskOptions, DiskStore, RecoveryReport};
use tidegate_postgres::{PostgresOpenError, PostgresStore};
use tidegate_server::settings::StoreUrl;

use crate::remote::client::environment;
use crate::store::open_failure;
use crate::{Failure, print_message};

/// Default directory of the disk store.
pub(crate) const DEFAULT_DIRECTORY: &str = "./tidegate-data";

/// The variable with the database password, as in `libpq`.
const PASSWORD: &str = "PGPASSWORD";

/// Interval of progress messages during recovery.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// An open store.
pub(crate) enum OpenStore {
    Memory(Arc<MemoryStore>),
    Disk(Arc<DiskStore>),
    Postgres(Arc<PostgresStore>),
}

impl OpenStore {
    /// Opens the store of this URL or the default one, with this much memory for rows.
    pub(crate) fn open(url: Option<&StoreUrl>, bytes: Option<u64>) -> Result<OpenStore, Failure> {
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        match url {
            Some(StoreUrl::Memory) => {
                let memory = Memory::default();
                let memory = Memory { capacity_bytes: bytes.unwrap_or(memory.capacity_bytes), ..memory };
                Ok(OpenStore::Memory(Arc::new(MemoryStore::new(SystemClock::new(), memory))))
            }
            Some(StoreUrl::Disk(folder)) => open_disk(folder, bytes),
            Some(StoreUrl::Postgres(url)) => open_postgres(url),
            None => open_disk(Path::new(DEFAULT_DIRECTORY), bytes),
        }
    }

    pub(crate) fn store(&self) -> Arc<dyn LimitStore> {
        match self {
            OpenStore::Memory(store) => Arc::<MemoryStore>::clone(store),
            OpenStore::Disk(store) => Arc::<DiskStore>::clone(store),
            OpenStore::Postgres(store) => Arc::<PostgresStore>::clone(store),
        }
    }

    /// Name in the ready line.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            OpenStore::Memory(_) => "memory",
            OpenStore::Disk(_) => "disk",
            OpenStore::Postgres(_) => "postgres",
        }
    }

    /// Closes the store cleanly.
    pub(crate) fn stop(&self) -> Result<(), Failure> {
        match self {
            OpenStore::Memory(_) => Ok(()),
            OpenStore::Postgres(store) => {
                store.close();
                Ok(())
            }
            OpenStore::Disk(store) => store.stop().map_err(|error| {
                Failure::Failed(format!(
                    "the store was not stopped cleanly: {error}\n\
                     No acknowledged decision is lost; the next start recovers as after a crash."
                ))
            }),
        }
    }
}

fn open_disk(folder: &Path, bytes: Option<usize>) -> Result<OpenStore, Failure> {
    let default = DiskOptions::default();
    let options = DiskOptions { capacity_bytes: bytes.unwrap_or(default.capacity_bytes), ..default };
    let mut progress = RecoveryProgress::new();
    let opened = DiskStore::open(folder, Arc::new(SystemClock::new()), options, &mut |read, total| {
        progress.log_recovery(read, total);
    });
    let (store, recovery) = opened.map_err(|error| open_failure(&error))?;
    log_recovery(&recovery);
    Ok(OpenStore::Disk(Arc::new(store)))
}

fn open_postgres(url: &str) -> Result<OpenStore, Failure> {
    let mut options = postgres_options(url)?;
    if let Some(password) = environment(PASSWORD)? {
        options = options.with_default_password(&password);
    }
    let store = PostgresStore::open(options).map_err(|error| match error {
        PostgresOpenError::Url(_) => Failure::BadInput(error.to_string()),
        PostgresOpenError::Unreachable { .. } => Failure::Unreachable(error.to_string()),
        _ => Failure::Failed(error.to_string()),
    })?;
    Ok(OpenStore::Postgres(Arc::new(store)))
}

/// Parses a PostgreSQL URL.
pub(crate) fn postgres_options(url: &str) -> Result<tidegate_postgres::PostgresOptions, Failure> {
    let read = tidegate_postgres::PostgresOptions::parse(url).map_err(PostgresOpenError::Url);
    read.map_err(|error| Failure::BadInput(error.to_string()))
}

/// Logs how the store was found.
fn log_recovery(recovery: &RecoveryReport) {
    let RecoveryReport { read_bytes, cut_bytes, records, took, .. } = *recovery;
    let took = took.as_millis();
    match recovery.previous_run {
        PreviousRun::Created => tracing::info!("a new store"),
        PreviousRun::Stopped => {
            tracing::info!(read_bytes, records, took_ms = took, "the store was stopped cleanly");
        }
        PreviousRun::Crashed => {
            tracing::warn!(
                read_bytes,
                records,
                cut_bytes,
                took_ms = took,
                "the store was not stopped cleanly; recovered"
            );
        }
    }
}

/// Reports the progress of a long recovery.
struct RecoveryProgress {
    started_at: Instant,
    reported_seconds: u128,
}

impl RecoveryProgress {
    #[expect(clippy::disallowed_methods, reason = "progress messages follow real time")]
    fn new() -> RecoveryProgress {
        RecoveryProgress { started_at: Instant::now(), reported_seconds: 0 }
    }

    /// Reports once per second.
    fn log_recovery(&mut self, read: u64, total: u64) {
        let seconds = self.started_at.elapsed().as_millis() / PROGRESS_INTERVAL.as_millis();
        if seconds > self.reported_seconds {
            self.reported_seconds = seconds;
            let percent = (u128::from(read) * 100).checked_div(u128::from(total)).unwrap_or(100);
            print_message(&format!("recovering the store: {percent} % of {} MiB", total >> 20));
        }
    }
}
