//! The record of a request: what was requested, its route, and how it ended. Finishing a record updates the
//! metrics and the access log.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::time::Instant;

use crate::access_log::AccessLogEntry;
use crate::client_connection::RequestClient;
use crate::config_snapshot::RouteTarget;
use crate::endpoints::UpstreamEndpoint;
use crate::limits::LimitRefusal;
use crate::local_reply::LocalReply;
use crate::wire::request_head::{Http1RequestHead, header_storage};
use crate::worker::{ClientConnectionEnd, GatewayWorker};

/// The logged status if the client left before a response.
const CLIENT_CLOSED_REQUEST: u16 = 499;
/// The maximum length of an invalid method or target in the log.
const MAX_LOGGED: usize = 256;
/// The logged reason of requests cut off by the shutdown.
const GATEWAY_ENDED: &str = "the gateway ended";
/// The logged reason of a 408.
const TOO_SLOW: &str = "it did not come in time";

/// What was transferred so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TransferProgress {
    /// The status; 0 if none was sent.
    pub(crate) status: u16,
    /// The bytes of the response body.
    pub(crate) sent: u64,
    /// The bytes of the request body.
    pub(crate) received: u64,
}

/// The logged parts of a request head.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestSummary<'a> {
    pub(crate) method: &'a str,
    pub(crate) host: &'a str,
    pub(crate) path: &'a str,
    pub(crate) user_agent: Option<&'a [u8]>,
    pub(crate) referer: Option<&'a [u8]>,
}

