//! A store outage: decisions follow `on_outage`, other requests get 503.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidegate::catalog::{ApplyError, Edit, EditOutcome, Origin, PutError, Watcher};
use tidegate::catalog::{Catalog, ExpectedVersion, RemovalMode};
use tidegate::model::{LeaseId, LeaseTerm, Limit, LimitSpec, Order, Timestamp};
use tidegate::reply::{OrderError, Replies};
use tidegate::store::{Actual, MapStore, Store, StoreReply};
use tidegate::store::{Capabilities, Settlement, Unavailable, Usage};

use crate::api::fixture::ApiFixture;

/// A store that knows its limits and answers nothing else.
struct OutageStore(MapStore);

fn unavailable<T: Send + 'static>() -> StoreReply<T> {
    StoreReply::Later(Box::pin(async { Err(Unavailable { reason: "db-7.internal is down".to_owned() }) }))
}

impl Store for OutageStore {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn submit(&self, _: &[Order<'_>], _: Replies) -> StoreReply<Replies> {
        unavailable()
    }

    fn release(&self, _: LeaseId) -> StoreReply<bool> {
        unavailable()
    }

    fn renew(&self, _: LeaseId, _: Option<Duration>) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        unavailable()
    }

    fn settle(&self, _: LeaseId, _: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        unavailable()
    }

    fn reset(&self, _: &str, _: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        unavailable()
    }

    fn usage(&self, _: &str, _: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        unavailable()
    }

    fn holders(&self, _: &str, _: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        unavailable()
    }

    fn held_until(&self, _: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        unavailable()
    }
}

impl Catalog for OutageStore {
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

fn fixture() -> ApiFixture {
    let fixture = ApiFixture::over(|clock| Arc::new(OutageStore(MapStore::new(clock, 7))));
    for limit in [
        r#"{"id": "open", "on_outage": "admit", "items": [{"policy": "total", "limit": 1}]}"#,
        r#"{"id": "shut", "items": [{"policy": "total", "limit": 1}]}"#,
        r#"{"id": "watching", "mode": "shadow", "items": [{"policy": "total", "limit": 1}]}"#,
    ] {
        fixture.ask("POST /v1/limits", limit).is(201);
    }
    fixture
}

#[test]
fn decisions_follow_on_outage() {
    let fixture = fixture();
    let granted = r#"{"allowed": true, "lease": null, "binding": null, "wait": null, "retry_after_ms": null, "degraded": true, "readings": []}"#;
    let refused = r#"{"allowed": false, "lease": null, "binding": {"limit_id": "shut", "item": "all/total"}, "wait": null,
        "retry_after_ms": null, "degraded": true, "readings": []}"#;
    let both = r#"{"asks": [{"limit_id": "open"}, {"limit_id": "shut"}]}"#;
    for path in ["acquire", "peek"] {
        let ask = |body: &str| fixture.ask(&format!("POST /v1/{path}"), body);
        ask(r#"{"limit_id": "open"}"#).is(200).says(granted);
        ask(r#"{"limit_id": "watching"}"#).is(200).says(granted);
        ask(r#"{"limit_id": "shut"}"#).is(200).says(refused);
        ask(r#"{"limit_id": "shut", "max_wait_ms": 1000}"#).is(200).says(refused);
        ask(both).is(200).says(refused);
        ask(r#"{"limit_id": "none"}"#).problem(404, "unknown_limit");
    }
}

#[test]
fn gate_follows_on_outage() {
    let fixture = fixture();
    assert_eq!(fixture.get("/v1/gate/open/u").is(200).at("/degraded"), json!(true));
    fixture.get("/v1/gate/shut/u").problem(503, "store_unavailable");
    fixture.get("/v1/gate/none/u").problem(404, "unknown_limit");
}

#[test]
fn other_requests_are_unavailable() {
    let fixture = fixture();
    let lease = r#"{"lease_id": "0123456789abcdef0123456789abcdef"}"#;
    let settle = r#"{"lease_id": "0123456789abcdef0123456789abcdef", "actual": 1}"#;
    for (line, body) in [
        ("POST /v1/release", lease),
        ("POST /v1/renew", lease),
        ("POST /v1/settle", settle),
        ("POST /v1/limits/open/reset", ""),
        ("GET /v1/limits/open/usage", ""),
    ] {
        let detail = fixture.ask(line, body).problem(503, "store_unavailable");
        assert!(!detail.contains("db-7"), "what happened is for the log: {detail}");
    }
}

/// No task starts during an outage, whatever the limit says: it could not be ended.
#[test]
fn no_task_starts_during_an_outage() {
    let fixture = fixture();
    let id = "0123456789abcdef0123456789abcdef";
    let all = [
        "GET /v1/activity/u".to_owned(),
        "POST /v1/activity/u".to_owned(),
        "DELETE /v1/activity/u".to_owned(),
        format!("DELETE /v1/activity/u/{id}"),
        format!("POST /v1/activity/u/{id}/renew"),
        format!("GET /v1/activity/u/{id}/events"),
    ];
    let rules = tidegate::activity::ActivityRules::default();
    fixture.store.put(rules.spec(), ExpectedVersion::Absent).expect("a new limit");
    for line in &all {
        let detail = fixture.ask(line, "").problem(503, "store_unavailable");
        assert!(!detail.contains("db-7"), "what happened is for the log: {detail}");
    }
    let admits = LimitSpec { on_outage: tidegate_core::OnOutage::Admit, ..rules.spec() };
    fixture.store.put(admits, ExpectedVersion::Present).expect("it is there");
    for line in &all {
        fixture.ask(line, "").problem(503, "store_unavailable");
    }
}
