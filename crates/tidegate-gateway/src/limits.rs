//! The limits of the gateway: [`RateLimitManager`] decides all levels in one order. Rules and counts are separate.
//!
//! ```text
//!   accept ───────▶ server + client ───────────────────────┐
//!   first use ────▶ route + backend + client ──────────────┤ one order each ──▶ a lease, held until the connection is dropped
//!   every request ▶ server + route + backend + client ─────┘ granted as a whole, or refused without spending anything
//!   reload ───────▶ atomic edits; counts are kept
//! ```
//!
//! - A client is counted under the scope whose rule applies. Using up a route's rule does not use up the server's.
//! - A client's connections are also counted, without a limit, under the more specific scopes. A rule added there later
//!   knows the open connections.
//! - A client that is known only from its request (behind a proxy, or by name) is counted for its connection at its first
//!   request. A connection that carries several clients counts once for each of them until it closes.
//! - A connection is counted once for each route, backend and client rule it uses. A reload that moves a client's rule to
//!   another scope does not move open connections.
//! - Requests and connections of the server, routes and backends are counted even without a limit, so that a new limit knows
//!   the previous second. Requests of clients without a rule are not counted: an unlimited client is never refused for lack
//!   of memory.

mod connection_limit;
mod held_leases;
mod plan;
mod refusal;
mod rules;
mod usage;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use crate::settings::GatewaySpec;
use crate::settings::{Allowance, RateLimits, Window};
use arrayvec::ArrayVec;
use hashbrown::HashMap;
use tidegate::catalog::ApplyError;
use tidegate::catalog::{Catalog, Edit, ExpectedVersion, RemovalMode};
use tidegate::clock::Clock;
use tidegate::model::{Ask, Capacity, LeaseId, LimitSpec, Order, Wait};
use tidegate::reply::{Detail, OrderError, OrderRefusal, Outcome, Replies};
use tidegate::store::{Memory, MemoryStore, Store};

pub use connection_limit::ConnectionCounter;
pub use held_leases::ConnectionPermit;
pub use plan::{LimitLevel, LimitPlan};
use plan::{MAX_ROUTE_LIMITS, PlannedLimit};
pub use refusal::{LimitRefusal, RefusalKind};
use rules::{GatewayRules, ScopeRules};
pub use usage::{ClientRuleCounts, ClientRuleUsage, LimitsUsage, RuleUsage, ScopeUsage};

/// The default maximum number of clients per rule. A full table refuses new clients only.
pub const MAX_CLIENTS: u64 = 1_000_000;

/// The maximum number of limits in one order: the server, the limits of a route, and the client at accept.
const MAX_PLANNED: usize = MAX_ROUTE_LIMITS + 2;

/// The result of a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReloadSummary {
    /// The number of limits that were added, changed or removed.
    pub changed: usize,
    /// Connection limits below the current count. Open connections stay; new ones are refused until enough
    /// have closed.
    pub overfull: Vec<OverfullLimit>,
    /// Whether a listen address changed, which takes effect only after a restart.
    pub needs_restart: bool,
}

/// A limit below its current count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverfullLimit {
    /// The id of the limit: `server/connections`, `backend/NAME/connections`, `route/ID/connections`.
    pub limit_id: String,
    /// The limit.
    pub most: u64,
    /// The number of open connections.
    pub open: u64,
}

/// Decides all levels of limits for requests and connections.
pub struct RateLimitManager {
    store: MemoryStore,
    max_clients: u64,
    /// The generation of the current rules.
    generation: AtomicU64,
    state: RwLock<ManagerState>,
    /// Leases taken by [`RateLimitManager::set_current_connections`].
    placeholders: Mutex<Placeholders>,
}

/// By limit and key.
type Placeholders = HashMap<(Arc<str>, Box<[u8]>), Vec<LeaseId>>;
/// By backend, then by route. The empty route stands for no route.
type Plans = HashMap<Box<str>, HashMap<Box<str>, Arc<LimitPlan>>>;

/// The current rules and what is derived from them.
struct ManagerState {
    rules: GatewayRules,
    limits: HashMap<Arc<str>, LimitSpec>,
    plans: Plans,
}

thread_local! {
    /// A reply buffer, so that a decision allocates nothing.
    static REPLIES: Cell<Option<Replies>> = const { Cell::new(None) };
}

