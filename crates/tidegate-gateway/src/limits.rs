//! The limits of the gateway, document 002's `RateLimitManager`: all levels decided together, counts apart from rules.
//!
//! ```text
//!   accept ───────▶ server + client at the door ──────────┐
//!   first use ────▶ route + backend + client ─────────────┤ one order each ──▶ a lease, held until the connection is dropped
//!   every request ▶ server + route + backend + client ────┘ granted whole, or refused and nothing spent
//!   reload ───────▶ edits, all at once; whatever is counted stays
//! ```
//!
//! Decided:
//! - A client is counted under the scope whose rule holds for it. Who has used up a route's rule has not used up the server's. Its connections
//!   are also counted, without a limit, under the scopes that come before that one: a rule that is written there later knows of them.
//! - A client that is not known before it asks, behind a proxy or by a name, is counted for its connection when it first asks there, at the door
//!   and at the route. A connection that carries several clients counts once for each of them, until it closes.
//! - A connection is asked once for each route, backend and client's rule that it touches. A reload that moves a client's rule to
//!   another scope leaves connections that are open where they were counted.
//! - What server, routes and backends are asked for is counted without a limit too, requests and connections: a limit that comes knows of the
//!   second before it. A client's requests are not, where no rule holds for it: whoever has no limit is not refused for want of room to count.

mod connection;
mod entering;
mod looking;
mod plan;
mod refusal;
mod rules;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use crate::settings::GatewaySpec;
use crate::settings::{Allowance, RateLimits, Window};
use arrayvec::ArrayVec;
use hashbrown::HashMap;
use tidegate::catalog::ApplyError;
use tidegate::clock::Clock;
use tidegate::{
    Ask, Capacity, Catalog, Denied, Detail, Edit, ExpectedVersion, LeaseId, LimitSpec, Memory, MemoryStore,
    Order, OrderError, Outcome, RemovalMode, Replies, Store, Wait,
};

pub use connection::Connection;
pub use looking::{ClientCounts, ClientRule, Rule, Standing, Standings};
use plan::{Gauge, MOST_PLACES};
pub use plan::{Level, Plan};
pub use refusal::{Kind, Refusal};
use rules::{Ruled, Rules};

/// How many clients are remembered at once by each rule, unless told otherwise. A table that is full refuses new clients only.
pub const MOST_CLIENTS: u64 = 1_000_000;

/// The most asks of one order: the server, a route's places, and the client at the door.
const MOST_GAUGES: usize = MOST_PLACES + 2;

/// Whose connections are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted<'a> {
    /// Everybody's.
    Server,
    /// Those that touched a backend.
    Backend(&'a str),
    /// Those that touched a route.
    Route(&'a str),
    /// A client's, at the door.
    Client(&'a [u8]),
}

/// What a reload did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// How many limits were added, changed or removed.
    pub changed: usize,
    /// Limits of connections that are below what is open now: nobody is cut off, and nobody let in until enough have gone.
    pub overfull: Vec<Overfull>,
    /// Whether something has changed that acts only after a restart: where the gateway listens.
    pub needs_restart: bool,
}

/// A limit that is below what is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overfull {
    /// The id of the limit: `server/connections`, `backend/NAME/connections`, `route/ID/connections`.
    pub limit_id: String,
    /// What it says now.
    pub most: u64,
    /// How many are open.
    pub open: u64,
}

/// Document 002's manager.
pub struct RateLimitManager {
    store: MemoryStore,
    most_clients: u64,
    /// That of the rules in force.
    generation: AtomicU64,
    state: RwLock<State>,
    /// Places that [`RateLimitManager::set_current_connections`] took.
    placeholders: Mutex<Placeholders>,
}

/// By limit and key.
type Placeholders = HashMap<(Arc<str>, Box<[u8]>), Vec<LeaseId>>;
/// By backend, then by route; the empty route is none.
type Plans = HashMap<Box<str>, HashMap<Box<str>, Arc<Plan>>>;

/// The rules in force, and what is made of them.
struct State {
    rules: Rules,
    limits: HashMap<Arc<str>, LimitSpec>,
    plans: Plans,
}

