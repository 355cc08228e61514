//! The block of one worker, and the line of each worker at each route.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tidegate_net::histogram::{DURATION_BUCKETS, Histogram};

use super::lock;
use crate::hot::Hot;
use crate::limits::{Kind, Level, Refusal};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident[$count:literal] { $($(#[$about:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$about])* $variant),+ }

        impl $name {
            /// All of them.
            pub const ALL: [$name; $count] = [$($name::$variant),+];

            /// The word for it.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }
    };
}

words! {
    /// Why the gateway ended a connection that its client had not ended.
    Cut[8] {
        /// Nothing came for too long.
        Idle = "idle",
        /// A head began, and its end did not come in time.
        SlowHeader = "slow_header",
        /// A body stood still for too long.
        SlowBody = "slow_body",
        /// What was answered was not read in time.
        SlowReader = "slow_reader",
        /// What came is not the protocol.
        Protocol = "protocol",
        /// What came was too large.
        TooLarge = "too_large",
        /// An endpoint failed in the middle of a response.
        Upstream = "upstream",
        /// The gateway is about to end.
        Draining = "draining",
    }
}

words! {
    /// What an endpoint is to blame for.
    Failure[4] {
        /// No connection could be made.
        Connect = "connect",
        /// It took too long.
        Timeout = "timeout",
        /// It closed the connection in the middle.
        Closed = "closed",
        /// What it said makes no sense.
        Protocol = "protocol",
    }
}

words! {
    /// Statuses that begin alike.
    Class[6] {
        /// No status was said.
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

impl Class {
    /// That of a status.
    pub const fn of(status: u16) -> Class {
        match status {
            0..100 => Class::None,
            100..200 => Class::Informational,
            200..300 => Class::Successful,
            300..400 => Class::Redirection,
            400..500 => Class::ClientError,
            _ => Class::ServerError,
        }
    }
}

/// The lowest status.
pub(super) const FIRST_STATUS: u16 = 100;
/// One above the highest status that has a count of its own.
pub(super) const END_OF_STATUSES: u16 = 600;
/// A count for each status, and one for whatever is none of them.
const STATUSES: usize = (END_OF_STATUSES - FIRST_STATUS) as usize + 1;

/// What one worker counted. It does not share a cache line with anybody else's.
#[repr(align(128))]
#[derive(Debug)]
pub struct WorkerNumbers {
    number: usize,
    pub(super) durations: Histogram<{ DURATION_BUCKETS.len() }>,
    statuses: [AtomicU64; STATUSES],
    pub(super) refusals: [[AtomicU64; Kind::ALL.len()]; Level::ALL.len()],
    pub(super) degraded: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) closed: AtomicU64,
    pub(super) refused_connections: AtomicU64,
    pub(super) cuts: [AtomicU64; Cut::ALL.len()],
    pub(super) retries: AtomicU64,
    pub(super) failures: [AtomicU64; Failure::ALL.len()],
    pub(super) upgrades: AtomicU64,
    pub(super) lost_lines: AtomicU64,
    hot: Mutex<Hot>,
}

impl WorkerNumbers {
    pub(super) fn new(number: usize) -> WorkerNumbers {
        WorkerNumbers {
            number,
            durations: Histogram::default(),
            statuses: zeroes(),
            refusals: std::array::from_fn(|_| zeroes()),
            degraded: AtomicU64::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            refused_connections: AtomicU64::new(0),
            cuts: zeroes(),
            retries: AtomicU64::new(0),
            failures: zeroes(),
            upgrades: AtomicU64::new(0),
            lost_lines: AtomicU64::new(0),
            hot: Mutex::default(),
        }
    }

    /// A request is over: by which route, with which status (0 if none was said), how long it took, how long the bodies were.
    #[inline]
    pub fn finished(
        &self,
        route: Option<&RouteNumbers>,
        status: u16,
        took: Duration,
        received: u64,
        sent: u64,
    ) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.durations.observe(&DURATION_BUCKETS, nanos);
        add(&self.statuses[place(status)], 1);
        add(&self.received, received);
        add(&self.sent, sent);
        if let Some(route) = route {
            route.count(self.number, Class::of(status));
        }
    }

    /// A request or a connection was refused. It is also to be counted as finished.
    #[inline]
    pub fn refused(&self, refusal: &Refusal) {
        add(&self.refusals[refusal.level as usize][refusal.kind as usize], 1);
        add(&self.degraded, u64::from(refusal.degraded));
    }

    /// A client made a request, which was refused or not.
    #[inline]
    pub fn asked(&self, client: &[u8], refused: bool) {
        self.hot().seen(client, refused);
    }

    /// A connection was accepted.
    #[inline]
    pub fn accepted(&self) {
        add(&self.accepted, 1);
    }

    /// A connection that was accepted has ended, for whatever reason.
    #[inline]
    pub fn closed(&self) {
        add(&self.closed, 1);
    }

    /// A connection was turned away, by a limit or because there are as many as may be.
    #[inline]
    pub fn refused_connection(&self) {
        add(&self.refused_connections, 1);
    }

    /// The gateway ended a connection for this reason. It is also to be counted as closed.
    #[inline]
    pub fn cut(&self, reason: Cut) {
        add(&self.cuts[reason as usize], 1);
    }

    /// A request was sent to another endpoint, because one could not take it.
    #[inline]
    pub fn retried(&self) {
        add(&self.retries, 1);
    }

    /// An endpoint failed.
    #[inline]
    pub fn upstream_failed(&self, failure: Failure) {
        add(&self.failures[failure as usize], 1);
    }

    /// A connection became a tunnel.
    #[inline]
    pub fn upgraded(&self) {
        add(&self.upgrades, 1);
    }

    /// So many lines of the access log could not be written.
    #[inline]
    pub fn lost_lines(&self, lines: u64) {
        add(&self.lost_lines, lines);
    }

    pub(super) fn hot(&self) -> MutexGuard<'_, Hot> {
        lock(&self.hot)
    }

    /// How often this status was said.
    pub(super) fn status(&self, status: u16) -> u64 {
        self.statuses[place(status)].load(Ordering::Relaxed)
    }
}

/// How many requests by one route were answered, by the first digit of their status.
#[derive(Debug)]
pub struct RouteNumbers {
    workers: Box<[RouteLine]>,
}

/// What one worker counted at one route.
#[repr(align(128))]
#[derive(Debug, Default)]
struct RouteLine([AtomicU64; Class::ALL.len()]);

impl RouteNumbers {
    pub(super) fn new(workers: usize) -> RouteNumbers {
        RouteNumbers { workers: (0..workers).map(|_| RouteLine::default()).collect() }
    }

    fn count(&self, worker: usize, class: Class) {
        if let Some(line) = self.workers.get(worker) {
            add(&line.0[class as usize], 1);
        }
    }

    /// How many there were.
    pub fn requests(&self, class: Class) -> u64 {
        self.workers.iter().map(|line| line.0[class as usize].load(Ordering::Relaxed)).sum()
    }
}

fn place(status: u16) -> usize {
    let status = if (FIRST_STATUS..END_OF_STATUSES).contains(&status) { status } else { END_OF_STATUSES };
    usize::from(status - FIRST_STATUS)
}

fn zeroes<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
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
    fn words_have_the_places_of_their_lists() {
        assert!(Cut::ALL.into_iter().enumerate().all(|(place, each)| each as usize == place));
        assert!(Failure::ALL.into_iter().enumerate().all(|(place, each)| each as usize == place));
        assert!(Class::ALL.into_iter().enumerate().all(|(place, each)| each as usize == place));
        assert!(Level::ALL.into_iter().enumerate().all(|(place, each)| each as usize == place));
        assert!(Kind::ALL.into_iter().enumerate().all(|(place, each)| each as usize == place));
    }

    #[test]
    fn blocks_and_lines_share_nothing() {
        assert_eq!((align_of::<WorkerNumbers>(), size_of::<WorkerNumbers>() % 128), (128, 0));
        assert_eq!((align_of::<RouteLine>(), size_of::<RouteLine>()), (128, 128));
    }
}
