//! The limiter's behaviours over a store where somebody else decides and answers at once: everything is as it is over one at hand.

#[path = "leases.rs"]
mod leases;
#[path = "waiting.rs"]
mod waiting;

type Store = tidegate_testkit::remote_stub::RemoteStub<tidegate::store::MapStore>;
type Stage = crate::stage::Stage<Store>;
