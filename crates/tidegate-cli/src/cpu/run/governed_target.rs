//! The governed target: how it is measured and how it is limited.

use std::path::Path;
use std::time::Duration;

use tidegate::budget::Rate;
use tidegate_cpu::GovernorSettings;
use tidegate_cpu::cgroups::{CgroupError, FilesystemRoots};
use tidegate_cpu::enforcer::{
    AdvisoryEnforcer, CgroupScope, EnforceError, Enforcer, MachineEnforcer, QuotaBurst, QuotaEnforcer,
    SignalEnforcer,
};
use tidegate_cpu::meter::{CgroupMeter, HostMeter, Meter, MeterError, TreeMeter};
use tidegate_cpu::watchdog::CpuWatchdog;

use super::command::GovernedCommand;
use crate::args::{CpuRunArgs, CpuTarget, EnforceMethod};
use crate::{Failure, print_message};

/// A target with its meter and enforcer.
pub(super) struct GovernedTarget {
    /// Description for messages.
    pub(super) description: String,
    pub(super) meter: Box<dyn Meter>,
    /// The limited part, if less is limited than measured.
    pub(super) part: Option<Box<dyn Meter>>,
    pub(super) enforcer: Box<dyn Enforcer>,
}

/// A result of the enforcer.
type EnforceResult<T> = Result<T, EnforceError>;

/// Meter, enforcer, and a description of the method.
type MeterAndEnforcer = (Box<dyn Meter>, Box<dyn Enforcer>, &'static str);

/// The common parameters of all enforcers.
struct TargetContext<'a> {
    roots: &'a FilesystemRoots,
    watchdog: &'a CpuWatchdog,
    burst: QuotaBurst,
    /// The first limit.
    first: Rate,
    /// The window of the average.
    window: Duration,
}

impl GovernedTarget {
    /// Finds the target. All errors are reported before anything is limited.
    pub(super) fn find(
        args: &CpuRunArgs,
        settings: &GovernorSettings,
        roots: &FilesystemRoots,
        watchdog: &CpuWatchdog,
        command: Option<&GovernedCommand>,
    ) -> Result<GovernedTarget, Failure> {
        let burst = QuotaBurst::of_percent(args.burst);
        let window = settings.schedule.nominal_length();
        let context = TargetContext { roots, watchdog, burst, first: settings.terms.floor, window };
        if !args.limit_cgroups.is_empty()
            && (command.is_some() || args.target.as_ref().is_some_and(|target| *target != CpuTarget::Host))
        {
            return Err(bad_input("--limit-cgroup is for --target host without a command"));
        }
        match (&args.target, command) {
            (None, Some(command)) => {
                let (meter, enforcer, method) = context.command(args.enforce, command)?;
                Ok(GovernedTarget {
                    description: format!("the command, {method}"),
                    meter,
                    part: None,
                    enforcer,
                })
            }
            (Some(CpuTarget::Host), Some(command)) => {
                let (part, enforcer, method) = context.command(args.enforce, command)?;
                let meter = Box::new(HostMeter::new(roots).map_err(|error| failure_of(&error.into()))?);
                Ok(GovernedTarget {
                    description: format!("the machine by the command, {method}"),
                    meter,
                    part: Some(part),
                    enforcer,
                })
            }
            (Some(CpuTarget::Cgroup(_) | CpuTarget::Pid(_)), Some(_)) => {
                Err(bad_input("a command is measured by itself, or with --target host; leave --target out"))
            }
            (Some(CpuTarget::Pid(pid)), None) => {
                let meter = Box::new(TreeMeter::new(roots, *pid).map_err(|error| failure_of(&error.into()))?);
                let (enforcer, method) = context.processes(args.enforce, *pid)?;
                Ok(GovernedTarget {
                    description: format!("process {pid}, {method}"),
                    meter,
                    part: None,
                    enforcer,
                })
            }
            (Some(CpuTarget::Cgroup(path)), None) => context.cgroup(args.enforce, path),
            (None | Some(CpuTarget::Host), None) => context.host(args),
        }
    }
}

