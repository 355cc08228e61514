//! The story of a request: who asked for what, which way it went, and how it ended.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::time::Instant;

use crate::answers::Answer;
use crate::endpoints::Endpoint;
use crate::guest::Sender;
use crate::site::Way;
use crate::wire::head::{Head, room};
use crate::worker::{Over, Worker};

/// What an endpoint is to blame for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// No connection could be made.
    Connect,
    /// It closed the connection in the middle.
    Closed,
    /// What it said makes no sense.
    Protocol,
    /// It took too long.
    Timeout,
}

impl Trouble {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Trouble::Connect => "connect",
            Trouble::Closed => "closed",
            Trouble::Protocol => "protocol",
            Trouble::Timeout => "timeout",
        }
    }
}

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
    started: Instant,
    way: Option<Arc<Way>>,
    endpoint: Option<Arc<Endpoint>>,
    tries: u32,
}

impl Story {
    pub(crate) const fn new(client: IpAddr, started: Instant) -> Story {
        Story { client, started, way: None, endpoint: None, tries: 0 }
    }

    pub(crate) fn goes(&mut self, way: &Arc<Way>) {
        self.way = Some(Arc::clone(way));
    }

    pub(crate) fn tried(&mut self, endpoint: &Arc<Endpoint>, tries: u32) {
        self.endpoint = Some(Arc::clone(endpoint));
        self.tries = tries;
    }

    pub(crate) fn is_from(&self, _worker: &Worker, _sender: &Sender, _refused: Option<Answer>) {}

    /// The gateway answered by itself.
    pub(crate) fn answered(&self, _worker: &Worker, _asked: &Asked<'_>, _answer: Answer) {}

    /// The response is whole.
    pub(crate) fn finished<'a>(
        &self,
        _worker: &Worker,
        _asked: impl FnOnce() -> Asked<'a>,
        _told: Told,
        _now: Instant,
    ) {
    }

    /// The response broke off.
    pub(crate) fn broke<'a>(
        &self,
        _worker: &Worker,
        _asked: impl FnOnce() -> Asked<'a>,
        _told: Told,
        _over: Over,
        _now: Instant,
    ) {
    }
}
