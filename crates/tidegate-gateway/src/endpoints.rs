//! Runtime state of backends: the health of endpoints, and which endpoint is next.
//!
//! ```text
//!   priority 1:  a  b            healthy and not cooling down: chosen by the backend's balance
//!   priority 2:  c               if priority 1 has none left
//!   cooling down: a connect failed within the last second: used only if no other healthy endpoint is left
//!   unhealthy:    failed its probes: never used
//! ```
//!
//! The state of an endpoint survives reloads. An endpoint with the same host, port and backend name keeps its health, its
//! connections and its counts.
//!
//! Endpoints that were never probed are healthy, so that a new gateway serves at once. A missing endpoint fails the first
//! connect and cools down.
//!
//! Nothing here waits, locks or reads a clock.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::settings::{self as file, Balance, ProbeSpec};

/// How long an endpoint is avoided after a failed connect.
pub const CONNECT_COOLDOWN: Duration = Duration::from_secs(1);

/// The increment of a Weyl sequence: an odd number close to 2⁶⁴ divided by the golden ratio.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A group of endpoints that serve the same routes.
#[derive(Debug)]
pub struct UpstreamBackend {
    /// The name that routes use.
    pub name: Arc<str>,
    /// The maximum time to connect.
    pub connect_timeout: Duration,
    /// The maximum time to the head of a response.
    pub response_timeout: Duration,
    /// How long an unused connection stays in the pool.
    pub idle_timeout: Duration,
    /// The health probe, if configured.
    pub probe: Option<ProbeSpec>,
    balance: Balance,
    /// Sorted by priority number.
    endpoints: Box<[Arc<UpstreamEndpoint>]>,
    /// The end index of each priority group.
    ends: Box<[usize]>,
    /// The round-robin position, or the state of the random sequence.
    next_turn: AtomicU64,
}

impl UpstreamBackend {
    /// Builds a backend from the settings. Endpoints of `before`, the previous backend of this name, are
    /// kept. Without a probe all endpoints become healthy again, so call this only when the new settings take
    /// effect.
    pub fn new(spec: &file::BackendSpec, before: Option<&UpstreamBackend>) -> UpstreamBackend {
        let mut numbered: Vec<(u64, Arc<UpstreamEndpoint>)> = Vec::with_capacity(spec.endpoints.len());
        for endpoint in &spec.endpoints {
            let known = before.and_then(|before| before.endpoint(&endpoint.host, endpoint.port));
            let load_of_endpoint = known
                .map_or_else(|| Arc::new(UpstreamEndpoint::new(&endpoint.host, endpoint.port)), Arc::clone);
            numbered.push((endpoint.priority, load_of_endpoint));
        }
        numbered.sort_by_key(|(priority, _)| *priority);
        let ends = numbered.chunk_by(|one, other| one.0 == other.0).scan(0, |end, same| {
            *end += same.len();
            Some(*end)
        });
        let backend = UpstreamBackend {
            name: spec.name.as_str().into(),
            connect_timeout: spec.connect_timeout,
            response_timeout: spec.response_timeout,
            idle_timeout: spec.idle_timeout,
            probe: spec.probe.clone(),
            balance: spec.balance,
            ends: ends.collect(),
            endpoints: numbered.into_iter().map(|(_, endpoint)| endpoint).collect(),
            next_turn: AtomicU64::new(
                before.map_or_else(random_start, |before| before.next_turn.load(Ordering::Relaxed)),
            ),
        };
        if backend.probe.is_none() {
            backend.endpoints.iter().for_each(|endpoint| endpoint.health.reset());
        }
        backend
    }

    /// All endpoints, lowest priority number first.
    pub fn endpoints(&self) -> &[Arc<UpstreamEndpoint>] {
        &self.endpoints
    }

    /// The endpoint with this address.
    pub fn endpoint(&self, host: &str, port: u16) -> Option<&Arc<UpstreamEndpoint>> {
        self.endpoints.iter().find(|endpoint| &*endpoint.host == host && endpoint.port == port)
    }

