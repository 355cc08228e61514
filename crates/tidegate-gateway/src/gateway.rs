//! The gateway as a whole: it starts, takes new settings while it runs, and ends without dropping anybody.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::settings::GatewaySpec;
use tidegate::Memory;
use tidegate::catalog::ApplyError;
use tidegate::clock::{Clock, SystemClock};
use tidegate_net::{Ending, listen};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::limits::{MOST_CLIENTS, RateLimitManager, Reloaded};
use crate::logbook::Logbook;
use crate::numbers::Numbers;
use crate::reload::{Environment, Reloader};
use crate::site::Site;
use crate::tls::{self, TlsError};
use crate::worker::{self, Over};

/// The most connections that are told at the same time that there is no room. Others are closed without a word.
const MOST_TURNED_AWAY: usize = 1024;

/// What may be chosen when a gateway starts.
#[derive(Debug, Clone)]
pub struct Means {
    /// How many threads; at least one.
    pub workers: usize,
    /// The most connections of clients, whatever the limits say: what the system can bear.
    pub connections: usize,
    /// The memory for what is counted.
    pub memory: Memory,
    /// Where a line for every request goes, if anywhere.
    pub logbook: Option<Logbook>,
}

impl Default for Means {
    fn default() -> Means {
        Means { workers: 1, connections: 100_000, memory: Memory::default(), logbook: None }
    }
}

/// A gateway that runs.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    house: Arc<House>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// Why a gateway does not start, or why new settings are not used.
#[derive(Debug)]
pub enum GatewayError {
    /// It cannot listen at this address.
    Address {
        /// Where.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// It can have no threads.
    Thread(io::Error),
    /// Its certificate cannot be used.
    Tls(TlsError),
    /// Its limits cannot be put in force.
    Limits(ApplyError),
}

impl fmt::Display for GatewayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GatewayError::Address { address, error } if error.kind() == io::ErrorKind::AddrInUse => {
                write!(
                    f,
                    "cannot listen at {address}: somebody else does; stop them or choose another address"
                )
            }
            GatewayError::Address { address, error } => write!(f, "cannot listen at {address}: {error}"),
            GatewayError::Thread(error) => write!(f, "cannot start a thread: {error}"),
            GatewayError::Tls(error) => write!(f, "tls: {error}"),
            GatewayError::Limits(error) => write!(f, "the limits cannot be put in force: {error}"),
        }
    }
}

impl std::error::Error for GatewayError {}

impl Gateway {
    /// Starts to listen and to serve.
    pub fn start(spec: GatewaySpec, means: Means) -> Result<Gateway, GatewayError> {
        let acceptor = spec.tls.as_ref().map(tls::acceptor).transpose().map_err(GatewayError::Tls)?;
        let workers = means.workers.max(1);
        let address = spec.server.listen;
        let sockets = listen(address, workers).map_err(|error| GatewayError::Address { address, error })?;
        let address = sockets.first().and_then(|socket| socket.local_addr().ok()).unwrap_or(address);
        let started_at = (spec.server.listen, spec.management);
        let limits = RateLimitManager::new(SystemClock::new(), means.memory, MOST_CLIENTS);
        limits.reload(&spec).map_err(GatewayError::Limits)?;
        let numbers = Numbers::new(workers);
        let site = Arc::new(Site::new(spec, acceptor, &limits, &numbers, None));
        let house = Arc::new(House {
            limits,
            clock: SystemClock::new(),
            logbook: means.logbook,
            numbers,
            site: RwLock::new((1, site)),
            generation: AtomicU64::new(1),
            ending: Ending::default(),
            cutting: Ending::default(),
            cut: AtomicUsize::new(0),
            started_at,
            began: Instant::now(),
            open: AtomicUsize::new(0),
            most_open: means.connections.max(1),
            turned_away: AtomicUsize::new(0),
            left: Notify::new(),
        });
        let mut gateway = Gateway { address, house, threads: Vec::with_capacity(workers) };
        for (number, socket) in sockets.into_iter().enumerate() {
            let house = Arc::clone(&gateway.house);
            let thread = std::thread::Builder::new().name(format!("gateway-{number}"));
            match thread.spawn(move || worker::work(house, socket, number)) {
                Ok(handle) => gateway.threads.push(handle),
                // Those that have started end with the gateway.
                Err(error) => return Err(GatewayError::Thread(error)),
            }
        }
        Ok(gateway)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The limits, for those who want to look.
    pub fn limits(&self) -> &RateLimitManager {
        &self.house.limits
    }

    /// How many connections of clients there are.
    pub fn connections(&self) -> usize {
        self.house.open.load(Ordering::Acquire)
    }

    /// How many requests and tunnels are at endpoints.
    pub fn under_way(&self) -> usize {
        let (_, site) = self.house.site();
        let backends = site.backends.values();
        backends.flat_map(|backend| backend.endpoints()).map(|endpoint| endpoint.open()).sum()
    }

    /// Reads settings from this file, which the gateway was started with, whenever it is told to or the file has changed.
    pub fn reloader(&self, path: impl Into<PathBuf>, env: Environment) -> Reloader {
        Reloader::new(Arc::clone(&self.house), path.into(), env)
    }

    /// Puts new settings in force: all of them or none. Nobody is cut off, and whatever is counted stays.
    pub fn reload(&self, spec: GatewaySpec) -> Result<Reloaded, GatewayError> {
        self.house.reload(spec)
    }

    /// Takes no more connections, ends those on which nothing is being said, lets the others finish, and returns when they have or
    /// when they took too long.
    pub fn drain(mut self) {
        self.house.ending.tell();
        for thread in self.threads.drain(..) {
            // A worker that panicked has nothing left to finish.
            let _over = thread.join();
        }
        let cut = self.house.cut.load(Ordering::Acquire);
        if cut > 0 {
            tracing::warn!(cut, "requests and tunnels that were still under way were cut off");
        }
    }

    /// What ends [`Gateway::drain`] before its time: whoever tells it has everything cut off that is still under way.
    pub fn cutting(&self) -> Ending {
        self.house.cutting.clone()
    }
}

/// A gateway that nobody holds any more ends by itself; nobody waits for it.
impl Drop for Gateway {
    fn drop(&mut self) {
        self.house.ending.tell();
    }
}

/// What all workers share.
pub(crate) struct House {
    pub(crate) limits: RateLimitManager,
    clock: SystemClock,
    pub(crate) logbook: Option<Logbook>,
    pub(crate) numbers: Numbers,
    /// The site in force, and which one it is.
    site: RwLock<(u64, Arc<Site>)>,
    generation: AtomicU64,
    pub(crate) ending: Ending,
    /// That nobody is waited for any more.
    pub(crate) cutting: Ending,
    /// How many requests and tunnels were cut off by that.
    cut: AtomicUsize,
    /// Where the settings said to listen when it was started: the gateway's address, and that of its management port.
    started_at: (SocketAddr, Option<SocketAddr>),
    pub(crate) began: Instant,
    open: AtomicUsize,
    most_open: usize,
    turned_away: AtomicUsize,
    left: Notify,
}

impl House {
    /// What the clock on the wall says, since 1970.
    pub(crate) fn wall_clock(&self) -> Duration {
        self.clock.tick().since_epoch(self.clock.now())
    }

