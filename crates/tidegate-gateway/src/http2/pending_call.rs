//! An active call and its log record.

use std::sync::Arc;

use super::headers::LoggedFields;
use super::request_body::UploadProgress;
use crate::endpoints::UpstreamEndpoint;
use crate::local_reply::LocalReply;
use crate::request_log::{RequestRecord, TransferProgress};
use crate::worker::{ClientConnectionEnd, GatewayWorker};

/// An active call. It is logged once: when it completes, or when it is dropped by a reset or a closed
/// connection.
pub(super) struct PendingCall {
    /// `None` once logged.
    record: Option<RequestRecord>,
    logged: LoggedFields,
    worker: Arc<GatewayWorker>,
    /// The progress of the request body, if there is one.
    pub(super) upload: Option<Arc<UploadProgress>>,
}

impl PendingCall {
    pub(super) const fn new(
        record: RequestRecord,
        logged: LoggedFields,
        worker: Arc<GatewayWorker>,
        upload: Option<Arc<UploadProgress>>,
    ) -> PendingCall {
        PendingCall { record: Some(record), logged, worker, upload }
    }

    /// The worker that serves the call.
    pub(super) const fn worker(&self) -> &Arc<GatewayWorker> {
        &self.worker
    }

    /// Sets the endpoint that is tried.
    pub(super) fn set_endpoint(&mut self, endpoint: &Arc<UpstreamEndpoint>, attempts: u32) {
        if let Some(record) = &mut self.record {
            record.set_endpoint(&self.worker, endpoint, attempts);
        }
    }

    /// Logs a local reply.
    pub(super) fn finish_with_reply(mut self, reply: LocalReply) {
        let received = self.received();
        if let Some(mut record) = self.record.take() {
            record.set_received(received);
            record.finish_with_reply(&self.worker, &self.logged.summary(), reply);
        }
    }

    /// Logs the end of the response, complete or not.
    pub(super) fn finish(mut self, status: u16, sent: u64, failure: Option<ClientConnectionEnd>) {
        let progress = TransferProgress { status, sent, received: self.received() };
        let Some(record) = self.record.take() else { return };
        let (request, now) = (|| self.logged.summary(), self.worker.now());
        match failure {
            None => record.finish(&self.worker, request, progress, now),
            Some(end) => record.fail(&self.worker, request, progress, end, now),
        }
    }

    fn received(&self) -> u64 {
        self.upload.as_ref().map_or(0, |upload| upload.received())
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let received = self.received();
        if let Some(mut record) = self.record.take() {
            record.set_received(received);
            record.abandon(&self.worker, || self.logged.summary());
        }
    }
}
