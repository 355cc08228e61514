//! The operator: changes the limits while they are asked, and writes down when.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use tidegate::{Capacity, Clock, ExpectedVersion, ItemSpec, Limit, LimitSpec, Policy, Tick};

use super::rng::Dice;
use super::watchdog::Doing;
use super::workload::{HOT_KEYS, STEADY, key};
use super::{ASKERS, Place, Scene};
use crate::checker::{Edit, Reset};

/// What the operator did.
#[derive(Default)]
pub(super) struct Deeds {
    /// Of each limit, one after the other.
    pub(super) edits: Vec<Vec<Edit>>,
    /// The same.
    pub(super) resets: Vec<Vec<Reset>>,
    pub(super) faults: Vec<String>,
}

/// Changes limits.
pub(super) struct Operator<'a> {
    scene: &'a Scene,
    dice: Dice,
    /// The texts in force.
    specs: Vec<LimitSpec>,
    deeds: Deeds,
}

impl<'a> Operator<'a> {
    pub(super) fn new(scene: &'a Scene) -> Operator<'a> {
        let limits = scene.limits.len();
        let deeds =
            Deeds { edits: vec![Vec::new(); limits], resets: vec![Vec::new(); limits], faults: Vec::new() };
        let dice = Dice::new(scene.plan.seed, ASKERS as u64);
        Operator { scene, dice, specs: scene.limits.clone(), deeds }
    }

    /// Does one thing whenever it is told to, until nobody is left to tell it.
    pub(super) fn work(mut self, place: &Place, told: Receiver<()>) -> Deeds {
        place.tell(Doing::Waiting);
        for () in told {
            let limit = self.dice.index(self.specs.len());
            if self.specs[limit].id == STEADY {
                continue;
            }
            if self.dice.chance(60) {
                place.tell(Doing::Editing);
                self.edit(limit);
            } else {
                place.tell(Doing::Resetting);
                self.reset(limit);
            }
            place.tell(Doing::Waiting);
        }
        self.deeds
    }

    fn edit(&mut self, limit: usize) {
        let spec = self.changed(limit);
        if Limit::new(spec.clone(), Tick::NANOSECOND).is_err() {
            return;
        }
        let start = self.scene.clock.now();
        let put = self.scene.store.put(spec.clone(), ExpectedVersion::Present);
        let end = self.scene.clock.now();
        if let Err(error) = put {
            self.deeds.faults.push(format!("a valid edit of '{}' was refused: {error}", spec.id));
            return;
        }
        self.specs[limit] = spec.clone();
        self.deeds.edits[limit].push(Edit { start, end, spec });
    }

    fn reset(&mut self, limit: usize) {
        let keys = self.scene.plan.keys;
        let whose = self.dice.chance(60).then(|| key(self.dice.index(keys.min(HOT_KEYS))));
        let start = self.scene.clock.now();
        let done = self.scene.store.reset(&self.specs[limit].id, whose.as_deref()).decided();
        let end = self.scene.clock.now();
        if let Err(rejection) = done {
            self.deeds.faults.push(format!("a reset was rejected: {rejection}"));
        }
        self.deeds.resets[limit].push(Reset { start, end, key: whose });
    }

    /// The text of a limit with one thing changed.
    fn changed(&mut self, limit: usize) -> LimitSpec {
        let at_first = &self.scene.limits[limit];
        let mut next = self.specs[limit].clone();
        let missing: Vec<&ItemSpec> = at_first
            .items
            .iter()
            .filter(|item| next.items.iter().all(|other| other.name != item.name))
            .collect();
        match self.dice.below(10) {
            0 | 1 if !missing.is_empty() => next.items.push(self.dice.one_of(&missing).clone()),
            2 if next.items.len() > 1 => {
                next.items.swap_remove(self.dice.index(next.items.len()));
            }
            3..=5 => {
                let item = self.dice.index(next.items.len());
                let own = at_first.items.iter().find(|first| first.name == next.items[item].name);
                let Some(own) = own.cloned() else { return next };
                next.items[item].policy = stretched(own.policy, self.dice.one_of(&[1, 2, 4]));
            }
            _ => {
                let item = self.dice.index(next.items.len());
                let own = at_first.items.iter().find(|first| first.name == next.items[item].name);
                let Some(&ItemSpec { limit: Capacity::AtMost(own), .. }) = own else { return next };
                let number = self.dice.one_of(&[0, 1, own / 2, own, own, own + 1, own * 2]);
                next.items[item].limit = Capacity::AtMost(number);
            }
        }
        next
    }
}

/// The same policy with its window in halves times `halves`.
fn stretched(policy: Policy, halves: u32) -> Policy {
    let to = |window: Duration| window / 2 * halves;
    match policy {
        Policy::Interval { window } => Policy::Interval { window: to(window) },
        Policy::Sliding { window, precision } => Policy::Sliding { window: to(window), precision },
        Policy::Bucket { window, burst } => Policy::Bucket { window: to(window), burst },
        Policy::Concurrency { ttl } => Policy::Concurrency { ttl: to(ttl) },
        Policy::Total | Policy::Calendar(_) => policy,
    }
}
