//! Logins: five attempts per user and twenty per address in any fifteen seconds.
//!
//! One request checks both limits. A refused attempt charges neither, so repeated attempts do not lengthen the wait. The
//! refusal reports when the next attempt is possible. Run it with `cargo run -p tidegate --example login`.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::{Clock, ManualClock};
use tidegate::model::{Ask, Timestamp};
use tidegate::store::{Memory, MemoryStore};
use tidegate::{AcquireError, Limiter, config};

const LIMITS: &str = "
limits:
  - {id: user, items: [{policy: sliding, limit: 5, window: 15s, per: key}]}
  - {id: address, items: [{policy: sliding, limit: 20, window: 15s, per: key}]}
";

fn main() -> Result<(), Box<dyn Error>> {
    example(&mut std::io::stdout())
}

/// One user who forgot a password, and one address that tries many users.
pub(crate) fn example(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    // A program uses Limiter::in_memory. This clock is manual, so the example takes no time.
    let clock = Arc::new(ManualClock::at(Timestamp::EPOCH));
    let limiter = Limiter::new(Arc::new(store(Arc::clone(&clock))?));

    for second in [0, 1, 2, 3, 4, 5, 9, 15, 16] {
        clock.set(Timestamp::from_ticks(second * 1_000_000_000));
        writeln!(out, "{second:>2} s  ada from 192.0.2.7: {}", try_login(&limiter, "ada", "192.0.2.7")?)?;
    }

    let users = (0..25).map(|user| format!("user-{user}"));
    let mut admitted = 0;
    for user in users {
        admitted += u32::from(try_login(&limiter, &user, "203.0.113.9")? == "admitted");
    }
    writeln!(out, "16 s  25 users from 203.0.113.9: {admitted} admitted")?;
    writeln!(out, "16 s  bob from 203.0.113.9: {}", try_login(&limiter, "bob", "203.0.113.9")?)?;
    writeln!(out, "16 s  bob from 192.0.2.8: {}", try_login(&limiter, "bob", "192.0.2.8")?)?;
    Ok(())
}

/// The message of a login page.
fn try_login(limiter: &Limiter, user: &str, address: &str) -> Result<String, Box<dyn Error>> {
    let asks = [Ask::one("user", Some(user.as_bytes())), Ask::one("address", Some(address.as_bytes()))];
    Ok(match limiter.asks(&asks).try_acquire() {
        Ok(_) => "admitted".to_owned(),
        Err(AcquireError::Refused(denial)) => {
            // A sliding window always has a wait. It is printed in whole seconds, rounded up.
            let seconds = denial.retry_after().unwrap_or_default().as_nanos().div_ceil(1_000_000_000);
            format!("too many tries for this {}, try again in {seconds} s", denial.limit_id())
        }
        Err(error) => return Err(error.into()),
    })
}

fn store(clock: impl Clock + 'static) -> Result<MemoryStore, Box<dyn Error>> {
    let limits = config::limits::read_text("login", LIMITS)?;
    let store = MemoryStore::new(clock, Memory::default());
    for limit in limits {
        store.put(limit, ExpectedVersion::Absent)?;
    }
    Ok(store)
}
