//! The runner: one look after another, from the counter to the limit, with every sample written down.
//!
//! What is limited may be less than what is measured: a command, on a machine whose average counts. Then it gets what the others leave.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use tidegate::budget::{BudgetTime, Quota, Rate};

use crate::clock::ClockReading;
use crate::enforcer::{EnforceError, Enforcer, left_by};
use crate::governor::{Governor, GovernorDecision, Observation, most_in};
use crate::journal::{Journal, UsageSample, before, read_since};
use crate::meter::{CounterId, Meter, MeterError, MeterReading, TargetId, of_machine};
use crate::settings::GovernorSettings;

/// Limits are enforced in steps of a twentieth of a point, rounded down: a kernel gives a new quota with every limit that is written, and a limit
/// falls a little with every look.
const STEP: u64 = 50_000_000;

/// What is put in force for a limit: as much of it as whole steps have, or the limit itself if it is less than a step.
pub fn in_force(limit: Rate) -> Rate {
    let stepped = Rate::from_billionths(limit.billionths() / STEP * STEP);
    if stepped == Rate::ZERO { limit } else { stepped }
}

/// How much may be counted late, in nanoseconds of the whole machine: counters tick, and what a process used is told when it ends.
const LATE: i64 = 1_000_000_000;

/// Measures, decides, enforces and writes down.
pub struct Runner {
    governor: Governor,
    journal: Journal,
    cores: u32,
    measured: MeasuredUsage,
    /// What is limited, if that is not all that is measured.
    part: Option<MeasuredUsage>,
    enforcer: Box<dyn Enforcer>,
    /// What is enforced.
    enforced: Option<Rate>,
    last: UsageSample,
    /// What was counted and did not fit into its time: it counts in the time after.
    late: Quota,
    /// What was counted at the last look and cannot have been used.
    surplus: Quota,
    /// Why the last sample could not be kept.
    unkept: Option<io::Error>,
}

/// A counter, and what it said last.
struct MeasuredUsage {
    meter: Box<dyn Meter>,
    last: MeterReading,
}

impl MeasuredUsage {
    fn of(mut meter: Box<dyn Meter>) -> Result<MeasuredUsage, MeterError> {
        let last = meter.read()?;
        Ok(MeasuredUsage { meter, last })
    }

    /// What was used since the last time, if that is known.
    fn look(&mut self) -> Result<Option<Duration>, MeterError> {
        let reading = self.meter.read()?;
        let used = reading.since(&self.last);
        self.last = reading;
        Ok(used)
    }
}

/// Why governing cannot go on.
#[derive(Debug)]
pub enum RunError {
    /// What was to be measured cannot be, or is gone.
    Meter(MeterError),
    /// The limit cannot be put in force.
    Enforce(EnforceError),
    /// The journal cannot be written or read.
    Journal(io::Error),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Meter(error) => write!(f, "{error}"),
            RunError::Enforce(error) => write!(f, "{error}"),
            RunError::Journal(error) => write!(f, "the samples cannot be kept: {error}"),
        }
    }
}

impl std::error::Error for RunError {}

impl From<MeterError> for RunError {
    fn from(error: MeterError) -> RunError {
        RunError::Meter(error)
    }
}

impl From<EnforceError> for RunError {
    fn from(error: EnforceError) -> RunError {
        RunError::Enforce(error)
    }
}

/// The samples that a governor needs to go on: those of its window, and of the same time before now.
pub fn recent(folder: &Path, settings: &GovernorSettings, now: ClockReading) -> io::Result<Vec<UsageSample>> {
    let tile = settings.tiling.window(now.wall);
    let since = tile.start.min(before(now.wall, settings.tiling.nominal_length()));
    read_since(folder, before(since, settings.step()))
}