impl ManagerState {
    fn plan(&self, backend: &str, route: Option<&str>) -> Arc<LimitPlan> {
        let of_backend = self.plans.get(backend);
        match of_backend.and_then(|plans| plans.get(route.unwrap_or_default())) {
            Some(plan) => Arc::clone(plan),
            None => Arc::new(LimitPlan::new(&self.rules, backend, route)),
        }
    }
}

impl RateLimitManager {
    /// Creates a manager without limits. The clock must be monotonic: it should not go back when the system
    /// clock is set.
    pub fn new(clock: impl Clock + 'static, memory: Memory, max_clients: u64) -> RateLimitManager {
        let state =
            ManagerState { rules: GatewayRules::new(), limits: HashMap::new(), plans: HashMap::new() };
        let manager = RateLimitManager {
            store: MemoryStore::new(clock, memory),
            max_clients: max_clients.max(1),
            generation: AtomicU64::new(0),
            state: RwLock::new(state),
            placeholders: Mutex::default(),
        };
        manager.put(|_| {}).expect("an empty set of limits is valid");
        manager
    }

    /// The store that holds the counts.
    pub fn store(&self) -> &MemoryStore {
        &self.store
    }

    /// The limits for a route of a backend. Keep the plan to avoid the lookup.
    pub fn plan(&self, backend: &str, route: Option<&str>) -> Arc<LimitPlan> {
        self.state().plan(backend, route)
    }

    /// Whether a plan belongs to the current rules. If not, get a new one from [`RateLimitManager::plan`].
    pub fn is_current(&self, plan: &LimitPlan) -> bool {
        plan.generation == self.generation.load(Ordering::Acquire)
    }

    /// Decides a request at every level: takes from all or from none.
    pub fn try_acquire(&self, backend: &str, client: &[u8], route: Option<&str>) -> Result<(), LimitRefusal> {
        self.try_request(&self.plan(backend, route), client)
    }

    /// Decides a request with a plan. A stale plan is replaced for this call.
    pub fn try_request(&self, plan: &LimitPlan, client: &[u8]) -> Result<(), LimitRefusal> {
        if self.is_current(plan) {
            match self.ask(RefusalKind::Requests, &plan.requests, Some(client)) {
                Ok(_) => return Ok(()),
                Err(AskError::Denied(refusal)) => return Err(refusal),
                Err(AskError::StalePlan) => {}
            }
        }
        let state = self.state();
        let plan = state.plan(&plan.backend, plan.route());
        self.ask(RefusalKind::Requests, &plan.requests, Some(client)).map(drop).map_err(AskError::for_request)
    }

    /// Sets the limits of a backend; `None` removes them. Returns whether anything changed.
    pub fn update_backend_limiter(
        &self,
        backend: &str,
        limits: Option<RateLimits>,
    ) -> Result<bool, ApplyError> {
        let mut changed = false;
        self.put(|rules| changed = rules.backend(backend).replace_limits(limits))?;
        Ok(changed)
    }

    /// Sets the limits of a route; `None` removes them. Returns whether anything changed.
    pub fn update_route_limiter(&self, route: &str, limits: Option<RateLimits>) -> Result<bool, ApplyError> {
        let mut changed = false;
        self.put(|rules| changed = rules.route(route).replace_limits(limits))?;
        Ok(changed)
    }

    /// Sets the limits of the server; `None` removes them. Returns whether anything changed.
    pub fn update_server_rate_limit_config(&self, limits: Option<RateLimits>) -> Result<bool, ApplyError> {
        let mut changed = false;
        self.put(|rules| changed = rules.server.replace_limits(limits))?;
        Ok(changed)
    }

    /// Removes the limits of all routes. Connections stay counted.
    pub fn clear_route_limiters(&self) -> Result<(), ApplyError> {
        let clear = |rules: &mut GatewayRules| {
            rules.routes.values_mut().for_each(|scope_rules| scope_rules.limits = RateLimits::default());
        };
        self.put(clear).map(drop)
    }

