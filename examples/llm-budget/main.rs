//! A budget of model tokens: ten thousand in any minute, for each customer.
//!
//! What a call costs is known only when it is over. So it holds an estimate before it starts, and settles the true cost
//! afterwards: what was too much is given back, what was too little is charged, past the limit if it must be. While the
//! call runs the hold is kept alive, however long it takes; if the caller dies, the estimate stays charged.
//! Run it with `cargo run -p tidegate --example llm-budget`.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use tidegate::catalog::ExpectedVersion;
use tidegate::model::{ItemSpec, LimitSpec, Policy, Precision};
use tidegate::store::Actual;
use tidegate::{AcquireError, Limiter};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    story(&mut std::io::stdout()).await
}

/// A customer who asks for a lot.
pub(crate) async fn story(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let sliding = Policy::Sliding { window: MINUTE, precision: Precision::Exact };
    let budget = LimitSpec::named("llm").with(ItemSpec::of(sliding, 10_000).per_key());
    let limiter = Limiter::in_memory();
    limiter.store().put(budget, ExpectedVersion::Absent)?;

    for (prompt, estimate, truth) in [
        ("a short question", 2_000, 350),
        ("a long essay", 6_000, 7_500),
        ("a summary", 3_000, 900),
        ("another summary", 2_000, 1_800),
    ] {
        let line = call(&limiter, estimate, truth).await?;
        writeln!(out, "{prompt}: {line}")?;
    }
    Ok(())
}

/// One call, as a line for people.
async fn call(limiter: &Limiter, estimate: u64, truth: u64) -> Result<String, Box<dyn Error>> {
    let question = limiter.ask("llm", "acme").count(estimate).hold().readings();
    let granted = match question.try_acquire() {
        Ok(permit) => permit,
        Err(AcquireError::Refused(denial)) => {
            let left = denial.readings()[0].reading.remaining.unwrap_or_default();
            return Ok(format!("refused, it may cost {estimate} and {left} are left"));
        }
        Err(error) => return Err(error.into()),
    };
    let held = granted.readings()[0].reading.remaining.unwrap_or_default();
    let lease = granted.into_lease().ok_or("a hold comes with a lease")?;
    lease.keep_alive();
    let cost = ask_the_model(truth).await;
    lease.settle(Actual::Every(cost))?;
    let left = limiter.ask("llm", "acme").count(0).readings().peek();
    let readings = match &left {
        Ok(permit) => permit.readings(),
        Err(error) => error.readings(),
    };
    let left = readings[0].reading.remaining.unwrap_or_default();
    Ok(format!("held {estimate} with {held} beside it, cost {cost}, {left} left"))
}

/// Stands for the model: it takes its time and says what that cost.
async fn ask_the_model(cost: u64) -> u64 {
    tokio::task::yield_now().await;
    cost
}
