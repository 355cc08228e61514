//! The management port: what operators and their machines ask for.
//!
//! | | |
//! |---|---|
//! | `GET /health` | whether the gateway serves: 200 `UP`, 503 `DRAINING` or `DOWN` |
//! | `GET /metrics` | everything that was counted, for Prometheus |
//! | `GET /limits` | every limit: what it says, how much is used, what it refused; and the hottest clients |
//! | `POST /reload` | reads the settings again: 200 with what changed, 422 with everything that is wrong |
//!
//! Decided: a page is a function of what is [`Behind`] it; sockets are in `serving.rs`, on a thread of their own, so that whoever looks
//! takes nothing from those who serve.
//!
//! Decided: nobody is asked for a token. The port is on the loopback unless the settings say otherwise, and whoever says otherwise
//! opens it to a network of operators, as with every other exporter.

mod serving;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tidegate::Capacity;
use tidegate_net::metrics_page;

use crate::endpoints::Backend;
use crate::hot::{Hottest, show_client};
use crate::limits::{ClientRule, Counted, Overfull, RateLimitManager, Reloaded, Rule, Standing};
use crate::numbers::Numbers;
use crate::reload::Unused;

pub use serving::{LARGEST_BODY, LONGEST_VISIT, MOST_VISITORS, Managed, check, start};

/// How many of the hottest clients are told.
pub const MOST_HOTTEST: usize = 20;

/// How often what is remembered of clients is halved.
pub const HALF_LIFE: Duration = Duration::from_secs(10);

const JSON: &str = "application/json";
const PROBLEM: &str = "application/problem+json";

/// The gateway, as the management port sees it.
pub trait Behind: Send + Sync {
    /// Whether it serves.
    fn status(&self) -> Status;
    /// The time, since 1970.
    fn now(&self) -> Duration;
    /// For how long it has run.
    fn uptime(&self) -> Duration;
    /// The limits.
    fn limits(&self) -> &RateLimitManager;
    /// What was counted.
    fn numbers(&self) -> &Numbers;
    /// The backends in force.
    fn backends(&self) -> Vec<Arc<Backend>>;
    /// Reads the settings and puts them in force, whether they have changed or not.
    fn reload(&self) -> Result<Reloaded, Unused>;
}

/// Whether a gateway serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// It does.
    Up,
    /// It takes no more connections, and finishes what has begun.
    Draining,
    /// It does not.
    Down,
}

impl Status {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Status::Up => "UP",
            Status::Draining => "DRAINING",
            Status::Down => "DOWN",
        }
    }
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The status.
    pub status: u16,
    /// What the body is.
    pub content_type: &'static str,
    /// The methods that the path knows, if the method was wrong.
    pub allow: Option<&'static str>,
    /// The body.
    pub body: Vec<u8>,
}

impl Page {
    fn json(status: u16, value: &Value) -> Page {
        Page { status, content_type: JSON, allow: None, body: in_lines(value) }
    }

    fn problem(
        status: u16,
        code: &'static str,
        title: &'static str,
        detail: &str,
        errors: &[String],
    ) -> Page {
        let mut problem = json!({
            "type": "about:blank", "title": title, "status": status, "code": code, "detail": detail,
        });
        if !errors.is_empty() {
            problem["errors"] = errors.into();
        }
        Page { content_type: PROBLEM, ..Page::json(status, &problem) }
    }

    /// What a web page of somebody else's is told that would have a browser do something here.
    fn foreign() -> Page {
        let detail = "requests that browsers send for web pages (with an Origin) change nothing here";
        Page::problem(403, "foreign_origin", "Not from here", detail, &[])
    }

    fn too_large() -> Page {
        let detail = format!("a body may have at most {LARGEST_BODY} bytes, and nothing here needs one");
        Page::problem(413, "too_large", "The body is too large", &detail, &[])
    }
}

/// JSON as people like to read it, with an end of line.
fn in_lines(value: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).unwrap_or_default();
    text.push(b'\n');
    text
}

/// The answer to a request without a body. Where `GET` is known, `HEAD` is too: whoever sends it leaves the body out.
pub fn answer(method: &str, path: &str, behind: &dyn Behind) -> Page {
    let (allow, make): (_, fn(&dyn Behind) -> Page) = match path {
        "/health" => ("GET, HEAD", health),
        "/metrics" => ("GET, HEAD", metrics),
        "/limits" => ("GET, HEAD", limits),
        "/reload" => ("POST", reload),
        _ => {
            let detail = "there are GET /health, GET /metrics, GET /limits and POST /reload";
            return Page::problem(404, "not_found", "There is nothing here", detail, &[]);
        }
    };
    if allow.split(", ").any(|known| known == method) {
        return make(behind);
    }
    let (code, title) = ("method_not_allowed", "This path does not know this method");
    let detail = format!("{path} knows {allow}");
    Page { allow: Some(allow), ..Page::problem(405, code, title, &detail, &[]) }
}

