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
pub mod encoding;
pub mod law;
pub mod lease;
pub mod limit;
pub mod order;
pub mod row;
pub mod seat;
pub mod spec;
pub mod time;
pub mod trace;
pub mod verdict;

pub use amount::{Amount, Capacity};
pub use calendar::{Unit, WeekStart, Zone};
pub use decide::{Charged, Decision, Denial, Line, Place, Reading, decide};
pub use law::{Law, Receipt, Rule, State};
pub use lease::{LeaseId, Tenure};
pub use limit::{Descent, Item, Limit, Override, Season};
pub use order::{Ask, Hold, Intent, Load, Order};
pub use row::Row;
pub use seat::Seat;
pub use spec::{
    Charge, Durability, Flaw, Fleet, ItemSpec, LimitSpec, Mode, OnOutage, OverrideSpec, Per, Policy,
    Precision,
};
pub use time::{Span, Tick, Timestamp};
pub use trace::Trace;
pub use verdict::{Verdict, Wait};
