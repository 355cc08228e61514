//! Load during a crash test: RESP connections with batches and HTTP connections with single requests.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::{JoinSet, LocalSet};

use super::super::connection::{BenchConnection, BenchEndpoint};
use super::super::random::SplitMix64;
use super::super::stopwatch::now;
use super::super::target::BenchTarget;
use super::super::wire::WireAsk;
use super::super::wire::resp::WireValue;
use super::sales_ledger::{CrashRequest, ReleaseAttempt, SalesLedger};
use super::server_process::ServerAddresses;
use crate::Failure;

/// Connections per protocol.
const CONNECTIONS: u64 = 4;
/// Requests per RESP batch.
const BATCH: usize = 16;
/// One batch in this many is followed by a release.
const ROUNDS_PER_RELEASE: u32 = 2;

/// An endpoint of the server.
pub(super) fn endpoint(
    scheme: &str,
    address: SocketAddr,
    timeout: Duration,
) -> Result<BenchEndpoint, Failure> {
    let target = BenchTarget::parse(&format!("{scheme}://{address}")).map_err(Failure::Failed)?;
    Ok(BenchEndpoint::at(&target, vec![address], None, timeout))
}

/// Runs load on both protocols until every connection has noticed the kill.
pub(super) async fn run_load(
    ledger: &Rc<RefCell<SalesLedger>>,
    addresses: &ServerAddresses,
    timeout: Duration,
    killing: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    ledger.borrow_mut().begin_run();
    let all = LocalSet::new();
    let mut clients = JoinSet::new();
    for number in 0..CONNECTIONS {
        for (scheme, address, batch) in [("redis", addresses.resp, BATCH), ("http", addresses.http, 1)] {
            let endpoint = endpoint(scheme, address, timeout)?;
            // Connections with equal numbers differ by protocol, so each has its own sequence.
            let random = SplitMix64::from(number << 8 | batch as u64);
            clients.spawn_local_on(run(Rc::clone(ledger), endpoint, batch, random), &all);
        }
    }
    all.run_until(async {
        let killed = killing.await;
        while clients.join_next().await.is_some() {}
        killed
    })
    .await
}

/// Sends batches until the connection breaks or the share of this run is used up.
async fn run(
    ledger: Rc<RefCell<SalesLedger>>,
    endpoint: BenchEndpoint,
    batch: usize,
    mut random: SplitMix64,
) {
    let mut connection = match BenchConnection::open(&endpoint).await {
        Ok(connection) => connection,
        Err(why) => return ledger.borrow_mut().record_disconnect(&why),
    };
    loop {
        let requests = next(&ledger, batch, &mut random);
        if requests.is_empty() {
            return;
        }
        let mut result = send_requests(&ledger, &mut connection, requests).await;
        if result.is_ok() && batch > 1 && random.below(ROUNDS_PER_RELEASE) == 0 {
            result = release(&ledger, &mut connection, &mut random).await;
        }
        if let Err(why) = result {
            return ledger.borrow_mut().record_disconnect(&why);
        }
    }
}

/// The next batch: lost requests first.
fn next(ledger: &RefCell<SalesLedger>, batch: usize, random: &mut SplitMix64) -> Vec<CrashRequest> {
    let mut ledger = ledger.borrow_mut();
    let mut requests = Vec::with_capacity(batch);
    while requests.len() < batch {
        match ledger.retries.pop().or_else(|| ledger.request(random)) {
            Some(request) => requests.push(request),
            None => break,
        }
    }
    requests
}

/// Sends a batch and records the outcome of each request.
pub(super) async fn send_requests(
    ledger: &RefCell<SalesLedger>,
    connection: &mut BenchConnection,
    requests: Vec<CrashRequest>,
) -> Result<(), String> {
    ledger.borrow_mut().record_sent(requests.iter(), now());
    for CrashRequest { limit, key, id, .. } in &requests {
        connection.queue(WireAsk { limit: limit.id(), key, request_id: (!id.is_empty()).then_some(id) });
    }
    let mut result = connection.send().await;
    for request in requests {
        let reply = match result {
            Ok(()) => connection.receive().await,
            Err(ref why) => Err(why.clone()),
        };
        let mut ledger = ledger.borrow_mut();
        match reply {
            Ok(Ok(answer)) => ledger.record_reply(request, answer.allowed, answer.lease, now()),
            Ok(Err(why)) => ledger.record_failure(&why),
            Err(why) => {
                ledger.record_lost(request);
                result = Err(why);
            }
        }
    }
    result
}

/// Releases a random lease, if there is one.
async fn release(
    ledger: &RefCell<SalesLedger>,
    connection: &mut BenchConnection,
    random: &mut SplitMix64,
) -> Result<(), String> {
    let Some((held, sent)) = ledger.borrow_mut().lease_to_release(random) else { return Ok(()) };
    let released =
        connection.call(&["TG.RELEASE", &held.lease], |value| *value == WireValue::Number(1)).await;
    let mut ledger = ledger.borrow_mut();
    match released {
        Ok(Ok(was_known)) => {
            if sent == ReleaseAttempt::First {
                ledger.record_lease_lookup(&held, was_known);
            }
            Ok(())
        }
        Ok(Err(why)) => {
            ledger.record_failure(&why);
            Ok(())
        }
        Err(why) => {
            // The release may or may not have happened.
            ledger.unanswered_releases.push(held);
            Err(why)
        }
    }
}