fn health(behind: &dyn Behind) -> Page {
    let status = behind.status();
    let backends = behind.backends().into_iter().map(|backend| {
        let endpoints = backend.endpoints();
        let well = endpoints.iter().filter(|endpoint| backend.is_well(endpoint)).count();
        (backend.name.to_string(), json!({"endpoints": endpoints.len(), "well": well}))
    });
    let body = json!({
        "status": status.word(),
        "timestamp": u64::try_from(behind.now().as_millis()).unwrap_or(u64::MAX),
        "uptimeSeconds": behind.uptime().as_secs(),
        "connections": behind.numbers().open_connections(),
        "backends": backends.collect::<Map<String, Value>>(),
    });
    Page::json(if status == Status::Up { 200 } else { 503 }, &body)
}

fn metrics(behind: &dyn Behind) -> Page {
    let text = behind.numbers().render(behind.limits(), &behind.backends());
    Page { status: 200, content_type: metrics_page::CONTENT_TYPE, allow: None, body: text.into_bytes() }
}

fn limits(behind: &dyn Behind) -> Page {
    let all = behind.limits().standings();
    let hottest = behind.numbers().hottest(MOST_HOTTEST);
    let hottest: Vec<Value> = hottest.iter().map(|client| hot(client, behind.limits())).collect();
    let body = json!({
        "window": all.window.word(),
        "server": standing(&all.server, None),
        "accept": {"maxConnectionsPerClient": door(&all.door)},
        "backends": all.backends.iter().map(|each| standing(each, Some("name"))).collect::<Vec<Value>>(),
        "routes": all.routes.iter().map(|each| standing(each, Some("id"))).collect::<Vec<Value>>(),
        "hottestClients": {"halfLifeSeconds": HALF_LIFE.as_secs(), "clients": hottest},
    });
    Page::json(200, &body)
}

fn standing(standing: &Standing, called: Option<&str>) -> Value {
    let mut value = json!({
        "maxQps": rule(&standing.requests),
        "maxConnections": rule(&standing.connections),
        "maxQpsPerClient": client_rule(&standing.client_requests),
        "maxConnectionsPerClient": client_rule(&standing.client_connections),
    });
    if let Some(called) = called {
        value[called] = (*standing.name).into();
    }
    if let Some(backend) = &standing.backend {
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

fn rule(rule: &Rule) -> Value {
    json!({"limit": limit(rule.limit), "used": rule.used, "refused": rule.refused})
}

fn client_rule(rule: &ClientRule) -> Value {
    let mut value = json!({"limit": limit(rule.limit), "from": rule.from.word()});
    if let Some(counts) = rule.counts {
        value["clients"] = counts.clients.into();
        value["refused"] = counts.refused.into();
    }
    value
}

/// The largest of all rules, which is written nowhere.
fn door(rule: &ClientRule) -> Value {
    let mut value = client_rule(rule);
    if let Some(members) = value.as_object_mut() {
        members.remove("from");
    }
    value
}

fn hot(client: &Hottest, limits: &RateLimitManager) -> Value {
    json!({
        "client": show_client(&client.client),
        "requests": client.admitted + client.refused,
        "refused": client.refused,
        "uncertain": client.error,
        "connections": limits.current_connections(Counted::Client(&client.client)),
    })
}

fn reload(behind: &dyn Behind) -> Page {
    match behind.reload() {
        Ok(Reloaded { changed, overfull, needs_restart }) => {
            let overfull = overfull.iter().map(
                |Overfull { limit_id, most, open }| json!({"limit": limit_id, "most": most, "open": open}),
            );
            let overfull: Vec<Value> = overfull.collect();
            Page::json(200, &json!({"changed": changed, "overfull": overfull, "needsRestart": needs_restart}))
        }
        Err(unused) => {
            let detail = match unused.errors.len() {
                1 => "one thing is wrong with the settings, and the former ones stay in force; see errors"
                    .to_owned(),
                many => format!(
                    "{many} things are wrong with the settings, and the former ones stay in force; see errors"
                ),
            };
            let title = "The settings were not used";
            Page::problem(422, "settings_not_used", title, &detail, &unused.errors)
        }
    }
}
