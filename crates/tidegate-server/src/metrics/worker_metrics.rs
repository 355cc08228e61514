//! The block of one worker: where whoever serves counts what it does.
//!
//! Additions are relaxed and go to lines of memory that belong to this worker alone, so that each costs a few nanoseconds and nobody
//! waits. A task that moves to another worker may count on in its first block; sums are what is told.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_net::histogram::{DURATION_BUCKETS, Histogram};

use super::status_counts::StatusCounts;
use crate::http::{AnsweredRequest, RouteName};
use crate::resp::SessionCounts;

/// The bounds of how many commands are answered at once: powers of two.
pub(super) const BATCH_SIZES: [u64; 13] = {
    let mut bounds = [1; 13];
    let mut index = 1;
    while index < bounds.len() {
        bounds[index] = bounds[index - 1] * 2;
        index += 1;
    }
    bounds
};

/// A protocol, as it is called in metrics and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP.
    Http,
    /// RESP.
    Resp,
}

impl Protocol {
    /// Every protocol.
    pub const ALL: [Protocol; 2] = [Protocol::Http, Protocol::Resp];

    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Resp => "resp",
        }
    }
}

/// Why the server ended a connection that its client had not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CutReason {
    /// Nothing came for too long.
    Idle,
    /// A request began, and its end did not come in time.
    SlowRequest,
    /// What was answered was not read in time.
    SlowReader,
    /// What came was too large.
    TooLarge,
    /// What came is not the protocol.
    Protocol,
    /// The server is about to end.
    Draining,
}

impl CutReason {
    /// Every reason.
    pub const ALL: [CutReason; 6] = [
        CutReason::Idle,
        CutReason::SlowRequest,
        CutReason::SlowReader,
        CutReason::TooLarge,
        CutReason::Protocol,
        CutReason::Draining,
    ];

    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            CutReason::Idle => "idle",
            CutReason::SlowRequest => "slow_request",
            CutReason::SlowReader => "slow_reader",
            CutReason::TooLarge => "too_large",
            CutReason::Protocol => "protocol",
            CutReason::Draining => "draining",
        }
    }
}

/// What one worker counted. It does not share a cache line with anybody else's.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct WorkerMetrics {
    protocols: [ProtocolCounts; Protocol::ALL.len()],
    pub(super) statuses: StatusCounts,
    pub(super) batch_sizes: Histogram<{ BATCH_SIZES.len() }>,
}

/// What is counted at every protocol alike.
#[derive(Debug, Default)]
pub(super) struct ProtocolCounts {
    pub(super) durations: Histogram<{ DURATION_BUCKETS.len() }>,
    pub(super) granted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) opened: AtomicU64,
    pub(super) closed: AtomicU64,
    pub(super) refused_connections: AtomicU64,
    pub(super) failed_auths: AtomicU64,
    pub(super) cut: [AtomicU64; CutReason::ALL.len()],
}

impl WorkerMetrics {
    /// A request was answered, so many nanoseconds after it had come in whole: its route, its status, what was decided, and whether
    /// somebody was not let in.
    #[inline]
    pub fn http_answered(&self, answered: &AnsweredRequest, nanos: u64) {
        let status = answered.response.status().as_u16();
        self.http_request(answered.route, status, nanos);
        if let Some(is_granted) = answered.granted {
            self.decided(Protocol::Http, u64::from(is_granted), u64::from(!is_granted));
        }
        // Caller showed wrong tokens too often did not come as far as a route.
        if status == 401 || (status == 429 && answered.route == RouteName::Unknown) {
            self.failed_auth(Protocol::Http);
        }
    }

    /// What was read at once was answered, in so many nanoseconds: the commands, what was decided, and who was not let in.
    #[inline]
    pub fn resp_fed(&self, tally: &SessionCounts, nanos: u64) {
        self.resp_batch(tally.commands, nanos);
        self.decided(Protocol::Resp, tally.granted, tally.refused);
        add(&self.protocol(Protocol::Resp).failed_auths, tally.failed_auths);
    }

    /// So many commands were answered together, in so many nanoseconds. None at all is no batch.
    #[inline]
    pub fn resp_batch(&self, commands: u64, nanos: u64) {
        if commands > 0 {
            self.batch_sizes.observe(&BATCH_SIZES, commands);
            self.protocol(Protocol::Resp).durations.observe(&DURATION_BUCKETS, nanos);
        }
    }

    /// A request to this route was answered with this status, in so many nanoseconds. For what [`crate::http::HttpApi::respond`] did not
    /// answer; what it did is counted by [`WorkerMetrics::http_answered`].
    #[inline]
    pub fn http_request(&self, route: RouteName, status: u16, nanos: u64) {
        self.statuses.count(route, status);
        self.protocol(Protocol::Http).durations.observe(&DURATION_BUCKETS, nanos);
    }

    /// So many orders were granted at this protocol, and so many refused.
    #[inline]
    pub fn decided(&self, protocol: Protocol, granted: u64, refused: u64) {
        add(&self.protocol(protocol).granted, granted);
        add(&self.protocol(protocol).refused, refused);
    }

    /// A connection was accepted.
    #[inline]
    pub fn opened(&self, protocol: Protocol) {
        add(&self.protocol(protocol).opened, 1);
    }

    /// A connection that was accepted has ended, for whatever reason.
    #[inline]
    pub fn closed(&self, protocol: Protocol) {
        add(&self.protocol(protocol).closed, 1);
    }

    /// A connection was turned away, because there are as many as may be. It was neither opened nor closed.
    #[inline]
    pub fn refused_connection(&self, protocol: Protocol) {
        add(&self.protocol(protocol).refused_connections, 1);
    }

    /// The server ended a connection for this reason. It is also to be counted as closed.
    #[inline]
    pub fn cut(&self, protocol: Protocol, reason: CutReason) {
        add(&self.protocol(protocol).cut[reason as usize], 1);
    }

    /// Somebody came without a token, or with one that nobody knows, to something that needs one.
    #[inline]
    pub fn failed_auth(&self, protocol: Protocol) {
        add(&self.protocol(protocol).failed_auths, 1);
    }

    #[inline]
    pub(super) fn protocol(&self, protocol: Protocol) -> &ProtocolCounts {
        &self.protocols[protocol as usize]
    }
}

/// Nothing costs nothing.
#[inline]
fn add(count: &AtomicU64, more: u64) {
    if more > 0 {
        count.fetch_add(more, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doors_and_reasons_have_the_places_of_their_lists() {
        for (index, protocol) in Protocol::ALL.into_iter().enumerate() {
            assert_eq!(protocol as usize, index);
        }
        for (index, reason) in CutReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
    }

    #[test]
    fn batches_are_bounded_from_one_command_to_thousands() {
        assert!(BATCH_SIZES.is_sorted());
        assert_eq!(BATCH_SIZES[..3], [1, 2, 4]);
        assert_eq!(BATCH_SIZES.last(), Some(&4096));
    }

    #[test]
    fn blocks_do_not_share_a_line() {
        assert_eq!(align_of::<WorkerMetrics>(), 128);
        assert_eq!(size_of::<WorkerMetrics>() % 128, 0);
    }
}
