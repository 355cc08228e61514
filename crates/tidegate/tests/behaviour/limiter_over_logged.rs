//! The limiter's behaviours over a store with a log that is durable at once: everything is as it is without one.

#[path = "activity.rs"]
mod activity;
#[path = "leases.rs"]
mod leases;
#[path = "waiting.rs"]
mod waiting;

type Store = tidegate_testkit::logged_store::LoggedStore<tidegate::store::MapStore>;
type Stage = crate::stage::Stage<Store>;