    /// Whether requests may go to this endpoint. True if the backend has no probe.
    pub fn is_healthy(&self, endpoint: &UpstreamEndpoint) -> bool {
        self.probe.is_none() || endpoint.is_healthy()
    }

    /// The next endpoint that is not in `tried`, or `None` if no healthy endpoint is left. `now` is the time
    /// since the process started.
    pub fn pick(&self, now: Duration, tried: &[Arc<UpstreamEndpoint>]) -> Option<Arc<UpstreamEndpoint>> {
        let is_eligible = |endpoint: &&Arc<UpstreamEndpoint>| {
            self.is_healthy(endpoint) && !tried.iter().any(|other| Arc::ptr_eq(other, endpoint))
        };
        let available =
            |endpoint: &&Arc<UpstreamEndpoint>| is_eligible(endpoint) && !endpoint.is_cooling_down(now);
        let picked = self.pick_by_priority(available).or_else(|| self.pick_by_priority(is_eligible));
        picked.map(Arc::clone)
    }

    /// Picks from the first priority group that has an eligible endpoint.
    fn pick_by_priority(
        &self,
        is_eligible: impl Fn(&&Arc<UpstreamEndpoint>) -> bool,
    ) -> Option<&Arc<UpstreamEndpoint>> {
        let mut begin = 0;
        for end in &self.ends {
            let picked = self.pick_by_balance(self.endpoints[begin..*end].iter().filter(&is_eligible));
            if picked.is_some() {
                return picked;
            }
            begin = *end;
        }
        None
    }

    /// Picks one endpoint according to the balance.
    fn pick_by_balance<'a>(
        &self,
        eligible: impl Iterator<Item = &'a Arc<UpstreamEndpoint>> + Clone,
    ) -> Option<&'a Arc<UpstreamEndpoint>> {
        let load = |endpoint: &UpstreamEndpoint| match self.balance {
            Balance::LeastConnection => endpoint.in_flight(),
            Balance::RoundRobin | Balance::Random => 0,
        };
        let mut best: Option<(usize, &Arc<UpstreamEndpoint>, u64)> = None;
        for endpoint in eligible.clone() {
            let load_of_endpoint = load(endpoint);
            match &mut best {
                Some((least, ..)) if load_of_endpoint > *least => {}
                Some((least, _, ties)) if load_of_endpoint == *least => *ties += 1,
                _ => best = Some((load_of_endpoint, endpoint, 1)),
            }
        }
        let (least, first, ties) = best?;
        let place = usize::try_from(self.next_below(ties)).unwrap_or(0);
        // Loads may have changed since they were compared.
        Some(eligible.filter(|endpoint| load(endpoint) <= least).nth(place).unwrap_or(first))
    }

    /// A number below `count`: the next in turn, or a random one.
    fn next_below(&self, count: u64) -> u64 {
        if count <= 1 {
            return 0;
        }
        match self.balance {
            Balance::RoundRobin | Balance::LeastConnection => {
                self.next_turn.fetch_add(1, Ordering::Relaxed) % count
            }
            Balance::Random => {
                let mixed = mix(self.next_turn.fetch_add(STEP, Ordering::Relaxed));
                let scaled = u128::from(mixed) * u128::from(count);
                u64::try_from(scaled >> 64).unwrap_or(0)
            }
        }
    }
}

/// One endpoint of a backend.
#[derive(Debug)]
pub struct UpstreamEndpoint {
    id: u64,
    host: Box<str>,
    port: u16,
    authority: Box<str>,
    health: EndpointHealth,
    in_flight: AtomicUsize,
    /// In nanoseconds since the process started; 0 is never.
    cooldown_until: AtomicU64,
    requests: AtomicU64,
    failures: AtomicU64,
    connects: AtomicU64,
}