    /// Resets the request counts of all clients. Connections stay counted. A new rule does not need this
    /// call.
    pub fn clear_client_limiters(&self) {
        let state = self.state();
        let named = state.rules.backends.values().chain(state.rules.routes.values());
        for ScopeRules { ids, .. } in named.chain([&state.rules.server]) {
            if state.limits.contains_key(&ids.client_qps) {
                self.forget(&ids.client_qps);
            }
        }
    }

    /// Applies new settings: all or nothing, and only what changed. Counts are kept.
    pub fn reload(&self, spec: &GatewaySpec) -> Result<ReloadSummary, ApplyError> {
        self.put(|rules| *rules = rules.with_spec(spec))
    }

    /// Changes the rules and updates the limits in the store.
    fn put(&self, change: impl FnOnce(&mut GatewayRules)) -> Result<ReloadSummary, ApplyError> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let mut rules = state.rules.clone();
        change(&mut rules);
        rules.generation += 1;
        let limits = rules.limits(self.max_clients);
        let puts = limits.iter().filter(|(id, spec)| state.limits.get(*id) != Some(*spec));
        let puts = puts.map(|(_, spec)| Edit::Put(spec.clone(), ExpectedVersion::Anything));
        let gone = state.limits.keys().filter(|id| !limits.contains_key(*id));
        let gone = gone.map(|id| Edit::Remove(id.to_string(), RemovalMode::Retire));
        let edits: Vec<Edit> = puts.chain(gone).collect();
        let changed: Vec<String> = edits.iter().map(|edit| edit.id().to_owned()).collect();
        if !edits.is_empty() {
            self.store.apply(edits)?;
        }
        self.log_server_change(&state.rules, &rules);
        let overfull = self.overfull(&limits, &changed);
        state.plans = plans(&rules);
        state.limits = limits;
        self.generation.store(rules.generation, Ordering::Release);
        state.rules = rules;
        Ok(ReloadSummary { changed: changed.len(), overfull, needs_restart: false })
    }

    /// Logs a change of the server's limits. A changed limit on a fixed window resets its count.
    fn log_server_change(&self, before: &GatewayRules, after: &GatewayRules) {
        let (old, new) = (before.server.limits, after.server.limits);
        if old == new {
            return;
        }
        tracing::info!(
            "Server rate limit config updated: QPS {} -> {}, connections {} -> {}, QPS per client {} -> {}, connections per client {} -> {}",
            display_allowance(old.max_qps),
            display_allowance(new.max_qps),
            display_allowance(old.max_connections),
            display_allowance(new.max_connections),
            display_allowance(old.max_qps_per_client),
            display_allowance(new.max_qps_per_client),
            display_allowance(old.max_connections_per_client),
            display_allowance(new.max_connections_per_client),
        );
        if after.window == Window::Fixed
            && old.max_qps != new.max_qps
            && new.max_qps.capacity() != Capacity::Unlimited
        {
            self.forget(&after.server.ids.qps);
        }
    }

    /// The changed connection limits that are below their current count.
    fn overfull(&self, limits: &HashMap<Arc<str>, LimitSpec>, changed: &[String]) -> Vec<OverfullLimit> {
        let mut overfull = Vec::new();
        for id in changed.iter().filter(|id| id.ends_with("/connections")) {
            let limit = limits.get(id.as_str()).and_then(|spec| spec.items.first()).map(|item| item.limit);
            let Some(Capacity::AtMost(most)) = limit else { continue };
            let open = self.used(id, None);
            if most < open {
                tracing::warn!(
                    limit = %id,
                    "New maxConnections ({most}) is less than current connections ({open}): open connections stay, new ones are \
                     refused until enough have closed"
                );
                overfull.push(OverfullLimit { limit_id: id.clone(), most, open });
            }
        }
        overfull
    }

    /// Submits one order over all of these limits.
    fn ask(
        &self,
        kind: RefusalKind,
        planned: &[PlannedLimit],
        client: Option<&[u8]>,
    ) -> Result<Option<LeaseId>, AskError> {
        if planned.is_empty() {
            return Ok(None);
        }
        let key = |planned_limit: &PlannedLimit| {
            if planned_limit.level == LimitLevel::Client { client } else { None }
        };
        let asks: ArrayVec<Ask<'_>, MAX_PLANNED> =
            planned.iter().map(|planned_limit| Ask::one(&planned_limit.id, key(planned_limit))).collect();
        let buffer = REPLIES.take().unwrap_or_else(|| Replies::new(Detail::Verdicts));
        let replies = self.store.submit(&[Order::acquire(&asks)], buffer).now();
        let reply = match replies.get(0) {
            Some(Ok(reply)) => match &reply.outcome {
                Outcome::Granted(grant) => Ok(grant.as_ref().map(|grant| grant.lease)),
                Outcome::Denied(denied) => {
                    let after = |until| self.store.capabilities().tick.duration(until);
                    let wait = match denied.wait {
                        Wait::Until(at) => Some(after(at.since(reply.at))),
                        Wait::OnRelease | Wait::Never => None,
                    };
                    Err(AskError::Denied(refusal(kind, planned, denied, wait, reply.degraded)))
                }
            },
            Some(Err(OrderError::UnknownLimit { .. })) => Err(AskError::StalePlan),
            Some(Err(_)) | None => Err(AskError::Denied(uncountable_refusal(kind))),
        };
        REPLIES.set(Some(replies));
        reply
    }

    fn used(&self, id: &str, key: Option<&[u8]>) -> u64 {
        let usage = self.store.usage(id, key).now();
        usage.ok().and_then(|usage| usage.items.first().map(|item| item.current_count)).unwrap_or(0)
    }

    /// Resets the counts of an existing limit.
    fn forget(&self, id: &str) {
        let forgotten = self.store.reset(id, None).now();
        debug_assert!(forgotten.is_ok(), "the limit {id} exists");
    }

    fn state(&self) -> RwLockReadGuard<'_, ManagerState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for RateLimitManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RateLimitManager").field("rules", &self.state().rules).finish_non_exhaustive()
    }
}

