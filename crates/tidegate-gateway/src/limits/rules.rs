//! The configured rules as limits of the store. This is data only; counts are elsewhere.
//!
//! ```text
//!   server ──▶ server/qps                 all clients     sliding 1 s, or a calendar second
//!              server/connections         all clients     leases
//!              server/client-qps          each client
//!              server/client-connections  each client
//!              accept/client-connections  each client     the largest limit of any cascade
//!   backend b ──▶ backend/b/…             the same four
//!   route r ────▶ route/r/…               the same four
//! ```
//!
//! Connections are counted at every level, limited or not, so that a limit added later knows the open connections.
//! Per-client request limits exist only where a rule is configured: after one second no count is left anyway.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::settings::GatewaySpec;
use crate::settings::{Allowance, RateLimits, Window};
use hashbrown::HashMap;
use tidegate::model::{Capacity, ItemSpec, LimitSpec, Per, Policy, Precision, Unit};

use crate::cascade::{Scope, cascade, larger};

/// The lifetime of a connection's lease: longer than any connection. A dropped permit releases its leases and
/// the counts end with the process, so no lease needs to expire.
const CONNECTION_TTL: Duration = Duration::from_secs(36_500 * 86_400);
/// The window of request limits.
const SECOND: Duration = Duration::from_secs(1);
/// The largest limit that remembers each request. Above it, requests are counted in 64 buckets per second,
/// which bounds the row size. The limit stays strict; capacity returns up to 1/64 s later.
const LARGEST_EXACT: u64 = 1_000;
/// The maximum length of a name used in an id unchanged.
const MAX_PLAIN_NAME: usize = 200;

/// The ids of the limits of a scope.
#[derive(Debug)]
pub(super) struct ScopeLimitIds {
    pub(super) qps: Arc<str>,
    pub(super) connections: Arc<str>,
    pub(super) client_qps: Arc<str>,
    pub(super) client_connections: Arc<str>,
}

impl ScopeLimitIds {
    pub(super) fn new(scope: Scope, name: &str) -> Arc<ScopeLimitIds> {
        let stem = match scope {
            Scope::Server => "server".to_owned(),
            Scope::Backend => format!("backend/{}", encode_name(name)),
            Scope::Route => format!("route/{}", encode_name(name)),
        };
        let id = |what: &str| format!("{stem}/{what}").into();
        Arc::new(ScopeLimitIds {
            qps: id("qps"),
            connections: id("connections"),
            client_qps: id("client-qps"),
            client_connections: id("client-connections"),
        })
    }
}

/// The id of the limit of a client's connections at accept.
const ACCEPT: &str = "accept/client-connections";

/// Encodes a name with the characters allowed in ids. Distinct names get distinct ids.
fn encode_name(name: &str) -> String {
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
    if id.len() > MAX_PLAIN_NAME {
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, name).hash(&mut hasher);
            hasher.finish()
        };
        id.truncate(MAX_PLAIN_NAME - 40);
        write!(id, ":-{:016x}{:016x}", half(0), half(1)).expect("a string takes all writes");
    }
    id
}

/// The rules of a scope.
#[derive(Debug, Clone)]
pub(super) struct ScopeRules {
    pub(super) ids: Arc<ScopeLimitIds>,
    pub(super) limits: RateLimits,
    /// The backend of a route, if known.
    pub(super) backend: Option<Box<str>>,
}

impl ScopeRules {
    pub(super) fn new(scope: Scope, name: &str) -> ScopeRules {
        ScopeRules { ids: ScopeLimitIds::new(scope, name), limits: RateLimits::default(), backend: None }
    }

    /// Replaces the limits; `None` means no limits. Returns whether they changed.
    pub(super) fn replace_limits(&mut self, limits: Option<RateLimits>) -> bool {
        let limits = limits.unwrap_or_default();
        std::mem::replace(&mut self.limits, limits) != limits
    }
}

/// All configured rules.
#[derive(Debug, Clone)]
pub(super) struct GatewayRules {
    pub(super) server: ScopeRules,
    pub(super) window: Window,
    pub(super) backends: HashMap<Box<str>, ScopeRules>,
    pub(super) routes: HashMap<Box<str>, ScopeRules>,
    /// The id of the limit of a client's connections at accept.
    pub(super) accept: Arc<str>,
    /// Increases with every change.
    pub(super) generation: u64,
}

impl GatewayRules {
    /// Creates rules without limits.
    pub(super) fn new() -> GatewayRules {
        GatewayRules {
            server: ScopeRules::new(Scope::Server, ""),
            window: Window::default(),
            backends: HashMap::new(),
            routes: HashMap::new(),
            accept: ACCEPT.into(),
            generation: 0,
        }
    }

