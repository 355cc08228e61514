//! The tower layer, alone and in an HTTP server on the loopback interface.

mod axum_peers;
mod clients;
mod fields;
mod server;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::Limiter;
use tidegate::catalog::{ApplyError, Edit, EditOutcome, Origin, PutError};
use tidegate::catalog::{Catalog, ExpectedVersion, RemovalMode};
use tidegate::clock::ManualClock;
use tidegate::layer::{FailureAction, LimitLayer, LimitService, RequestLimits};
use tidegate::model::{
    ItemSpec, LeaseId, LeaseTerm, Limit as LimitVersion, LimitSpec, Order, Policy, Timestamp,
};
use tidegate::reply::{OrderError, Replies};
use tidegate::store::{Actual, MapStore, Settlement, Store, StoreReply};
use tidegate::store::{Capabilities, Unavailable, Usage};
use tower::{Layer, Service, ServiceExt};

pub(crate) const TTL: Duration = Duration::from_secs(60);

/// A store with these limits and a manual clock.
pub(crate) fn store(limits: impl IntoIterator<Item = LimitSpec>) -> (Arc<MapStore>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(Timestamp::from_ticks(1_700_000_000_000_000_000)));
    let store = MapStore::new(Arc::clone(&clock), 0);
    for limit in limits {
        store.put(limit, ExpectedVersion::Absent).expect("a valid limit");
    }
    (Arc::new(store), clock)
}

pub(crate) fn limiter(limits: impl IntoIterator<Item = LimitSpec>) -> Limiter {
    Limiter::new(store(limits).0)
}

/// This many units per key, without a window.
fn total(id: &str, limit: u64) -> LimitSpec {
    LimitSpec::named(id).with(ItemSpec::of(Policy::Total, limit).per_key())
}

/// Echoes the request and counts calls. Panics if it was not polled ready before a call.
#[derive(Debug, Default)]
struct Echo {
    calls: Arc<AtomicUsize>,
    ready: bool,
}

impl Clone for Echo {
    fn clone(&self) -> Echo {
        Echo { calls: Arc::clone(&self.calls), ready: false }
    }
}

impl Service<String> for Echo {
    type Response = String;
    type Error = Infallible;
    type Future = std::future::Ready<Result<String, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: String) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "this one was not polled ready");
        self.calls.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(request))
    }
}

type EchoLayer = LimitLayer<String, String>;

/// A layer that charges the limit `calls` with the request as key. Empty requests are not limited.
fn layer(limiter: Limiter) -> EchoLayer {
    LimitLayer::new(
        limiter,
        |name: &String| (!name.is_empty()).then(|| ("calls", name.clone())),
        |denial| format!("denied by {}", denial.item()),
        |error| FailureAction::Refuse(format!("failed: {error}")),
    )
}

async fn ask(service: &LimitService<Echo, EchoLayer>, request: &str) -> String {
    service.clone().oneshot(request.to_owned()).await.expect("infallible")
}

#[tokio::test]
async fn clones_share_counts_and_keys_do_not() {
    let echo = Echo::default();
    let service = layer(limiter([total("calls", 2)])).layer(echo.clone());
    let another = service.clone();
    assert_eq!(ask(&service, "ada").await, "ada");
    assert_eq!(ask(&another, "ada").await, "ada");
    assert_eq!(ask(&service, "ada").await, "denied by key/total");
    assert_eq!(ask(&another, "ada").await, "denied by key/total");
    assert_eq!(ask(&another, "bob").await, "bob");
    assert_eq!(echo.calls.load(Ordering::SeqCst), 3, "a refused request does not reach the service");
}

#[tokio::test]
async fn services_of_layer_share_counts() {
    let layer = layer(limiter([total("calls", 1)]));
    let (one, other) = (layer.layer(Echo::default()), layer.clone().layer(Echo::default()));
    assert_eq!(ask(&one, "ada").await, "ada");
    assert_eq!(ask(&other, "ada").await, "denied by key/total");
}

