//! The counters of one worker, and the counters of each worker at each route.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tidegate_net::histogram::{DURATION_BUCKETS, Histogram, add_to};

use super::lock;
use crate::hottest_clients::TopClients;
use crate::limits::{LimitLevel, LimitRefusal, RefusalKind};

macro_rules! label_enum {
    ($(#[$doc:meta])* $name:ident[$count:literal] { $($(#[$about:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$about])* $variant),+ }

        impl $name {
            /// All values.
            pub const ALL: [$name; $count] = [$($name::$variant),+];

            /// The label value.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }
    };
}

label_enum! {
    /// Why the gateway closed a connection that its client had not closed.
    DisconnectReason[8] {
        /// The idle timeout passed.
        Idle = "idle",
        /// The head did not arrive in time.
        SlowHeader = "slow_header",
        /// A body made no progress for too long.
        SlowBody = "slow_body",
        /// The client did not read the response in time.
        SlowReader = "slow_reader",
        /// The client violated the protocol.
        Protocol = "protocol",
        /// The request was too large.
        TooLarge = "too_large",
        /// An endpoint failed during a response.
        Upstream = "upstream",
        /// The gateway is shutting down.
        Draining = "draining",
    }
}

label_enum! {
    /// How an endpoint failed.
    UpstreamFailure[4] {
        /// The connect failed.
        Connect = "connect",
        /// It did not answer in time.
        Timeout = "timeout",
        /// It closed the connection early.
        Closed = "closed",
        /// Its response was malformed.
        Protocol = "protocol",
    }
}

label_enum! {
    /// The first digit of a status.
    StatusClass[6] {
        /// No status was sent.
        None = "none",
        /// 100 to 199.
        Informational = "1xx",
        /// 200 to 299.
        Successful = "2xx",
        /// 300 to 399.
        Redirection = "3xx",
        /// 400 to 499.
        ClientError = "4xx",
        /// 500 and above.
        ServerError = "5xx",
    }
}

impl StatusClass {
    /// The class of a status.
    pub const fn of(status: u16) -> StatusClass {
        match status {
            0..100 => StatusClass::None,
            100..200 => StatusClass::Informational,
            200..300 => StatusClass::Successful,
            300..400 => StatusClass::Redirection,
            400..500 => StatusClass::ClientError,
            _ => StatusClass::ServerError,
        }
    }
}

/// The lowest status.
pub(super) const FIRST_STATUS: u16 = 100;
/// One above the highest status with its own counter.
pub(super) const END_OF_STATUSES: u16 = 600;
/// One counter per status, and one for all others.
const STATUSES: usize = (END_OF_STATUSES - FIRST_STATUS) as usize + 1;

/// The counters of one worker. The alignment avoids false sharing.
#[repr(align(128))]
#[derive(Debug)]
pub struct WorkerCounters {
    worker_index: usize,
    pub(super) durations: Histogram<{ DURATION_BUCKETS.len() }>,
    statuses: [AtomicU64; STATUSES],
    pub(super) refusals: [[AtomicU64; RefusalKind::ALL.len()]; LimitLevel::ALL.len()],
    pub(super) degraded: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) closed: AtomicU64,
    pub(super) refused_connections: AtomicU64,
    pub(super) disconnects: [AtomicU64; DisconnectReason::ALL.len()],
    pub(super) retries: AtomicU64,
    pub(super) failures: [AtomicU64; UpstreamFailure::ALL.len()],
    pub(super) upgrades: AtomicU64,
    pub(super) lost_lines: AtomicU64,
    top_clients: Mutex<TopClients>,
}

impl WorkerCounters {
    pub(super) fn new(worker_index: usize) -> WorkerCounters {
        WorkerCounters {
            worker_index,
            durations: Histogram::default(),
            statuses: zeroes(),
            refusals: std::array::from_fn(|_| zeroes()),
            degraded: AtomicU64::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            refused_connections: AtomicU64::new(0),
            disconnects: zeroes(),
            retries: AtomicU64::new(0),
            failures: zeroes(),
            upgrades: AtomicU64::new(0),
            lost_lines: AtomicU64::new(0),
            top_clients: Mutex::default(),
        }
    }

    /// Counts a finished request with its route, status (0 if none was sent), duration and body sizes.
    #[inline]
    pub fn count_request(
        &self,
        route: Option<&RouteMetrics>,
        status: u16,
        took: Duration,
        received: u64,
        sent: u64,
    ) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.durations.observe(&DURATION_BUCKETS, nanos);
        add_to(&self.statuses[status_index(status)], 1);
        add_to(&self.received, received);
        add_to(&self.sent, sent);
        if let Some(route) = route {
            route.count(self.worker_index, StatusClass::of(status));
        }
    }

    /// Counts a refused request or connection. It also counts as finished.
    #[inline]
    pub fn count_refusal(&self, refusal: &LimitRefusal) {
        add_to(&self.refusals[refusal.level as usize][refusal.kind as usize], 1);
        add_to(&self.degraded, u64::from(refusal.degraded));
    }

    /// Counts a request of a client for the hottest clients.
    #[inline]
    pub fn count_client_request(&self, client: &[u8], refused: bool) {
        self.top_clients().record(client, refused);
    }

    /// Counts an accepted connection.
    #[inline]
    pub fn count_accepted(&self) {
        add_to(&self.accepted, 1);
    }

    /// Counts the end of an accepted connection.
    #[inline]
    pub fn count_closed(&self) {
        add_to(&self.closed, 1);
    }

    /// Counts a connection refused by a limit or by the connection maximum.
    #[inline]
    pub fn count_refused_connection(&self) {
        add_to(&self.refused_connections, 1);
    }

    /// Counts a connection closed by the gateway. It also counts as closed.
    #[inline]
    pub fn count_disconnect(&self, reason: DisconnectReason) {
        add_to(&self.disconnects[reason as usize], 1);
    }

    /// Counts a retry with another endpoint.
    #[inline]
    pub fn count_retry(&self) {
        add_to(&self.retries, 1);
    }

    /// Counts a failure of an endpoint.
    #[inline]
    pub fn count_upstream_failure(&self, failure: UpstreamFailure) {
        add_to(&self.failures[failure as usize], 1);
    }

    /// Counts a connection that became a tunnel.
    #[inline]
    pub fn count_upgrade(&self) {
        add_to(&self.upgrades, 1);
    }

    /// Counts access log lines that could not be written.
    #[inline]
    pub fn count_lost_lines(&self, lines: u64) {
        add_to(&self.lost_lines, lines);
    }

    pub(super) fn top_clients(&self) -> MutexGuard<'_, TopClients> {
        lock(&self.top_clients)
    }

    /// The number of responses with this status.
    pub(super) fn status(&self, status: u16) -> u64 {
        self.statuses[status_index(status)].load(Ordering::Relaxed)
    }
}

