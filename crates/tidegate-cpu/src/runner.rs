//! The runner: samples the meter, decides the limit, enforces it, and writes every sample to the journal.
//!
//! The limited part may be smaller than the measured one, for example a command on a machine whose average counts. Then the command gets
//! what the others leave.

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

/// Enforced limits are multiples of a twentieth of a point. A limit falls a little with every sample, and every write starts a new
/// quota period in the kernel.
const STEP: u64 = 50_000_000;

/// Rounds a limit down to whole steps. A limit below one step is not rounded.
pub fn in_force(limit: Rate) -> Rate {
    let stepped = Rate::from_billionths(limit.billionths() / STEP * STEP);
    if stepped == Rate::ZERO { limit } else { stepped }
}

/// Usage that may be counted late, in nanoseconds of the whole machine. Counters tick, and some usage counts only when a process ends.
const LATE: i64 = 1_000_000_000;

/// Measures, decides, enforces and records.
pub struct Runner {
    governor: Governor,
    journal: Journal,
    cores: u32,
    measured: MeasuredUsage,
    /// Meter of the limited part, if it differs from the measured target.
    part: Option<MeasuredUsage>,
    enforcer: Box<dyn Enforcer>,
    /// The enforced limit.
    enforced: Option<Rate>,
    last: UsageSample,
    /// Usage that exceeded its interval. It is added to the next interval.
    late: Quota,
    /// Usage of the last sample that the machine cannot have used.
    surplus: Quota,
    /// Error of the last journal write.
    unkept: Option<io::Error>,
}

/// A meter and its last reading.
struct MeasuredUsage {
    meter: Box<dyn Meter>,
    last: MeterReading,
}

impl MeasuredUsage {
    fn of(mut meter: Box<dyn Meter>) -> Result<MeasuredUsage, MeterError> {
        let last = meter.read()?;
        Ok(MeasuredUsage { meter, last })
    }

    /// Usage since the last call, if it is known.
    fn look(&mut self) -> Result<Option<Duration>, MeterError> {
        let reading = self.meter.read()?;
        let used = reading.since(&self.last);
        self.last = reading;
        Ok(used)
    }
}

/// Why the governor cannot continue.
#[derive(Debug)]
pub enum RunError {
    /// The target cannot be measured or is gone.
    Meter(MeterError),
    /// The limit cannot be enforced.
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

/// The samples needed to resume: those of the current window and of the trailing window.
pub fn recent(folder: &Path, settings: &GovernorSettings, now: ClockReading) -> io::Result<Vec<UsageSample>> {
    let tile = settings.tiling.window(now.wall);
    let since = tile.start.min(before(now.wall, settings.tiling.nominal_length()));
    read_since(folder, before(since, settings.step()))
}

impl Runner {
    /// Resumes from the journal, or starts with an empty history. Usage in between is known if the counter is still the same.
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

    /// Records the time without a governor: usage from the counter where possible, otherwise as unobserved time.
    ///
    /// The counter is usable if it is the one of the last sample, or if it restarted together with the machine and has the same target.
    fn bridge(&mut self, reading: MeterReading, now: ClockReading) {
        let moment = self.moment(now);
        if number(reading.life) == self.last.life && reading.used >= self.last.counter {
            let used = self.quota(reading.used.saturating_sub(self.last.counter));
            self.note(moment, Observation::Used(used), reading, now);
            return;
        }
        // A restarted counter covers the time since its start. Older versions did not record the target.
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

    /// Samples the meter, decides the limit and enforces it.
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

    /// Time until the next sample or the end of the window.
    pub fn pause(&self, now: ClockReading) -> Duration {
        let account = self.governor.account();
        let left = Duration::from_nanos(account.window().end.since(now.wall).ticks());
        let next = self.governor.settings().sample_every;
        if left.is_zero() { next } else { next.min(left) }
    }

    /// Lifts the limit and ends. The result of the last journal sync is returned separately, because it does not change how the run
    /// ended.
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

    /// Error of the last journal write, if it failed. The governor continues, but a restart would miss the samples since then.
    pub fn unkept(&self) -> Option<&io::Error> {
        self.unkept.as_ref()
    }

    /// Usage of the last sample beyond the capacity of the machine, if any. It is discarded.
    pub fn surplus(&self) -> Option<Quota> {
        (self.surplus > Quota::ZERO).then_some(self.surplus)
    }

    /// The enforced limit.
    pub fn enforced(&self) -> Option<Rate> {
        self.enforced
    }

    fn enforce(&mut self, rest: Option<Rate>) -> Result<(), RunError> {
        let applied = self.governor.applied();
        let limit = in_force(rest.map_or(applied, |rest| left_by(rest, applied)));
        // Apply an unchanged limit too: cgroups that share it get new shares.
        self.enforcer.apply(limit)?;
        self.enforced = Some(limit);
        Ok(())
    }

    /// Caps usage at the machine's capacity in this interval. A small excess was counted late and is carried over to the next interval.
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

    /// Totals are cumulative, so the next successful sample includes a failed one.
    fn write(&mut self, sample: UsageSample) {
        self.unkept = self.journal.append(&sample).err();
        self.last = sample;
    }

    /// Continues the monotonic clock over restarts: by the uptime, or by the wall clock after a reboot.
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
