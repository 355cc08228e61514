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
use crate::enforcer::{EnforceError, Enforcer, remaining_limit};
use crate::governor::{Governor, GovernorDecision, Observation, capacity_in};
use crate::journal::{SampleJournal, UsageSample, before, read_since};
use crate::meter::{CounterId, Meter, MeterError, MeterReading, TargetId, of_machine};
use crate::settings::GovernorSettings;

/// Enforced limits are multiples of a twentieth of a point. A limit falls a little with every sample, and every write starts a new
/// quota period in the kernel.
const LIMIT_STEP: u64 = 50_000_000;

/// Rounds a limit down to whole steps. A limit below one step is not rounded.
pub fn round_to_step(limit: Rate) -> Rate {
    let stepped = Rate::from_billionths(limit.billionths() / LIMIT_STEP * LIMIT_STEP);
    if stepped == Rate::ZERO { limit } else { stepped }
}

/// Usage that may be counted late, in nanoseconds of the whole machine. Counters tick, and some usage counts only when a process ends.
const MAX_CARRY_OVER: i64 = 1_000_000_000;

/// Measures, decides, enforces and records.
pub struct Runner {
    governor: Governor,
    journal: SampleJournal,
    cores: u32,
    measured: MeterState,
    /// Meter of the limited part, if it differs from the measured target.
    limited_part: Option<MeterState>,
    enforcer: Box<dyn Enforcer>,
    /// The enforced limit.
    enforced: Option<Rate>,
    last: UsageSample,
    /// Usage that exceeded its interval. It is added to the next interval.
    carried_over: Quota,
    /// Usage of the last sample that the machine cannot have used.
    discarded_usage: Quota,
    /// Error of the last journal write.
    journal_error: Option<io::Error>,
}

/// A meter and its last reading.
struct MeterState {
    meter: Box<dyn Meter>,
    last: MeterReading,
}

impl MeterState {
    fn of(mut meter: Box<dyn Meter>) -> Result<MeterState, MeterError> {
        let last = meter.read()?;
        Ok(MeterState { meter, last })
    }

    /// Usage since the last call, if it is known.
    fn sample(&mut self) -> Result<Option<Duration>, MeterError> {
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
            RunError::Journal(error) => write!(f, "cannot write the sample journal: {error}"),
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
    let window = settings.schedule.window(now.wall);
    let since = window.start.min(before(now.wall, settings.schedule.nominal_length()));
    read_since(folder, before(since, settings.step()))
}

impl Runner {
    /// Resumes from the journal, or starts with an empty history. Usage in between is known if the counter is still the same.
    pub fn start(
        settings: GovernorSettings,
        journal: (SampleJournal, &[UsageSample]),
        cores: u32,
        meter: Box<dyn Meter>,
        limited_part: Option<Box<dyn Meter>>,
        enforcer: Box<dyn Enforcer>,
        now: ClockReading,
    ) -> Result<Runner, RunError> {
        let measured = MeterState::of(meter)?;
        let limited_part = limited_part.map(MeterState::of).transpose()?;
        let (journal, samples) = journal;
        let reading = measured.last;
        let first =
            BudgetTime { wall: now.wall, monotonic: i64::try_from(now.wall.ticks()).unwrap_or(i64::MAX) };
        let resumed = Governor::resume(settings.clone(), samples).zip(samples.last().copied());
        let (governor, last) = resumed.unwrap_or_else(|| {
            let governor = Governor::new(settings, first);
            let first_sample = UsageSample {
                at: first,
                total: Quota::ZERO,
                observed: false,
                applied: governor.applied(),
                counter: reading.used,
                counter_id: number(reading.counter_id),
                target: reading.target,
                boot: now.boot,
                uptime: now.uptime,
            };
            (governor, first_sample)
        });
        let is_resumed = !samples.is_empty();
        let mut runner = Runner {
            governor,
            journal,
            cores,
            measured,
            limited_part,
            enforcer,
            enforced: None,
            last,
            carried_over: Quota::ZERO,
            discarded_usage: Quota::ZERO,
            journal_error: None,
        };
        if is_resumed {
            runner.record_gap(reading, now);
        } else {
            runner.write(runner.last);
        }
        if let Some(error) = runner.journal_error.take() {
            return Err(RunError::Journal(error));
        }
        runner.enforce(None)?;
        Ok(runner)
    }

    /// Records the time without a governor: usage from the counter where possible, otherwise as unobserved time.
    ///
    /// The counter is usable if it is the one of the last sample, or if it restarted together with the machine and has the same target.
    fn record_gap(&mut self, reading: MeterReading, now: ClockReading) {
        let budget_time = self.budget_time(now);
        if number(reading.counter_id) == self.last.counter_id && reading.used >= self.last.counter {
            let used = self.quota(reading.used.saturating_sub(self.last.counter));
            self.record(budget_time, Observation::Used(used), reading, now);
            return;
        }
        // A restarted counter covers the time since its start. Older versions did not record the target.
        let is_same_target = [TargetId::UNKNOWN, reading.target].contains(&self.last.target);
        let has_restarted = is_same_target && now.boot != self.last.boot;
        let gap =
            Duration::from_nanos(u64::try_from(budget_time.monotonic - self.last.at.monotonic).unwrap_or(0));
        let age = reading.age.filter(|age| has_restarted && *age < gap);
        let unobserved = age.map(|age| gap.saturating_sub(age)).filter(|unobserved| *unobserved < gap);
        let Some(unobserved) = unobserved else {
            self.record(budget_time, Observation::Nothing, reading, now);
            return;
        };
        let known = gap.saturating_sub(unobserved);
        let began = BudgetTime {
            wall: before(now.wall, known).max(self.last.at.wall),
            monotonic: budget_time
                .monotonic
                .saturating_sub_unsigned(u64::try_from(known.as_nanos()).unwrap_or(u64::MAX)),
        };
        let restart =
            ClockReading { wall: began.wall, uptime: now.uptime.saturating_sub(known), boot: now.boot };
        self.record(began, Observation::Nothing, MeterReading { used: Duration::ZERO, ..reading }, restart);
        let used = self.quota(reading.used);
        self.record(budget_time, Observation::Used(used), reading, now);
    }