/// The requests of one route by status class.
#[derive(Debug)]
pub struct RouteMetrics {
    workers: Box<[RouteWorkerCounts]>,
}

/// The counts of one worker at one route, on its own cache line.
#[repr(align(128))]
#[derive(Debug, Default)]
struct RouteWorkerCounts([AtomicU64; StatusClass::ALL.len()]);

impl RouteMetrics {
    pub(super) fn new(workers: usize) -> RouteMetrics {
        RouteMetrics { workers: (0..workers).map(|_| RouteWorkerCounts::default()).collect() }
    }

    fn count(&self, worker: usize, class: StatusClass) {
        if let Some(line) = self.workers.get(worker) {
            add_to(&line.0[class as usize], 1);
        }
    }

    /// The number of requests in a class.
    pub fn requests(&self, class: StatusClass) -> u64 {
        self.workers.iter().map(|line| line.0[class as usize].load(Ordering::Relaxed)).sum()
    }
}

fn status_index(status: u16) -> usize {
    let status = if (FIRST_STATUS..END_OF_STATUSES).contains(&status) { status } else { END_OF_STATUSES };
    usize::from(status - FIRST_STATUS)
}

fn zeroes<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enum_values_are_their_positions() {
        assert!(DisconnectReason::ALL.into_iter().enumerate().all(|(index, each)| each as usize == index));
        assert!(UpstreamFailure::ALL.into_iter().enumerate().all(|(index, each)| each as usize == index));
        assert!(StatusClass::ALL.into_iter().enumerate().all(|(index, each)| each as usize == index));
        assert!(LimitLevel::ALL.into_iter().enumerate().all(|(index, each)| each as usize == index));
        assert!(RefusalKind::ALL.into_iter().enumerate().all(|(index, each)| each as usize == index));
    }

    #[test]
    fn counters_are_cache_line_aligned() {
        assert_eq!((align_of::<WorkerCounters>(), size_of::<WorkerCounters>() % 128), (128, 0));
        assert_eq!((align_of::<RouteWorkerCounts>(), size_of::<RouteWorkerCounts>()), (128, 128));
    }
}