impl Runner {
    /// Goes on where the journal ends, or begins anew. What was used since then is known if the counter still lives.
    pub fn begin(
        settings: GovernorSettings,
        journal: (Journal, &[UsageSample]),
        cores: u32,
        meter: Box<dyn Meter>,
        part: Option<Box<dyn Meter>>,
        enforcer: Box<dyn Enforcer>,
        now: ClockReading,
    ) -> Result<Runner, RunError> {
        let measured = MeasuredUsage::of(meter)?;
        let part = part.map(MeasuredUsage::of).transpose()?;
        let (journal, samples) = journal;
        let reading = measured.last;
        let first =
            BudgetTime { wall: now.wall, monotonic: i64::try_from(now.wall.ticks()).unwrap_or(i64::MAX) };
        let resumed = Governor::resume(settings.clone(), samples).zip(samples.last().copied());
        let (governor, last) = resumed.unwrap_or_else(|| {
            let governor = Governor::new(settings, first);
            let begin = UsageSample {
                at: first,
                total: Quota::ZERO,
                observed: false,
                applied: governor.applied(),
                counter: reading.used,
                life: number(reading.life),
                target: reading.target,
                boot: now.boot,
                uptime: now.uptime,
            };
            (governor, begin)
        });
        let is_resumed = !samples.is_empty();
        let mut runner = Runner {
            governor,
            journal,
            cores,
            measured,
            part,
            enforcer,
            enforced: None,
            last,
            late: Quota::ZERO,
            surplus: Quota::ZERO,
            unkept: None,
        };
        if is_resumed {
            runner.bridge(reading, now);
        } else {
            runner.write(runner.last);
        }
        if let Some(error) = runner.unkept.take() {
            return Err(RunError::Journal(error));
        }
        runner.enforce(None)?;
        Ok(runner)
    }

    /// What happened while nobody governed: what the counter says, and what it does not say by policy.
    ///
    /// A counter says it if it is the one that was read then, or the same began anew with the machine. Another one has counted something else until now.
    fn bridge(&mut self, reading: MeterReading, now: ClockReading) {
        let moment = self.moment(now);
        if number(reading.life) == self.last.life && reading.used >= self.last.counter {
            let used = self.quota(reading.used.saturating_sub(self.last.counter));
            self.note(moment, Observation::Used(used), reading, now);
            return;
        }
        // A counter that began since then knows everything from there on. Older versions did not write down what they counted.
        let is_same = [TargetId::UNKNOWN, reading.target].contains(&self.last.target);
        let is_reborn = is_same && now.boot != self.last.boot;
        let slept =
            Duration::from_nanos(u64::try_from(moment.monotonic - self.last.at.monotonic).unwrap_or(0));
        let age = reading.age.filter(|age| is_reborn && *age < slept);
        let unseen = age.map(|age| slept.saturating_sub(age)).filter(|unseen| *unseen < slept);
        let Some(unseen) = unseen else {
            self.note(moment, Observation::Nothing, reading, now);
            return;
        };
        let known = slept.saturating_sub(unseen);
        let began = BudgetTime {
            wall: before(now.wall, known).max(self.last.at.wall),
            monotonic: moment
                .monotonic
                .saturating_sub_unsigned(u64::try_from(known.as_nanos()).unwrap_or(u64::MAX)),
        };
        let reborn =
            ClockReading { wall: began.wall, uptime: now.uptime.saturating_sub(known), boot: now.boot };
        self.note(began, Observation::Nothing, MeterReading { used: Duration::ZERO, ..reading }, reborn);
        let used = self.quota(reading.used);
        self.note(moment, Observation::Used(used), reading, now);
    }

    /// Looks at the counter, decides, and puts the limit in force.
    pub fn look(&mut self, now: ClockReading) -> Result<GovernorDecision, RunError> {
        let used = self.measured.look()?;
        let reading = self.measured.last;
        let seen = used.map_or(Observation::Nothing, |used| Observation::Used(self.quota(used)));
        let moment = self.moment(now);
        let passed = u64::try_from(moment.monotonic - self.last.at.monotonic).unwrap_or(0);
        let look = self.note(moment, seen, reading, now);
        let rest = match &mut self.part {
            None => None,
            Some(part) => {
                let own = part.look()?.unwrap_or_default();
                let others = used.unwrap_or_default().saturating_sub(own);
                Some(self.quota(others).rate_over(Duration::from_nanos(passed.max(1))))
            }
        };
        self.enforce(rest)?;
        Ok(look)
    }

