//! The limiter's behaviours over the plain store.

#[path = "activity.rs"]
mod activity;
#[path = "leases.rs"]
mod leases;
#[path = "waiting.rs"]
mod waiting;

type Store = tidegate::store::MapStore;
type Stage = crate::stage::Stage<Store>;
