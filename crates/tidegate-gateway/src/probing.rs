//! Probing: asking endpoints from time to time whether they are well.

use std::sync::Arc;
use std::time::Duration;

use crate::settings::Probe;
use hashbrown::HashMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use crate::endpoints::{Backend, Endpoint};
use crate::upstream::connect;
use crate::wire::head::room;
use crate::wire::reply::Reply;
use crate::worker::Worker;

/// How often it is looked whose turn it is.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The most that is read of an answer.
const LONGEST_ANSWER: usize = 8 * 1024;

/// Probes whoever is to be probed, for as long as the worker runs.
pub(crate) async fn go(worker: Arc<Worker>) {
    let mut due: HashMap<u64, Instant> = HashMap::new();
    loop {
        let site = worker.site();
        let now = worker.now();
        let mut still: HashMap<u64, Instant> = HashMap::new();
        for backend in site.backends.values() {
            let Some(probe) = &backend.probe else { continue };
            for endpoint in backend.endpoints() {
                let mut at = due.get(&endpoint.id()).copied().unwrap_or(now);
                if at <= now {
                    // From now on, not from when it was due: nobody is probed twice because somebody was late.
                    at = now + probe.period;
                    tokio::spawn(ask(Arc::clone(backend), Arc::clone(endpoint), probe.clone()));
                }
                still.insert(endpoint.id(), at);
            }
        }
        due = still;
        drop(site);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn ask(backend: Arc<Backend>, endpoint: Arc<Endpoint>, probe: Probe) {
    let is_well = timeout(probe.timeout, answers(&endpoint, &probe)).await.unwrap_or(false);
    match endpoint.probed(is_well, &probe) {
        Some(true) => {
            tracing::info!(
                backend = &*backend.name,
                endpoint = endpoint.authority(),
                "an endpoint is well again"
            );
        }
        Some(false) => {
            tracing::warn!(
                backend = &*backend.name,
                endpoint = endpoint.authority(),
                "an endpoint is not well"
            );
        }
        None => {}
    }
}

/// Whether it answers with a status that says that all is well.
async fn answers(endpoint: &Endpoint, probe: &Probe) -> bool {
    let Ok(mut stream) = connect(endpoint, probe.timeout).await else { return false };
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: tidegate-probe\r\nAccept: */*\r\nConnection: close\r\n\r\n",
        probe.path,
        endpoint.authority()
    );
    if stream.write_all(request.as_bytes()).await.is_err() {
        return false;
    }
    let mut heard = Vec::new();
    let mut piece = [0; 1024];
    loop {
        match stream.read(&mut piece).await {
            Ok(length) if length > 0 => heard.extend_from_slice(&piece[..length]),
            _ => return false,
        }
        let mut room = room();
        match Reply::read(&heard, &mut room, false) {
            Ok(Some(reply)) => return matches!(reply.status, 200..=399),
            Ok(None) if heard.len() < LONGEST_ANSWER => {}
            _ => return false,
        }
    }
}
