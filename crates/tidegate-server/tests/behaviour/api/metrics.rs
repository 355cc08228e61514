//! `/metrics`, parsed as a scraper does.

#![expect(clippy::float_cmp, reason = "what is written in decimal is compared as it was written")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate::Limiter;
use tidegate::catalog::{ApplyError, Edit, EditOutcome, Origin};
use tidegate::catalog::{Catalog, ExpectedVersion, RemovalMode};
use tidegate::clock::ManualClock;
use tidegate::model::{LeaseId, Limit, LimitSpec, Order, Timestamp};
use tidegate::reply::Replies;
use tidegate::store::{ItemCount, LimitStats, LimitStore, MapStore, Memory, MemoryStore, Store, StoreReply};
use tidegate_server::http::RouteName;
use tidegate_server::metrics::{CutReason, MOST_LIMITS, Protocol, ReloadCounts, ServerMetrics};
use tidegate_server::tokens::Role;
use tidegate_testkit::logged_store::{LoggedStore, ManualLog};
use tidegate_testkit::remote_stub::{RemoteLink, RemoteStub};

use crate::api::fixture::{ApiFixture, holder};
use crate::api::metrics_parser::ParsedPage;
use crate::api::openapi;

const LOGIN: &str = r#"{"id": "login", "items": [{"policy": "total", "limit": 3},
                        {"policy": "total", "limit": 2, "per": "key"}]}"#;

