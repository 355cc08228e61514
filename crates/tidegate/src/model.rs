//! The model of a limit: what it is made of, what is asked of it, and what it replies.
//!
//! These are the types of [`tidegate_core`]. A program that writes its limits with [`crate::rule`] rarely needs them.
//! Stores, protocols and tools build on them.

pub use tidegate_core::limit::MAX_KEY_BYTES;
pub use tidegate_core::order::{MAX_ASKS, MAX_WAIT};
pub use tidegate_core::{
    Amount, Ask, Capacity, Charge, Durability, Fleet, Hold, Intent, ItemSpec, LeaseId, LeaseTerm, Limit,
    LimitSpec, Mode, OnOutage, Order, OverrideSpec, Per, Policy, Precision, Reading, Span, SpecError, Tick,
    Timestamp, Unit, Verdict, Wait, WeekStart, Zone,
};
