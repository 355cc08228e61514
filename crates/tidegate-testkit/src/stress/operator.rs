//! The operator thread: edits and resets limits during the run, and logs when.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use tidegate::catalog::ExpectedVersion;
use tidegate::clock::Clock;
use tidegate::model::{Capacity, ItemSpec, Limit, LimitSpec, Policy, Tick};

use super::rng::SeededRng;
use super::watchdog::ThreadAction;
use super::workload::{HOT_KEYS, UNEDITED, key};
use super::{CLIENTS, StressContext, ThreadProgress};
use crate::checker::{ObservedEdit, ObservedReset};

/// What the operator did.
#[derive(Default)]
pub(super) struct OperatorLog {
    /// Per limit, in order of time.
    pub(super) edits: Vec<Vec<ObservedEdit>>,
    /// Per limit, in order of time.
    pub(super) resets: Vec<Vec<ObservedReset>>,
    pub(super) faults: Vec<String>,
}

/// Edits and resets limits.
pub(super) struct Operator<'a> {
    context: &'a StressContext,
    rng: SeededRng,
    /// The current definitions.
    specs: Vec<LimitSpec>,
    log: OperatorLog,
}

impl<'a> Operator<'a> {
    pub(super) fn new(context: &'a StressContext) -> Operator<'a> {
        let limits = context.limits.len();
        let log = OperatorLog {
            edits: vec![Vec::new(); limits],
            resets: vec![Vec::new(); limits],
            faults: Vec::new(),
        };
        let rng = SeededRng::new(context.plan.seed, CLIENTS as u64);
        Operator { context, rng, specs: context.limits.clone(), log }
    }

    /// Performs one action per request until all senders are gone.
    pub(super) fn run(mut self, progress: &ThreadProgress, requests: Receiver<()>) -> OperatorLog {
        progress.set(ThreadAction::Waiting);
        for () in requests {
            let limit = self.rng.index(self.specs.len());
            if self.specs[limit].id == UNEDITED {
                continue;
            }
            if self.rng.chance(60) {
                progress.set(ThreadAction::Editing);
                self.edit(limit);
            } else {
                progress.set(ThreadAction::Resetting);
                self.reset(limit);
            }
            progress.set(ThreadAction::Waiting);
        }
        self.log
    }

    fn edit(&mut self, limit: usize) {
        let spec = self.random_edit(limit);
        if Limit::new(spec.clone(), Tick::NANOSECOND).is_err() {
            return;
        }
        let start = self.context.clock.now();
        let put = self.context.store.put(spec.clone(), ExpectedVersion::Present);
        let end = self.context.clock.now();
        if let Err(error) = put {
            self.log.faults.push(format!("a valid edit of '{}' was refused: {error}", spec.id));
            return;
        }
        self.specs[limit] = spec.clone();
        self.log.edits[limit].push(ObservedEdit { start, end, spec });
    }

    fn reset(&mut self, limit: usize) {
        let keys = self.context.plan.keys;
        let target_key = self.rng.chance(60).then(|| key(self.rng.index(keys.min(HOT_KEYS))));
        let start = self.context.clock.now();
        let done = self.context.store.reset(&self.specs[limit].id, target_key.as_deref()).decided();
        let end = self.context.clock.now();
        if let Err(rejection) = done {
            self.log.faults.push(format!("a reset was rejected: {rejection}"));
        }
        self.log.resets[limit].push(ObservedReset { start, end, key: target_key });
    }

    /// The current definition with one random change.
    fn random_edit(&mut self, limit: usize) -> LimitSpec {
        let original = &self.context.limits[limit];
        let mut next = self.specs[limit].clone();
        let missing: Vec<&ItemSpec> = original
            .items
            .iter()
            .filter(|item| next.items.iter().all(|other| other.name != item.name))
            .collect();
        match self.rng.below(10) {
            0 | 1 if !missing.is_empty() => next.items.push(self.rng.one_of(&missing).clone()),
            2 if next.items.len() > 1 => {
                next.items.swap_remove(self.rng.index(next.items.len()));
            }
            3..=5 => {
                let item = self.rng.index(next.items.len());
                let own = original.items.iter().find(|first| first.name == next.items[item].name);
                let Some(own) = own.cloned() else { return next };
                next.items[item].policy = with_scaled_window(own.policy, self.rng.one_of(&[1, 2, 4]));
            }
            _ => {
                let item = self.rng.index(next.items.len());
                let own = original.items.iter().find(|first| first.name == next.items[item].name);
                let Some(&ItemSpec { limit: Capacity::AtMost(own), .. }) = own else { return next };
                let number = self.rng.one_of(&[0, 1, own / 2, own, own, own + 1, own * 2]);
                next.items[item].limit = Capacity::AtMost(number);
            }
        }
        next
    }
}

/// The same policy with its window multiplied by `halves / 2`.
fn with_scaled_window(policy: Policy, halves: u32) -> Policy {
    let to = |window: Duration| window / 2 * halves;
    match policy {
        Policy::Interval { window } => Policy::Interval { window: to(window) },
        Policy::Sliding { window, precision } => Policy::Sliding { window: to(window), precision },
        Policy::Bucket { window, burst } => Policy::Bucket { window: to(window), burst },
        Policy::Concurrency { ttl } => Policy::Concurrency { ttl: to(ttl) },
        Policy::Total | Policy::Calendar(_) => policy,
    }
}
