//! Health probes: periodic requests to endpoints.

use std::sync::Arc;
use std::time::Duration;

use crate::settings::ProbeSpec;
use hashbrown::HashMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use crate::endpoints::{UpstreamBackend, UpstreamEndpoint};
use crate::upstream_connect::connect;
use crate::wire::request_head::header_storage;
use crate::wire::response_head::Http1ResponseHead;
use crate::worker::GatewayWorker;

/// How often the schedule is checked.
const SCHEDULE_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of response bytes read.
const MAX_RESPONSE_BYTES: usize = 8 * 1024;

/// Probes endpoints when they are due, as long as the worker runs.
pub(crate) async fn run(worker: Arc<GatewayWorker>) {
    let mut due: HashMap<u64, Instant> = HashMap::new();
    loop {
        let config = worker.config();
        let now = worker.now();
        let mut next_due: HashMap<u64, Instant> = HashMap::new();
        for backend in config.backends.values() {
            let Some(probe) = &backend.probe else { continue };
            for endpoint in backend.endpoints() {
                let mut at = due.get(&endpoint.id()).copied().unwrap_or(now);
                if at <= now {
                    // The next probe is scheduled from now, so that a delay never causes two probes in a row.
                    at = now + probe.period;
                    tokio::spawn(probe_endpoint(Arc::clone(backend), Arc::clone(endpoint), probe.clone()));
                }
                next_due.insert(endpoint.id(), at);
            }
        }
        due = next_due;
        drop(config);
        tokio::time::sleep(SCHEDULE_INTERVAL).await;
    }
}

async fn probe_endpoint(backend: Arc<UpstreamBackend>, endpoint: Arc<UpstreamEndpoint>, probe: ProbeSpec) {
    let is_healthy = timeout(probe.timeout, responds_healthy(&endpoint, &probe)).await.unwrap_or(false);
    match endpoint.record_probe(is_healthy, &probe) {
        Some(true) => {
            tracing::info!(
                backend = &*backend.name,
                endpoint = endpoint.authority(),
                "an endpoint is healthy again"
            );
        }
        Some(false) => {
            tracing::warn!(
                backend = &*backend.name,
                endpoint = endpoint.authority(),
                "an endpoint is unhealthy"
            );
        }
        None => {}
    }
}

/// Whether the endpoint responds with a status from 200 to 399.
async fn responds_healthy(endpoint: &UpstreamEndpoint, probe: &ProbeSpec) -> bool {
    let Ok(mut stream) = connect(endpoint, probe.timeout).await else { return false };
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: tidegate-probe\r\nAccept: */*\r\nConnection: close\r\n\r\n",
        probe.path,
        endpoint.authority()
    );
    if stream.write_all(request.as_bytes()).await.is_err() {
        return false;
    }
    let mut received = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        match stream.read(&mut chunk).await {
            Ok(length) if length > 0 => received.extend_from_slice(&chunk[..length]),
            _ => return false,
        }
        let mut storage = header_storage();
        match Http1ResponseHead::read(&received, &mut storage, false) {
            Ok(Some(reply)) => return matches!(reply.status, 200..=399),
            Ok(None) if received.len() < MAX_RESPONSE_BYTES => {}
            _ => return false,
        }
    }
}
