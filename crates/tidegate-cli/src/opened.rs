//! The store that a server keeps its counts in, opened by its name.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::clock::SystemClock;
use tidegate::store::{LimitStore, Memory, MemoryStore};
use tidegate_disk::log::Before;
use tidegate_disk::{DiskStore, Options, Recovery};
use tidegate_postgres::{OpenError, PostgresStore};
use tidegate_server::settings::StoreUrl;

use crate::remote::server::environment;
use crate::store::of_open;
use crate::{Failure, say};

/// Where counts are kept unless somebody says otherwise.
pub(crate) const USUAL_FOLDER: &str = "./tidegate-data";

/// Where a password may be that is not in the URL, as `libpq` has it.
const PASSWORD: &str = "PGPASSWORD";

/// How long a recovery may take before people are told how far it is.
const QUIET: Duration = Duration::from_secs(1);

/// A store that is open.
pub(crate) enum Opened {
    Memory(Arc<MemoryStore>),
    Disk(Arc<DiskStore>),
    Postgres(Arc<PostgresStore>),
}

impl Opened {
    /// Opens the store of this name, the usual one if there is none, with this much memory for its rows.
    pub(crate) fn open(url: Option<&StoreUrl>, bytes: Option<u64>) -> Result<Opened, Failure> {
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        match url {
            Some(StoreUrl::Memory) => {
                let memory = Memory::default();
                let memory = Memory { capacity_bytes: bytes.unwrap_or(memory.capacity_bytes), ..memory };
                Ok(Opened::Memory(Arc::new(MemoryStore::new(SystemClock::new(), memory))))
            }
            Some(StoreUrl::Disk(folder)) => open_disk(folder, bytes),
            Some(StoreUrl::Postgres(url)) => open_postgres(url),
            None => open_disk(Path::new(USUAL_FOLDER), bytes),
        }
    }

    pub(crate) fn store(&self) -> Arc<dyn LimitStore> {
        match self {
            Opened::Memory(store) => Arc::<MemoryStore>::clone(store),
            Opened::Disk(store) => Arc::<DiskStore>::clone(store),
            Opened::Postgres(store) => Arc::<PostgresStore>::clone(store),
        }
    }

    /// What the ready line calls it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Opened::Memory(_) => "memory",
            Opened::Disk(_) => "disk",
            Opened::Postgres(_) => "postgres",
        }
    }

    /// Writes down what is to be found next time.
    pub(crate) fn stop(&self) -> Result<(), Failure> {
        match self {
            Opened::Memory(_) => Ok(()),
            Opened::Postgres(store) => {
                store.close();
                Ok(())
            }
            Opened::Disk(store) => store.stop().map_err(|error| {
                Failure::Failed(format!(
                    "the store was not stopped cleanly: {error}\n\
                     Nothing that was answered is lost; the next start recovers as after a crash."
                ))
            }),
        }
    }
}

fn open_disk(folder: &Path, bytes: Option<usize>) -> Result<Opened, Failure> {
    let usual = Options::default();
    let options = Options { capacity_bytes: bytes.unwrap_or(usual.capacity_bytes), ..usual };
    let mut progress = Progress::new();
    let opened = DiskStore::open(folder, Arc::new(SystemClock::new()), options, &mut |read, total| {
        progress.tell(read, total);
    });
    let (store, recovery) = opened.map_err(|error| of_open(&error))?;
    tell(&recovery);
    Ok(Opened::Disk(Arc::new(store)))
}

fn open_postgres(url: &str) -> Result<Opened, Failure> {
    let mut options = postgres_options(url)?;
    if let Some(password) = environment(PASSWORD)? {
        options = options.or_password(&password);
    }
    let store = PostgresStore::open(options).map_err(|error| match error {
        OpenError::Url(_) => Failure::BadInput(error.to_string()),
        OpenError::Unreachable { .. } => Failure::Unreachable(error.to_string()),
        _ => Failure::Failed(error.to_string()),
    })?;
    Ok(Opened::Postgres(Arc::new(store)))
}

/// Reads the URL of a database.
pub(crate) fn postgres_options(url: &str) -> Result<tidegate_postgres::Options, Failure> {
    let read = tidegate_postgres::Options::parse(url).map_err(OpenError::Url);
    read.map_err(|error| Failure::BadInput(error.to_string()))
}

/// What is worth knowing about a start.
fn tell(recovery: &Recovery) {
    let Recovery { read_bytes, cut_bytes, records, took, .. } = *recovery;
    let took = took.as_millis();
    match recovery.before {
        Before::Created => tracing::info!("a new store"),
        Before::Stopped => {
            tracing::info!(read_bytes, records, took_ms = took, "the store was stopped cleanly");
        }
        Before::Crashed => {
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

/// Tells how far a long recovery is.
struct Progress {
    began: Instant,
    told: u128,
}

impl Progress {
    #[expect(clippy::disallowed_methods, reason = "people wait by the wall clock")]
    fn new() -> Progress {
        Progress { began: Instant::now(), told: 0 }
    }

    /// Once a second, after the first.
    fn tell(&mut self, read: u64, total: u64) {
        let seconds = self.began.elapsed().as_millis() / QUIET.as_millis();
        if seconds > self.told {
            self.told = seconds;
            let percent = (u128::from(read) * 100).checked_div(u128::from(total)).unwrap_or(100);
            say(&format!("recovering the store: {percent} % of {} MiB", total >> 20));
        }
    }
}