thread_local! {
    /// A buffer for answers, so that asking allocates nothing.
    static ANSWERS: Cell<Option<Replies>> = const { Cell::new(None) };
}

impl State {
    fn plan(&self, backend: &str, route: Option<&str>) -> Arc<Plan> {
        let of_backend = self.plans.get(backend);
        match of_backend.and_then(|plans| plans.get(route.unwrap_or_default())) {
            Some(plan) => Arc::clone(plan),
            None => Arc::new(Plan::new(&self.rules, backend, route)),
        }
    }
}

impl RateLimitManager {
    /// A manager without any limits that keeps this clock's time. The clock should not go back when the machine's is set.
    pub fn new(clock: impl Clock + 'static, memory: Memory, most_clients: u64) -> RateLimitManager {
        let state = State { rules: Rules::new(), limits: HashMap::new(), plans: HashMap::new() };
        let manager = RateLimitManager {
            store: MemoryStore::new(clock, memory),
            most_clients: most_clients.max(1),
            generation: AtomicU64::new(0),
            state: RwLock::new(state),
            placeholders: Mutex::default(),
        };
        manager.put(|_| {}).expect("a manager without limits has nothing that could be wrong");
        manager
    }

    /// The store that counts, for those who want to look.
    pub fn store(&self) -> &MemoryStore {
        &self.store
    }

    /// What is asked at a route of a backend, for those who ask often.
    pub fn plan(&self, backend: &str, route: Option<&str>) -> Arc<Plan> {
        self.state().plan(backend, route)
    }

    /// Whether a plan is of the rules that are in force; if not, [`RateLimitManager::plan`] has a new one.
    pub fn is_current(&self, plan: &Plan) -> bool {
        plan.generation == self.generation.load(Ordering::Acquire)
    }

    /// Whether a client's request may go to a backend by a route: asks every level, and takes from all or from none.
    pub fn try_acquire(&self, backend: &str, client: &[u8], route: Option<&str>) -> Result<(), Refusal> {
        self.try_request(&self.plan(backend, route), client)
    }

    /// The same for those who have the plan. One that a reload has left behind is replaced for this once.
    pub fn try_request(&self, plan: &Plan, client: &[u8]) -> Result<(), Refusal> {
        if self.is_current(plan) {
            match self.ask(Kind::Requests, &plan.requests, Some(client)) {
                Ok(_) => return Ok(()),
                Err(Refused::By(refusal)) => return Err(refusal),
                Err(Refused::Outdated) => {}
            }
        }
        let state = self.state();
        let plan = state.plan(&plan.backend, plan.route());
        self.ask(Kind::Requests, &plan.requests, Some(client)).map(drop).map_err(Refused::of_request)
    }

    /// Lets a connection in: counts it for the server, and for its client against the most that any route would give it. Connections
    /// whose client only a request can name, such as those of a trusted proxy, have none: [`RateLimitManager::enter_as`].
    pub fn accept(&self, client: Option<&[u8]>) -> Result<Connection, Refusal> {
        let connection = Connection::new(self.store.clone(), client);
        let gauges = at_the_door(&self.state());
        let gauges = if client.is_some() { &gauges[..] } else { &gauges[..1] };
        let lease = self.ask(Kind::Connections, gauges, client).map_err(Refused::of_connection)?;
        connection.held().add(lease, gauges);
        Ok(connection)
    }

    /// A connection that is let in and enters at once: all levels in one order.
    pub fn try_acquire_connection(
        &self,
        backend: &str,
        client: &[u8],
        route: Option<&str>,
    ) -> Result<Connection, Refusal> {
        let connection = Connection::new(self.store.clone(), Some(client));
        self.know(backend, route);
        // Held until all is asked: nothing that is asked for can be removed meanwhile.
        let state = self.state();
        let plan = Plan::new(&state.rules, backend, route);
        let [server, at_the_door] = at_the_door(&state);
        let mut gauges: ArrayVec<Gauge, MOST_GAUGES> = ArrayVec::new();
        gauges.push(server);
        gauges.extend(plan.connections);
        gauges.push(at_the_door);
        let lease = self.ask(Kind::Connections, &gauges, Some(client)).map_err(Refused::of_connection)?;
        drop(state);
        connection.held().add(lease, &gauges);
        Ok(connection)
    }

