//! Shared fixtures: a manager, a manual clock and example settings.

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::clock::ManualClock;
use tidegate::model::Timestamp;
use tidegate::store::Memory;
use tidegate_gateway::RateLimitManager;
use tidegate_gateway::settings::{Allowance, RateLimits};
use tidegate_gateway::settings::{GatewaySpec, read_gateway};

/// The example settings with the fields that a gateway needs.
pub(crate) const EXAMPLE: &str = r"
server:
  rateLimit: {maxQps: 2000, maxConnections: 10000, maxQpsPerClient: 10, maxConnectionsPerClient: 5}
backends:
  - name: api-service
    endpoints: [{host: 127.0.0.1, port: 8080}]
    rateLimit: {maxQps: 1000, maxConnections: 5000, maxQpsPerClient: 50, maxConnectionsPerClient: 10}
  - name: plain
    endpoints: [{host: 127.0.0.1, port: 8081}]
routes:
  - host: api.example.com
    backend: api-service
    rateLimit: {maxQps: 500, maxConnections: 2000, maxQpsPerClient: 100, maxConnectionsPerClient: 20}
  - {host: other.example.com, backend: api-service}
  - {host: plain.example.com, backend: plain}
  - {host: mixed.example.com, backend: api-service, rateLimit: {maxQpsPerClient: 100, maxConnectionsPerClient: -1}}
";

pub(crate) fn spec(text: &str) -> GatewaySpec {
    match read_gateway("gateway.yaml", text.as_bytes(), &|_| None) {
        Ok(spec) => spec,
        Err(wrong) => panic!("{wrong:?}"),
    }
}

/// A manual clock that tests and managers share.
#[derive(Clone)]
pub(crate) struct SharedManualClock(Arc<ManualClock>);

impl SharedManualClock {
    pub(crate) fn advance(&self, by: Duration) {
        self.0.advance(by);
    }
}

impl Clock for SharedManualClock {
    fn now(&self) -> Timestamp {
        Clock::now(&*self.0)
    }
}

/// A manager without limits, at a whole second.
pub(crate) fn manager() -> (RateLimitManager, SharedManualClock) {
    let start = Timestamp::from_ticks(1_800_000_000_000_000_000);
    let clock = SharedManualClock(Arc::new(ManualClock::at(start)));
    let memory = Memory { capacity_bytes: 64 << 20, secret: [1, 2] };
    (RateLimitManager::new(clock.clone(), memory, 100_000), clock)
}

/// A manager with these settings.
pub(crate) fn manager_with(text: &str) -> (RateLimitManager, SharedManualClock) {
    let (manager, clock) = manager();
    manager.reload(&spec(text)).expect("valid settings");
    (manager, clock)
}

/// The four limits; `-1` is none.
pub(crate) fn limits(qps: i64, connections: i64, client_qps: i64, client_connections: i64) -> RateLimits {
    let allowance = |number: i64| u64::try_from(number).map_or(Allowance::Inherit, Allowance::AtMost);
    RateLimits {
        max_qps: allowance(qps),
        max_connections: allowance(connections),
        max_qps_per_client: allowance(client_qps),
        max_connections_per_client: allowance(client_connections),
    }
}
