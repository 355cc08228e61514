//! A call that is under way, and what is told of it when it is over.

use std::sync::Arc;

use super::headers::Kept;
use super::request_body::Progress;
use crate::endpoints::Endpoint;
use crate::local_reply::Answer;
use crate::request_log::{Story, Told};
use crate::worker::{Over, Worker};

/// A call that is under way. It is told once: when it is over, or when nobody goes on with it because it was reset or its connection is gone.
pub(super) struct Pending {
    /// `None` when it is told.
    story: Option<Story>,
    kept: Kept,
    worker: Arc<Worker>,
    /// How far the request's body is, if it has one.
    pub(super) upload: Option<Arc<Progress>>,
}

impl Pending {
    pub(super) const fn new(
        story: Story,
        kept: Kept,
        worker: Arc<Worker>,
        upload: Option<Arc<Progress>>,
    ) -> Pending {
        Pending { story: Some(story), kept, worker, upload }
    }

    /// Who serves it.
    pub(super) const fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Which endpoint it is tried at.
    pub(super) fn tried(&mut self, endpoint: &Arc<Endpoint>, tries: u32) {
        if let Some(story) = &mut self.story {
            story.tried(&self.worker, endpoint, tries);
        }
    }

    /// The gateway answered by itself.
    pub(super) fn answered(mut self, answer: Answer) {
        let received = self.received();
        if let Some(mut story) = self.story.take() {
            story.received(received);
            story.answered(&self.worker, &self.kept.asked(), answer);
        }
    }

    /// The response is over, well or not.
    pub(super) fn over(mut self, status: u16, sent: u64, broken: Option<Over>) {
        let told = Told { status, sent, received: self.received() };
        let Some(story) = self.story.take() else { return };
        let (asked, now) = (|| self.kept.asked(), self.worker.now());
        match broken {
            None => story.finished(&self.worker, asked, told, now),
            Some(over) => story.broke(&self.worker, asked, told, over, now),
        }
    }

    fn received(&self) -> u64 {
        self.upload.as_ref().map_or(0, |upload| upload.received())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let received = self.received();
        if let Some(mut story) = self.story.take() {
            story.received(received);
            story.abandoned(&self.worker, || self.kept.asked());
        }
    }
}