impl UpstreamEndpoint {
    fn new(host: &str, port: u16) -> UpstreamEndpoint {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let authority =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        UpstreamEndpoint {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            host: host.into(),
            port,
            authority: authority.into(),
            health: EndpointHealth::default(),
            in_flight: AtomicUsize::new(0),
            cooldown_until: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            connects: AtomicU64::new(0),
        }
    }

    /// Unique within this process, never reused.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The host name or address; IPv6 without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Host and port; IPv6 in brackets.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The result of the probes. Healthy if never probed.
    pub fn is_healthy(&self) -> bool {
        self.health.is_healthy()
    }

    /// Whether a recent connect failed.
    pub fn is_cooling_down(&self, now: Duration) -> bool {
        nanos(now) < self.cooldown_until.load(Ordering::Relaxed)
    }

    /// The number of active requests and tunnels.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts an active request or tunnel until the guard is dropped.
    pub fn begin_request(self: &Arc<Self>) -> InFlightGuard {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        InFlightGuard { endpoint: Arc::clone(self) }
    }

    /// Records a failed connect. The endpoint cools down for [`CONNECT_COOLDOWN`].
    pub fn record_connect_failure(&self, now: Duration) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.cooldown_until.store(nanos(now.saturating_add(CONNECT_COOLDOWN)), Ordering::Relaxed);
    }

    /// Records a response. The cooldown ends.
    pub fn record_success(&self) {
        // Writes only if needed, so that the cache line stays shared between workers.
        if self.cooldown_until.load(Ordering::Relaxed) != 0 {
            self.cooldown_until.store(0, Ordering::Relaxed);
        }
    }

    /// Records a successful connect.
    pub fn record_connect(&self) {
        self.connects.fetch_add(1, Ordering::Relaxed);
        self.record_success();
    }

    /// Records a probe result. Returns the new health if it changed.
    pub fn record_probe(&self, healthy: bool, probe: &ProbeSpec) -> Option<bool> {
        self.health.record_probe(healthy, probe)
    }

    /// The number of requests and tunnels so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The number of failed connects so far.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// The number of successful connects so far.
    pub fn connects(&self) -> u64 {
        self.connects.load(Ordering::Relaxed)
    }
}

/// Counts an active request or tunnel while it exists.
#[derive(Debug)]
pub struct InFlightGuard {
    endpoint: Arc<UpstreamEndpoint>,
}

impl InFlightGuard {
    /// The endpoint.
    pub fn endpoint(&self) -> &Arc<UpstreamEndpoint> {
        &self.endpoint
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.endpoint.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One word: the top bit is set if unhealthy, the rest counts consecutive probes with the opposite result.
#[derive(Debug, Default)]
struct EndpointHealth(AtomicU64);

impl EndpointHealth {
    const UNHEALTHY: u64 = 1 << 63;

    fn is_healthy(&self) -> bool {
        self.0.load(Ordering::Relaxed) & EndpointHealth::UNHEALTHY == 0
    }

    fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn record_probe(&self, healthy: bool, probe: &ProbeSpec) -> Option<bool> {
        let after = |word: u64| {
            let (health_bit, streak) = (word & EndpointHealth::UNHEALTHY, word & !EndpointHealth::UNHEALTHY);
            let was_healthy = health_bit == 0;
            let needed = if was_healthy { probe.failures } else { probe.successes };
            match streak + 1 {
                _ if healthy == was_healthy => health_bit,
                streak if streak >= needed => health_bit ^ EndpointHealth::UNHEALTHY,
                streak => health_bit | streak,
            }
        };
        let mut before = self.0.load(Ordering::Relaxed);
        while let Err(other) =
            self.0.compare_exchange_weak(before, after(before), Ordering::Relaxed, Ordering::Relaxed)
        {
            before = other;
        }
        ((before ^ after(before)) & EndpointHealth::UNHEALTHY != 0).then_some(healthy)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Random per process, so that several gateways start at different endpoints.
fn random_start() -> u64 {
    RandomState::new().hash_one(STEP)
}

/// The finalizer of `SplitMix64`.
const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}
