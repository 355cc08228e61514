//! The arithmetic of Tidegate: limits, refill laws, states and decisions.
//!
//! A **limit** is a **capacity** and a **refill law**. A decision is a pure function of the limit, its stored state, the
//! request, and `now`. This crate is that function. It performs no I/O, reads no clock, spawns no thread, and uses no
//! floating point. Stores, protocols and configuration live in other crates.
//!
//! Where to start:
//! * [`law`] defines how spent capacity comes back, one file per law.
//! * [`limit`] compiles a [`LimitSpec`] into a [`Limit`].
//! * [`decide()`] checks and charges several limits together.
//! * [`row`] holds the state of one limit for one key, and [`row_codec`] its bytes.
//! * [`budget`] spreads a long-term average over a window (CPU budgets).

pub mod amount;
pub mod budget;
pub mod calendar;
pub mod decide;
pub mod law;
pub mod lease;
pub mod limit;
pub mod order;
pub mod overrides;
pub mod row;
pub mod row_codec;
pub mod spec;
pub mod time;
pub mod usage_record;
pub mod verdict;

pub use amount::{Amount, Capacity};
pub use calendar::{Unit, WeekStart, Zone};
pub use decide::{ChargeRecord, Decision, DecisionRow, Denial, ItemPosition, Reading, decide};
pub use law::{Law, Receipt, Rule, State};
pub use lease::{LeaseId, LeaseTerm};
pub use limit::{Item, ItemLineage, Limit, LimitPhase, Override};
pub use order::{Ask, AskTotals, Hold, Intent, Order};
pub use overrides::RowScope;
pub use row::Row;
pub use spec::{
    Charge, Durability, Fleet, ItemSpec, LimitSpec, Mode, OnOutage, OverrideSpec, Per, Policy, Precision,
    SpecError,
};
pub use time::{Span, Tick, Timestamp};
pub use usage_record::UsageRecord;
pub use verdict::{Verdict, Wait};
