//! The counters of one worker.
//!
//! Additions are relaxed and go to cache lines of this worker alone, so each costs a few nanoseconds and no contention.

use std::sync::atomic::AtomicU64;

use tidegate_net::histogram::{DURATION_BUCKETS, Histogram, add_to};

use super::status_counts::StatusCounts;
use crate::http::{AnsweredRequest, RouteName};
use crate::resp::SessionCounts;

/// Bucket bounds of the number of commands per batch: powers of two.
pub(super) const BATCH_SIZES: [u64; 13] = {
    let mut bounds = [1; 13];
    let mut index = 1;
    while index < bounds.len() {
        bounds[index] = bounds[index - 1] * 2;
        index += 1;
    }
    bounds
};

/// A protocol of the server, as metrics and logs label it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP.
    Http,
    /// RESP.
    Resp,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Protocol; 2] = [Protocol::Http, Protocol::Resp];

    /// The label.
    pub const fn word(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Resp => "resp",
        }
    }
}

/// Why the server closed a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CutReason {
    /// No input for too long.
    Idle,
    /// A request was not complete in time.
    SlowRequest,
    /// The client did not read the replies in time.
    SlowReader,
    /// A request was too large.
    TooLarge,
    /// The input violated the protocol.
    Protocol,
    /// The server shuts down.
    Draining,
}

impl CutReason {
    /// All reasons.
    pub const ALL: [CutReason; 6] = [
        CutReason::Idle,
        CutReason::SlowRequest,
        CutReason::SlowReader,
        CutReason::TooLarge,
        CutReason::Protocol,
        CutReason::Draining,
    ];

    /// The label.
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

/// The counters of one worker, aligned so that blocks share no cache line.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct WorkerMetrics {
    protocols: [ProtocolCounts; Protocol::ALL.len()],
    pub(super) statuses: StatusCounts,
    pub(super) batch_sizes: Histogram<{ BATCH_SIZES.len() }>,
}

/// Counters of one protocol.
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
    /// Counts an answered request: route, status, decision, failed authentication. `nanos` is the time since the request was read.
    #[inline]
    pub fn http_answered(&self, answered: &AnsweredRequest, nanos: u64) {
        let status = answered.response.status().as_u16();
        self.http_request(answered.route, status, nanos);
        if let Some(is_granted) = answered.granted {
            self.decided(Protocol::Http, u64::from(is_granted), u64::from(!is_granted));
        }
        // 429 without a route is the answer to an address with too many failed attempts.
        if status == 401 || (status == 429 && answered.route == RouteName::Unknown) {
            self.failed_auth(Protocol::Http);
        }
    }

    /// Counts a processed batch of RESP input that took `nanos`.
    #[inline]
    pub fn resp_fed(&self, tally: &SessionCounts, nanos: u64) {
        self.resp_batch(tally.commands, nanos);
        self.decided(Protocol::Resp, tally.granted, tally.refused);
        add_to(&self.protocol(Protocol::Resp).failed_auths, tally.failed_auths);
    }

    /// Counts a batch of commands that took `nanos`. An empty batch is not counted.
    #[inline]
    pub fn resp_batch(&self, commands: u64, nanos: u64) {
        if commands > 0 {
            self.batch_sizes.observe(&BATCH_SIZES, commands);
            self.protocol(Protocol::Resp).durations.observe(&DURATION_BUCKETS, nanos);
        }
    }

    /// Counts a request that [`crate::http::HttpApi::respond`] did not answer; others are counted by
    /// [`WorkerMetrics::http_answered`].
    #[inline]
    pub fn http_request(&self, route: RouteName, status: u16, nanos: u64) {
        self.statuses.count(route, status);
        self.protocol(Protocol::Http).durations.observe(&DURATION_BUCKETS, nanos);
    }

    /// Counts granted and refused requests.
    #[inline]
    pub fn decided(&self, protocol: Protocol, granted: u64, refused: u64) {
        add_to(&self.protocol(protocol).granted, granted);
        add_to(&self.protocol(protocol).refused, refused);
    }

    /// Counts an accepted connection.
    #[inline]
    pub fn opened(&self, protocol: Protocol) {
        add_to(&self.protocol(protocol).opened, 1);
    }

    /// Counts the end of an accepted connection.
    #[inline]
    pub fn closed(&self, protocol: Protocol) {
        add_to(&self.protocol(protocol).closed, 1);
    }

    /// Counts a connection that was rejected by the connection limit. It is neither opened nor closed.
    #[inline]
    pub fn refused_connection(&self, protocol: Protocol) {
        add_to(&self.protocol(protocol).refused_connections, 1);
    }

    /// Counts a connection that the server closed for this reason, in addition to [`WorkerMetrics::closed`].
    #[inline]
    pub fn cut(&self, protocol: Protocol, reason: CutReason) {
        add_to(&self.protocol(protocol).cut[reason as usize], 1);
    }

    /// Counts a request with a missing or invalid token.
    #[inline]
    pub fn failed_auth(&self, protocol: Protocol) {
        add_to(&self.protocol(protocol).failed_auths, 1);
    }

    #[inline]
    pub(super) fn protocol(&self, protocol: Protocol) -> &ProtocolCounts {
        &self.protocols[protocol as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discriminants_are_indices_of_the_lists() {
        for (index, protocol) in Protocol::ALL.into_iter().enumerate() {
            assert_eq!(protocol as usize, index);
        }
        for (index, reason) in CutReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
    }

    #[test]
    fn batch_size_buckets_range_from_1_to_4096() {
        assert!(BATCH_SIZES.is_sorted());
        assert_eq!(BATCH_SIZES[..3], [1, 2, 4]);
        assert_eq!(BATCH_SIZES.last(), Some(&4096));
    }

    #[test]
    fn blocks_share_no_cache_line() {
        assert_eq!(align_of::<WorkerMetrics>(), 128);
        assert_eq!(size_of::<WorkerMetrics>() % 128, 0);
    }
}
