//! Limiter tests over the memory store.

#[path = "activity.rs"]
mod activity;
#[path = "leases.rs"]
mod leases;
#[path = "waiting.rs"]
mod waiting;

type Store = tidegate::store::MemoryStore;
type LimiterFixture = crate::fixture::LimiterFixture<Store>;