impl<'a> RequestSummary<'a> {
    pub(crate) fn from_head(head: &Http1RequestHead<'a, '_>) -> RequestSummary<'a> {
        RequestSummary {
            method: head.method,
            host: head.host,
            path: head.path,
            user_agent: head.value(b"user-agent"),
            referer: head.value(b"referer"),
        }
    }

    /// The method and path of an invalid head, truncated.
    pub(crate) fn from_invalid(bytes: &'a [u8]) -> RequestSummary<'a> {
        let (method, path) = Http1RequestHead::first_line(bytes);
        let progress = |word: &'a str| &word[..word.floor_char_boundary(MAX_LOGGED)];
        RequestSummary { method: progress(method), path: progress(path), ..RequestSummary::default() }
    }

    /// From a head that was composed for an endpoint.
    pub(crate) fn from_composed(bytes: &'a [u8]) -> RequestSummary<'a> {
        let mut storage = header_storage();
        Http1RequestHead::read(bytes, &mut storage)
            .ok()
            .flatten()
            .map_or_else(RequestSummary::default, |head| RequestSummary::from_head(&head))
    }
}

/// What is known of a request so far.
#[derive(Debug)]
pub(crate) struct RequestRecord {
    client: IpAddr,
    /// The name of the client, if known.
    name: Option<Box<[u8]>>,
    protocol: &'static str,
    started: Instant,
    target: Option<Arc<RouteTarget>>,
    endpoint: Option<Arc<UpstreamEndpoint>>,
    attempts: u32,
    /// What was transferred so far.
    progress: TransferProgress,
}

impl RequestRecord {
    pub(crate) const fn new(client: IpAddr, protocol: &'static str, started: Instant) -> RequestRecord {
        RequestRecord {
            client,
            name: None,
            protocol,
            started,
            target: None,
            endpoint: None,
            attempts: 0,
            progress: TransferProgress { status: 0, sent: 0, received: 0 },
        }
    }

    /// Sets the number of body bytes read.
    pub(crate) const fn set_received(&mut self, bytes: u64) {
        self.progress.received = bytes;
    }

    /// The transfer counts, for updates.
    pub(crate) const fn progress_mut(&mut self) -> &mut TransferProgress {
        &mut self.progress
    }

    /// Sets the route.
    pub(crate) fn set_target(&mut self, target: &Arc<RouteTarget>) {
        self.target = Some(Arc::clone(target));
    }

    /// Sets the endpoint that is tried.
    pub(crate) fn set_endpoint(
        &mut self,
        worker: &GatewayWorker,
        endpoint: &Arc<UpstreamEndpoint>,
        attempts: u32,
    ) {
        self.endpoint = Some(Arc::clone(endpoint));
        self.attempts = attempts;
        if attempts > 1 {
            worker.metrics.count_retry();
        }
    }

    /// Sets the client, and counts it for the hottest clients.
    pub(crate) fn set_client(
        &mut self,
        worker: &GatewayWorker,
        client: &RequestClient,
        refused: Option<LocalReply>,
    ) {
        worker
            .metrics
            .count_client_request(client.key.as_bytes(), matches!(refused, Some(LocalReply::Refused(_))));
        if worker.access_log.is_some() {
            self.name = client.key.name().map(Into::into);
        }
    }

    /// Finishes with a local reply.
    pub(crate) fn finish_with_reply(
        &self,
        worker: &GatewayWorker,
        request: &RequestSummary<'_>,
        reply: LocalReply,
    ) {
        let progress = TransferProgress {
            status: reply.status(),
            sent: reply.body_length(request.method == "HEAD"),
            received: self.progress.received,
        };
        let refused = match reply {
            LocalReply::Refused(refusal) => Some(refusal),
            _ => None,
        };
        if let Some(refusal) = &refused {
            worker.metrics.count_refusal(refusal);
        }
        let why = match reply {
            LocalReply::Invalid(error) => Some(error.reason()),
            LocalReply::RequestTimeout => Some(TOO_SLOW),
            _ => None,
        };
        self.write(worker, || *request, progress, refused, why, worker.now());
    }

    /// Finishes with a complete response.
    pub(crate) fn finish<'a>(
        &self,
        worker: &GatewayWorker,
        request: impl FnOnce() -> RequestSummary<'a>,
        progress: TransferProgress,
        now: Instant,
    ) {
        self.write(worker, request, progress, None, None, now);
    }

    /// Finishes a dropped request: the client has left, or the gateway is shutting down.
    pub(crate) fn abandon<'a>(&self, worker: &GatewayWorker, request: impl FnOnce() -> RequestSummary<'a>) {
        self.fail(worker, request, self.progress, worker.state.abandon_reason(), worker.now());
    }

    /// Finishes with a broken response.
    pub(crate) fn fail<'a>(
        &self,
        worker: &GatewayWorker,
        request: impl FnOnce() -> RequestSummary<'a>,
        progress: TransferProgress,
        end: ClientConnectionEnd,
        now: Instant,
    ) {
        // A client that left before any response gets its own status, as in other proxies.
        let status = if progress.status == 0 && end == ClientConnectionEnd::ClientClosed {
            CLIENT_CLOSED_REQUEST
        } else {
            progress.status
        };
        let is_aborted = end == ClientConnectionEnd::ShuttingDown;
        if is_aborted {
            worker.state.count_aborted();
        }
        self.write(
            worker,
            request,
            TransferProgress { status, ..progress },
            None,
            is_aborted.then_some(GATEWAY_ENDED),
            now,
        );
    }

    fn write<'a>(
        &self,
        worker: &GatewayWorker,
        request: impl FnOnce() -> RequestSummary<'a>,
        progress: TransferProgress,
        refused: Option<LimitRefusal>,
        why: Option<&str>,
        now: Instant,
    ) {
        let took = now.saturating_duration_since(self.started);
        let route = self.target.as_ref().map(|target| &*target.metrics);
        worker.metrics.count_request(route, progress.status, took, progress.received, progress.sent);
        let Some(access_log) = &worker.access_log else { return };
        let request = request();
        access_log.write(&AccessLogEntry {
            at: worker.state.wall_clock().saturating_sub(took),
            client: self.client,
            client_name: self.name.as_deref(),
            method: request.method,
            host: request.host,
            path: request.path,
            protocol: self.protocol,
            status: progress.status,
            sent_bytes: progress.sent,
            received_bytes: progress.received,
            took,
            route: self.target.as_ref().map(|target| &*target.route),
            backend: self.target.as_ref().map(|target| &*target.backend.name),
            endpoint: self.endpoint.as_ref().map(|endpoint| endpoint.authority()),
            retries: self.attempts.saturating_sub(1),
            refused,
            why,
            user_agent: request.user_agent,
            referer: request.referer,
        });
    }
}
