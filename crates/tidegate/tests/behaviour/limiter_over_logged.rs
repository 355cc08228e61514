//! Limiter tests over a logged store whose log is durable at once. Results equal those without a log.

#[path = "activity.rs"]
mod activity;
#[path = "leases.rs"]
mod leases;
#[path = "waiting.rs"]
mod waiting;

type Store = tidegate_testkit::logged_store::LoggedStore<tidegate::store::MapStore>;
type LimiterFixture = crate::fixture::LimiterFixture<Store>;
