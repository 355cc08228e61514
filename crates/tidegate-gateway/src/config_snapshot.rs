//! A configuration snapshot: the settings, ready for use. Every reload builds a new snapshot and replaces the
//! old one atomically.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::settings::GatewaySpec;
use crate::settings::RouteSpec;
use hashbrown::HashMap;
use tidegate::layer::http::ForwardedFor;
use tokio_rustls::TlsAcceptor;

use crate::endpoints::UpstreamBackend;
use crate::limits::{LimitPlan, RateLimitManager};
use crate::metrics::{GatewayMetrics, RouteMetrics};
use crate::route_table::RouteTable;

/// Everything that one version of the settings defines.
pub(crate) struct ConfigSnapshot {
    /// The settings as parsed.
    pub(crate) spec: GatewaySpec,
    /// The proxies that are trusted to report clients.
    pub(crate) proxies: ForwardedFor,
    /// The TLS acceptor, if TLS is configured.
    pub(crate) tls: Option<TlsAcceptor>,
    /// The backends by name.
    pub(crate) backends: HashMap<Arc<str>, Arc<UpstreamBackend>>,
    routes: RouteTable,
    /// Parallel to the routes in the file.
    targets: Vec<Arc<RouteTarget>>,
}

/// The destination of a route.
#[derive(Debug)]
pub(crate) struct RouteTarget {
    /// The id of the route.
    pub(crate) route: Box<str>,
    /// The request counters of the route.
    pub(crate) metrics: Arc<RouteMetrics>,
    /// The limits that apply to the route.
    pub(crate) plan: Arc<LimitPlan>,
    /// The backend of the route.
    pub(crate) backend: Arc<UpstreamBackend>,
}

impl ConfigSnapshot {
    /// Builds a snapshot after the limits are applied. Endpoints that existed in `before` keep their state.
    pub(crate) fn new(
        spec: GatewaySpec,
        tls: Option<TlsAcceptor>,
        limits: &RateLimitManager,
        metrics: &GatewayMetrics,
        before: Option<&ConfigSnapshot>,
    ) -> ConfigSnapshot {
        let built = spec.backends.iter().map(|backend| {
            let before = before.and_then(|config| config.backends.get(backend.name.as_str()));
            let backend = Arc::new(UpstreamBackend::new(backend, before.map(Arc::as_ref)));
            (Arc::clone(&backend.name), backend)
        });
        let backends: HashMap<Arc<str>, Arc<UpstreamBackend>> = built.collect();
        let mut routes = Vec::with_capacity(spec.routes.len());
        let mut targets = Vec::with_capacity(spec.routes.len());
        let ids: Vec<String> = spec.routes.iter().map(RouteSpec::id).collect();
        let counts = metrics.set_routes(ids.iter().map(String::as_str));
        for ((route, id), metrics) in spec.routes.iter().zip(ids).zip(counts) {
            // Validation guarantees that every route names an existing backend.
            let Some(backend) = backends.get(route.backend.as_str()) else { continue };
            let plan = limits.plan(&route.backend, Some(&id));
            targets.push(Arc::new(RouteTarget {
                route: id.into(),
                metrics,
                plan,
                backend: Arc::clone(backend),
            }));
            routes.push(route.clone());
        }
        ConfigSnapshot {
            proxies: spec.server.trusted_proxies.iter().copied().collect(),
            routes: RouteTable::new(&routes),
            targets,
            backends,
            tls,
            spec,
        }
    }

    /// The route target for a host and a path.
    pub(crate) fn find_target(&self, host: &str, path: &str) -> Option<&Arc<RouteTarget>> {
        self.targets.get(self.routes.find(host, path)?)
    }

    /// Whether connections from this peer start with a PROXY header.
    pub(crate) fn expects_proxy_header(&self, peer: IpAddr) -> bool {
        self.spec.server.proxy_protocol && self.proxies.trusts(peer)
    }

    /// The maximum time for draining when the gateway stops.
    pub(crate) const fn drain_timeout(&self) -> Duration {
        self.spec.server.drain_timeout
    }
}
