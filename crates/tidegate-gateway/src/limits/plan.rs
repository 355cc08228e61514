//! A plan: which limits a request is asked for at one route, found once and used for every request.

use std::sync::Arc;

use crate::settings::{Allowance, RateLimits};
use arrayvec::ArrayVec;
use tidegate::Capacity;

use super::rules::{Ruled, Rules};
use crate::cascade::{Scope, cascade};

/// Which level refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    /// All requests together.
    Server,
    /// Those of the route.
    Route,
    /// Those of the backend.
    Backend,
    /// Those of the client.
    Client,
}

impl Level {
    /// All of them, in the order in which they are asked.
    pub const ALL: [Level; LEVELS] = [Level::Server, Level::Route, Level::Backend, Level::Client];

    /// The word for logs and metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Level::Server => "server",
            Level::Route => "route",
            Level::Backend => "backend",
            Level::Client => "client",
        }
    }
}

/// How many levels there are.
pub(super) const LEVELS: usize = 4;

/// The most limits that count a connection when it comes to a route: the route, its backend, and the client at each of three scopes.
pub(super) const MOST_PLACES: usize = 5;

/// One limit to ask, and at which level it is.
#[derive(Debug, Clone)]
pub(super) struct Gauge {
    pub(super) level: Level,
    pub(super) id: Arc<str>,
}

/// What is asked for a request to one route of one backend. It may be kept from request to request: a plan that a reload left behind
/// is replaced where it no longer holds.
#[derive(Debug)]
pub struct Plan {
    pub(super) backend: Box<str>,
    pub(super) route: Option<Box<str>>,
    /// What a request is asked for: every level, limited or not, and the client's rule if it has one, in the order of the document.
    pub(super) requests: ArrayVec<Gauge, LEVELS>,
    /// What a connection is asked for when it first comes here: route, backend, and the client under the rule that holds for it and under those
    /// that would hold instead if somebody wrote them: a rule that comes later knows who is there.
    pub(super) connections: ArrayVec<Gauge, MOST_PLACES>,
    /// What a client is asked for that was not known at the door.
    pub(super) door: Gauge,
    /// Whether the backend and the route have counts of their own.
    pub(super) counts_everything: bool,
    /// Which rules it was made from.
    pub(super) generation: u64,
}

impl Plan {
    pub(super) fn new(rules: &Rules, backend: &str, route: Option<&str>) -> Plan {
        let on_backend = rules.backends.get(backend);
        let on_route = route.and_then(|route| rules.routes.get(route));
        let mut plan = Plan {
            backend: backend.into(),
            route: route.map(Into::into),
            requests: ArrayVec::new(),
            connections: ArrayVec::new(),
            door: Gauge { level: Level::Client, id: Arc::clone(&rules.accept) },
            counts_everything: on_backend.is_some() && route.is_some() == on_route.is_some(),
            generation: rules.generation,
        };
        for (level, ruled) in
            [(Level::Server, Some(&rules.server)), (Level::Route, on_route), (Level::Backend, on_backend)]
        {
            let Some(Ruled { ids, .. }) = ruled else { continue };
            plan.requests.push(Gauge { level, id: Arc::clone(&ids.qps) });
            if level != Level::Server {
                plan.connections.push(Gauge { level, id: Arc::clone(&ids.connections) });
            }
        }
        let applied = |field: fn(&RateLimits) -> Allowance| {
            let of = |ruled: Option<&Ruled>| ruled.map_or(Allowance::Inherit, |ruled| field(&ruled.limits));
            let applied = cascade(of(on_route), of(on_backend), of(Some(&rules.server)));
            let ruled = match applied.scope {
                Scope::Route => on_route,
                Scope::Backend => on_backend,
                Scope::Server => None,
            };
            (ruled.unwrap_or(&rules.server), applied)
        };
        let (ruled, rule) = applied(|limits| limits.max_qps_per_client);
        if rule.capacity != Capacity::Unlimited {
            plan.requests.push(Gauge { level: Level::Client, id: Arc::clone(&ruled.ids.client_qps) });
        }
        let (_, rule) = applied(|limits| limits.max_connections_per_client);
        let scopes =
            [(Scope::Route, on_route), (Scope::Backend, on_backend), (Scope::Server, Some(&rules.server))];
        for (scope, ruled) in scopes {
            if let Some(Ruled { ids, .. }) = ruled {
                plan.connections
                    .push(Gauge { level: Level::Client, id: Arc::clone(&ids.client_connections) });
            }
            if scope == rule.scope {
                break;
            }
        }
        plan
    }

    /// The name of the backend.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// The id of the route.
    pub fn route(&self) -> Option<&str> {
        self.route.as_deref()
    }
}
