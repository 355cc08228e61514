//! The gateway: start and reload. A reload drops no connection.

mod graceful_shutdown;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::settings::GatewaySpec;
use tidegate::catalog::ApplyError;
use tidegate::clock::{Clock, SystemClock};
use tidegate::store::Memory;
use tidegate_net::{Shutdown, listen};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::access_log::AccessLogWriter;
use crate::config_snapshot::ConfigSnapshot;
use crate::limits::{MAX_CLIENTS, RateLimitManager, ReloadSummary};
use crate::metrics::GatewayMetrics;
use crate::reload::{Environment, Reloader};
use crate::tls::{self, TlsError};
use crate::worker;

/// The maximum number of connections that receive a rejection at the same time. Further ones are closed
/// without a response.
const MAX_REJECTING: usize = 1024;

/// Options for starting a gateway.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// The number of worker threads; at least 1.
    pub workers: usize,
    /// The maximum number of client connections that the system can handle, independent of the limits.
    pub connections: usize,
    /// The memory budget of the counters.
    pub memory: Memory,
    /// Where access log lines go, if enabled.
    pub access_log: Option<AccessLogWriter>,
}

impl Default for GatewayOptions {
    fn default() -> GatewayOptions {
        GatewayOptions { workers: 1, connections: 100_000, memory: Memory::default(), access_log: None }
    }
}

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    state: Arc<GatewayState>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// Why a gateway does not start, or why a reload fails.
#[derive(Debug)]
pub enum GatewayError {
    /// The listen address is not available.
    Address {
        /// The address.
        address: SocketAddr,
        /// The cause.
        error: io::Error,
    },
    /// A worker thread cannot be started.
    Thread(io::Error),
    /// The certificate is not usable.
    Tls(TlsError),
    /// The limits cannot be applied.
    Limits(ApplyError),
}

impl fmt::Display for GatewayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GatewayError::Address { address, error } if error.kind() == io::ErrorKind::AddrInUse => {
                write!(
                    f,
                    "cannot listen at {address}: the address is in use; stop the other process or choose another address"
                )
            }
            GatewayError::Address { address, error } => write!(f, "cannot listen at {address}: {error}"),
            GatewayError::Thread(error) => write!(f, "cannot start a thread: {error}"),
            GatewayError::Tls(error) => write!(f, "tls: {error}"),
            GatewayError::Limits(error) => write!(f, "the limits cannot be applied: {error}"),
        }
    }
}

impl std::error::Error for GatewayError {}

impl Gateway {
    /// Starts the workers. The gateway serves when this returns.
    pub fn start(spec: GatewaySpec, options: GatewayOptions) -> Result<Gateway, GatewayError> {
        let acceptor = spec.tls.as_ref().map(tls::acceptor).transpose().map_err(GatewayError::Tls)?;
        let workers = options.workers.max(1);
        let address = spec.server.listen;
        let sockets = listen(address, workers).map_err(|error| GatewayError::Address { address, error })?;
        let address = sockets.first().and_then(|socket| socket.local_addr().ok()).unwrap_or(address);
        let listen_addresses = (spec.server.listen, spec.management);
        let limits = RateLimitManager::new(SystemClock::new(), options.memory, MAX_CLIENTS);
        limits.reload(&spec).map_err(GatewayError::Limits)?;
        let metrics = GatewayMetrics::new(workers);
        let config = Arc::new(ConfigSnapshot::new(spec, acceptor, &limits, &metrics, None));
        let state = Arc::new(GatewayState {
            limits,
            clock: SystemClock::new(),
            access_log: options.access_log,
            metrics,
            config: RwLock::new((1, config)),
            generation: AtomicU64::new(1),
            shutdown: Shutdown::default(),
            abort: Shutdown::default(),
            aborted: AtomicUsize::new(0),
            listen_addresses,
            started: Instant::now(),
            open: AtomicUsize::new(0),
            max_open: options.connections.max(1),
            rejecting: AtomicUsize::new(0),
            slot_released: Notify::new(),
        });
        let mut gateway = Gateway { address, state, threads: Vec::with_capacity(workers) };
        for (number, socket) in sockets.into_iter().enumerate() {
            let state = Arc::clone(&gateway.state);
            let thread = std::thread::Builder::new().name(format!("gateway-{number}"));
            match thread.spawn(move || worker::run_worker(state, socket, number)) {
                Ok(handle) => gateway.threads.push(handle),
                // Dropping `gateway` stops the workers that have started.
                Err(error) => return Err(GatewayError::Thread(error)),
            }
        }
        Ok(gateway)
    }

    /// The listen address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The limits and their counters.
    pub fn limits(&self) -> &RateLimitManager {
        &self.state.limits
    }

