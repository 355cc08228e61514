//! The meaning of Tidegate, and nothing else.
//!
//! A **limit** is a **capacity** and a **refill law**. Asking it is a pure function of the limit, what is remembered,
//! the ask, and `now`. This crate is that function: it performs no I/O, reads no clock, spawns nothing, and uses no
//! floating point. Which limits apply, where states live, and how answers are spoken is decided elsewhere.
//!
//! Read [`law`] for what the laws mean and [`decide()`] for how they are asked together; the rest is vocabulary.

pub mod amount;
pub mod budget;
pub mod calendar;
pub mod decide;
pub mod law;
pub mod lease;
pub mod limit;
pub mod order;
pub mod row;
pub mod row_codec;
pub mod row_scope;
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
pub use row::Row;
pub use row_scope::RowScope;
pub use spec::{
    Charge, Durability, Fleet, ItemSpec, LimitSpec, Mode, OnOutage, OverrideSpec, Per, Policy, Precision,
    SpecError,
};
pub use time::{Span, Tick, Timestamp};
pub use usage_record::UsageRecord;
pub use verdict::{Verdict, Wait};
