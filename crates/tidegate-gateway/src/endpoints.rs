//! The backends at run time: where each is, who of it is well, and who is next.
//!
//! ```text
//!   priority 1:  a  b            well, not resting: one of them by the backend's balance
//!   priority 2:  c               if there is nobody left above
//!   resting:     whoever could not be connected to within the last second: only if everybody else is tried or unwell
//!   unwell:      whoever probes say so of: never
//! ```
//!
//! Decided: what is known of an endpoint outlives reloads. An endpoint that a new file names again, by host and port, under the same
//! backend, is the same one: its health, its connections and its counts stay.
//!
//! Decided: endpoints that nobody has probed yet are well, so that a gateway serves from its first moment; what is not there shows at
//! once, because it cannot be connected to, and rests.
//!
//! Nothing here waits, locks or reads a clock.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::settings::{self as file, Balance, Probe};

/// How long an endpoint rests that could not be connected to.
pub const REST: Duration = Duration::from_secs(1);

/// A step through all numbers that comes to none of them twice: an odd number close to 2⁶⁴ divided by the golden ratio.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A service behind the gateway.
#[derive(Debug)]
pub struct Backend {
    /// What routes call it.
    pub name: Arc<str>,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long the head of a response may take.
    pub response_timeout: Duration,
    /// How long a connection is kept unused.
    pub idle_timeout: Duration,
    /// How endpoints are probed, if they are.
    pub probe: Option<Probe>,
    balance: Balance,
    /// Those of the lowest number first.
    endpoints: Box<[Arc<Endpoint>]>,
    /// Where endpoints of another number begin, and the end.
    ends: Box<[usize]>,
    /// Whose turn it is.
    turn: AtomicU64,
}

impl Backend {
    /// As a file says. `before` is the backend of this name so far: whoever it had stays. If it was probed and is no longer, everybody is
    /// well from now on, so this is to be called when the new file is about to be in force.
    pub fn new(spec: &file::Backend, before: Option<&Backend>) -> Backend {
        let mut numbered: Vec<(u64, Arc<Endpoint>)> = Vec::with_capacity(spec.endpoints.len());
        for endpoint in &spec.endpoints {
            let known = before.and_then(|before| before.endpoint(&endpoint.host, endpoint.port));
            let here =
                known.map_or_else(|| Arc::new(Endpoint::new(&endpoint.host, endpoint.port)), Arc::clone);
            numbered.push((endpoint.priority, here));
        }
        numbered.sort_by_key(|(priority, _)| *priority);
        let ends = numbered.chunk_by(|one, other| one.0 == other.0).scan(0, |end, same| {
            *end += same.len();
            Some(*end)
        });
        let backend = Backend {
            name: spec.name.as_str().into(),
            connect_timeout: spec.connect_timeout,
            response_timeout: spec.response_timeout,
            idle_timeout: spec.idle_timeout,
            probe: spec.probe.clone(),
            balance: spec.balance,
            ends: ends.collect(),
            endpoints: numbered.into_iter().map(|(_, endpoint)| endpoint).collect(),
            turn: AtomicU64::new(
                before.map_or_else(any_number, |before| before.turn.load(Ordering::Relaxed)),
            ),
        };
        if backend.probe.is_none() {
            backend.endpoints.iter().for_each(|endpoint| endpoint.health.recover());
        }
        backend
    }

    /// Everybody, those of the lowest priority number first.
    pub fn endpoints(&self) -> &[Arc<Endpoint>] {
        &self.endpoints
    }

    /// The endpoint at this place.
    pub fn endpoint(&self, host: &str, port: u16) -> Option<&Arc<Endpoint>> {
        self.endpoints.iter().find(|endpoint| &*endpoint.host == host && endpoint.port == port)
    }

    /// Whether requests may go to an endpoint of this backend: what probes say, if there are any.
    pub fn is_well(&self, endpoint: &Endpoint) -> bool {
        self.probe.is_none() || endpoint.is_well()
    }

    /// Who is next, but nobody who was tried; `None` if nobody is left who is well. `now` is the time since the process began.
    pub fn pick(&self, now: Duration, tried: &[Arc<Endpoint>]) -> Option<Arc<Endpoint>> {
        let may = |endpoint: &&Arc<Endpoint>| {
            self.is_well(endpoint) && !tried.iter().any(|other| Arc::ptr_eq(other, endpoint))
        };
        let awake = |endpoint: &&Arc<Endpoint>| may(endpoint) && !endpoint.rests(now);
        let picked = self.first_of(awake).or_else(|| self.first_of(may));
        picked.map(Arc::clone)
    }

    /// One of the first priority that has anybody who may.
    fn first_of(&self, may: impl Fn(&&Arc<Endpoint>) -> bool) -> Option<&Arc<Endpoint>> {
        let mut begin = 0;
        for end in &self.ends {
            let picked = self.one_of(self.endpoints[begin..*end].iter().filter(&may));
            if picked.is_some() {
                return picked;
            }
            begin = *end;
        }
        None
    }

