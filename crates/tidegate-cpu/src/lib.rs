//! The CPU governor: keeps a machine, a cgroup or a process tree under an average over a window, and uses as much of that as it can.
//!
//! ```text
//!   meter ──used so far──▶ governor ──limit──▶ enforcer
//!                           │    ▲
//!                  samples  ▼    │ after a restart
//!                          journal
//! ```
//!
//! The arithmetic is [`tidegate::budget`]; [`governor`] says when a limit changes, and neither reads a clock. Everything that touches the
//! machine is at the rim: counters are read, limits are written, and whatever was changed is put back.

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
