//! Route admission: a connection is counted at a route with its first request there.

use arrayvec::ArrayVec;

use super::connection_permit::{ConnectionPermit, HeldLeases, RequestOwner};
use super::plan::{LimitLevel, LimitPlan, PlannedLimit};
use super::refusal::{LimitRefusal, RefusalKind};
use super::{AskError, MAX_PLANNED, RateLimitManager};

impl RateLimitManager {
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