impl TargetContext<'_> {
    /// A paused command. In a cgroup of its own all its descendants are counted.
    fn command(
        &self,
        enforce: Option<EnforceMethod>,
        command: &GovernedCommand,
    ) -> Result<MeterAndEnforcer, Failure> {
        let pid = command.pid();
        if matches!(enforce, None | Some(EnforceMethod::Cgroup)) {
            match self.enclosed(pid) {
                Ok((meter, enforcer)) => return Ok((meter, enforcer, "limited by a cgroup")),
                Err(error) if enforce.is_some() => return Err(failure_of(&error)),
                Err(error) => print_message(&format!("no cgroup: {error}; signals are used instead")),
            }
        }
        let meter = TreeMeter::with_subreaper(self.roots, pid, Some(command.subreaper()));
        let meter = Box::new(meter.map_err(|error| failure_of(&error.into()))?);
        let enforce = if enforce.is_none() { Some(EnforceMethod::Signal) } else { enforce };
        let (enforcer, method) = self.processes(enforce, pid)?;
        Ok((meter, enforcer, method))
    }

    fn enclosed(&self, pid: u32) -> EnforceResult<(Box<dyn Meter>, Box<dyn Enforcer>)> {
        let mut scope = CgroupScope::new(self.roots, pid, self.burst, self.watchdog)?;
        // The cgroup is created with the first limit.
        scope.apply(self.first)?;
        let meter = CgroupMeter::new(self.roots, scope.path())?;
        Ok((Box::new(meter), Box::new(scope)))
    }

    /// A running process and its descendants.
    fn processes(
        &self,
        enforce: Option<EnforceMethod>,
        pid: u32,
    ) -> Result<(Box<dyn Enforcer>, &'static str), Failure> {
        let cgroup = || -> EnforceResult<Box<dyn Enforcer>> {
            Ok(Box::new(CgroupScope::new(self.roots, pid, self.burst, self.watchdog)?))
        };
        let signals = || -> EnforceResult<Box<dyn Enforcer>> {
            let signals = SignalEnforcer::new(self.roots, pid, self.watchdog)?;
            Ok(Box::new(signals.with_window(self.window)))
        };
        match enforce {
            Some(EnforceMethod::None) => Ok((Box::new(AdvisoryEnforcer), "not limited")),
            Some(EnforceMethod::Cgroup) => {
                cgroup().map(|found| (found, "limited by a cgroup")).map_err(|error| failure_of(&error))
            }
            Some(EnforceMethod::Signal) => {
                signals().map(|found| (found, "limited by signals")).map_err(|error| failure_of(&error))
            }
            None => match cgroup()
                .map(|found| (found, "limited by a cgroup"))
                .or_else(|_| signals().map(|found| (found, "limited by signals")))
            {
                Ok(found) => Ok(found),
                Err(error) => Self::monitor(&error),
            },
        }
    }

    fn cgroup(&self, enforce: Option<EnforceMethod>, path: &Path) -> Result<GovernedTarget, Failure> {
        let meter = Box::new(CgroupMeter::new(self.roots, path).map_err(|error| failure_of(&error.into()))?);
        let description = format!("cgroup {}", path.display());
        let (enforcer, method): (Box<dyn Enforcer>, _) = match enforce {
            Some(EnforceMethod::None) => (Box::new(AdvisoryEnforcer), "not limited"),
            Some(EnforceMethod::Signal) => {
                return Err(bad_input(
                    "a cgroup is not limited by signals; use --enforce cgroup, or --target pid:N",
                ));
            }
            Some(EnforceMethod::Cgroup) | None => {
                let quota = QuotaEnforcer::new(self.roots, path, self.burst, self.watchdog);
                (Box::new(quota.map_err(|error| failure_of(&error))?), "limited by the kernel")
            }
        };
        Ok(GovernedTarget { description: format!("{description}, {method}"), meter, part: None, enforcer })
    }

    fn host(&self, args: &CpuRunArgs) -> Result<GovernedTarget, Failure> {
        let meter = Box::new(HostMeter::new(self.roots).map_err(|error| failure_of(&error.into()))?);
        let paths = (!args.limit_cgroups.is_empty()).then_some(args.limit_cgroups.as_slice());
        let machine = || MachineEnforcer::new(self.roots, paths, self.burst, self.watchdog);
        let (enforcer, method): (Box<dyn Enforcer>, _) = match args.enforce {
            Some(EnforceMethod::None) => (Box::new(AdvisoryEnforcer), "not limited"),
            Some(EnforceMethod::Signal) => {
                return Err(bad_input(
                    "a machine is not limited by signals; use --enforce cgroup, or --target pid:N",
                ));
            }
            Some(EnforceMethod::Cgroup) => {
                (Box::new(machine().map_err(|error| failure_of(&error))?), "limited by cgroups")
            }
            None => match machine() {
                Ok(machine) if machine.has_no_targets() => {
                    print_message(
                        "only monitoring: every cgroup here also holds processes needed for logging in, which are not limited; name a cgroup with --limit-cgroup, or give a command",
                    );
                    (Box::new(machine), "only monitored")
                }
                Ok(machine) => (Box::new(machine), "limited by cgroups"),
                Err(error) if paths.is_some() => return Err(failure_of(&error)),
                Err(error) => Self::monitor(&error)?,
            },
        };
        Ok(GovernedTarget { description: format!("the machine, {method}"), meter, part: None, enforcer })
    }

    /// Falls back to monitoring if permissions are missing.
    fn monitor(error: &EnforceError) -> Result<(Box<dyn Enforcer>, &'static str), Failure> {
        if !error.is_permission_error()
            && !matches!(error, EnforceError::Cgroup(CgroupError::NoController { .. }))
        {
            return Err(failure_of(error));
        }
        print_message(&format!("only monitoring: {error}"));
        Ok((Box::new(AdvisoryEnforcer), "only monitored"))
    }
}

/// Bad input if the user can correct it, otherwise a failure.
fn failure_of(error: &EnforceError) -> Failure {
    match error {
        EnforceError::Failed { .. } | EnforceError::Watchdog(_) | EnforceError::NotRestored { .. } => {
            Failure::Failed(error.to_string())
        }
        EnforceError::Meter(MeterError::Failed { .. }) => Failure::Failed(error.to_string()),
        _ => bad_input(error),
    }
}

fn bad_input(why: impl std::fmt::Display) -> Failure {
    Failure::BadInput(why.to_string())
}
