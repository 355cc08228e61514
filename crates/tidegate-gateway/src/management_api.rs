//! The management API for operators and monitoring.
//!
//! | | |
//! |---|---|
//! | `GET /health` | whether the gateway serves: 200 `UP`, 503 `DRAINING` or `DOWN` |
//! | `GET /metrics` | all metrics in the Prometheus text format |
//! | `GET /limits` | all limits with usage and refusals, and the hottest clients |
//! | `POST /reload` | reloads the settings: 200 with the changes, 422 with all errors |
//!
//! Responses are pure functions of a [`ManagedGateway`]. The sockets are in `listener.rs` on a thread of their own, so that
//! monitoring does not slow down requests.
//!
//! There is no authentication. The port listens on the loopback interface unless configured otherwise; another address
//! exposes it to a network of operators, as with other exporters.

mod listener;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tidegate::model::Capacity;
use tidegate_net::metrics_page;

use crate::endpoints::UpstreamBackend;
use crate::hottest_clients::{HottestClient, format_client};
use crate::limits::{
    ClientRuleUsage, ConnectionCounter, OverfullLimit, RateLimitManager, ReloadSummary, RuleUsage, ScopeUsage,
};
use crate::metrics::GatewayMetrics;
use crate::reload::RejectedConfig;

pub use listener::{CONNECTION_TIMEOUT, MAX_BODY_BYTES, MAX_CONNECTIONS, ManagementPort, check, start};

/// The number of hottest clients in `/limits`.
pub const MAX_HOTTEST: usize = 20;

/// The interval at which the client counts are halved.
pub const HALF_LIFE: Duration = Duration::from_secs(10);

const JSON: &str = "application/json";
const PROBLEM: &str = "application/problem+json";

/// What the management API needs from a gateway.
pub trait ManagedGateway: Send + Sync {
    /// The status of the gateway.
    fn status(&self) -> GatewayStatus;
    /// The wall clock time since 1970.
    fn now(&self) -> Duration;
    /// The time since the start.
    fn uptime(&self) -> Duration;
    /// The limits.
    fn limits(&self) -> &RateLimitManager;
    /// The metrics.
    fn metrics(&self) -> &GatewayMetrics;
    /// The current backends.
    fn backends(&self) -> Vec<Arc<UpstreamBackend>>;
    /// Reloads the settings, changed or not.
    fn reload(&self) -> Result<ReloadSummary, RejectedConfig>;
}

/// The status of a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GatewayStatus {
    /// Serving.
    Up,
    /// Finishing active requests, accepting no connections.
    Draining,
    /// Not serving.
    Down,
}

impl GatewayStatus {
    /// The value in `/health`.
    pub const fn as_str(self) -> &'static str {
        match self {
            GatewayStatus::Up => "UP",
            GatewayStatus::Draining => "DRAINING",
            GatewayStatus::Down => "DOWN",
        }
    }
}

/// A response of the management API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagementResponse {
    /// The status.
    pub status: u16,
    /// The media type of the body.
    pub content_type: &'static str,
    /// The allowed methods, if the method was wrong.
    pub allow: Option<&'static str>,
    /// The body.
    pub body: Vec<u8>,
}

impl ManagementResponse {
    fn json(status: u16, value: &Value) -> ManagementResponse {
        ManagementResponse { status, content_type: JSON, allow: None, body: pretty_json(value) }
    }

    fn problem(
        status: u16,
        code: &'static str,
        title: &'static str,
        detail: &str,
        errors: &[String],
    ) -> ManagementResponse {
        let mut problem = json!({
            "type": "about:blank", "title": title, "status": status, "code": code, "detail": detail,
        });
        if !errors.is_empty() {
            problem["errors"] = errors.into();
        }
        ManagementResponse { content_type: PROBLEM, ..ManagementResponse::json(status, &problem) }
    }

    /// The response to a browser request from another site's page.
    fn foreign_origin() -> ManagementResponse {
        let detail = "requests that browsers send for web pages (with an Origin) change nothing here";
        ManagementResponse::problem(403, "foreign_origin", "Not from here", detail, &[])
    }

    fn too_large() -> ManagementResponse {
        let detail = format!("a body may have at most {MAX_BODY_BYTES} bytes, and nothing here needs one");
        ManagementResponse::problem(413, "too_large", "The body is too large", &detail, &[])
    }
}

/// Indented JSON with a final newline.
fn pretty_json(value: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).unwrap_or_default();
    text.push(b'\n');
    text
}

/// Responds to a request without a body. Paths with `GET` also accept `HEAD`; the caller omits the body.
pub fn respond(method: &str, path: &str, gateway: &dyn ManagedGateway) -> ManagementResponse {
    let (allow, make): (_, fn(&dyn ManagedGateway) -> ManagementResponse) = match path {
        "/health" => ("GET, HEAD", health),
        "/metrics" => ("GET, HEAD", metrics),
        "/limits" => ("GET, HEAD", limits),
        "/reload" => ("POST", reload),
        _ => {
            let detail = "there are GET /health, GET /metrics, GET /limits and POST /reload";
            return ManagementResponse::problem(404, "not_found", "There is nothing here", detail, &[]);
        }
    };
    if allow.split(", ").any(|known| known == method) {
        return make(gateway);
    }
    let (code, title) = ("method_not_allowed", "This path does not know this method");
    let detail = format!("{path} knows {allow}");
    ManagementResponse { allow: Some(allow), ..ManagementResponse::problem(405, code, title, &detail, &[]) }
}