    /// One of these, by the balance.
    fn one_of<'a>(
        &self,
        eligible: impl Iterator<Item = &'a Arc<Endpoint>> + Clone,
    ) -> Option<&'a Arc<Endpoint>> {
        let burden = |endpoint: &Endpoint| match self.balance {
            Balance::LeastConnection => endpoint.open(),
            Balance::RoundRobin | Balance::Random => 0,
        };
        let mut best: Option<(usize, &Arc<Endpoint>, u64)> = None;
        for endpoint in eligible.clone() {
            let here = burden(endpoint);
            match &mut best {
                Some((least, ..)) if here > *least => {}
                Some((least, _, alike)) if here == *least => *alike += 1,
                _ => best = Some((here, endpoint, 1)),
            }
        }
        let (least, first, alike) = best?;
        let place = usize::try_from(self.next_below(alike)).unwrap_or(0);
        // Others may have taken or given back something since they were counted.
        Some(eligible.filter(|endpoint| burden(endpoint) <= least).nth(place).unwrap_or(first))
    }

    /// A number below `many`: the one after the last, or any.
    fn next_below(&self, many: u64) -> u64 {
        if many <= 1 {
            return 0;
        }
        match self.balance {
            Balance::RoundRobin | Balance::LeastConnection => {
                self.turn.fetch_add(1, Ordering::Relaxed) % many
            }
            Balance::Random => {
                let mixed = mix(self.turn.fetch_add(STEP, Ordering::Relaxed));
                let scaled = u128::from(mixed) * u128::from(many);
                u64::try_from(scaled >> 64).unwrap_or(0)
            }
        }
    }
}

/// One place where a backend is.
#[derive(Debug)]
pub struct Endpoint {
    id: u64,
    host: Box<str>,
    port: u16,
    authority: Box<str>,
    health: Health,
    open: AtomicUsize,
    /// In nanoseconds since the process began; 0 is never.
    rests_until: AtomicU64,
    requests: AtomicU64,
    failures: AtomicU64,
    connects: AtomicU64,
}

impl Endpoint {
    fn new(host: &str, port: u16) -> Endpoint {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let authority =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        Endpoint {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            host: host.into(),
            port,
            authority: authority.into(),
            health: Health::default(),
            open: AtomicUsize::new(0),
            rests_until: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            connects: AtomicU64::new(0),
        }
    }

    /// A number that no other endpoint of this process has or had.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its name or address; IPv6 without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Host and port; IPv6 in brackets.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// What probes say. Whom nobody has probed is well.
    pub fn is_well(&self) -> bool {
        self.health.is_well()
    }

    /// Whether a connection to it could not be made a moment ago.
    pub fn rests(&self, now: Duration) -> bool {
        nanos(now) < self.rests_until.load(Ordering::Relaxed)
    }

    /// How many requests and tunnels are at it.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Counts a request or a tunnel until it is dropped.
    pub fn hold(self: &Arc<Self>) -> Held {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        Held { endpoint: Arc::clone(self) }
    }

    /// A connection could not be made: it rests for [`REST`].
    pub fn failed(&self, now: Duration) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.rests_until.store(nanos(now.saturating_add(REST)), Ordering::Relaxed);
    }

    /// It answered: it need not rest.
    pub fn succeeded(&self) {
        // Most have nothing to say, and a line of memory that nobody writes can be everybody's.
        if self.rests_until.load(Ordering::Relaxed) != 0 {
            self.rests_until.store(0, Ordering::Relaxed);
        }
    }

    /// A connection was made.
    pub fn connected(&self) {
        self.connects.fetch_add(1, Ordering::Relaxed);
        self.succeeded();
    }

    /// A probe ended well or not. Whether it is well from now on, if that is new.
    pub fn probed(&self, well: bool, probe: &Probe) -> Option<bool> {
        self.health.probed(well, probe)
    }

    /// How many requests and tunnels came to it so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// How often a connection could not be made.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// How many connections were made.
    pub fn connects(&self) -> u64 {
        self.connects.load(Ordering::Relaxed)
    }
}

/// A request or a tunnel at an endpoint, for as long as this is kept.
#[derive(Debug)]
pub struct Held {
    endpoint: Arc<Endpoint>,
}

impl Held {
    /// Where it is.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.endpoint.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What probes say, in one word: whether it is unwell, and how many probes in a row said otherwise.
#[derive(Debug, Default)]
struct Health(AtomicU64);

impl Health {
    const UNWELL: u64 = 1 << 63;

    fn is_well(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Health::UNWELL == 0
    }

    fn recover(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn probed(&self, well: bool, probe: &Probe) -> Option<bool> {
        let after = |word: u64| {
            let (standing, contrary) = (word & Health::UNWELL, word & !Health::UNWELL);
            let was_well = standing == 0;
            let needed = if was_well { probe.failures } else { probe.successes };
            match contrary + 1 {
                _ if well == was_well => standing,
                contrary if contrary >= needed => standing ^ Health::UNWELL,
                contrary => standing | contrary,
            }
        };
        let mut before = self.0.load(Ordering::Relaxed);
        while let Err(other) =
            self.0.compare_exchange_weak(before, after(before), Ordering::Relaxed, Ordering::Relaxed)
        {
            before = other;
        }
        ((before ^ after(before)) & Health::UNWELL != 0).then_some(well)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Different in every process, so that gateways beside each other do not begin with the same endpoint.
fn any_number() -> u64 {
    RandomState::new().hash_one(STEP)
}

/// A number that looks like any other, made of one of a sequence.
const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}