/// Why an order was not granted.
enum AskError {
    Denied(LimitRefusal),
    /// The order names a limit that a reload has removed.
    StalePlan,
}

impl AskError {
    /// The refusal of a request, where a stale plan is not possible.
    fn for_request(self) -> LimitRefusal {
        self.or_uncountable(RefusalKind::Requests)
    }

    /// The refusal of a connection, where a stale plan is not possible.
    fn for_connection(self) -> LimitRefusal {
        self.or_uncountable(RefusalKind::Connections)
    }

    fn or_uncountable(self, kind: RefusalKind) -> LimitRefusal {
        match self {
            AskError::Denied(refusal) => refusal,
            AskError::StalePlan => uncountable_refusal(kind),
        }
    }
}

/// The plans of all named backends and routes.
fn plans(rules: &GatewayRules) -> Plans {
    let mut plans = Plans::new();
    for backend in rules.backends.keys() {
        let plan = LimitPlan::new(rules, backend, None);
        plans.entry(backend.clone()).or_default().insert("".into(), Arc::new(plan));
    }
    for (route, scope_rules) in &rules.routes {
        if let Some(backend) = &scope_rules.backend {
            let plan = LimitPlan::new(rules, backend, Some(route));
            plans.entry(backend.clone()).or_default().insert(route.clone(), Arc::new(plan));
        }
    }
    plans
}

fn refusal(
    kind: RefusalKind,
    planned: &[PlannedLimit],
    denied: &OrderRefusal,
    retry_after: Option<Duration>,
    degraded: bool,
) -> LimitRefusal {
    let (first, item) = &denied.first;
    let level = planned
        .iter()
        .find(|planned_limit| *planned_limit.id == *first.id())
        .map_or(LimitLevel::Client, |planned_limit| planned_limit.level);
    let limit = match first.spec().items.get(*item).map(|item| item.limit) {
        Some(Capacity::AtMost(limit)) => limit,
        _ => 0,
    };
    LimitRefusal { kind, level, limit, retry_after, degraded }
}

/// The refusal of a client that cannot be counted, such as one with a key that is too long.
const fn uncountable_refusal(kind: RefusalKind) -> LimitRefusal {
    LimitRefusal { kind, level: LimitLevel::Client, limit: 0, retry_after: None, degraded: true }
}

/// A limit as written in the settings.
fn display_allowance(allowance: Allowance) -> String {
    match allowance {
        Allowance::AtMost(most) => most.to_string(),
        Allowance::Inherit => "-1".to_owned(),
        Allowance::Unlimited => "unlimited".to_owned(),
    }
}