    /// Which site is in force.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The site in force.
    pub(crate) fn site(&self) -> (u64, Arc<Site>) {
        self.site.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts new settings in force: all of them or none.
    pub(crate) fn reload(&self, spec: GatewaySpec) -> Result<Reloaded, GatewayError> {
        let acceptor = spec.tls.as_ref().map(tls::acceptor).transpose().map_err(GatewayError::Tls)?;
        let mut site = self.site.write().unwrap_or_else(PoisonError::into_inner);
        let mut reloaded = self.limits.reload(&spec).map_err(GatewayError::Limits)?;
        let (generation, before) = &*site;
        reloaded.needs_restart = self.started_at != (spec.server.listen, spec.management);
        if reloaded.needs_restart {
            tracing::warn!("where the gateway listens has changed in the settings, and waits for a restart");
        }
        let next = Arc::new(Site::new(spec, acceptor, &self.limits, &self.numbers, Some(before)));
        *site = (generation + 1, next);
        self.generation.store(site.0, Ordering::Release);
        Ok(reloaded)
    }

    /// Notes that a request or a tunnel was cut off.
    pub(crate) fn cut(&self) {
        self.cut.fetch_add(1, Ordering::AcqRel);
    }

    /// How whoever is let go of in the middle of something has parted.
    pub(crate) fn parting(&self) -> Over {
        if self.cutting.is_told() { Over::Ending } else { Over::Left }
    }

    /// A place for a connection, if there is one.
    pub(crate) fn enter(self: &Arc<House>) -> Option<Seat> {
        Seat::take(&self.open, self.most_open)?;
        Some(Seat { house: Arc::clone(self), is_turned_away: false })
    }

    /// A place for somebody who is told that there is none.
    pub(crate) fn turn_away(self: &Arc<House>) -> Option<Seat> {
        Seat::take(&self.turned_away, MOST_TURNED_AWAY)?;
        Some(Seat { house: Arc::clone(self), is_turned_away: true })
    }

    /// Waits until there are no connections.
    pub(crate) async fn everybody_left(&self) {
        loop {
            let left = self.left.notified();
            if self.open.load(Ordering::Acquire) == 0 {
                return;
            }
            left.await;
        }
    }
}

impl fmt::Debug for House {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("House").field("open", &self.open).finish_non_exhaustive()
    }
}

/// A place in the house; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    house: Arc<House>,
    is_turned_away: bool,
}

impl Seat {
    fn take(taken: &AtomicUsize, most: usize) -> Option<()> {
        let one_more = |taken: usize| (taken < most).then_some(taken + 1);
        taken.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more).ok().map(drop)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.is_turned_away {
            self.house.turned_away.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        self.house.open.fetch_sub(1, Ordering::AcqRel);
        if self.house.ending.is_told() {
            self.house.left.notify_waiters();
        }
    }
}
