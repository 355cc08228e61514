//! A durable limiter in one line.

use std::path::PathBuf;
use std::sync::Arc;

use tidegate::LimiterBuilder;
use tidegate::clock::SystemClock;
use tidegate::store::LimitStore;

use crate::{DiskOptions, DiskStore};

/// Makes a [`LimiterBuilder`] durable.
///
/// ```no_run
/// use std::time::Duration;
/// use tidegate::{Limiter, sliding};
/// use tidegate_disk::DiskExt;
///
/// let limiter = Limiter::builder()
///     .disk("./data")
///     .limit("login", sliding(5, Duration::from_secs(15)).per_key())
///     .build()?;
/// # Ok::<(), tidegate::BuildError>(())
/// ```
pub trait DiskExt {
    /// Keeps limits and counts in this directory, which is created if it does not exist. Grants block until they are
    /// durable; in tasks use [`Request::try_acquire_async`](tidegate::Request::try_acquire_async).
    ///
    /// A limit that the directory already has keeps its counts. If its definition differs, the builder's is an edit.
    /// Limits that are only in the directory stay.
    fn disk(self, directory: impl Into<PathBuf>) -> LimiterBuilder;
}

impl DiskExt for LimiterBuilder {
    fn disk(self, directory: impl Into<PathBuf>) -> LimiterBuilder {
        let directory = directory.into();
        self.open_store(move || {
            let clock = Arc::new(SystemClock::new());
            match DiskStore::open(&directory, clock, DiskOptions::default(), &mut |_, _| {}) {
                Ok((store, _recovery)) => Ok(Arc::new(store) as Arc<dyn LimitStore>),
                Err(error) => Err(format!("{}: {error}", directory.display())),
            }
        })
    }
}
