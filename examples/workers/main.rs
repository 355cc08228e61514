//! A fair pool: at most four units of work at a time, first come first served.
//!
//! A job requests as many units as it needs and waits up to its timeout. Jobs are served in arrival order, so light jobs
//! do not starve a heavy one. Dropping the lease releases the units, also if the job fails.
//! Run it with `cargo run -p tidegate --example workers`.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use tidegate::catalog::ExpectedVersion;
use tidegate::model::{Charge, ItemSpec, LimitSpec, Policy};
use tidegate::{AcquireError, Limiter};
use tokio::sync::mpsc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    example(&mut std::io::stdout()).await
}

/// A job: name, weight in units, timeout, and number of steps.
const JOBS: [(&str, u64, Duration, u32); 6] = [
    ("index", 2, Duration::from_secs(10), 3),
    ("thumbnails", 1, Duration::from_secs(10), 6),
    ("video", 4, Duration::from_secs(10), 2),
    ("mail", 1, Duration::from_secs(10), 1),
    ("report", 2, Duration::from_secs(10), 4),
    ("ping", 1, Duration::ZERO, 1),
];

/// Runs all jobs and prints their progress.
pub(crate) async fn example(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let ttl = Duration::from_secs(60);
    // A concurrency item charges one unit per request by default. Here it charges the weight of the job.
    let slots = ItemSpec { charge: Some(Charge::Count), ..ItemSpec::of(Policy::Concurrency { ttl }, 4) };
    let limiter = Limiter::in_memory();
    limiter.store().put(LimitSpec::named("workers").with(slots), ExpectedVersion::Absent)?;

    let (progress, mut lines) = mpsc::unbounded_channel();
    for job in JOBS {
        tokio::spawn(work(limiter.clone(), job, progress.clone()));
    }
    drop(progress);
    while let Some(line) = lines.recv().await {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

async fn work(limiter: Limiter, job: (&str, u64, Duration, u32), progress: mpsc::UnboundedSender<String>) {
    let (name, weight, timeout, steps) = job;
    let report = |what: &str| {
        // The receiver may be gone. Progress is then not needed.
        let _ = progress.send(format!("{name} ({weight}) {what}"));
    };
    match limiter.ask_all("workers").count(weight).within(timeout).await {
        Ok(permit) => {
            let _slots = permit.into_lease();
            report("starts");
            for _ in 0..steps {
                tokio::task::yield_now().await;
            }
            report("is done");
        }
        Err(AcquireError::Refused(_)) => report("does not wait"),
        Err(error) => report(&format!("cannot ask: {error}")),
    }
}
