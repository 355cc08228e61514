//! Connection limits: the maximum number of open connections of the server, a backend, a route and a client.
//!
//! A connection is counted for the server and its client at accept, and at a route and its backend with its first
//! request there. It stays counted until its [`ConnectionPermit`] is dropped.

use std::sync::{Arc, PoisonError};

use arrayvec::ArrayVec;
use tidegate::store::Store;

use super::held_leases::{ConnectionPermit, HeldLeases, RequestOwner};
use super::plan::{LimitLevel, LimitPlan, PlannedLimit};
use super::refusal::{LimitRefusal, RefusalKind};
use super::rules::{GatewayRules, ScopeRules};
use super::{AskError, MAX_PLANNED, ManagerState, RateLimitManager};

/// Selects a connection count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionCounter<'a> {
    /// All connections.
    Server,
    /// Connections that used a backend.
    Backend(&'a str),
    /// Connections that used a route.
    Route(&'a str),
    /// Connections of a client, counted at accept.
    Client(&'a [u8]),
}

impl RateLimitManager {
    /// Admits a connection: counts it for the server, and for its client against the largest limit of any
    /// route. Pass no client if only requests name it, as behind a trusted proxy; see
    /// [`RateLimitManager::admit_client_to_route`].
    pub fn accept(&self, client: Option<&[u8]>) -> Result<ConnectionPermit, LimitRefusal> {
        let connection = ConnectionPermit::new(self.store.clone(), client);
        let planned = accept_limits(&self.state());
        let planned = if client.is_some() { &planned[..] } else { &planned[..1] };
        let lease = self.ask(RefusalKind::Connections, planned, client).map_err(AskError::for_connection)?;
        connection.held().add(lease, planned);
        Ok(connection)
    }

    /// Admits a connection and its first route in one order.
    pub fn try_acquire_connection(
        &self,
        backend: &str,
        client: &[u8],
        route: Option<&str>,
    ) -> Result<ConnectionPermit, LimitRefusal> {
        let connection = ConnectionPermit::new(self.store.clone(), Some(client));
        self.ensure_counted(backend, route);
        // The read lock is held until the order is done, so that no reload removes a limit meanwhile.
        let state = self.state();
        let plan = LimitPlan::new(&state.rules, backend, route);
        let [server, client_accept] = accept_limits(&state);
        let mut planned: ArrayVec<PlannedLimit, MAX_PLANNED> = ArrayVec::new();
        planned.push(server);
        planned.extend(plan.connections);
        planned.push(client_accept);
        let lease =
            self.ask(RefusalKind::Connections, &planned, Some(client)).map_err(AskError::for_connection)?;
        drop(state);
        connection.held().add(lease, &planned);
        Ok(connection)
    }

    /// Counts a connection at a route, its backend and its client, unless it is already counted there. After
    /// a refusal the connection keeps what it has and may try again.
    pub fn admit_to_route(&self, permit: &ConnectionPermit, plan: &LimitPlan) -> Result<(), LimitRefusal> {
        let owner = permit.client().map_or(RequestOwner::Unknown, RequestOwner::Own);
        self.admit_for_owner(permit, plan, owner)
    }

    /// The same for a client named by the request. If it is not the client counted at accept, the connection
    /// also counts for this client, at accept and at the route. It counts once for each client until it
    /// closes.
    pub fn admit_client_to_route(
        &self,
        permit: &ConnectionPermit,
        plan: &LimitPlan,
        client: &[u8],
    ) -> Result<(), LimitRefusal> {
        let is_own = permit.client() == Some(client);
        self.admit_for_owner(
            permit,
            plan,
            if is_own { RequestOwner::Own(client) } else { RequestOwner::Forwarded(client) },
        )
    }

    /// Releases a connection. Dropping the permit is the same.
    pub fn release_connection(&self, connection: ConnectionPermit) {
        drop(connection);
    }

    /// The number of counted connections.
    pub fn current_connections(&self, counter: ConnectionCounter<'_>) -> u64 {
        self.find_counter(counter).map_or(0, |(id, key)| self.used(&id, key))
    }

    /// Sets a connection count as far as possible and returns the result. Raising takes leases within the
    /// limit. Lowering returns only leases taken here: open connections keep theirs.
    pub fn set_current_connections(&self, counter: ConnectionCounter<'_>, count: u64) -> u64 {
        let Some((id, key)) = self.find_counter(counter) else { return 0 };
        let mut placeholders = self.placeholders.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = placeholders.entry((Arc::clone(&id), key.unwrap_or_default().into())).or_default();
        let mut used = self.used(&id, key);
        let level = if key.is_some() { LimitLevel::Client } else { LimitLevel::Server };
        let planned_limit = [PlannedLimit { level, id: Arc::clone(&id) }];
        while used < count {
            match self.ask(RefusalKind::Connections, &planned_limit, key) {
                Ok(lease) => taken.extend(lease),
                Err(_) => break,
            }
            used += 1;
        }
        while used > count {
            let Some(lease) = taken.pop() else { break };
            self.store.release(lease).now();
            used -= 1;
        }
        self.used(&id, key)
    }

    /// Ensures that connections of a backend and a route are counted, even without limits. Names come from
    /// the configuration, so they are few.
    fn ensure_counted(&self, backend: &str, route: Option<&str>) {
        let state = self.state();
        let known = state.rules.backends.contains_key(backend)
            && route.is_none_or(|route| state.rules.routes.contains_key(route));
        drop(state);
        if known {
            return;
        }
        let known = self.put(|rules| {
            rules.backend(backend);
            if let Some(route) = route {
                rules.route(route).backend.get_or_insert_with(|| backend.into());
            }
        });
        debug_assert!(known.is_ok(), "a name without limits is valid");
    }

    /// The limit and key of a connection count.
    fn find_counter<'k>(&self, counter: ConnectionCounter<'k>) -> Option<(Arc<str>, Option<&'k [u8]>)> {
        let state = self.state();
        let of = |scope_rules: &ScopeRules| Arc::clone(&scope_rules.ids.connections);
        match counter {
            ConnectionCounter::Server => Some((of(&state.rules.server), None)),
            ConnectionCounter::Backend(name) => {
                state.rules.backends.get(name).map(|scope_rules| (of(scope_rules), None))
            }
            ConnectionCounter::Route(id) => {
                state.rules.routes.get(id).map(|scope_rules| (of(scope_rules), None))
            }
            ConnectionCounter::Client(client) => Some((Arc::clone(&state.rules.accept), Some(client))),
        }
    }

    fn admit_for_owner(
        &self,
        permit: &ConnectionPermit,
        plan: &LimitPlan,
        owner: RequestOwner<'_>,
    ) -> Result<(), LimitRefusal> {
        let mut held = permit.held();
        if self.is_current(plan) && plan.has_all_counters {
            match self.acquire_for_route(&mut held, owner, plan) {
                Err(AskError::StalePlan) => {}
                answer => return answer.map_err(AskError::for_connection),
            }
        }
        self.ensure_counted(&plan.backend, plan.route());
        let state = self.state();
        let plan = state.plan(&plan.backend, plan.route());
        self.acquire_for_route(&mut held, owner, &plan).map_err(AskError::for_connection)
    }

    fn acquire_for_route(
        &self,
        held: &mut HeldLeases,
        owner: RequestOwner<'_>,
        plan: &LimitPlan,
    ) -> Result<(), AskError> {
        let is_client_limit = |planned_limit: &&PlannedLimit| planned_limit.level == LimitLevel::Client;
        let mut shared_limits =
            plan.connections.iter().filter(|planned_limit| !is_client_limit(planned_limit));
        // A connection counted at the route and the backend is admitted, even if the client's rule has moved.
        if plan.connections.len() > 1
            && shared_limits.all(|limit| held.has(limit) && held.has_for(owner, limit))
        {
            return Ok(());
        }
        let shared_limits = plan
            .connections
            .iter()
            .filter(|planned_limit| !is_client_limit(planned_limit) && !held.has(planned_limit));
        let accept = matches!(owner, RequestOwner::Forwarded(_)).then_some(&plan.accept);
        let counts = plan.connections.iter().filter(is_client_limit).chain(accept);
        let counts = counts
            .filter(|planned_limit| owner != RequestOwner::Unknown && !held.has_for(owner, planned_limit));
        let new: ArrayVec<PlannedLimit, MAX_PLANNED> = shared_limits.chain(counts).cloned().collect();
        let lease = self.ask(RefusalKind::Connections, &new, owner.client())?;
        match owner {
            RequestOwner::Unknown | RequestOwner::Own(_) => held.add(lease, &new),
            RequestOwner::Forwarded(client) => {
                held.add(lease, new.iter().filter(|planned_limit| !is_client_limit(planned_limit)));
                held.add_forwarded(client, plan.connections.iter().chain(&new));
            }
        }
        Ok(())
    }
}

/// The limits checked at accept: the server's, and the client's.
fn accept_limits(state: &ManagerState) -> [PlannedLimit; 2] {
    let GatewayRules { server, accept, .. } = &state.rules;
    [
        PlannedLimit { level: LimitLevel::Server, id: Arc::clone(&server.ids.connections) },
        PlannedLimit { level: LimitLevel::Client, id: Arc::clone(accept) },
    ]
}
