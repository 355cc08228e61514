//! The limiter's behaviours over the memory store.

#[path = "activity.rs"]
mod activity;
#[path = "leases.rs"]
mod leases;
#[path = "waiting.rs"]
mod waiting;

type Store = tidegate::store::MemoryStore;
type Stage = crate::stage::Stage<Store>;
