//! The story of a request: who asked for what, which way it went, and how it ended.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::time::Instant;

use crate::access_log::Entry;
use crate::client_connection::Sender;
use crate::config_snapshot::Way;
use crate::endpoints::Endpoint;
use crate::limits::Refusal;
use crate::local_reply::Answer;
use crate::wire::request_head::{Head, room};
use crate::worker::{Over, Worker};

/// The status in the log of a request whose client has left before it was answered.
const LEFT: u16 = 499;
/// How much is told of a method, or a target, that may be nonsense.
const MOST_TOLD: usize = 256;
/// Why a request broke off that was still under way when the gateway had to end.
const CUT: &str = "the gateway ended";
/// Why a request was not waited for any longer.
const SLOW: &str = "it did not come in time";

/// What was said to a client, and what it said behind its head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// The status; 0 if none was.
    pub(crate) status: u16,
    /// The bytes of the response's body.
    pub(crate) sent: u64,
    /// The bytes of the request's body.
    pub(crate) received: u64,
}

/// What was asked for, as far as is known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asked<'a> {
    pub(crate) method: &'a str,
    pub(crate) host: &'a str,
    pub(crate) path: &'a str,
    pub(crate) user_agent: Option<&'a [u8]>,
    pub(crate) referer: Option<&'a [u8]>,
}

impl<'a> Asked<'a> {
    pub(crate) fn of_head(head: &Head<'a, '_>) -> Asked<'a> {
        Asked {
            method: head.method,
            host: head.host,
            path: head.path,
            user_agent: head.value(b"user-agent"),
            referer: head.value(b"referer"),
        }
    }

    /// What the first line says of a head that has a flaw: it may be nonsense of any length.
    pub(crate) fn of_flawed(bytes: &'a [u8]) -> Asked<'a> {
        let (method, path) = Head::first_line(bytes);
        let told = |word: &'a str| &word[..word.floor_char_boundary(MOST_TOLD)];
        Asked { method: told(method), path: told(path), ..Asked::default() }
    }

    /// What the head says that was composed for an endpoint.
    pub(crate) fn of_composed(bytes: &'a [u8]) -> Asked<'a> {
        let mut room = room();
        Head::read(bytes, &mut room).ok().flatten().map_or_else(Asked::default, |head| Asked::of_head(&head))
    }
}

/// What is known of a request so far.
#[derive(Debug)]
pub(crate) struct Story {
    client: IpAddr,
    /// What the client is called, if it is known by a name.
    name: Option<Box<[u8]>>,
    protocol: &'static str,
    started: Instant,
    way: Option<Arc<Way>>,
    endpoint: Option<Arc<Endpoint>>,
    tries: u32,
    /// What was said so far.
    told: Told,
}

impl Story {
    pub(crate) const fn new(client: IpAddr, protocol: &'static str, started: Instant) -> Story {
        Story {
            client,
            name: None,
            protocol,
            started,
            way: None,
            endpoint: None,
            tries: 0,
            told: Told { status: 0, sent: 0, received: 0 },
        }
    }

    /// How much of the body was read.
    pub(crate) const fn received(&mut self, bytes: u64) {
        self.told.received = bytes;
    }

    /// What was said so far, for whoever goes on.
    pub(crate) const fn so_far(&mut self) -> &mut Told {
        &mut self.told
    }

    /// Which way it goes.
    pub(crate) fn goes(&mut self, way: &Arc<Way>) {
        self.way = Some(Arc::clone(way));
    }

    /// Which endpoint it is tried at.
    pub(crate) fn tried(&mut self, worker: &Worker, endpoint: &Arc<Endpoint>, tries: u32) {
        self.endpoint = Some(Arc::clone(endpoint));
        self.tries = tries;
        if tries > 1 {
            worker.numbers.retried();
        }
    }

    /// Who has asked, and whether a limit refused it.
    pub(crate) fn is_from(&mut self, worker: &Worker, sender: &Sender, refused: Option<Answer>) {
        worker.numbers.asked(sender.key.as_bytes(), matches!(refused, Some(Answer::Refused(_))));
        if worker.page.is_some() {
            self.name = sender.key.name().map(Into::into);
        }
    }

    /// The gateway answered by itself.
    pub(crate) fn answered(&self, worker: &Worker, asked: &Asked<'_>, answer: Answer) {
        let told = Told {
            status: answer.status(),
            sent: answer.body_length(asked.method == "HEAD"),
            received: self.told.received,
        };
        let refused = match answer {
            Answer::Refused(refusal) => Some(refusal),
            _ => None,
        };
        if let Some(refusal) = &refused {
            worker.numbers.refused(refusal);
        }
        let why = match answer {
            Answer::Flawed(flaw) => Some(flaw.why()),
            Answer::Slow => Some(SLOW),
            _ => None,
        };
        self.tell(worker, || *asked, told, refused, why, worker.now());
    }

    /// The response is whole.
    pub(crate) fn finished<'a>(
        &self,
        worker: &Worker,
        asked: impl FnOnce() -> Asked<'a>,
        told: Told,
        now: Instant,
    ) {
        self.tell(worker, asked, told, None, None, now);
    }

    /// Nobody goes on with it: the client has left, or the gateway has ended.
    pub(crate) fn abandoned<'a>(&self, worker: &Worker, asked: impl FnOnce() -> Asked<'a>) {
        self.broke(worker, asked, self.told, worker.house.parting(), worker.now());
    }

    /// The response broke off.
    pub(crate) fn broke<'a>(
        &self,
        worker: &Worker,
        asked: impl FnOnce() -> Asked<'a>,
        told: Told,
        over: Over,
        now: Instant,
    ) {
        // Who has left before anything was said is told apart, as others do.
        let status = if told.status == 0 && over == Over::Left { LEFT } else { told.status };
        let is_cut = over == Over::Ending;
        if is_cut {
            worker.house.cut();
        }
        self.tell(worker, asked, Told { status, ..told }, None, is_cut.then_some(CUT), now);
    }

    fn tell<'a>(
        &self,
        worker: &Worker,
        asked: impl FnOnce() -> Asked<'a>,
        told: Told,
        refused: Option<Refusal>,
        why: Option<&str>,
        now: Instant,
    ) {
        let took = now.saturating_duration_since(self.started);
        let route = self.way.as_ref().map(|way| &*way.numbers);
        worker.numbers.finished(route, told.status, took, told.received, told.sent);
        let Some(page) = &worker.page else { return };
        let asked = asked();
        page.write(&Entry {
            at: worker.house.wall_clock().saturating_sub(took),
            client: self.client,
            client_name: self.name.as_deref(),
            method: asked.method,
            host: asked.host,
            path: asked.path,
            protocol: self.protocol,
            status: told.status,
            sent_bytes: told.sent,
            received_bytes: told.received,
            took,
            route: self.way.as_ref().map(|way| &*way.route),
            backend: self.way.as_ref().map(|way| &*way.backend.name),
            endpoint: self.endpoint.as_ref().map(|endpoint| endpoint.authority()),
            retries: self.tries.saturating_sub(1),
            refused,
            why,
            user_agent: asked.user_agent,
            referer: asked.referer,
        });
    }
}
