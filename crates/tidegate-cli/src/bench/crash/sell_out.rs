//! The last run of a crash test, without a kill: repeats lost requests, renews leases, and sells what is left.

use std::cell::RefCell;
use std::time::Duration;

use super::super::connection::BenchConnection;
use super::super::wire::resp::WireValue;
use super::load::{endpoint, send_requests};
use super::sales_ledger::{CrashRequest, SalesLedger, key};
use super::server_process::ServerAddresses;
use super::tested_limit::TestedLimit;
use crate::Failure;

/// Requests per batch.
const BATCH: usize = 64;
/// Lease duration in milliseconds, the same as in the limit.
const TTL_MS: &str = "86400000";

/// Sells everything that is left.
pub(super) async fn sell_out(
    ledger: &RefCell<SalesLedger>,
    addresses: &ServerAddresses,
    timeout: Duration,
) -> Result<(), Failure> {
    ledger.borrow_mut().begin_run();
    let endpoint = endpoint("redis", addresses.resp, timeout)?;
    let disconnected = |why: String| Failure::Failed(format!("the server ended without a kill: {why}"));
    let mut connection = BenchConnection::open(&endpoint).await.map_err(disconnected)?;
    let retries = std::mem::take(&mut ledger.borrow_mut().retries);
    for some in retries.chunks(BATCH) {
        send_requests(ledger, &mut connection, some.to_vec()).await.map_err(disconnected)?;
    }
    let unanswered_releases = std::mem::take(&mut ledger.borrow_mut().unanswered_releases);
    for held in unanswered_releases {
        // The lease may or may not be released already.
        let released = connection.call(&["TG.RELEASE", &held.lease], |_| ()).await.map_err(disconnected)?;
        released.unwrap_or_else(|why| ledger.borrow_mut().record_failure(&why));
    }
    renew_leases(ledger, &mut connection).await.map_err(disconnected)?;
    let limits = ledger.borrow().limits();
    for limit in limits {
        for number in 0..limit.keys() {
            sell(ledger, &mut connection, limit, number).await.map_err(disconnected)?;
        }
    }
    Ok(())
}

/// Renews every lease that should exist.
async fn renew_leases(ledger: &RefCell<SalesLedger>, connection: &mut BenchConnection) -> Result<(), String> {
    let held: Vec<_> = ledger.borrow().accounts.iter().flat_map(|account| account.held.clone()).collect();
    for held in held {
        let renewed = connection
            .call(&["TG.RENEW", &held.lease, TTL_MS], |value| matches!(value, WireValue::Number(_)))
            .await?;
        let mut ledger = ledger.borrow_mut();
        match renewed {
            Ok(was_known) => ledger.record_lease_lookup(&held, was_known),
            Err(why) => ledger.record_failure(&why),
        }
    }
    Ok(())
}

/// Requests a key until the limit refuses.
async fn sell(
    ledger: &RefCell<SalesLedger>,
    connection: &mut BenchConnection,
    limit: TestedLimit,
    number: u32,
) -> Result<(), String> {
    let request = CrashRequest { limit, number, key: key(number), id: String::new() };
    let mut asked = 0;
    loop {
        let before = counts_of(ledger, limit);
        send_requests(ledger, connection, vec![request.clone(); BATCH]).await?;
        let after = counts_of(ledger, limit);
        asked += BATCH as u64;
        if after.failures > before.failures || after.sold - before.sold < BATCH as u64 {
            return Ok(());
        }
        // Stops a limit that never refuses. A single run cannot sell more than the capacity.
        if asked > 2 * limit.capacity() + BATCH as u64 {
            ledger.borrow_mut().record_failure("a limit never refuses");
            return Ok(());
        }
    }
}

struct LedgerCounts {
    sold: u64,
    failures: u64,
}

fn counts_of(ledger: &RefCell<SalesLedger>, limit: TestedLimit) -> LedgerCounts {
    let mut ledger = ledger.borrow_mut();
    LedgerCounts { sold: ledger.account(limit).sold, failures: ledger.failures }
}
