//! Enforcers: quotas of cgroups, shared quotas and stop signals.

mod quotas;
mod sharing;
mod signals;
