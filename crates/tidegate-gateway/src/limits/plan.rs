//! A plan: the limits that apply at one route. It is computed once per configuration and used for every
//! request.

use std::sync::Arc;

use crate::settings::{Allowance, RateLimits};
use arrayvec::ArrayVec;
use tidegate::model::Capacity;

use super::rules::{GatewayRules, ScopeRules};
use crate::cascade::{Scope, cascade};

/// The level of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitLevel {
    /// All requests.
    Server,
    /// Requests of the route.
    Route,
    /// Requests of the backend.
    Backend,
    /// Requests of the client.
    Client,
}

impl LimitLevel {
    /// All levels in decision order.
    pub const ALL: [LimitLevel; LEVELS] =
        [LimitLevel::Server, LimitLevel::Route, LimitLevel::Backend, LimitLevel::Client];

    /// The name in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            LimitLevel::Server => "server",
            LimitLevel::Route => "route",
            LimitLevel::Backend => "backend",
            LimitLevel::Client => "client",
        }
    }
}

/// The number of levels.
pub(super) const LEVELS: usize = 4;

/// The maximum number of limits that count a connection at a route: the route, its backend, and the client at
/// three scopes.
pub(super) const MAX_ROUTE_LIMITS: usize = 5;

/// One limit and its level.
#[derive(Debug, Clone)]
pub(super) struct PlannedLimit {
    pub(super) level: LimitLevel,
    pub(super) id: Arc<str>,
}

/// The limits for requests to one route of one backend. A plan may be kept; a stale one is replaced where it
/// no longer applies.
#[derive(Debug)]
pub struct LimitPlan {
    pub(super) backend: Box<str>,
    pub(super) route: Option<Box<str>>,
    /// The limits of a request: every level, limited or not, and the client's rule if there is one.
    pub(super) requests: ArrayVec<PlannedLimit, LEVELS>,
    /// The limits of a connection at its first request here: route, backend, and the client under the rule
    /// that applies and under all more specific scopes. A rule added later knows the open connections.
    pub(super) connections: ArrayVec<PlannedLimit, MAX_ROUTE_LIMITS>,
    /// The limit for a client that was not known at accept.
    pub(super) accept: PlannedLimit,
    /// Whether the backend and the route have counts of their own.
    pub(super) has_all_counters: bool,
    /// The generation of the rules that the plan was made from.
    pub(super) generation: u64,
}

impl LimitPlan {
    pub(super) fn new(rules: &GatewayRules, backend: &str, route: Option<&str>) -> LimitPlan {
        let on_backend = rules.backends.get(backend);
        let on_route = route.and_then(|route| rules.routes.get(route));
        let mut plan = LimitPlan {
            backend: backend.into(),
            route: route.map(Into::into),
            requests: ArrayVec::new(),
            connections: ArrayVec::new(),
            accept: PlannedLimit { level: LimitLevel::Client, id: Arc::clone(&rules.accept) },
            has_all_counters: on_backend.is_some() && route.is_some() == on_route.is_some(),
            generation: rules.generation,
        };
        for (level, scope_rules) in [
            (LimitLevel::Server, Some(&rules.server)),
            (LimitLevel::Route, on_route),
            (LimitLevel::Backend, on_backend),
        ] {
            let Some(ScopeRules { ids, .. }) = scope_rules else { continue };
            plan.requests.push(PlannedLimit { level, id: Arc::clone(&ids.qps) });
            if level != LimitLevel::Server {
                plan.connections.push(PlannedLimit { level, id: Arc::clone(&ids.connections) });
            }
        }
        let applied = |field: fn(&RateLimits) -> Allowance| {
            let of = |scope_rules: Option<&ScopeRules>| {
                scope_rules.map_or(Allowance::Inherit, |scope_rules| field(&scope_rules.limits))
            };
            let applied = cascade(of(on_route), of(on_backend), of(Some(&rules.server)));
            let scope_rules = match applied.scope {
                Scope::Route => on_route,
                Scope::Backend => on_backend,
                Scope::Server => None,
            };
            (scope_rules.unwrap_or(&rules.server), applied)
        };
        let (scope_rules, rule) = applied(|limits| limits.max_qps_per_client);
        if rule.capacity != Capacity::Unlimited {
            plan.requests.push(PlannedLimit {
                level: LimitLevel::Client,
                id: Arc::clone(&scope_rules.ids.client_qps),
            });
        }
        let (_, rule) = applied(|limits| limits.max_connections_per_client);
        let scopes =
            [(Scope::Route, on_route), (Scope::Backend, on_backend), (Scope::Server, Some(&rules.server))];
        for (scope, scope_rules) in scopes {
            if let Some(ScopeRules { ids, .. }) = scope_rules {
                plan.connections.push(PlannedLimit {
                    level: LimitLevel::Client,
                    id: Arc::clone(&ids.client_connections),
                });
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
