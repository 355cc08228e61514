//! The CPU governor keeps a machine, a cgroup or a process tree below an average CPU usage over a window.
//!
//! Within that average it allows as much usage as possible.
//!
//! ```text
//!   meter ──usage──▶ governor ──limit──▶ enforcer
//!                     │    ▲
//!            samples  ▼    │ after a restart
//!                    journal
//! ```
//!
//! The arithmetic is in [`tidegate::budget`], and [`governor`] decides when a limit changes. Neither reads a clock. The other modules access
//! the machine: they read counters, write limits, and restore everything that they changed.

pub mod cgroups;
pub mod clock;
pub mod enforcer;
pub mod governor;
pub mod journal;
pub mod meter;
pub mod metrics;
pub mod processes;
pub mod runner;
pub mod settings;
pub mod simulation;
pub mod status;
pub mod watchdog;

pub use governor::{Governor, GovernorDecision, Observation};
pub use runner::Runner;
pub use settings::GovernorSettings;
