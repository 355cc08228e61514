//! A fair pool: at most four units of work at a time, first come first served.
//!
//! A job weighs as many units as it needs, and waits for as long as it can afford. Whoever came first is served first,
//! so a heavy job is not starved by light ones that would fit beside what runs. Its lease is given back when it is
//! dropped, whatever becomes of the job. Run it with `cargo run -p tidegate --example workers`.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use tidegate::catalog::ExpectedVersion;
use tidegate::model::{Charge, ItemSpec, LimitSpec, Policy};
use tidegate::{AcquireError, Limiter};
use tokio::sync::mpsc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    story(&mut std::io::stdout()).await
}

/// A job: its name, what it weighs, how long it can wait, and for how many steps it runs.
const JOBS: [(&str, u64, Duration, u32); 6] = [
    ("index", 2, Duration::from_secs(10), 3),
    ("thumbnails", 1, Duration::from_secs(10), 6),
    ("video", 4, Duration::from_secs(10), 2),
    ("mail", 1, Duration::from_secs(10), 1),
    ("report", 2, Duration::from_secs(10), 4),
    ("ping", 1, Duration::ZERO, 1),
];

/// A morning's work.
pub(crate) async fn story(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let ttl = Duration::from_secs(60);
    // Concurrency costs one by default, however large the ask; here it costs what the job weighs.
    let slots = ItemSpec { charge: Some(Charge::Count), ..ItemSpec::of(Policy::Concurrency { ttl }, 4) };
    let limiter = Limiter::in_memory();
    limiter.store().put(LimitSpec::named("workers").with(slots), ExpectedVersion::Absent)?;

    let (news, mut told) = mpsc::unbounded_channel();
    for job in JOBS {
        tokio::spawn(work(limiter.clone(), job, news.clone()));
    }
    drop(news);
    while let Some(line) = told.recv().await {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

async fn work(limiter: Limiter, job: (&str, u64, Duration, u32), news: mpsc::UnboundedSender<String>) {
    let (name, weight, patience, steps) = job;
    let tell = |what: &str| {
        // Nobody listens any more: then nobody needs to know.
        let _ = news.send(format!("{name} ({weight}) {what}"));
    };
    match limiter.ask_all("workers").count(weight).within(patience).await {
        Ok(permit) => {
            let _slots = permit.into_lease();
            tell("starts");
            for _ in 0..steps {
                tokio::task::yield_now().await;
            }
            tell("is done");
        }
        Err(AcquireError::Refused(_)) => tell("does not wait"),
        Err(error) => tell(&format!("cannot ask: {error}")),
    }
}
