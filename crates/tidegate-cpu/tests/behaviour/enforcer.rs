//! Limits that hold.

mod quotas;
mod sharing;
mod signals;