    /// The rules of new settings. Names that exist already keep their ids.
    pub(super) fn with_spec(&self, spec: &GatewaySpec) -> GatewayRules {
        let keep = |known: &HashMap<Box<str>, ScopeRules>, scope, name: &str| {
            known
                .get(name)
                .map_or_else(|| ScopeLimitIds::new(scope, name), |scope_rules| Arc::clone(&scope_rules.ids))
        };
        let backends = spec.backends.iter().map(|backend| {
            let ids = keep(&self.backends, Scope::Backend, &backend.name);
            (backend.name.as_str().into(), ScopeRules { ids, limits: backend.limits, backend: None })
        });
        let routes = spec.routes.iter().map(|route| {
            let name = route.id();
            let ids = keep(&self.routes, Scope::Route, &name);
            let backend = Some(route.backend.as_str().into());
            (name.into(), ScopeRules { ids, limits: route.limits, backend })
        });
        GatewayRules {
            server: ScopeRules { limits: spec.server.limits, ..self.server.clone() },
            window: spec.server.window,
            backends: backends.collect(),
            routes: routes.collect(),
            accept: Arc::clone(&self.accept),
            generation: self.generation,
        }
    }

    /// The rules of a backend, created if missing.
    pub(super) fn backend(&mut self, name: &str) -> &mut ScopeRules {
        self.backends.entry(name.into()).or_insert_with(|| ScopeRules::new(Scope::Backend, name))
    }

    /// The rules of a route, created if missing.
    pub(super) fn route(&mut self, id: &str) -> &mut ScopeRules {
        self.routes.entry(id.into()).or_insert_with(|| ScopeRules::new(Scope::Route, id))
    }

    /// All limits by id.
    pub(super) fn limits(&self, max_clients: u64) -> HashMap<Arc<str>, LimitSpec> {
        let mut all = HashMap::new();
        let mut put = |id: &Arc<str>, per, policy, limit| {
            let item = ItemSpec { name: None, policy, per, limit, charge: None };
            let mut spec = LimitSpec::named(&**id).with(item);
            spec.max_keys = (per == Per::Key).then_some(max_clients);
            all.insert(Arc::clone(id), spec);
        };
        let named = self.backends.values().chain(self.routes.values());
        for ScopeRules { ids, limits, .. } in named.chain([&self.server]) {
            let max = limits.max_qps.capacity();
            put(&ids.qps, Per::All, self.window_policy(max), max);
            put(&ids.connections, Per::All, LEASES, limits.max_connections.capacity());
            if let Allowance::AtMost(max) = limits.max_qps_per_client {
                put(
                    &ids.client_qps,
                    Per::Key,
                    self.window_policy(Capacity::AtMost(max)),
                    Capacity::AtMost(max),
                );
            }
            put(&ids.client_connections, Per::Key, LEASES, limits.max_connections_per_client.capacity());
        }
        put(&self.accept, Per::Key, LEASES, self.widest_client_connections());
        all
    }

    const fn window_policy(&self, max: Capacity) -> Policy {
        match (self.window, max) {
            (Window::Sliding, Capacity::AtMost(..=LARGEST_EXACT)) => {
                Policy::Sliding { window: SECOND, precision: Precision::Exact }
            }
            (Window::Sliding, _) => Policy::Sliding { window: SECOND, precision: Precision::Bucketed },
            (Window::Fixed, _) => Policy::Calendar(Unit::Second),
        }
    }

    /// The largest limit that any cascade gives a client.
    fn widest_client_connections(&self) -> Capacity {
        let of = |scope_rules: &ScopeRules| scope_rules.limits.max_connections_per_client;
        let server = of(&self.server);
        let effective = |route: Allowance, backend: Allowance| cascade(route, backend, server).capacity;
        let mut largest: Option<Capacity> = None;
        let mut consider = |route: Allowance, backend: Option<&ScopeRules>| {
            let capacity = effective(route, backend.map_or(Allowance::Inherit, of));
            largest = Some(largest.map_or(capacity, |so_far| larger(so_far, capacity)));
        };
        for route in self.routes.values() {
            let backend = route.backend.as_ref().and_then(|name| self.backends.get(name));
            consider(of(route), backend);
            if backend.is_none() {
                // A route without a known backend may use any of them.
                self.backends.values().for_each(|backend| consider(of(route), Some(backend)));
            }
        }
        if self.routes.is_empty() {
            self.backends.values().for_each(|backend| consider(Allowance::Inherit, Some(backend)));
        }
        largest.unwrap_or(server.capacity())
    }
}

const LEASES: Policy = Policy::Concurrency { ttl: CONNECTION_TTL };