    /// How long nothing has to be done: until the next sample, or until the window ends.
    pub fn pause(&self, now: ClockReading) -> Duration {
        let account = self.governor.account();
        let left = Duration::from_nanos(account.window().end.since(now.wall).ticks());
        let next = self.governor.settings().sample_every;
        if left.is_zero() { next } else { next.min(left) }
    }

    /// Lifts the limit, and ends. What was kept of the samples is told apart: it does not change how the run ended.
    pub fn finish(mut self) -> Result<(Governor, io::Result<()>), RunError> {
        let restored = self.enforcer.restore();
        let kept = self.journal.sync();
        restored?;
        Ok((self.governor, kept))
    }

    /// The governor.
    pub fn governor(&mut self) -> &mut Governor {
        &mut self.governor
    }

    /// Why the last sample could not be kept, if it could not. Governing goes on; a restart would miss what was not kept since.
    pub fn unkept(&self) -> Option<&io::Error> {
        self.unkept.as_ref()
    }

    /// What was counted at the last look although the machine cannot have done it in that time, if anything was. It counts as nothing.
    pub fn surplus(&self) -> Option<Quota> {
        (self.surplus > Quota::ZERO).then_some(self.surplus)
    }

    /// What is enforced, if not the limit itself.
    pub fn enforced(&self) -> Option<Rate> {
        self.enforced
    }

    fn enforce(&mut self, rest: Option<Rate>) -> Result<(), RunError> {
        let applied = self.governor.applied();
        let limit = in_force(rest.map_or(applied, |rest| left_by(rest, applied)));
        // Several that share a limit are served anew each time.
        self.enforcer.apply(limit)?;
        self.enforced = Some(limit);
        Ok(())
    }

    /// What of a count goes into this time: as much as the machine can do in it. A little more was counted late, and goes into the time after.
    fn fitting(&mut self, at: BudgetTime, used: Quota) -> Quota {
        let counted = used.plus(self.late);
        let fitting = counted.min(most_in(at.monotonic.saturating_sub(self.last.at.monotonic)));
        let rest = counted.minus(fitting);
        self.late = rest.min(most_in(LATE));
        self.surplus = rest.minus(self.late);
        fitting
    }

    fn note(
        &mut self,
        at: BudgetTime,
        seen: Observation,
        reading: MeterReading,
        now: ClockReading,
    ) -> GovernorDecision {
        let seen = match seen {
            Observation::Used(used) => Observation::Used(self.fitting(at, used)),
            Observation::Nothing => {
                (self.late, self.surplus) = (Quota::ZERO, Quota::ZERO);
                Observation::Nothing
            }
        };
        let look = self.governor.look(at, seen);
        let (used, observed) = match seen {
            Observation::Used(used) => (used, true),
            Observation::Nothing => (Quota::ZERO, false),
        };
        self.write(UsageSample {
            at,
            total: self.last.total.plus(used),
            observed,
            applied: look.applied,
            counter: reading.used,
            life: number(reading.life),
            target: reading.target,
            boot: now.boot,
            uptime: now.uptime,
        });
        look
    }

    /// A sample that cannot be kept is in the next one that can.
    fn write(&mut self, sample: UsageSample) {
        self.unkept = self.journal.append(&sample).err();
        self.last = sample;
    }

    /// The steady clock goes on over restarts: by the time since the start of the machine, or by the wall clock if that was another one.
    fn moment(&self, now: ClockReading) -> BudgetTime {
        let passed = if now.boot == self.last.boot {
            now.uptime.saturating_sub(self.last.uptime)
        } else {
            Duration::from_nanos(now.wall.since(self.last.at.wall).ticks())
        };
        let passed = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
        BudgetTime { wall: now.wall, monotonic: self.last.at.monotonic.saturating_add_unsigned(passed) }
    }

    fn quota(&self, used: Duration) -> Quota {
        of_machine(used, self.cores)
    }
}

fn number(life: CounterId) -> u128 {
    u128::from_le_bytes(life.to_bytes())
}
