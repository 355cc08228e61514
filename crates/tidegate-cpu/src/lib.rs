//! The CPU governor: keeps a machine, a cgroup or a process tree under an average over a window, and uses as much of that as it can.

pub mod cgroups;
pub mod enforcer;
pub mod guardian;
pub mod meter;
pub mod processes;
