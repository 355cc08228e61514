//! Login protection: five attempts per user and twenty per address in any 15 seconds.
//!
//! The first limit slows down guesses for one user. The second stops one address that tries many users. One request
//! checks both. A refused attempt charges neither limit, so repeated attempts do not lengthen the wait.
//!
//! Run it with `cargo run -p tidegate --example login`.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::{LimitHandle, Limiter, Timestamp, sliding};

const WINDOW: Duration = Duration::from_secs(15);

/// The part of a login service that limits attempts.
struct LoginGuard {
    limiter: Limiter,
    users: LimitHandle,
    addresses: LimitHandle,
}

impl LoginGuard {
    fn new(clock: Arc<ManualClock>) -> Result<LoginGuard, Box<dyn Error>> {
        let limiter = Limiter::builder()
            .limit("user", sliding(5, WINDOW).per_key())
            .limit("address", sliding(20, WINDOW).per_key())
            // A service leaves this line out and gets the system clock. The manual clock saves the example the waits.
            .clock(clock)
            .build()?;
        Ok(LoginGuard { users: limiter.limit("user")?, addresses: limiter.limit("address")?, limiter })
    }

    /// Checks an attempt and returns the message of the login page.
    fn check_attempt(&self, user: &str, address: &str) -> Result<String, Box<dyn Error>> {
        match self.limiter.all([self.users.of(user), self.addresses.of(address)]).try_acquire() {
            Ok(_) => Ok("admitted".to_owned()),
            Err(error) if error.is_refused() => {
                let seconds = error.retry_after().unwrap_or_default().as_nanos().div_ceil(1_000_000_000);
                Ok(format!("too many tries for this {}, try again in {seconds} s", error.limit_id()))
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    example(&mut std::io::stdout())
}

/// Runs two cases: a user who forgot a password, and an address that tries many users.
pub(crate) fn example(out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let clock = Arc::new(ManualClock::at(Timestamp::EPOCH));
    let guard = LoginGuard::new(Arc::clone(&clock))?;

    for second in [0, 1, 2, 3, 4, 5, 9, 15, 16] {
        clock.set(Timestamp::from_ticks(second * 1_000_000_000));
        writeln!(out, "{second:>2} s  ada from 192.0.2.7: {}", guard.check_attempt("ada", "192.0.2.7")?)?;
    }

    let mut admitted = 0;
    for user in 0..25 {
        let message = guard.check_attempt(&format!("user-{user}"), "203.0.113.9")?;
        admitted += u32::from(message == "admitted");
    }
    writeln!(out, "16 s  25 users from 203.0.113.9: {admitted} admitted")?;
    for address in ["203.0.113.9", "192.0.2.8"] {
        writeln!(out, "16 s  bob from {address}: {}", guard.check_attempt("bob", address)?)?;
    }
    Ok(())
}
