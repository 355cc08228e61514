//! A fair worker pool: at most four slots in use at a time, first come, first served.
//!
//! A job acquires as many slots as it needs and waits up to its timeout. Jobs are served in arrival order, so light jobs
//! do not starve a heavy one. Dropping the permit releases the slots, also if the job panics.
//!
//! Run it with `cargo run -p tidegate --example workers`.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use tidegate::model::Charge;
use tidegate::{LimitHandle, Limiter, concurrency};
use tokio::sync::mpsc;

struct Job {
    name: &'static str,
    slots: u64,
    timeout: Duration,
    steps: u32,
}

impl Job {
    const fn new(name: &'static str, slots: u64, timeout_s: u64, steps: u32) -> Job {
        Job { name, slots, timeout: Duration::from_secs(timeout_s), steps }
    }
}

const JOBS: [Job; 6] = [
    Job::new("index", 2, 10, 3),
    Job::new("thumbnails", 1, 10, 6),
    Job::new("video", 4, 10, 2),
    Job::new("mail", 1, 10, 1),
    Job::new("report", 2, 10, 4),
    Job::new("ping", 1, 0, 1),
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    example(&mut std::io::stdout()).await
}

/// Runs all jobs and prints their progress.
pub(crate) async fn example(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    // By default, a request charges one slot whatever its count. `Charge::Count` charges the count.
    let limiter = Limiter::builder().limit("slots", concurrency(4).charge(Charge::Count)).build()?;
    let slots = limiter.limit("slots")?;

    let (progress, mut lines) = mpsc::unbounded_channel();
    for job in JOBS {
        tokio::spawn(run_job(slots.clone(), job, progress.clone()));
    }
    drop(progress);
    while let Some(line) = lines.recv().await {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

async fn run_job(slots: LimitHandle, job: Job, progress: mpsc::UnboundedSender<String>) {
    let report = |event: &str| {
        // Fails only if the receiver is gone. Progress is then not needed.
        let _ = progress.send(format!("{} ({}) {event}", job.name, job.slots));
    };
    // The limit is shared by all jobs, so the key is empty.
    match slots.without_key().count(job.slots).within(job.timeout).await {
        Ok(_permit) => {
            report("starts");
            for _ in 0..job.steps {
                tokio::task::yield_now().await;
            }
            report("is done");
        }
        Err(error) if error.is_refused() => report("does not wait"),
        Err(error) => report(&format!("fails: {error}")),
    }
}