fn health(gateway: &dyn ManagedGateway) -> ManagementResponse {
    let status = gateway.status();
    let backends = gateway.backends().into_iter().map(|backend| {
        let endpoints = backend.endpoints();
        let well = endpoints.iter().filter(|endpoint| backend.is_healthy(endpoint)).count();
        (backend.name.to_string(), json!({"endpoints": endpoints.len(), "well": well}))
    });
    let body = json!({
        "status": status.as_str(),
        "timestamp": u64::try_from(gateway.now().as_millis()).unwrap_or(u64::MAX),
        "uptimeSeconds": gateway.uptime().as_secs(),
        "connections": gateway.metrics().open_connections(),
        "backends": backends.collect::<Map<String, Value>>(),
    });
    ManagementResponse::json(if status == GatewayStatus::Up { 200 } else { 503 }, &body)
}

fn metrics(gateway: &dyn ManagedGateway) -> ManagementResponse {
    let text = gateway.metrics().render(gateway.limits(), &gateway.backends());
    ManagementResponse {
        status: 200,
        content_type: metrics_page::CONTENT_TYPE,
        allow: None,
        body: text.into_bytes(),
    }
}

fn limits(gateway: &dyn ManagedGateway) -> ManagementResponse {
    let all = gateway.limits().usage();
    let hottest = gateway.metrics().hottest(MAX_HOTTEST);
    let hottest: Vec<Value> = hottest.iter().map(|client| hottest_client(client, gateway.limits())).collect();
    let body = json!({
        "window": all.window.word(),
        "server": scope_usage(&all.server, None),
        "accept": {"maxConnectionsPerClient": accept_rule(&all.accept)},
        "backends": all.backends.iter().map(|each| scope_usage(each, Some("name"))).collect::<Vec<Value>>(),
        "routes": all.routes.iter().map(|each| scope_usage(each, Some("id"))).collect::<Vec<Value>>(),
        "hottestClients": {"halfLifeSeconds": HALF_LIFE.as_secs(), "clients": hottest},
    });
    ManagementResponse::json(200, &body)
}

fn scope_usage(usage: &ScopeUsage, called: Option<&str>) -> Value {
    let mut value = json!({
        "maxQps": rule(&usage.requests),
        "maxConnections": rule(&usage.connections),
        "maxQpsPerClient": client_rule(&usage.client_requests),
        "maxConnectionsPerClient": client_rule(&usage.client_connections),
    });
    if let Some(called) = called {
        value[called] = (*usage.name).into();
    }
    if let Some(backend) = &usage.backend {
        value["backend"] = (**backend).into();
    }
    value
}

fn limit(limit: Capacity) -> Value {
    match limit {
        Capacity::AtMost(most) => most.into(),
        Capacity::Unlimited => "unlimited".into(),
    }
}

fn rule(rule: &RuleUsage) -> Value {
    json!({"limit": limit(rule.limit), "used": rule.used, "refused": rule.refused})
}

fn client_rule(rule: &ClientRuleUsage) -> Value {
    let mut value = json!({"limit": limit(rule.limit), "from": rule.from.as_str()});
    if let Some(counts) = rule.counts {
        value["clients"] = counts.clients.into();
        value["refused"] = counts.refused.into();
    }
    value
}

/// The per-client connection limit at accept. It is derived, so it has no `from` member.
fn accept_rule(rule: &ClientRuleUsage) -> Value {
    let mut value = client_rule(rule);
    if let Some(members) = value.as_object_mut() {
        members.remove("from");
    }
    value
}

fn hottest_client(client: &HottestClient, limits: &RateLimitManager) -> Value {
    json!({
        "client": format_client(&client.client),
        "requests": client.admitted + client.refused,
        "refused": client.refused,
        "uncertain": client.error,
        "connections": limits.current_connections(ConnectionCounter::Client(&client.client)),
    })
}

fn reload(gateway: &dyn ManagedGateway) -> ManagementResponse {
    match gateway.reload() {
        Ok(ReloadSummary { changed, overfull, needs_restart }) => {
            let overfull = overfull.iter().map(
                |OverfullLimit { limit_id, most, open }| json!({"limit": limit_id, "most": most, "open": open}),
            );
            let overfull: Vec<Value> = overfull.collect();
            ManagementResponse::json(
                200,
                &json!({"changed": changed, "overfull": overfull, "needsRestart": needs_restart}),
            )
        }
        Err(rejected) => {
            let detail = match rejected.errors.len() {
                1 => "one thing is wrong with the settings, and the former ones stay in force; see errors"
                    .to_owned(),
                many => format!(
                    "{many} things are wrong with the settings, and the former ones stay in force; see errors"
                ),
            };
            let title = "The settings were not used";
            ManagementResponse::problem(422, "settings_not_used", title, &detail, &rejected.errors)
        }
    }
}
