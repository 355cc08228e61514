//! The subject: what is measured, what is limited, and by what means.

use std::path::Path;
use std::time::Duration;

use tidegate::budget::Rate;
use tidegate_cpu::Settings;
use tidegate_cpu::cgroups::{CgroupError, Roots};
use tidegate_cpu::enforcer::{Advice, Burst, Enclosure, EnforceError, Enforcer, Machine, Quota, Signals};
use tidegate_cpu::guardian::Guardian;
use tidegate_cpu::meter::{CgroupMeter, HostMeter, Meter, MeterError, TreeMeter};

use super::command::Started;
use crate::args::{CpuRunArgs, Enforce, Target};
use crate::{Failure, say};

/// What is governed.
pub(super) struct Subject {
    /// In words.
    pub(super) what: String,
    pub(super) meter: Box<dyn Meter>,
    /// What is limited, if that is not all that is measured.
    pub(super) part: Option<Box<dyn Meter>>,
    pub(super) enforcer: Box<dyn Enforcer>,
}

/// Something that was found, or why not.
type Found<T> = Result<T, EnforceError>;

/// Something that is measured and limited, and how.
type Governed = (Box<dyn Meter>, Box<dyn Enforcer>, &'static str);

/// Where and under whose eyes something is limited.
struct Place<'a> {
    roots: &'a Roots,
    guardian: &'a Guardian,
    burst: Burst,
    /// What is in force at first.
    first: Rate,
    /// What the average is kept over.
    window: Duration,
}

impl Subject {
    /// Finds what was named. Whatever is wrong with it is told before anything is limited.
    pub(super) fn find(
        args: &CpuRunArgs,
        settings: &Settings,
        roots: &Roots,
        guardian: &Guardian,
        command: Option<&Started>,
    ) -> Result<Subject, Failure> {
        let burst = Burst::of_percent(args.burst);
        let window = settings.tiling.nominal_length();
        let place = Place { roots, guardian, burst, first: settings.terms.floor, window };
        if !args.limit_cgroups.is_empty()
            && (command.is_some() || args.target.as_ref().is_some_and(|target| *target != Target::Host))
        {
            return Err(bad("--limit-cgroup is for --target host without a command"));
        }
        match (&args.target, command) {
            (None, Some(command)) => {
                let (meter, enforcer, how) = place.command(args.enforce, command)?;
                Ok(Subject { what: format!("the command, {how}"), meter, part: None, enforcer })
            }
            (Some(Target::Host), Some(command)) => {
                let (part, enforcer, how) = place.command(args.enforce, command)?;
                let meter = Box::new(HostMeter::new(roots).map_err(|error| wrong(&error.into()))?);
                Ok(Subject {
                    what: format!("the machine by the command, {how}"),
                    meter,
                    part: Some(part),
                    enforcer,
                })
            }
            (Some(Target::Cgroup(_) | Target::Pid(_)), Some(_)) => {
                Err(bad("a command is measured by itself, or with --target host; leave --target out"))
            }
            (Some(Target::Pid(pid)), None) => {
                let meter = Box::new(TreeMeter::new(roots, *pid).map_err(|error| wrong(&error.into()))?);
                let (enforcer, how) = place.processes(args.enforce, *pid)?;
                Ok(Subject { what: format!("process {pid}, {how}"), meter, part: None, enforcer })
            }
            (Some(Target::Cgroup(path)), None) => place.cgroup(args.enforce, path),
            (None | Some(Target::Host), None) => place.host(args),
        }
    }
}

