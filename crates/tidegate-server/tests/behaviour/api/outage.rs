//! When the store cannot answer: decisions by `on_outage`, everything else 503.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidegate::catalog::{ApplyError, Edit, EditOutcome, Origin, PutError, Watcher};
use tidegate::catalog::{Catalog, ExpectedVersion, RemovalMode};
use tidegate::model::{LeaseId, LeaseTerm, Limit, LimitSpec, Order, Timestamp};
use tidegate::reply::{OrderError, Replies};
use tidegate::store::{Actual, MapStore, Store, StoreReply};
use tidegate::store::{Capabilities, Settlement, Unavailable, Usage};

use crate::api::stage::Stage;

/// Knows its limits and nothing else.
struct Silent(MapStore);

fn silence<T: Send + 'static>() -> StoreReply<T> {
    StoreReply::Later(Box::pin(async { Err(Unavailable { reason: "db-7.internal is down".to_owned() }) }))
}

impl Store for Silent {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn submit(&self, _: &[Order<'_>], _: Replies) -> StoreReply<Replies> {
        silence()
    }

    fn release(&self, _: LeaseId) -> StoreReply<bool> {
        silence()
    }

    fn renew(&self, _: LeaseId, _: Option<Duration>) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        silence()
    }

    fn settle(&self, _: LeaseId, _: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        silence()
    }

    fn reset(&self, _: &str, _: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        silence()
    }

    fn usage(&self, _: &str, _: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        silence()
    }

    fn holders(&self, _: &str, _: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        silence()
    }

    fn held_until(&self, _: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        silence()
    }
}

impl Catalog for Silent {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.0.get(id)
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        self.0.list()
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        self.0.put(spec, expect)
    }

    fn remove(&self, id: &str, parting: RemovalMode) -> bool {
        self.0.remove(id, parting)
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        self.0.apply(edits)
    }

    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        self.0.edit(edits, origin)
    }

    fn watch(&self, watcher: Watcher) {
        self.0.watch(watcher);
    }
}

fn stage() -> Stage {
    let stage = Stage::over(|clock| Arc::new(Silent(MapStore::new(clock, 7))));
    for limit in [
        r#"{"id": "open", "on_outage": "admit", "items": [{"policy": "total", "limit": 1}]}"#,
        r#"{"id": "shut", "items": [{"policy": "total", "limit": 1}]}"#,
        r#"{"id": "watching", "mode": "shadow", "items": [{"policy": "total", "limit": 1}]}"#,
    ] {
        stage.ask("POST /v1/limits", limit).is(201);
    }
    stage
}

#[test]
fn decisions_are_made_by_rule() {
    let stage = stage();
    let granted = r#"{"allowed": true, "lease": null, "binding": null, "wait": null, "retry_after_ms": null, "degraded": true, "readings": []}"#;
    let refused = r#"{"allowed": false, "lease": null, "binding": {"limit_id": "shut", "item": "all/total"}, "wait": null,
        "retry_after_ms": null, "degraded": true, "readings": []}"#;
    let both = r#"{"asks": [{"limit_id": "open"}, {"limit_id": "shut"}]}"#;
    for path in ["acquire", "peek"] {
        let ask = |body: &str| stage.ask(&format!("POST /v1/{path}"), body);
        ask(r#"{"limit_id": "open"}"#).is(200).says(granted);
        ask(r#"{"limit_id": "watching"}"#).is(200).says(granted);
        ask(r#"{"limit_id": "shut"}"#).is(200).says(refused);
        ask(r#"{"limit_id": "shut", "max_wait_ms": 1000}"#).is(200).says(refused);
        ask(both).is(200).says(refused);
        ask(r#"{"limit_id": "none"}"#).problem(404, "unknown_limit");
    }
}

#[test]
fn the_gate_lets_in_whom_the_rule_admits() {
    let stage = stage();
    assert_eq!(stage.get("/v1/gate/open/u").is(200).at("/degraded"), json!(true));
    stage.get("/v1/gate/shut/u").problem(503, "store_unavailable");
    stage.get("/v1/gate/none/u").problem(404, "unknown_limit");
}

#[test]
fn other_calls_say_so() {
    let stage = stage();
    let lease = r#"{"lease_id": "0123456789abcdef0123456789abcdef"}"#;
    let settle = r#"{"lease_id": "0123456789abcdef0123456789abcdef", "actual": 1}"#;
    for (line, body) in [
        ("POST /v1/release", lease),
        ("POST /v1/renew", lease),
        ("POST /v1/settle", settle),
        ("POST /v1/limits/open/reset", ""),
        ("GET /v1/limits/open/usage", ""),
    ] {
        let detail = stage.ask(line, body).problem(503, "store_unavailable");
        assert!(!detail.contains("db-7"), "what happened is for the log: {detail}");
    }
}

/// Nobody begins a task that nobody could end, whatever the limit says.
#[test]
fn no_task_begins_while_nobody_counts() {
    let stage = stage();
    let id = "0123456789abcdef0123456789abcdef";
    let all = [
        "GET /v1/activity/u".to_owned(),
        "POST /v1/activity/u".to_owned(),
        "DELETE /v1/activity/u".to_owned(),
        format!("DELETE /v1/activity/u/{id}"),
        format!("POST /v1/activity/u/{id}/renew"),
        format!("GET /v1/activity/u/{id}/events"),
    ];
    let rules = tidegate::activity::Rules::default();
    stage.store.put(rules.spec(), ExpectedVersion::Absent).expect("a new limit");
    for line in &all {
        let detail = stage.ask(line, "").problem(503, "store_unavailable");
        assert!(!detail.contains("db-7"), "what happened is for the log: {detail}");
    }
    let admits = LimitSpec { on_outage: tidegate_core::OnOutage::Admit, ..rules.spec() };
    stage.store.put(admits, ExpectedVersion::Present).expect("it is there");
    for line in &all {
        stage.ask(line, "").problem(503, "store_unavailable");
    }
}