    /// Samples the meter, decides the limit and enforces it.
    pub fn sample(&mut self, now: ClockReading) -> Result<GovernorDecision, RunError> {
        let used = self.measured.sample()?;
        let reading = self.measured.last;
        let observation = used.map_or(Observation::Nothing, |used| Observation::Used(self.quota(used)));
        let budget_time = self.budget_time(now);
        let passed = u64::try_from(budget_time.monotonic - self.last.at.monotonic).unwrap_or(0);
        let decision = self.record(budget_time, observation, reading, now);
        let others = match &mut self.limited_part {
            None => None,
            Some(limited_part) => {
                let own = limited_part.sample()?.unwrap_or_default();
                let others = used.unwrap_or_default().saturating_sub(own);
                Some(self.quota(others).rate_over(Duration::from_nanos(passed.max(1))))
            }
        };
        self.enforce(others)?;
        Ok(decision)
    }

    /// Time until the next sample or the end of the window.
    pub fn next_sample_in(&self, now: ClockReading) -> Duration {
        let account = self.governor.account();
        let left = Duration::from_nanos(account.window().end.since(now.wall).ticks());
        let next = self.governor.settings().sample_every;
        if left.is_zero() { next } else { next.min(left) }
    }

    /// Lifts the limit and ends. The result of the last journal sync is returned separately, because it does not change how the run
    /// ended.
    pub fn finish(mut self) -> Result<(Governor, io::Result<()>), RunError> {
        let restored = self.enforcer.restore();
        let synced = self.journal.sync();
        restored?;
        Ok((self.governor, synced))
    }

    /// The governor.
    pub fn governor(&mut self) -> &mut Governor {
        &mut self.governor
    }

    /// Error of the last journal write, if it failed. The governor continues, but a restart would miss the samples since then.
    pub fn journal_error(&self) -> Option<&io::Error> {
        self.journal_error.as_ref()
    }

    /// Usage of the last sample beyond the capacity of the machine, if any. It is discarded.
    pub fn discarded_usage(&self) -> Option<Quota> {
        (self.discarded_usage > Quota::ZERO).then_some(self.discarded_usage)
    }

    /// The enforced limit.
    pub fn enforced(&self) -> Option<Rate> {
        self.enforced
    }

    fn enforce(&mut self, others: Option<Rate>) -> Result<(), RunError> {
        let applied = self.governor.applied();
        let limit = round_to_step(others.map_or(applied, |others| remaining_limit(others, applied)));
        // Apply an unchanged limit too: cgroups that share it get new shares.
        self.enforcer.apply(limit)?;
        self.enforced = Some(limit);
        Ok(())
    }

    /// Caps usage at the machine's capacity in this interval. A small excess was counted late and is carried over to the next interval.
    fn cap_to_capacity(&mut self, at: BudgetTime, used: Quota) -> Quota {
        let counted = used.plus(self.carried_over);
        let capped = counted.min(capacity_in(at.monotonic.saturating_sub(self.last.at.monotonic)));
        let excess = counted.minus(capped);
        self.carried_over = excess.min(capacity_in(MAX_CARRY_OVER));
        self.discarded_usage = excess.minus(self.carried_over);
        capped
    }

    fn record(
        &mut self,
        at: BudgetTime,
        observation: Observation,
        reading: MeterReading,
        now: ClockReading,
    ) -> GovernorDecision {
        let observation = match observation {
            Observation::Used(used) => Observation::Used(self.cap_to_capacity(at, used)),
            Observation::Nothing => {
                (self.carried_over, self.discarded_usage) = (Quota::ZERO, Quota::ZERO);
                Observation::Nothing
            }
        };
        let decision = self.governor.observe(at, observation);
        let (used, observed) = match observation {
            Observation::Used(used) => (used, true),
            Observation::Nothing => (Quota::ZERO, false),
        };
        self.write(UsageSample {
            at,
            total: self.last.total.plus(used),
            observed,
            applied: decision.applied,
            counter: reading.used,
            counter_id: number(reading.counter_id),
            target: reading.target,
            boot: now.boot,
            uptime: now.uptime,
        });
        decision
    }

    /// Totals are cumulative, so the next successful sample includes a failed one.
    fn write(&mut self, sample: UsageSample) {
        self.journal_error = self.journal.append(&sample).err();
        self.last = sample;
    }

    /// Continues the monotonic clock over restarts: by the uptime, or by the wall clock after a reboot.
    fn budget_time(&self, now: ClockReading) -> BudgetTime {
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

fn number(counter_id: CounterId) -> u128 {
    u128::from_le_bytes(counter_id.to_bytes())
}
