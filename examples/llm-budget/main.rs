//! A budget of model tokens: ten thousand in any minute, for each customer.
//!
//! The cost of a call is known only at its end. The caller holds an estimate before the call and settles the actual cost
//! afterwards. The settlement refunds the excess or charges the difference, if necessary above the limit. The hold is
//! renewed while the call runs. If the caller crashes, the estimate stays charged.
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
    example(&mut std::io::stdout()).await
}

/// Runs calls of one customer until the budget is used up.
pub(crate) async fn example(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
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

/// Runs one call and describes it in a line.
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
    Ok(format!("held {estimate} with {held} available, cost {cost}, {left} left"))
}

/// Simulates the model and returns the actual cost.
async fn ask_the_model(cost: u64) -> u64 {
    tokio::task::yield_now().await;
    cost
}
