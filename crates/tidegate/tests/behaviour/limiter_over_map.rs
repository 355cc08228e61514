//! Limiter tests over the map store.

#[path = "activity.rs"]
mod activity;
#[path = "leases.rs"]
mod leases;
#[path = "waiting.rs"]
mod waiting;

type Store = tidegate::store::MapStore;
type LimiterFixture = crate::fixture::LimiterFixture<Store>;
