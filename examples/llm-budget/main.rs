//! A token budget for a language model: 10,000 tokens in any minute for each customer.
//!
//! The cost of a call is known only at its end. The caller holds an estimate before the call and settles the actual cost
//! afterwards. Settling refunds the excess, or charges the difference even above the limit. The lease is renewed while
//! the call runs. If the caller crashes, the estimate stays charged.
//!
//! Run it with `cargo run -p tidegate --example llm-budget`.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use tidegate::reply::ItemReading;
use tidegate::store::Actual;
use tidegate::{LimitHandle, Limiter, sliding};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    example(&mut std::io::stdout()).await
}

/// Runs calls of one customer until the budget is used up.
pub(crate) async fn example(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let limiter =
        Limiter::builder().limit("tokens", sliding(10_000, Duration::from_secs(60)).per_key()).build()?;
    let tokens = limiter.limit("tokens")?;

    for (prompt, estimate, cost) in [
        ("a short question", 2_000, 350),
        ("a long essay", 6_000, 7_500),
        ("a summary", 3_000, 900),
        ("another summary", 2_000, 1_800),
    ] {
        writeln!(out, "{prompt}: {}", run_call(&tokens, estimate, cost).await?)?;
    }
    Ok(())
}

/// Runs one call within the budget and describes it in a line.
async fn run_call(tokens: &LimitHandle, estimate: u64, cost: u64) -> Result<String, Box<dyn Error>> {
    let permit = match tokens.of("acme").count(estimate).hold().readings().try_acquire() {
        Ok(permit) => permit,
        Err(error) if error.is_refused() => {
            let left = remaining(error.readings());
            return Ok(format!("refused, it may cost {estimate} and {left} are left"));
        }
        Err(error) => return Err(error.into()),
    };
    let available = remaining(permit.readings());

    let lease = permit.into_lease().ok_or("a hold has a lease")?;
    lease.keep_alive();
    let cost = call_model(cost).await;
    lease.settle(Actual::Every(cost))?;

    let left = match tokens.of("acme").count(0).readings().peek() {
        Ok(permit) => remaining(permit.readings()),
        Err(error) => remaining(error.readings()),
    };
    Ok(format!("held {estimate} with {available} available, cost {cost}, {left} left"))
}

/// The units left in the limit's only item.
fn remaining(readings: &[ItemReading]) -> u64 {
    readings.first().and_then(|item| item.reading.remaining).unwrap_or_default()
}

/// Simulates the model and returns the actual cost.
async fn call_model(cost: u64) -> u64 {
    tokio::task::yield_now().await;
    cost
}
