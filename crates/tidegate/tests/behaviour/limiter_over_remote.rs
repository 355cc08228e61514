//! Limiter tests over a remote store that replies at once. Results equal those of a local store.

#[path = "leases.rs"]
mod leases;
#[path = "waiting.rs"]
mod waiting;

type Store = tidegate_testkit::remote_stub::RemoteStub<tidegate::store::MapStore>;
type LimiterFixture = crate::fixture::LimiterFixture<Store>;