    /// The number of open client connections.
    pub fn connections(&self) -> usize {
        self.state.open.load(Ordering::Acquire)
    }

    /// The number of active requests and tunnels at endpoints.
    pub fn active_requests(&self) -> usize {
        let (_, config) = self.state.config();
        let backends = config.backends.values();
        backends.flat_map(|backend| backend.endpoints()).map(|endpoint| endpoint.in_flight()).sum()
    }

    /// Creates a reloader for the settings file that the gateway was started with.
    pub fn reloader(&self, path: impl Into<PathBuf>, env: Environment) -> Reloader {
        Reloader::new(Arc::clone(&self.state), path.into(), env)
    }

    /// Applies new settings: all of them or none. Connections stay open and counters keep their values.
    pub fn reload(&self, spec: GatewaySpec) -> Result<ReloadSummary, GatewayError> {
        self.state.reload(spec)
    }
}

/// The state shared by all workers.
pub(crate) struct GatewayState {
    pub(crate) limits: RateLimitManager,
    clock: SystemClock,
    pub(crate) access_log: Option<AccessLogWriter>,
    pub(crate) metrics: GatewayMetrics,
    /// The current snapshot and its generation.
    config: RwLock<(u64, Arc<ConfigSnapshot>)>,
    generation: AtomicU64,
    pub(crate) shutdown: Shutdown,
    /// Set when draining is over; active requests are cut off.
    pub(crate) abort: Shutdown,
    /// The number of requests and tunnels cut off by the abort.
    aborted: AtomicUsize,
    /// The addresses at start: the gateway's and the management port's. A change needs a restart.
    listen_addresses: (SocketAddr, Option<SocketAddr>),
    pub(crate) started: Instant,
    open: AtomicUsize,
    max_open: usize,
    rejecting: AtomicUsize,
    slot_released: Notify,
}

impl GatewayState {
    /// The wall clock time since 1970.
    pub(crate) fn wall_clock(&self) -> Duration {
        self.clock.tick().since_epoch(self.clock.now())
    }

    /// The generation of the current snapshot.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The current snapshot and its generation.
    pub(crate) fn config(&self) -> (u64, Arc<ConfigSnapshot>) {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Applies new settings: all of them or none.
    pub(crate) fn reload(&self, spec: GatewaySpec) -> Result<ReloadSummary, GatewayError> {
        let acceptor = spec.tls.as_ref().map(tls::acceptor).transpose().map_err(GatewayError::Tls)?;
        let mut config = self.config.write().unwrap_or_else(PoisonError::into_inner);
        let mut reloaded = self.limits.reload(&spec).map_err(GatewayError::Limits)?;
        let (generation, before) = &*config;
        reloaded.needs_restart = self.listen_addresses != (spec.server.listen, spec.management);
        if reloaded.needs_restart {
            tracing::warn!("a listen address has changed in the settings; restart the gateway to apply it");
        }
        let next = Arc::new(ConfigSnapshot::new(spec, acceptor, &self.limits, &self.metrics, Some(before)));
        *config = (generation + 1, next);
        self.generation.store(config.0, Ordering::Release);
        Ok(reloaded)
    }

    /// Reserves a slot for a connection. `None` if the maximum is reached.
    pub(crate) fn reserve_slot(self: &Arc<GatewayState>) -> Option<ClientSlot> {
        ClientSlot::try_increment(&self.open, self.max_open)?;
        Some(ClientSlot { state: Arc::clone(self), is_rejection: false })
    }

    /// Reserves a slot for a connection that only receives a rejection.
    pub(crate) fn reserve_rejection_slot(self: &Arc<GatewayState>) -> Option<ClientSlot> {
        ClientSlot::try_increment(&self.rejecting, MAX_REJECTING)?;
        Some(ClientSlot { state: Arc::clone(self), is_rejection: true })
    }
}

impl fmt::Debug for GatewayState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayState").field("open", &self.open).finish_non_exhaustive()
    }
}

/// A reserved slot. Dropping it releases the slot.
#[derive(Debug)]
pub(crate) struct ClientSlot {
    state: Arc<GatewayState>,
    is_rejection: bool,
}

impl ClientSlot {
    fn try_increment(count: &AtomicUsize, max: usize) -> Option<()> {
        let add_one = |current: usize| (current < max).then_some(current + 1);
        count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, add_one).ok().map(drop)
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        if self.is_rejection {
            self.state.rejecting.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        self.state.open.fetch_sub(1, Ordering::AcqRel);
        if self.state.shutdown.is_triggered() {
            self.state.slot_released.notify_waiters();
        }
    }
}