fn login(fixture: &ApiFixture, key: &str) -> bool {
    fixture.ask("POST /v1/acquire", &format!(r#"{{"limit_id": "login", "limit_key": "{key}"}}"#)).allowed()
}

fn page(fixture: &ApiFixture) -> ParsedPage {
    let response = fixture.get("/metrics").is(200);
    assert_eq!(response.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    ParsedPage::read(&response.text())
}

#[test]
fn decisions_are_counted_by_limit_item_and_outcome() {
    let fixture = ApiFixture::with(&[
        LOGIN,
        r#"{"id": "watched", "mode": "shadow", "items": [{"policy": "total", "limit": 0}]}"#,
    ]);
    let granted = ["ada", "ada", "ada", "bob", "cid"].map(|key| login(&fixture, key));
    assert_eq!(granted, [true, true, false, true, false]);
    assert!(fixture.ask("POST /v1/acquire", r#"{"limit_id": "watched"}"#).allowed());
    fixture.ask("POST /v1/peek", r#"{"limit_id": "login", "limit_key": "dan"}"#);
    let page = page(&fixture);
    let count = |limit, item, outcome| {
        page.get("tidegate_decisions_total", &[("limit", limit), ("item", item), ("outcome", outcome)])
    };
    assert_eq!(count("login", "", "granted"), 3.0);
    assert_eq!(count("login", "key/total", "refused"), 1.0);
    assert_eq!(count("login", "all/total", "refused"), 1.0);
    assert_eq!(count("login", "", "shadowed"), 0.0);
    assert_eq!((count("watched", "", "granted"), count("watched", "", "shadowed")), (1.0, 1.0));
    let at_the_door =
        |outcome| page.get("tidegate_door_decisions_total", &[("door", "http"), ("outcome", outcome)]);
    assert_eq!((at_the_door("granted"), at_the_door("refused")), (4.0, 2.0), "a look decides nothing");
    assert_eq!(page.get("tidegate_limit_rows", &[("limit", "login")]), 2.0);
    assert!(page.get("tidegate_limit_bytes", &[("limit", "login")]) > 0.0);
    assert_eq!(page.get("tidegate_limits", &[]), 2.0);
    assert!(!fixture.get("/metrics").text().contains("ada"), "keys are not in the metrics");
}

#[test]
fn requests_are_counted_by_template_and_status() {
    let fixture = ApiFixture::with(&[LOGIN]);
    for (line, body) in [
        ("GET /v1/limits/login", ""),
        ("GET /v1/limits/nobody", ""),
        ("PUT /v1/limits/login/overrides/ada", r#"{"item": "key/total", "limit": 9}"#),
        ("GET /v1/gate/login/ada", ""),
        ("GET /v1/gate/login/bob", ""),
        ("GET /v1/gate/login/cid", ""),
        ("GET /v1/gate/login/dan", ""),
        ("GET /v1/gate?limit_id=login&limit_key=dan", ""),
        ("GET /no/such/path", ""),
        ("PUT /v1/acquire", ""),
    ] {
        fixture.ask(line, body);
    }
    let page = page(&fixture);
    let count = |route, code| page.get("tidegate_http_requests_total", &[("route", route), ("code", code)]);
    assert_eq!(count("/v1/limits", "201"), 1.0);
    assert_eq!((count("/v1/limits/{id}", "200"), count("/v1/limits/{id}", "404")), (1.0, 1.0));
    assert_eq!(count("/v1/limits/{id}/overrides/{key}", "200"), 1.0);
    assert_eq!((count("/v1/gate/{id}/{key}", "200"), count("/v1/gate/{id}/{key}", "429")), (3.0, 1.0));
    assert_eq!(
        (count("/v1/gate", "429"), count("other", "404"), count("/v1/acquire", "405")),
        (1.0, 1.0, 1.0)
    );
    let at_the_door =
        |outcome| page.get("tidegate_door_decisions_total", &[("door", "http"), ("outcome", outcome)]);
    assert_eq!((at_the_door("granted"), at_the_door("refused")), (3.0, 2.0));
    assert_eq!(page.get("tidegate_request_duration_seconds_count", &[("door", "http")]), 11.0);
}

#[test]
fn route_templates_match_openapi() {
    let documented = openapi::templates();
    let named: Vec<_> = RouteName::ALL.iter().map(|name| name.template()).collect();
    assert!(documented.iter().all(|template| named.contains(template)), "{documented:?} {named:?}");
    assert_eq!(named.len(), documented.len() + 1, "and what there is nothing at");
}

#[test]
fn worker_counters_are_summed() {
    let metrics = ServerMetrics::new(2);
    let (one, other) = (metrics.worker(0), metrics.worker(1));
    assert!(!Arc::ptr_eq(&one, &other), "each worker has a block of its own");
    one.opened(Protocol::Resp);
    one.opened(Protocol::Resp);
    other.closed(Protocol::Resp);
    other.cut(Protocol::Resp, CutReason::SlowReader);
    one.refused_connection(Protocol::Http);
    other.failed_auth(Protocol::Http);
    one.resp_batch(3, 2_500);
    other.resp_batch(5_000, 20_000_000_000);
    other.resp_batch(0, 7);
    one.http_request(RouteName::Acquire, 200, 1_001);
    one.http_request(RouteName::Unknown, 599, 1);
    let page = ParsedPage::read(&metrics.render(&Limiter::builder().build().expect("no limits")));
    let get = |name, door| page.get(name, &[("door", door)]);
    assert_eq!((get("tidegate_connections", "resp"), get("tidegate_connections", "http")), (1.0, 0.0));
    assert_eq!(get("tidegate_connections_accepted_total", "resp"), 2.0);
    assert_eq!(get("tidegate_connections_refused_total", "http"), 1.0);
    assert_eq!(get("tidegate_authentication_failures_total", "http"), 1.0);
    let cut = |reason| page.get("tidegate_connections_cut_total", &[("door", "resp"), ("reason", reason)]);
    assert_eq!((cut("slow_reader"), cut("idle")), (1.0, 0.0));
    let within =
        |door, bound| page.get("tidegate_request_duration_seconds_bucket", &[("door", door), ("le", bound)]);
    assert_eq!((within("resp", "0.000001"), within("resp", "0.0000025")), (0.0, 1.0));
    assert_eq!((within("resp", "10"), within("resp", "+Inf")), (1.0, 2.0));
    assert_eq!((within("http", "0.000001"), within("http", "0.0000025")), (1.0, 2.0));
    assert_eq!(get("tidegate_request_duration_seconds_sum", "resp"), 20.000_002_5);
    let size = |bound| page.get("tidegate_resp_batch_size_bucket", &[("le", bound)]);
    assert_eq!((size("2"), size("4"), size("4096"), size("+Inf")), (0.0, 1.0, 1.0, 2.0));
    assert_eq!(page.get("tidegate_resp_batch_size_sum", &[]), 5_003.0);
    assert_eq!(page.get("tidegate_http_requests_total", &[("route", "other"), ("code", "other")]), 1.0);
}

#[test]
fn workers_beyond_the_blocks_share_them() {
    let metrics = ServerMetrics::new(0);
    metrics.worker(0).opened(Protocol::Http);
    metrics.worker(7).opened(Protocol::Http);
    let page = ParsedPage::read(&metrics.render(&Limiter::builder().build().expect("no limits")));
    assert_eq!(page.get("tidegate_connections", &[("door", "http")]), 2.0);
}

#[test]
fn store_and_process_metrics_are_present() {
    let fixture = ApiFixture::with(&[
        r#"{"id": "slots", "items": [{"policy": "concurrency", "limit": 2, "ttl": "60s"}]}"#,
    ]);
    fixture.ask("POST /v1/limits", LOGIN).is(201);
    assert!(login(&fixture, "ada") && fixture.ask("POST /v1/acquire", r#"{"limit_id": "slots"}"#).allowed());
    let page = page(&fixture);
    assert_eq!((page.get("tidegate_leases", &[]), page.get("tidegate_waiters", &[])), (1.0, 0.0));
    assert_eq!(page.get("tidegate_limit_waiters", &[("limit", "slots")]), 0.0);
    assert_eq!(page.get("tidegate_store_budget_bytes", &[]), f64::from(1 << 30));
    assert!(page.get("tidegate_store_bytes", &[]) > 0.0);
    assert!(page.names().any(|name| name == "tidegate_build_info"));
    if cfg!(target_os = "linux") {
        assert!(page.get("process_resident_memory_bytes", &[]) > 1_000_000.0);
        assert!(page.get("process_open_fds", &[]) >= 3.0);
        assert!(page.get("process_start_time_seconds", &[]) > 1_700_000_000.0);
        assert!(page.find("process_cpu_seconds_total", &[]).is_some());
    }
}

#[test]
fn token_prefix_restricts_limit_metrics() {
    let fixture =
        ApiFixture::with(&[LOGIN, r#"{"id": "shop/a", "items": [{"policy": "total", "limit": 1}]}"#]);
    let response = fixture.ask_as(&holder(Role::Read, "shop/"), "GET /metrics", &[], "").is(200);
    let page = ParsedPage::read(&response.text());
    assert_eq!(page.values("limit").into_iter().collect::<Vec<_>>(), ["shop/a"]);
    assert_eq!(page.get("tidegate_limits", &[]), 1.0);
}

#[test]
fn reload_metrics_exist_with_a_reload_source() {
    let fixture = ApiFixture::empty();
    assert!(page(&fixture).find("tidegate_config_last_reload_successful", &[]).is_none());
    let page_with = |counts: ReloadCounts| {
        ParsedPage::read(&ServerMetrics::new(1).reloads(move || counts).render(&fixture.limiter))
    };
    let at = Some(Duration::from_millis(1_768_867_200_500));
    let bad = page_with(ReloadCounts { succeeded: 3, failed: 2, last_failed: true, last_success: at });
    assert_eq!(bad.get("tidegate_reloads_total", &[("outcome", "succeeded")]), 3.0);
    assert_eq!(bad.get("tidegate_reloads_total", &[("outcome", "failed")]), 2.0);
    assert_eq!(bad.get("tidegate_config_last_reload_successful", &[]), 0.0);
    assert_eq!(bad.get("tidegate_config_last_reload_success_timestamp_seconds", &[]), 1_768_867_200.5);
    let none = page_with(ReloadCounts::default());
    assert_eq!(none.get("tidegate_config_last_reload_successful", &[]), 1.0);
    assert!(none.find("tidegate_config_last_reload_success_timestamp_seconds", &[]).is_none());
}

#[test]
fn described_buckets_are_summed_and_never_fall() {
    let fixture = ApiFixture::empty();
    let bucket = |id: &str| format!(r#"{{"id": "{id}", "items": [{{"policy": "total", "limit": 2}}]}}"#);
    for id in ["cl.throttle/2/1/60", "cl.throttle/2/1/30"] {
        let spec =
            LimitSpec::named(id).with(tidegate::model::ItemSpec::of(tidegate::model::Policy::Total, 2));
        fixture.limiter.store().put(spec, ExpectedVersion::Absent).expect("there is none yet");
        for attempt in 0..3 {
            assert_eq!(
                fixture.limiter.limit(id).expect("the limit exists").without_key().try_acquire().is_ok(),
                attempt < 2
            );
        }
    }
    fixture.ask("POST /v1/limits", &bucket("other")).is(201);
    let metrics = ServerMetrics::new(1);
    let sums = || {
        let page = ParsedPage::read(&metrics.render(&fixture.limiter));
        assert_eq!(page.values("limit").into_iter().collect::<Vec<_>>(), ["cl.throttle", "other"]);
        assert_eq!(page.get("tidegate_limits", &[]), 1.0);
        let get = |item, outcome| {
            let labels = [("limit", "cl.throttle"), ("item", item), ("outcome", outcome)];
            page.get("tidegate_decisions_total", &labels)
        };
        (get("", "granted"), get("key/bucket", "refused"), page.get("tidegate_described_buckets", &[]))
    };
    assert_eq!(sums(), (4.0, 2.0, 2.0));
    assert_eq!(sums(), (4.0, 2.0, 2.0), "looking counts nothing");
    assert!(fixture.limiter.store().remove("cl.throttle/2/1/60", RemovalMode::Forget));
    assert_eq!(sums(), (4.0, 2.0, 1.0), "what was forgotten happened nevertheless");
    let spec = LimitSpec::named("cl.throttle/2/1/60")
        .with(tidegate::model::ItemSpec::of(tidegate::model::Policy::Total, 2));
    fixture.limiter.store().put(spec, ExpectedVersion::Absent).expect("it was removed");
    assert!(
        fixture
            .limiter
            .limit("cl.throttle/2/1/60")
            .expect("the limit exists")
            .without_key()
            .try_acquire()
            .is_ok()
    );
    assert_eq!(sums(), (5.0, 2.0, 2.0));
}

/// A store with many limits, whose item names need escaping.
struct ManyLimits {
    limits: Vec<Arc<Limit>>,
}

const ODD: &str = "a \"quoted\\\" item\nof two lines";

impl ManyLimits {
    fn of(limits: usize) -> ManyLimits {
        let limit = |index: usize| {
            let spec = LimitSpec::named(format!("{index:06}"))
                .with(tidegate::model::ItemSpec::of(tidegate::model::Policy::Total, 1));
            Arc::new(Limit::new(spec, tidegate::model::Tick::NANOSECOND).expect("a valid limit"))
        };
        ManyLimits { limits: (0..limits).map(limit).collect() }
    }
}

impl Store for ManyLimits {
    fn capabilities(&self) -> tidegate::store::Capabilities {
        Limiter::builder().build().expect("no limits").store().capabilities()
    }

    fn submit(&self, _: &[Order<'_>], buffer: Replies) -> StoreReply<Replies> {
        StoreReply::Now(buffer)
    }

    fn release(&self, _: LeaseId) -> StoreReply<bool> {
        StoreReply::Now(false)
    }

    fn renew(
        &self,
        _: LeaseId,
        _: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, tidegate::reply::OrderError>> {
        StoreReply::Now(Ok(None))
    }

    fn settle(
        &self,
        _: LeaseId,
        _: tidegate::store::Actual<'_>,
    ) -> StoreReply<Result<tidegate::store::Settlement, tidegate::reply::OrderError>> {
        StoreReply::Now(Ok(tidegate::store::Settlement::Gone))
    }

    fn reset(&self, _: &str, _: Option<&[u8]>) -> StoreReply<Result<(), tidegate::reply::OrderError>> {
        StoreReply::Now(Ok(()))
    }

    fn usage(
        &self,
        _: &str,
        _: Option<&[u8]>,
    ) -> StoreReply<Result<tidegate::store::Usage, tidegate::reply::OrderError>> {
        StoreReply::Now(Ok(tidegate::store::Usage { count: None, items: Vec::new() }))
    }

    fn holders(
        &self,
        _: &str,
        _: Option<&[u8]>,
    ) -> StoreReply<Result<Vec<tidegate::model::LeaseTerm>, tidegate::reply::OrderError>> {
        StoreReply::Now(Ok(Vec::new()))
    }

    fn held_until(&self, _: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        StoreReply::Now(Vec::new())
    }

    fn observe(&self, _: &str) -> Option<LimitStats> {
        let items = vec![ItemCount { item: ODD.to_owned(), refused: 2 }];
        Some(LimitStats { granted: 1, refused: 2, shadowed: 0, items, rows: Some(0), bytes: Some(0) })
    }
}

impl Catalog for ManyLimits {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.limits.iter().find(|limit| limit.id() == id).cloned()
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        self.limits.clone()
    }

    fn put(&self, _: LimitSpec, _: ExpectedVersion) -> Result<Arc<Limit>, tidegate::catalog::PutError> {
        Err(tidegate::catalog::PutError::Exists)
    }

    fn remove(&self, _: &str, _: RemovalMode) -> bool {
        false
    }

    fn apply(&self, _: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        Ok(Vec::new())
    }

    fn edit(&self, _: Vec<Edit>, _: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        StoreReply::Now(Ok(Vec::new()))
    }

    fn watch(&self, _: tidegate::catalog::Watcher) {}
}

#[test]
fn label_values_are_escaped_and_excess_limits_left_out() {
    let store: Arc<dyn LimitStore> = Arc::new(ManyLimits::of(MOST_LIMITS + 3));
    let page = ParsedPage::read(&ServerMetrics::new(1).render(&Limiter::new(store)));
    let labels = [("limit", "000000"), ("item", ODD), ("outcome", "refused")];
    assert_eq!(page.get("tidegate_decisions_total", &labels), 2.0);
    assert_eq!(page.values("limit").len(), MOST_LIMITS);
    assert_eq!(page.get("tidegate_limits_left_out", &[]), 3.0);
    assert!(page.find("tidegate_store_bytes", &[]).is_none(), "this store does not say");
}

#[test]
fn documentation_lists_exactly_the_metrics() {
    let manual = include_str!("../../../../../docs/reference/metrics.md");
    let rows = manual.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(['`', '{']));
    let documented: BTreeSet<&str> = rows
        .map(|(name, _)| name)
        .filter(|name| name.contains("tidegate_") || name.contains("process_"))
        .collect();
    let fixture = ApiFixture::over(|clock| {
        Arc::new(LoggedStore::new(
            Arc::new(MemoryStore::new(clock, Memory::default())),
            ManualLog::immediate(),
        ))
    });
    fixture.ask("POST /v1/limits", LOGIN).is(201);
    fixture.get("/readyz");
    let at = Some(Duration::from_secs(1));
    let reloads = move || ReloadCounts { last_success: at, ..ReloadCounts::default() };
    let counted = fixture.get("/metrics").text();
    // Some metrics exist only with reloads, a log, or a shared store.
    let logged = LoggedStore::new(
        Arc::new(MapStore::new(ManualClock::at(Timestamp::EPOCH), 7)),
        ManualLog::immediate(),
    );
    let with_all = ServerMetrics::new(1).reloads(reloads).render(&Limiter::new(Arc::new(logged)));
    let shared = RemoteStub::shared(
        Arc::new(MapStore::new(ManualClock::at(Timestamp::EPOCH), 7)),
        RemoteLink::immediate(),
    );
    let in_fleet = ServerMetrics::new(1).render(&Limiter::new(Arc::new(shared)));
    let (counted, with_all, in_fleet) =
        (ParsedPage::read(&counted), ParsedPage::read(&with_all), ParsedPage::read(&in_fleet));
    let response: BTreeSet<&str> = counted.names().chain(with_all.names()).chain(in_fleet.names()).collect();
    if cfg!(target_os = "linux") {
        assert_eq!(documented, response);
    }
}

#[test]
fn landing_page_is_html() {
    let fixture = ApiFixture::empty();
    let response = fixture.get("/").is(200);
    assert_eq!(response.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(
        response
            .header("content-security-policy")
            .is_some_and(|policy| policy.contains("default-src 'none'"))
    );
    let text = response.text();
    assert!(text.contains(concat!("<small>", env!("CARGO_PKG_VERSION"), "</small>")));
    assert!(!text.contains("<script") && !text.contains("{version}"));
    for link in text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        fixture.get(link).is(200);
    }
    fixture.ask("POST /", "").problem(405, "method_not_allowed");
    let [add, take] = [0, 1].map(|call| {
        let body = text.split("-d '").nth(1 + call).and_then(|rest| rest.split('\'').next());
        body.expect("an example").to_owned()
    });
    fixture.ask("POST /v1/limits", &add).is(201);
    assert!(fixture.ask("POST /v1/acquire", &take).allowed());
}
