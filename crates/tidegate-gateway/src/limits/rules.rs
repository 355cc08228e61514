//! What a configuration means as limits of the library: data, apart from anything that is counted.
//!
//! ```text
//!   server ──▶ server/qps                 all together    sliding 1 s, or a second of the clock
//!              server/connections         all together    leases
//!              server/client-qps          each client
//!              server/client-connections  each client
//!              accept/client-connections  each client     the most that any cascade could give it
//!   backend b ──▶ backend/b/…             the same four
//!   route r ────▶ route/r/…               the same four
//! ```
//!
//! A limit that is not there is not asked. Connections are counted at every level, limited or not, so that a limit that comes later
//! knows who is there; requests need not be, because a second later nobody remembers them.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::settings::GatewaySpec;
use crate::settings::{Allowance, RateLimits, Window};
use hashbrown::HashMap;
use tidegate::{Capacity, ItemSpec, LimitSpec, Per, Policy, Precision, Unit};

use crate::cascade::{Scope, cascade, larger};

/// How long a lease of a connection lasts: longer than any. Whoever drops a connection gives it back, and with the process
/// everything is gone, so no lease needs to lapse, and none that is held can.
const CONNECTION_TTL: Duration = Duration::from_secs(36_500 * 86_400);
/// The length of the window of requests.
const SECOND: Duration = Duration::from_secs(1);
/// The largest limit whose requests are each remembered; above, they are in 64 parts of a second, so that a row has a bound: no second
/// has more than the limit, and what is used comes back up to a 64th of a second later.
const MAX_EXACT_SLIDING: u64 = 1_000;
/// The longest name that is part of an id as it is.
const LONGEST_PLAIN: usize = 200;

/// The ids of a scope's limits.
#[derive(Debug)]
pub(super) struct Ids {
    pub(super) qps: Arc<str>,
    pub(super) connections: Arc<str>,
    pub(super) client_qps: Arc<str>,
    pub(super) client_connections: Arc<str>,
}

impl Ids {
    pub(super) fn new(scope: Scope, name: &str) -> Arc<Ids> {
        let stem = match scope {
            Scope::Server => "server".to_owned(),
            Scope::Backend => format!("backend/{}", plain(name)),
            Scope::Route => format!("route/{}", plain(name)),
        };
        let id = |what: &str| format!("{stem}/{what}").into();
        Arc::new(Ids {
            qps: id("qps"),
            connections: id("connections"),
            client_qps: id("client-qps"),
            client_connections: id("client-connections"),
        })
    }
}

/// The id of the limit of a client's connections at the door.
const ACCEPT: &str = "accept/client-connections";

/// A name in the letters of ids, different for different names.
fn plain(name: &str) -> String {
    let mut id = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            id.push(char::from(byte));
        } else if byte == b'/' {
            id.push_str("::");
        } else {
            write!(id, ":{byte:02x}").expect("a string takes all writes");
        }
    }
    if id.len() > LONGEST_PLAIN {
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, name).hash(&mut hasher);
            hasher.finish()
        };
        id.truncate(LONGEST_PLAIN - 40);
        write!(id, ":-{:016x}{:016x}", half(0), half(1)).expect("a string takes all writes");
    }
    id
}

/// The rules of a backend or a route.
#[derive(Debug, Clone)]
pub(super) struct Ruled {
    pub(super) ids: Arc<Ids>,
    pub(super) limits: RateLimits,
    /// Of a route: its backend, if that is known.
    pub(super) backend: Option<Box<str>>,
}

impl Ruled {
    pub(super) fn new(scope: Scope, name: &str) -> Ruled {
        Ruled { ids: Ids::new(scope, name), limits: RateLimits::default(), backend: None }
    }

    /// Makes these the limits, `None` being none; whether they were others.
    pub(super) fn say(&mut self, limits: Option<RateLimits>) -> bool {
        let limits = limits.unwrap_or_default();
        std::mem::replace(&mut self.limits, limits) != limits
    }
}

/// Everything that is configured.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) server: Ruled,
    pub(super) window: Window,
    pub(super) backends: HashMap<Box<str>, Ruled>,
    pub(super) routes: HashMap<Box<str>, Ruled>,
    /// The id of the limit of a client's connections at the door.
    pub(super) accept: Arc<str>,
    /// Rises with every change.
    pub(super) generation: u64,
}

impl Rules {
    /// No limits.
    pub(super) fn new() -> Rules {
        Rules {
            server: Ruled::new(Scope::Server, ""),
            window: Window::default(),
            backends: HashMap::new(),
            routes: HashMap::new(),
            accept: ACCEPT.into(),
            generation: 0,
        }
    }