    /// Gives a connection back; to drop it is the same.
    pub fn release_connection(&self, connection: Connection) {
        drop(connection);
    }

    /// How many connections are counted.
    pub fn current_connections(&self, whose: Counted<'_>) -> u64 {
        self.counter(whose).map_or(0, |(id, key)| self.used(&id, key))
    }

    /// Makes the count of connections this, as far as that can be: places are taken as far as the limit has any, and only places that
    /// were taken so are given back, because a connection that is open is given back by itself alone. Returns the count.
    pub fn set_current_connections(&self, whose: Counted<'_>, count: u64) -> u64 {
        let Some((id, key)) = self.counter(whose) else { return 0 };
        let mut placeholders = self.placeholders.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = placeholders.entry((Arc::clone(&id), key.unwrap_or_default().into())).or_default();
        let mut used = self.used(&id, key);
        let level = if key.is_some() { Level::Client } else { Level::Server };
        let gauge = [Gauge { level, id: Arc::clone(&id) }];
        while used < count {
            match self.ask(Kind::Connections, &gauge, key) {
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

    /// Sets what a backend may be asked for; `None` is nothing configured. Whether anything changed.
    pub fn update_backend_limiter(
        &self,
        backend: &str,
        limits: Option<RateLimits>,
    ) -> Result<bool, ApplyError> {
        let mut changed = false;
        self.put(|rules| changed = rules.backend(backend).say(limits))?;
        Ok(changed)
    }

    /// Sets what a route may be asked for; `None` is nothing configured. Whether anything changed.
    pub fn update_route_limiter(&self, route: &str, limits: Option<RateLimits>) -> Result<bool, ApplyError> {
        let mut changed = false;
        self.put(|rules| changed = rules.route(route).say(limits))?;
        Ok(changed)
    }

    /// Sets what everybody together may do; `None` is no limit. Whether anything changed.
    pub fn update_server_rate_limit_config(&self, limits: Option<RateLimits>) -> Result<bool, ApplyError> {
        let mut changed = false;
        self.put(|rules| changed = rules.server.say(limits))?;
        Ok(changed)
    }

    /// Takes the limits of all routes away. Connections stay counted.
    pub fn clear_route_limiters(&self) -> Result<(), ApplyError> {
        let clear = |rules: &mut Rules| {
            rules.routes.values_mut().for_each(|ruled| ruled.limits = RateLimits::default());
        };
        self.put(clear).map(drop)
    }

    /// Forgets what requests clients have made. Connections stay counted; a new rule needs no call of this.
    pub fn clear_client_limiters(&self) {
        let state = self.state();
        let everybody = state.rules.backends.values().chain(state.rules.routes.values());
        for Ruled { ids, .. } in everybody.chain([&state.rules.server]) {
            if state.limits.contains_key(&ids.client_qps) {
                self.forget(&ids.client_qps);
            }
        }
    }

    /// Puts a file in force: all of it or nothing, and only what changed is touched. Whatever is counted stays.
    pub fn reload(&self, spec: &GatewaySpec) -> Result<Reloaded, ApplyError> {
        self.put(|rules| *rules = rules.of(spec))
    }

    /// Changes the rules, and makes the limits say the same.
    fn put(&self, change: impl FnOnce(&mut Rules)) -> Result<Reloaded, ApplyError> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let mut rules = state.rules.clone();
        change(&mut rules);
        rules.generation += 1;
        let limits = rules.limits(self.most_clients);
        let puts = limits.iter().filter(|(id, spec)| state.limits.get(*id) != Some(*spec));
        let puts = puts.map(|(_, spec)| Edit::Put(spec.clone(), ExpectedVersion::Anything));
        let gone = state.limits.keys().filter(|id| !limits.contains_key(*id));
        let gone = gone.map(|id| Edit::Remove(id.to_string(), RemovalMode::Retire));
        let edits: Vec<Edit> = puts.chain(gone).collect();
        let changed: Vec<String> = edits.iter().map(|edit| edit.id().to_owned()).collect();
        if !edits.is_empty() {
            self.store.apply(edits)?;
        }
        self.tell_server(&state.rules, &rules);
        let overfull = self.overfull(&limits, &changed);
        state.plans = plans(&rules);
        state.limits = limits;
        self.generation.store(rules.generation, Ordering::Release);
        state.rules = rules;
        Ok(Reloaded { changed: changed.len(), overfull, needs_restart: false })
    }

    /// Sees to it that connections of a backend and a route are counted, limited or not. Names are the configuration's, so they are few.
    fn know(&self, backend: &str, route: Option<&str>) {
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
        debug_assert!(known.is_ok(), "a name without limits has nothing that could be wrong");
    }

    /// What the log is told of a change at the server, and what document 002 has restarted with it.
    fn tell_server(&self, before: &Rules, after: &Rules) {
        let (old, new) = (before.server.limits, after.server.limits);
        if old == new {
            return;
        }
        tracing::info!(
            "Server rate limit config updated: QPS {} -> {}, connections {} -> {}, QPS per client {} -> {}, connections per client {} -> {}",
            shown(old.max_qps),
            shown(new.max_qps),
            shown(old.max_connections),
            shown(new.max_connections),
            shown(old.max_qps_per_client),
            shown(new.max_qps_per_client),
            shown(old.max_connections_per_client),
            shown(new.max_connections_per_client),
        );
        if after.window == Window::Fixed
            && old.max_qps != new.max_qps
            && new.max_qps.capacity() != Capacity::Unlimited
        {
            self.forget(&after.server.ids.qps);
        }
    }

    /// The limits of connections among these that are below what is open.
    fn overfull(&self, limits: &HashMap<Arc<str>, LimitSpec>, changed: &[String]) -> Vec<Overfull> {
        let mut overfull = Vec::new();
        for id in changed.iter().filter(|id| id.ends_with("/connections")) {
            let limit = limits.get(id.as_str()).and_then(|spec| spec.items.first()).map(|item| item.limit);
            let Some(Capacity::AtMost(most)) = limit else { continue };
            let open = self.used(id, None);
            if most < open {
                tracing::warn!(
                    limit = %id,
                    "New maxConnections ({most}) is less than current connections ({open}): nobody is cut off, new connections are \
                     refused until enough have closed"
                );
                overfull.push(Overfull { limit_id: id.clone(), most, open });
            }
        }
        overfull
    }

    /// One order over all of these.
    fn ask(&self, kind: Kind, gauges: &[Gauge], client: Option<&[u8]>) -> Result<Option<LeaseId>, Refused> {
        if gauges.is_empty() {
            return Ok(None);
        }
        let key = |gauge: &Gauge| if gauge.level == Level::Client { client } else { None };
        let asks: ArrayVec<Ask<'_>, MOST_GAUGES> =
            gauges.iter().map(|gauge| Ask::one(&gauge.id, key(gauge))).collect();
        let buffer = ANSWERS.take().unwrap_or_else(|| Replies::new(Detail::Verdicts));
        let answers = self.store.submit(&[Order::acquire(&asks)], buffer).now();
        let answer = match answers.get(0) {
            Some(Ok(answer)) => match &answer.outcome {
                Outcome::Granted(grant) => Ok(grant.as_ref().map(|grant| grant.lease)),
                Outcome::Denied(denied) => {
                    let after = |until| self.store.capabilities().tick.duration(until);
                    let wait = match denied.wait {
                        Wait::Until(at) => Some(after(at.since(answer.at))),
                        Wait::OnRelease | Wait::Never => None,
                    };
                    Err(Refused::By(refusal(kind, gauges, denied, wait, answer.degraded)))
                }
            },
            Some(Err(OrderError::UnknownLimit { .. })) => Err(Refused::Outdated),
            Some(Err(_)) | None => Err(Refused::By(cannot_count(kind))),
        };
        ANSWERS.set(Some(answers));
        answer
    }

    /// The limit that counts these, and under which key.
    fn counter<'k>(&self, whose: Counted<'k>) -> Option<(Arc<str>, Option<&'k [u8]>)> {
        let state = self.state();
        let of = |ruled: &Ruled| Arc::clone(&ruled.ids.connections);
        match whose {
            Counted::Server => Some((of(&state.rules.server), None)),
            Counted::Backend(name) => state.rules.backends.get(name).map(|ruled| (of(ruled), None)),
            Counted::Route(id) => state.rules.routes.get(id).map(|ruled| (of(ruled), None)),
            Counted::Client(client) => Some((Arc::clone(&state.rules.accept), Some(client))),
        }
    }

    fn used(&self, id: &str, key: Option<&[u8]>) -> u64 {
        let usage = self.store.usage(id, key).now();
        usage.ok().and_then(|usage| usage.items.first().map(|item| item.current_count)).unwrap_or(0)
    }

    /// Zeroes what a limit that is there has counted.
    fn forget(&self, id: &str) {
        let forgotten = self.store.reset(id, None).now();
        debug_assert!(forgotten.is_ok(), "the limit {id} is there");
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for RateLimitManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RateLimitManager").field("rules", &self.state().rules).finish_non_exhaustive()
    }
}

/// Why an order was not granted.
enum Refused {
    By(Refusal),
    /// It names a limit that a reload has removed.
    Outdated,
}

impl Refused {
    /// What is said of a request where nothing can be outdated.
    fn of_request(self) -> Refusal {
        self.or_uncounted(Kind::Requests)
    }