impl Place<'_> {
    /// A command that waits: in a cgroup of its own, which counts everything it ever starts.
    fn command(&self, enforce: Option<Enforce>, command: &Started) -> Result<Governed, Failure> {
        let pid = command.pid();
        if matches!(enforce, None | Some(Enforce::Cgroup)) {
            match self.enclosed(pid) {
                Ok((meter, enforcer)) => return Ok((meter, enforcer, "limited by a cgroup")),
                Err(error) if enforce.is_some() => return Err(wrong(&error)),
                Err(error) => say(&format!("no cgroup: {error}; signals are used instead")),
            }
        }
        let meter = TreeMeter::kept(self.roots, pid, Some(command.keeper()));
        let meter = Box::new(meter.map_err(|error| wrong(&error.into()))?);
        let enforce = if enforce.is_none() { Some(Enforce::Signal) } else { enforce };
        let (enforcer, how) = self.processes(enforce, pid)?;
        Ok((meter, enforcer, how))
    }

    fn enclosed(&self, pid: u32) -> Found<(Box<dyn Meter>, Box<dyn Enforcer>)> {
        let mut enclosure = Enclosure::around(self.roots, pid, self.burst, self.guardian)?;
        // It is made when the first limit is in force.
        enclosure.apply(self.first)?;
        let meter = CgroupMeter::new(self.roots, enclosure.path())?;
        Ok((Box::new(meter), Box::new(enclosure)))
    }

    /// Processes that run already.
    fn processes(
        &self,
        enforce: Option<Enforce>,
        pid: u32,
    ) -> Result<(Box<dyn Enforcer>, &'static str), Failure> {
        let cgroup = || -> Found<Box<dyn Enforcer>> {
            Ok(Box::new(Enclosure::around(self.roots, pid, self.burst, self.guardian)?))
        };
        let signals = || -> Found<Box<dyn Enforcer>> {
            let signals = Signals::over(self.roots, pid, self.guardian)?;
            Ok(Box::new(signals.over_a_window_of(self.window)))
        };
        match enforce {
            Some(Enforce::None) => Ok((Box::new(Advice), "not limited")),
            Some(Enforce::Cgroup) => {
                cgroup().map(|found| (found, "limited by a cgroup")).map_err(|error| wrong(&error))
            }
            Some(Enforce::Signal) => {
                signals().map(|found| (found, "limited by signals")).map_err(|error| wrong(&error))
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

    fn cgroup(&self, enforce: Option<Enforce>, path: &Path) -> Result<Subject, Failure> {
        let meter = Box::new(CgroupMeter::new(self.roots, path).map_err(|error| wrong(&error.into()))?);
        let what = format!("cgroup {}", path.display());
        let (enforcer, how): (Box<dyn Enforcer>, _) = match enforce {
            Some(Enforce::None) => (Box::new(Advice), "not limited"),
            Some(Enforce::Signal) => {
                return Err(bad(
                    "a cgroup is not limited by signals; use --enforce cgroup, or --target pid:N",
                ));
            }
            Some(Enforce::Cgroup) | None => {
                let quota = Quota::over(self.roots, path, self.burst, self.guardian);
                (Box::new(quota.map_err(|error| wrong(&error))?), "limited by the kernel")
            }
        };
        Ok(Subject { what: format!("{what}, {how}"), meter, part: None, enforcer })
    }

    fn host(&self, args: &CpuRunArgs) -> Result<Subject, Failure> {
        let meter = Box::new(HostMeter::new(self.roots).map_err(|error| wrong(&error.into()))?);
        let paths = (!args.limit_cgroups.is_empty()).then_some(args.limit_cgroups.as_slice());
        let machine = || Machine::new(self.roots, paths, self.burst, self.guardian);
        let (enforcer, how): (Box<dyn Enforcer>, _) = match args.enforce {
            Some(Enforce::None) => (Box::new(Advice), "not limited"),
            Some(Enforce::Signal) => {
                return Err(bad(
                    "a machine is not limited by signals; use --enforce cgroup, or --target pid:N",
                ));
            }
            Some(Enforce::Cgroup) => {
                (Box::new(machine().map_err(|error| wrong(&error))?), "limited by cgroups")
            }
            None => match machine() {
                Ok(machine) if machine.is_powerless() => {
                    say(
                        "only monitoring: everything here runs beside what people need to log in, and that is not limited; name a cgroup with --limit-cgroup, or give a command",
                    );
                    (Box::new(machine), "only monitored")
                }
                Ok(machine) => (Box::new(machine), "limited by cgroups"),
                Err(error) if paths.is_some() => return Err(wrong(&error)),
                Err(error) => Self::monitor(&error)?,
            },
        };
        Ok(Subject { what: format!("the machine, {how}"), meter, part: None, enforcer })
    }

    /// Nobody may limit it: what is used is told, and what should be.
    fn monitor(error: &EnforceError) -> Result<(Box<dyn Enforcer>, &'static str), Failure> {
        if !error.is_for_want_of_rights()
            && !matches!(error, EnforceError::Cgroup(CgroupError::NoController { .. }))
        {
            return Err(wrong(error));
        }
        say(&format!("only monitoring: {error}"));
        Ok((Box::new(Advice), "only monitored"))
    }
}

/// What was named cannot be governed: the one who named it can help.
fn wrong(error: &EnforceError) -> Failure {
    match error {
        EnforceError::Failed { .. } | EnforceError::Guardian(_) | EnforceError::NotRestored { .. } => {
            Failure::Failed(error.to_string())
        }
        EnforceError::Meter(MeterError::Failed { .. }) => Failure::Failed(error.to_string()),
        _ => bad(error),
    }
}

fn bad(why: impl std::fmt::Display) -> Failure {
    Failure::BadInput(why.to_string())
}