    /// What a file says; what has a name already keeps its ids.
    pub(super) fn of(&self, spec: &GatewaySpec) -> Rules {
        let keep = |known: &HashMap<Box<str>, Ruled>, scope, name: &str| {
            known.get(name).map_or_else(|| Ids::new(scope, name), |ruled| Arc::clone(&ruled.ids))
        };
        let backends = spec.backends.iter().map(|backend| {
            let ids = keep(&self.backends, Scope::Backend, &backend.name);
            (backend.name.as_str().into(), Ruled { ids, limits: backend.limits, backend: None })
        });
        let routes = spec.routes.iter().map(|route| {
            let name = route.id();
            let ids = keep(&self.routes, Scope::Route, &name);
            let backend = Some(route.backend.as_str().into());
            (name.into(), Ruled { ids, limits: route.limits, backend })
        });
        Rules {
            server: Ruled { limits: spec.server.limits, ..self.server.clone() },
            window: spec.server.window,
            backends: backends.collect(),
            routes: routes.collect(),
            accept: Arc::clone(&self.accept),
            generation: self.generation,
        }
    }

    /// The rules of a backend, made if there are none.
    pub(super) fn backend(&mut self, name: &str) -> &mut Ruled {
        self.backends.entry(name.into()).or_insert_with(|| Ruled::new(Scope::Backend, name))
    }

    /// The rules of a route, made if there are none.
    pub(super) fn route(&mut self, id: &str) -> &mut Ruled {
        self.routes.entry(id.into()).or_insert_with(|| Ruled::new(Scope::Route, id))
    }

    /// All of it as limits, by their ids.
    pub(super) fn limits(&self, most_clients: u64) -> HashMap<Arc<str>, LimitSpec> {
        let mut all = HashMap::new();
        let mut put = |id: &Arc<str>, per, policy, limit| {
            let item = ItemSpec { name: None, policy, per, limit, charge: None };
            let mut spec = LimitSpec::named(&**id).with(item);
            spec.max_keys = (per == Per::Key).then_some(most_clients);
            all.insert(Arc::clone(id), spec);
        };
        let everybody = self.backends.values().chain(self.routes.values());
        for Ruled { ids, limits, .. } in everybody.chain([&self.server]) {
            let most = limits.max_qps.capacity();
            put(&ids.qps, Per::All, self.second(most), most);
            put(&ids.connections, Per::All, LEASES, limits.max_connections.capacity());
            if let Allowance::AtMost(most) = limits.max_qps_per_client {
                put(&ids.client_qps, Per::Key, self.second(Capacity::AtMost(most)), Capacity::AtMost(most));
            }
            put(&ids.client_connections, Per::Key, LEASES, limits.max_connections_per_client.capacity());
        }
        put(&self.accept, Per::Key, LEASES, self.most_connections_of_a_client());
        all
    }

    const fn second(&self, most: Capacity) -> Policy {
        match (self.window, most) {
            (Window::Sliding, Capacity::AtMost(..=MAX_EXACT_SLIDING)) => {
                Policy::Sliding { window: SECOND, precision: Precision::Exact }
            }
            (Window::Sliding, _) => Policy::Sliding { window: SECOND, precision: Precision::Bucketed },
            (Window::Fixed, _) => Policy::Calendar(Unit::Second),
        }
    }

    /// The largest value that any cascade could give a client.
    fn most_connections_of_a_client(&self) -> Capacity {
        let of = |ruled: &Ruled| ruled.limits.max_connections_per_client;
        let server = of(&self.server);
        let through = |route: Allowance, backend: Allowance| cascade(route, backend, server).capacity;
        let mut largest: Option<Capacity> = None;
        let mut see = |route: Allowance, backend: Option<&Ruled>| {
            let capacity = through(route, backend.map_or(Allowance::Inherit, of));
            largest = Some(largest.map_or(capacity, |so_far| larger(so_far, capacity)));
        };
        for route in self.routes.values() {
            let backend = route.backend.as_ref().and_then(|name| self.backends.get(name));
            see(of(route), backend);
            if backend.is_none() {
                // It may lead to any.
                self.backends.values().for_each(|backend| see(of(route), Some(backend)));
            }
        }
        if self.routes.is_empty() {
            self.backends.values().for_each(|backend| see(Allowance::Inherit, Some(backend)));
        }
        largest.unwrap_or(server.capacity())
    }
}

const LEASES: Policy = Policy::Concurrency { ttl: CONNECTION_TTL };