#[tokio::test]
async fn poll_ready_reserves_nothing() {
    let (store, _) = store([total("calls", 1)]);
    let mut service = layer(Limiter::new(Arc::clone(&store) as Arc<_>)).layer(Echo::default());
    for _ in 0..10 {
        assert!(service.poll_ready(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(service.clone().poll_ready(&mut Context::from_waker(Waker::noop())).is_ready());
    }
    drop(service.call("ada".to_owned()));
    assert_eq!(store.rows(), 0, "nor does a call that never ran");
    assert_eq!(ask(&service, "ada").await, "ada");
}

#[tokio::test]
async fn request_cost_may_be_zero_or_several() {
    let limits = [total("calls", 1), total("bytes", 10)];
    let (store, _) = store(limits);
    let asking = |name: &String| match name.as_str() {
        "" => RequestLimits::none(),
        name => RequestLimits::of("calls", name).and("bytes", "all").count(6),
    };
    let layer = LimitLayer::new(
        Limiter::new(Arc::clone(&store) as Arc<_>),
        asking,
        |denial| format!("denied by {}", denial.limit_id()),
        |error| FailureAction::Refuse(error.to_string()),
    );
    let service = layer.layer(Echo::default());
    assert_eq!(ask(&service, "").await, "");
    assert_eq!(store.rows(), 0);
    assert_eq!(ask(&service, "ada").await, "ada");
    assert_eq!(ask(&service, "bob").await, "denied by bytes");
    let usage = store.usage("calls", Some(b"bob")).now().expect("it is there");
    assert_eq!(usage.items[0].current_count, 0, "all or nothing");
}

#[tokio::test]
async fn unavailable_store_fails_request() {
    let echo = Echo::default();
    let service = layer(limiter([])).layer(echo.clone());
    assert_eq!(ask(&service, "ada").await, "failed: unknown limit 'calls'");
    let service = layer(Limiter::new(Arc::new(Silent))).layer(echo.clone());
    assert!(ask(&service, "ada").await.starts_with("failed: the store cannot answer"));
    assert_eq!(echo.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn fail_open_passes_request_without_decision() {
    let admitting = LimitLayer::new(
        limiter([]),
        |name: &String| ("calls", name.clone()),
        |_| "denied".to_owned(),
        |_| FailureAction::Admit,
    );
    assert_eq!(ask(&admitting.layer(Echo::default()), "ada").await, "ada");
}

#[tokio::test]
async fn response_releases_lease() {
    let slots = LimitSpec::named("calls").with(ItemSpec::of(Policy::Concurrency { ttl: TTL }, 1));
    let (store, _) = store([slots]);
    let service = layer(Limiter::new(Arc::clone(&store) as Arc<_>)).layer(Echo::default());
    for _ in 0..3 {
        assert_eq!(ask(&service, "ada").await, "ada");
        assert_eq!(store.leases(), 0);
    }
}

/// A store that never replies.
#[derive(Debug)]
pub(crate) struct Silent;

fn never<T: Send + 'static>() -> StoreReply<T> {
    StoreReply::Later(Box::pin(async { Err(Unavailable { reason: "it is silent".to_owned() }) }))
}

impl Store for Silent {
    fn capabilities(&self) -> Capabilities {
        store([]).0.capabilities()
    }

    fn submit(&self, _: &[Order<'_>], _: Replies) -> StoreReply<Replies> {
        never()
    }

    fn release(&self, _: LeaseId) -> StoreReply<bool> {
        never()
    }

    fn renew(&self, _: LeaseId, _: Option<Duration>) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        never()
    }

    fn settle(&self, _: LeaseId, _: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        never()
    }

    fn reset(&self, _: &str, _: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        never()
    }

    fn usage(&self, _: &str, _: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        never()
    }

    fn holders(&self, _: &str, _: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        never()
    }

    fn held_until(&self, _: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        never()
    }
}

impl Catalog for Silent {
    fn get(&self, _: &str) -> Option<Arc<LimitVersion>> {
        None
    }

    fn list(&self) -> Vec<Arc<LimitVersion>> {
        Vec::new()
    }

    fn put(&self, _: LimitSpec, _: ExpectedVersion) -> Result<Arc<LimitVersion>, PutError> {
        Err(PutError::Unknown)
    }

    fn remove(&self, _: &str, _: RemovalMode) -> bool {
        false
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        let unknown = |edit: Edit| (edit.id().to_owned(), PutError::Unknown);
        Err(ApplyError { refused: edits.into_iter().map(unknown).collect() })
    }

    fn edit(&self, edits: Vec<Edit>, _: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        StoreReply::Now(self.apply(edits))
    }

    fn watch(&self, _: tidegate::catalog::Watcher) {}
}
