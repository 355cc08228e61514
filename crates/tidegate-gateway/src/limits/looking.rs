//! How the limits stand: what each says, how much of it is used, what it refused. For those who look, not for those who decide.
//!
//! A level's numbers are the store's own, so they are exact, and each is from a slightly different moment. Where several limits refuse
//! the same order, the store counts it for the one that refuses for longest.

use std::sync::Arc;

use crate::settings::{Allowance, RateLimits, Window};
use tidegate::{Capacity, Store as _};

use super::RateLimitManager;
use super::rules::{Ids, Ruled, Rules};
use crate::cascade::{Scope, cascade};

/// How all limits stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standings {
    /// What a second is.
    pub window: Window,
    /// Everybody together.
    pub server: Standing,
    /// A client's connections, when they come.
    pub door: ClientRule,
    /// Every backend, by name.
    pub backends: Vec<Standing>,
    /// Every route, by id.
    pub routes: Vec<Standing>,
}

/// How the limits of one scope stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// What it is.
    pub scope: Scope,
    /// A backend's name, a route's id; the server has none.
    pub name: Box<str>,
    /// Of a route: its backend, if that is known.
    pub backend: Option<Box<str>>,
    /// `maxQps`.
    pub requests: Rule,
    /// `maxConnections`.
    pub connections: Rule,
    /// `maxQpsPerClient`.
    pub client_requests: ClientRule,
    /// `maxConnectionsPerClient`.
    pub client_connections: ClientRule,
}

/// What all clients together may do, and do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The limit.
    pub limit: Capacity,
    /// How much of it is used now.
    pub used: u64,
    /// How many it refused.
    pub refused: u64,
}

/// What each client may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRule {
    /// The limit that holds here.
    pub limit: Capacity,
    /// Where it is written.
    pub from: Scope,
    /// What it did, if it is written here.
    pub counts: Option<ClientCounts>,
}

/// What a rule for clients did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientCounts {
    /// How many clients are remembered. Some of them may have nothing any more.
    pub clients: u64,
    /// How many requests or connections it refused.
    pub refused: u64,
}

impl RateLimitManager {
    /// How all limits stand.
    pub fn standings(&self) -> Standings {
        let state = self.state();
        let look = Looking { manager: self, rules: &state.rules };
        let accept = state.limits.get(&state.rules.accept).and_then(|spec| spec.items.first());
        let door = ClientRule {
            limit: accept.map_or(Capacity::Unlimited, |item| item.limit),
            from: Scope::Server,
            counts: self.client_counts(&state.rules.accept),
        };
        let by_name = |mut all: Vec<Standing>| {
            all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
            all
        };
        let backends = state.rules.backends.iter();
        let routes = state.rules.routes.iter();
        Standings {
            window: state.rules.window,
            server: look.standing(Scope::Server, "", &state.rules.server),
            door,
            backends: by_name(backends.map(|(name, it)| look.standing(Scope::Backend, name, it)).collect()),
            routes: by_name(routes.map(|(id, it)| look.standing(Scope::Route, id, it)).collect()),
        }
    }

    fn client_counts(&self, id: &str) -> Option<ClientCounts> {
        let seen = self.store.observe(id)?;
        Some(ClientCounts { clients: seen.rows.unwrap_or(0), refused: seen.refused })
    }
}

/// Somebody who looks at the rules in force.
struct Looking<'a> {
    manager: &'a RateLimitManager,
    rules: &'a Rules,
}

impl Looking<'_> {
    fn standing(&self, scope: Scope, name: &str, ruled: &Ruled) -> Standing {
        let Ruled { ids, limits, backend } = ruled;
        Standing {
            scope,
            name: name.into(),
            backend: backend.clone(),
            requests: self.rule(limits.max_qps, &ids.qps),
            connections: self.rule(limits.max_connections, &ids.connections),
            client_requests: self.client_rule(
                scope,
                ruled,
                |limits| limits.max_qps_per_client,
                |ids| &ids.client_qps,
            ),
            client_connections: self.client_rule(
                scope,
                ruled,
                |limits| limits.max_connections_per_client,
                |ids| &ids.client_connections,
            ),
        }
    }

    fn rule(&self, allowance: Allowance, id: &Arc<str>) -> Rule {
        Rule {
            limit: allowance.capacity(),
            used: self.manager.used(id, None),
            refused: self.manager.store.observe(id).map_or(0, |seen| seen.refused),
        }
    }

    fn client_rule(
        &self,
        scope: Scope,
        ruled: &Ruled,
        field: fn(&RateLimits) -> Allowance,
        id: fn(&Ids) -> &Arc<str>,
    ) -> ClientRule {
        let server = field(&self.rules.server.limits);
        let own = field(&ruled.limits);
        let backend = ruled.backend.as_ref().and_then(|name| self.rules.backends.get(name));
        let of_backend = backend.map_or(Allowance::Inherit, |backend| field(&backend.limits));
        let applied = match scope {
            Scope::Route => cascade(own, of_backend, server),
            Scope::Backend => cascade(Allowance::Inherit, own, server),
            Scope::Server => cascade(Allowance::Inherit, Allowance::Inherit, own),
        };
        // What is written elsewhere is told there, though connections are counted here too for a rule that may come.
        let is_here = own != Allowance::Inherit || scope == Scope::Server;
        let counts = if is_here { self.manager.client_counts(id(&ruled.ids)) } else { None };
        ClientRule { limit: applied.capacity, from: applied.scope, counts }
    }
}