    /// What is said of a connection where nothing can be outdated.
    fn of_connection(self) -> Refusal {
        self.or_uncounted(Kind::Connections)
    }

    fn or_uncounted(self, kind: Kind) -> Refusal {
        match self {
            Refused::By(refusal) => refusal,
            Refused::Outdated => cannot_count(kind),
        }
    }
}

/// What a connection is asked for when it comes: the server, and its client at the door.
fn at_the_door(state: &State) -> [Gauge; 2] {
    let Rules { server, accept, .. } = &state.rules;
    [
        Gauge { level: Level::Server, id: Arc::clone(&server.ids.connections) },
        Gauge { level: Level::Client, id: Arc::clone(accept) },
    ]
}

/// The plans of everything that has a name.
fn plans(rules: &Rules) -> Plans {
    let mut plans = Plans::new();
    for backend in rules.backends.keys() {
        let plan = Plan::new(rules, backend, None);
        plans.entry(backend.clone()).or_default().insert("".into(), Arc::new(plan));
    }
    for (route, ruled) in &rules.routes {
        if let Some(backend) = &ruled.backend {
            let plan = Plan::new(rules, backend, Some(route));
            plans.entry(backend.clone()).or_default().insert(route.clone(), Arc::new(plan));
        }
    }
    plans
}

fn refusal(
    kind: Kind,
    gauges: &[Gauge],
    denied: &Denied,
    retry_after: Option<Duration>,
    degraded: bool,
) -> Refusal {
    let (first, item) = &denied.first;
    let level =
        gauges.iter().find(|gauge| *gauge.id == *first.id()).map_or(Level::Client, |gauge| gauge.level);
    let limit = match first.spec().items.get(*item).map(|item| item.limit) {
        Some(Capacity::AtMost(limit)) => limit,
        _ => 0,
    };
    Refusal { kind, level, limit, retry_after, degraded }
}

/// The refusal of somebody who cannot be counted, such as a client whose name is too long.
const fn cannot_count(kind: Kind) -> Refusal {
    Refusal { kind, level: Level::Client, limit: 0, retry_after: None, degraded: true }
}

/// A limit as document 002 writes it.
fn shown(allowance: Allowance) -> String {
    match allowance {
        Allowance::AtMost(most) => most.to_string(),
        Allowance::Inherit => "-1".to_owned(),
        Allowance::Unlimited => "unlimited".to_owned(),
    }
}
