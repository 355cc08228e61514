//! The current usage of all limits, for the management API and the metrics page. Reading it does not affect decisions.
//!
//! The numbers come from the store and are exact, but each is read at a slightly different moment. If several limits refuse the
//! same order, the store counts the refusal for the one with the longest wait.

use std::sync::Arc;

use crate::settings::{Allowance, RateLimits, Window};
use tidegate::model::Capacity;
use tidegate::store::Store as _;

use super::RateLimitManager;
use super::rules::{GatewayRules, ScopeLimitIds, ScopeRules};
use crate::cascade::{Scope, cascade};

/// The usage of all limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitsUsage {
    /// The kind of window.
    pub window: Window,
    /// The server scope.
    pub server: ScopeUsage,
    /// The limit of a client's connections at accept.
    pub accept: ClientRuleUsage,
    /// All backends, by name.
    pub backends: Vec<ScopeUsage>,
    /// All routes, by id.
    pub routes: Vec<ScopeUsage>,
}

/// The usage of the limits of one scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeUsage {
    /// The scope.
    pub scope: Scope,
    /// The backend's name or the route's id; empty for the server.
    pub name: Box<str>,
    /// The backend of a route, if known.
    pub backend: Option<Box<str>>,
    /// `maxQps`.
    pub requests: RuleUsage,
    /// `maxConnections`.
    pub connections: RuleUsage,
    /// `maxQpsPerClient`.
    pub client_requests: ClientRuleUsage,
    /// `maxConnectionsPerClient`.
    pub client_connections: ClientRuleUsage,
}

/// The usage of a limit shared by all clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleUsage {
    /// The limit.
    pub limit: Capacity,
    /// The current count.
    pub used: u64,
    /// The number of refusals.
    pub refused: u64,
}

/// The usage of a per-client limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRuleUsage {
    /// The limit that applies here.
    pub limit: Capacity,
    /// Where it is configured.
    pub from: Scope,
    /// Its counts, if it is configured here.
    pub counts: Option<ClientRuleCounts>,
}

/// The counts of a per-client limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientRuleCounts {
    /// The number of tracked clients. Some of them may have a count of 0.
    pub clients: u64,
    /// The number of refused requests or connections.
    pub refused: u64,
}

impl RateLimitManager {
    /// The usage of all limits.
    pub fn usage(&self) -> LimitsUsage {
        let state = self.state();
        let reader = UsageReader { manager: self, rules: &state.rules };
        let accept = state.limits.get(&state.rules.accept).and_then(|spec| spec.items.first());
        let accept = ClientRuleUsage {
            limit: accept.map_or(Capacity::Unlimited, |item| item.limit),
            from: Scope::Server,
            counts: self.client_counts(&state.rules.accept),
        };
        let by_name = |mut all: Vec<ScopeUsage>| {
            all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
            all
        };
        let backends = state.rules.backends.iter();
        let routes = state.rules.routes.iter();
        LimitsUsage {
            window: state.rules.window,
            server: reader.scope_usage(Scope::Server, "", &state.rules.server),
            accept,
            backends: by_name(
                backends.map(|(name, it)| reader.scope_usage(Scope::Backend, name, it)).collect(),
            ),
            routes: by_name(routes.map(|(id, it)| reader.scope_usage(Scope::Route, id, it)).collect()),
        }
    }

    fn client_counts(&self, id: &str) -> Option<ClientRuleCounts> {
        let observed = self.store.observe(id)?;
        Some(ClientRuleCounts { clients: observed.rows.unwrap_or(0), refused: observed.refused })
    }
}

/// Reads usage with the current rules.
struct UsageReader<'a> {
    manager: &'a RateLimitManager,
    rules: &'a GatewayRules,
}

impl UsageReader<'_> {
    fn scope_usage(&self, scope: Scope, name: &str, scope_rules: &ScopeRules) -> ScopeUsage {
        let ScopeRules { ids, limits, backend } = scope_rules;
        ScopeUsage {
            scope,
            name: name.into(),
            backend: backend.clone(),
            requests: self.rule(limits.max_qps, &ids.qps),
            connections: self.rule(limits.max_connections, &ids.connections),
            client_requests: self.client_rule(
                scope,
                scope_rules,
                |limits| limits.max_qps_per_client,
                |ids| &ids.client_qps,
            ),
            client_connections: self.client_rule(
                scope,
                scope_rules,
                |limits| limits.max_connections_per_client,
                |ids| &ids.client_connections,
            ),
        }
    }

    fn rule(&self, allowance: Allowance, id: &Arc<str>) -> RuleUsage {
        RuleUsage {
            limit: allowance.capacity(),
            used: self.manager.used(id, None),
            refused: self.manager.store.observe(id).map_or(0, |observed| observed.refused),
        }
    }

    fn client_rule(
        &self,
        scope: Scope,
        scope_rules: &ScopeRules,
        field: fn(&RateLimits) -> Allowance,
        id: fn(&ScopeLimitIds) -> &Arc<str>,
    ) -> ClientRuleUsage {
        let server = field(&self.rules.server.limits);
        let own = field(&scope_rules.limits);
        let backend = scope_rules.backend.as_ref().and_then(|name| self.rules.backends.get(name));
        let of_backend = backend.map_or(Allowance::Inherit, |backend| field(&backend.limits));
        let applied = match scope {
            Scope::Route => cascade(own, of_backend, server),
            Scope::Backend => cascade(Allowance::Inherit, own, server),
            Scope::Server => cascade(Allowance::Inherit, Allowance::Inherit, own),
        };
        // An inherited rule is reported at its own scope, although connections are also counted here.
        let is_configured_here = own != Allowance::Inherit || scope == Scope::Server;
        let counts = if is_configured_here { self.manager.client_counts(id(&scope_rules.ids)) } else { None };
        ClientRuleUsage { limit: applied.capacity, from: applied.scope, counts }
    }
}
