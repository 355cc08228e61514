//! A site: what a file says, ready to be used. One is made whole at every reload, and takes the place of the one before at once.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::settings::GatewaySpec;
use crate::settings::Route;
use hashbrown::HashMap;
use tokio_rustls::TlsAcceptor;

use crate::client::Clients;
use crate::endpoints::Backend;
use crate::limits::{Plan, RateLimitManager};
use crate::numbers::{Numbers, RouteNumbers};
use crate::routes::Routes;

/// What a gateway serves.
pub(crate) struct Site {
    /// As it is written.
    pub(crate) spec: GatewaySpec,
    /// Who is believed, and who a client is.
    pub(crate) clients: Clients,
    /// How TLS is spoken, if it is.
    pub(crate) tls: Option<TlsAcceptor>,
    /// The services, by their names.
    pub(crate) backends: HashMap<Arc<str>, Arc<Backend>>,
    routes: Routes,
    /// By the place of their routes in the file.
    ways: Vec<Arc<Way>>,
}

/// Where a route leads.
#[derive(Debug)]
pub(crate) struct Way {
    /// The route's id.
    pub(crate) route: Box<str>,
    /// Where its requests are counted.
    pub(crate) numbers: Arc<RouteNumbers>,
    /// What is asked before.
    pub(crate) plan: Arc<Plan>,
    /// Who answers.
    pub(crate) backend: Arc<Backend>,
}

impl Site {
    /// The site of a file whose limits are in force. Endpoints that were there before stay as well as they are.
    pub(crate) fn new(
        spec: GatewaySpec,
        tls: Option<TlsAcceptor>,
        limits: &RateLimitManager,
        numbers: &Numbers,
        before: Option<&Site>,
    ) -> Site {
        let made = spec.backends.iter().map(|backend| {
            let before = before.and_then(|site| site.backends.get(backend.name.as_str()));
            let backend = Arc::new(Backend::new(backend, before.map(Arc::as_ref)));
            (Arc::clone(&backend.name), backend)
        });
        let backends: HashMap<Arc<str>, Arc<Backend>> = made.collect();
        let mut routed = Vec::with_capacity(spec.routes.len());
        let mut ways = Vec::with_capacity(spec.routes.len());
        let ids: Vec<String> = spec.routes.iter().map(Route::id).collect();
        let counts = numbers.routes(ids.iter().map(String::as_str));
        for ((route, id), numbers) in spec.routes.iter().zip(ids).zip(counts) {
            // A file without errors has no route to nowhere.
            let Some(backend) = backends.get(route.backend.as_str()) else { continue };
            let plan = limits.plan(&route.backend, Some(&id));
            ways.push(Arc::new(Way { route: id.into(), numbers, plan, backend: Arc::clone(backend) }));
            routed.push(route.clone());
        }
        Site { clients: Clients::new(&spec.server), routes: Routes::new(&routed), ways, backends, tls, spec }
    }

    /// The way of a request.
    pub(crate) fn find(&self, host: &str, path: &str) -> Option<&Arc<Way>> {
        self.ways.get(self.routes.find(host, path)?)
    }

    /// Whether connections of this peer say first whom they are for.
    pub(crate) fn has_proxy_header(&self, peer: IpAddr) -> bool {
        self.spec.server.proxy_protocol && self.clients.trusts(peer)
    }

    /// The longest that anything under way may take when the gateway stops.
    pub(crate) const fn drain_timeout(&self) -> Duration {
        self.spec.server.drain_timeout
    }
}
