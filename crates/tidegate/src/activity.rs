//! Concurrent tasks of users: who may start one now, and how many run.
//!
//! An [`Activity`] is one limit called [`activity`](ID) with three items: requests of a user per window, tasks of a user, and all
//! tasks. Starting a task asks all three as one order: it is counted everywhere or nowhere. A grant is a lease, and the lease is
//! the task: it is ended once, by its id.
//!
//! ```
//! use tidegate::Limiter;
//! use tidegate::activity::{Activity, Reason, ActivityRules};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let activity = Activity::new(Limiter::builder().build()?, ActivityRules::default())?;
//! for _ in 0..5 {
//!     let task = activity.set_active("ada").await?;
//!     assert!(task.release().await, "a short one");
//! }
//! let sixth = activity.set_active("ada").await.unwrap_err();
//! assert_eq!(sixth.refusal().map(|refusal| refusal.reason), Some(Reason::UserWindow));
//! assert!(activity.is_active("ada").await?.limited, "true means limited");
//! assert!(activity.can_active("bob").await?);
//! # Ok(())
//! # }
//! ```
//!
//! The window counts admitted requests, so short tasks are not forgotten. A task starts in one step, without a separate check.
//! A task of a dead process expires. A task is ended by its id, so no caller ends another one's task, and a refused caller has
//! nothing to end. [`ActivityRules::compat`] follows the original specification literally instead: the window counts running tasks, and
//! only [`Activity::is_active`] reads it.
//!
//! A refusal is an `Err`. [`Activity::is_active`] is one query to the store. There is no table of its own: every store keeps
//! tasks like any other lease.

mod rules;
mod running_task;
mod status;
mod task_watcher;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tidegate_core::{Capacity, LeaseId, LeaseTerm, Per, Timestamp};

use crate::catalog::{ApplyError, Edit, ExpectedVersion, Origin, PutError};
use crate::limiter::{AcquireError, Limiter, Permit, Refused, Renewal};
use crate::store::{Actual, Settlement, Unavailable, durable};
use status::{Gauge, cause_of, retry_after};
use task_watcher::TaskWatcher;

pub use rules::{ActivityRules, ActivityRulesError, LONGEST_TTL};
pub use running_task::RunningTask;
pub use status::{ActivityError, ActivityRefusal, BadUser, Reason, SYSTEM_IS_FULL, Status};
pub use task_watcher::{Ended, LOOK_EVERY, MOST_WATCHED, TaskState, TaskWatch};

/// Id of the limit.
pub const ID: &str = "activity";

/// Decides who may start a task now, and counts running tasks. Clones share everything.
#[derive(Clone)]
pub struct Activity {
    inner: Arc<ActivityState>,
}

struct ActivityState {
    limiter: Limiter,
    in_force: RwLock<Arc<ActiveRules>>,
    watcher: TaskWatcher,
}

/// The rules, and whether the limit was put with them.
struct ActiveRules {
    rules: ActivityRules,
    source: RulesSource,
    is_put: AtomicBool,
}

/// Where the limit with these rules comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RulesSource {
    /// The activity puts it on first use.
    Activity,
    /// A limits file has it. Another part of the program puts it.
    LimitsFile,
    /// The limit in the store counts. These rules are put only if there is none when a task starts.
    Store,
}

/// What a limit is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitUse {
    /// For reading status or ending tasks. A missing limit is not put.
    Look,
    /// For starting a task.
    Begin,
}

impl ActiveRules {
    fn new(rules: ActivityRules, source: RulesSource) -> Result<Arc<ActiveRules>, ActivityRulesError> {
        match rules.flaws() {
            flaws if flaws.is_empty() => {
                Ok(Arc::new(ActiveRules { rules, source, is_put: AtomicBool::new(false) }))
            }
            flaws => Err(ActivityRulesError { flaws }),
        }
    }
}

impl Activity {
    /// An activity in this limiter's store. The limit is put on first use.
    pub fn new(limiter: Limiter, rules: ActivityRules) -> Result<Activity, ActivityRulesError> {
        Ok(Activity::with(limiter, ActiveRules::new(rules, RulesSource::Activity)?))
    }

    /// An activity in a shared store. Uses the limit that exists, or puts the default rules when the first task starts.
    pub fn of_store(limiter: Limiter) -> Activity {
        let is_put = AtomicBool::new(false);
        let usual = ActiveRules { rules: ActivityRules::default(), source: RulesSource::Store, is_put };
        Activity::with(limiter, Arc::new(usual))
    }

    fn with(limiter: Limiter, in_force: Arc<ActiveRules>) -> Activity {
        let (in_force, watcher) = (RwLock::new(in_force), TaskWatcher::new(limiter.clone()));
        Activity { inner: Arc::new(ActivityState { limiter, in_force, watcher }) }
    }

    /// The current rules.
    pub fn rules(&self) -> ActivityRules {
        self.in_force().rules
    }

    /// Replaces the rules. Running tasks go on.
    pub fn set_rules(&self, rules: ActivityRules, source: RulesSource) -> Result<(), ActivityRulesError> {
        let next = ActiveRules::new(rules, source)?;
        *self.inner.in_force.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    /// Whether a task of this user would be refused now, and why.
    pub async fn is_active(&self, user: &str) -> Result<Status, ActivityError> {
        let Some(in_force) = self.ensure_limit(user, LimitUse::Look).await? else {
            return Ok(Status::without_counts(&self.rules()));
        };
        self.check_limit()?;
        let decision = match self.inner.limiter.limit(ID)?.of(user).readings().peek_async().await {
            Ok(permit) => Ok(permit),
            Err(AcquireError::Refused(refused)) => Err(refused),
            Err(error) => return Err(error.into()),
        };
        let readings = match &decision {
            Ok(permit) if permit.is_degraded() => return Err(unknown().into()),
            Err(refused) if refused.is_degraded() => return Err(unknown().into()),
            Ok(permit) => permit.readings(),
            Err(refused) => refused.readings(),
        };
        let (active, user_active) =
            (Gauge::Tasks(Per::All).used(readings), Gauge::Tasks(Per::Key).used(readings));
        let window = Gauge::Window.of(readings).map(|found| found.reading);
        let (reason, wait) = match (in_force.rules.window_full(window.map(|window| window.used)), &decision) {
            (true, _) => {
                let (at, tick) = (decided_at(&decision), self.inner.limiter.store().capabilities().tick);
                let empty_at = window.and_then(|window| window.resets_at);
                (Some(Reason::UserWindow), empty_at.map(|empty_at| tick.duration(empty_at.since(at))))
            }
            (false, Ok(_)) => (None, None),
            (false, Err(refused)) => {
                let reason = cause_of(refused);
                (Some(reason), retry_after(refused, reason))
            }
        };
        Ok(Status { limited: reason.is_some(), reason, retry_after: wait, active, user_active })
    }

    /// Whether a task of this user may start: the opposite of limited.
    pub async fn can_active(&self, user: &str) -> Result<bool, ActivityError> {
        Ok(self.is_active(user).await?.can_active())
    }

    /// Starts a task of this user if both the window and the task bounds have room. With `compat` only the task bounds
    /// count.
    pub async fn set_active(&self, user: &str) -> Result<RunningTask, ActivityError> {
        self.set_active_for(user, None).await
    }

    /// The same, with a time to live. The task ends after it unless it is renewed.
    pub async fn set_active_for(
        &self,
        user: &str,
        ttl: Option<Duration>,
    ) -> Result<RunningTask, ActivityError> {
        let rules =
            self.ensure_limit(user, LimitUse::Begin).await?.map_or_else(|| self.rules(), |it| it.rules);
        self.check_limit()?;
        let handle = self.inner.limiter.limit(ID)?;
        let mut question = handle.of(user).readings();
        if rules.compat {
            question = question.hold();
        }
        if let Some(ttl) = Activity::allowed(&rules, ttl)? {
            question = question.ttl(ttl);
        }
        match question.try_acquire_async().await {
            Err(AcquireError::Refused(refused)) if refused.is_degraded() => Err(unknown().into()),
            Err(error) => Err(error.into()),
            Ok(permit) => {
                let at = permit.decided_at();
                // A task that was not counted must not start, whatever `on_outage` says.
                let lease = permit.into_lease().ok_or_else(unknown)?;
                Ok(RunningTask::new(self, user, lease, at, rules))
            }
        }
    }

    /// Ends one task of this user. Returns 1, or 0 if the task is over or belongs to another user.
    pub async fn remove(&self, user: &str, active_id: LeaseId) -> Result<usize, ActivityError> {
        let Some(in_force) = self.ensure_limit(user, LimitUse::Look).await? else { return Ok(0) };
        if self.held(user, active_id).await?.is_none() {
            return Ok(0);
        }
        Ok(usize::from(self.end(active_id, in_force.rules).await?))
    }

    /// Ends all tasks of this user. Returns their number. Watchers of the tasks are notified.
    pub async fn remove_active(&self, user: &str) -> Result<usize, ActivityError> {
        let Some(in_force) = self.ensure_limit(user, LimitUse::Look).await? else { return Ok(0) };
        let mut removed = 0;
        for LeaseTerm { lease, .. } in self.holders(user).await? {
            removed += usize::from(self.end(lease, in_force.rules).await?);
        }
        Ok(removed)
    }

    /// Renews a task of this user for this time from now, or for its original time to live.
    pub async fn renew(
        &self,
        user: &str,
        active_id: LeaseId,
        ttl: Option<Duration>,
    ) -> Result<Renewal, ActivityError> {
        let Some(in_force) = self.ensure_limit(user, LimitUse::Look).await? else { return Ok(Renewal::Gone) };
        let ttl = Activity::allowed(&in_force.rules, ttl)?;
        if self.held(user, active_id).await?.is_none() {
            return Ok(Renewal::Gone);
        }
        let renewal = self.inner.limiter.renew_async(active_id, ttl).await?;
        if let Renewal::Until(until) = renewal {
            self.inner.watcher.renewed(active_id, until);
        }
        Ok(renewal)
    }

    /// Watches a task of this user for its end. `None` if the task is over or belongs to another user.
    pub async fn watch(&self, user: &str, active_id: LeaseId) -> Result<Option<TaskWatch>, ActivityError> {
        if self.ensure_limit(user, LimitUse::Look).await?.is_none() {
            return Ok(None);
        }
        let Some(until) = self.held(user, active_id).await? else { return Ok(None) };
        let full = || Unavailable { reason: format!("{MOST_WATCHED} activities are watched already") };
        Ok(Some(self.inner.watcher.watch(user, active_id, until).ok_or_else(full)?))
    }

    /// Number of watched tasks.
    pub fn watched(&self) -> usize {
        self.inner.watcher.len()
    }

    fn limiter(&self) -> &Limiter {
        &self.inner.limiter
    }

    fn watcher(&self) -> &TaskWatcher {
        &self.inner.watcher
    }

    fn in_force(&self) -> Arc<ActiveRules> {
        Arc::clone(&self.inner.in_force.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Checks a time to live.
    fn allowed(rules: &ActivityRules, ttl: Option<Duration>) -> Result<Option<Duration>, ActivityError> {
        match ttl.and_then(|ttl| rules.bad_ttl(ttl)) {
            None => Ok(ttl),
            Some(why) => Err(ActivityError::BadTtl(why)),
        }
    }

    /// The rules, once the limit exists and the user name is valid. `None` if there is no limit and none is needed.
    async fn ensure_limit(
        &self,
        user: &str,
        need: LimitUse,
    ) -> Result<Option<Arc<ActiveRules>>, ActivityError> {
        BadUser::check(user)?;
        let in_force = self.in_force();
        let is_there = || self.inner.limiter.store().get(ID).is_some();
        match in_force.source {
            RulesSource::LimitsFile => {}
            RulesSource::Activity => {
                let is_put = in_force.is_put.load(Ordering::Acquire);
                // It may have been deleted since.
                if !is_put || !is_there() {
                    self.put(&in_force.rules, ExpectedVersion::Anything).await?;
                    in_force.is_put.store(true, Ordering::Release);
                }
            }
            RulesSource::Store if is_there() => {}
            RulesSource::Store if need == LimitUse::Look => {
                // While the store is unreachable it is unknown whether the limit exists.
                return self.inner.limiter.store().outage().map_or(Ok(None), |why| Err(why.into()));
            }
            RulesSource::Store => self.put(&in_force.rules, ExpectedVersion::Absent).await?,
        }
        Ok(Some(in_force))
    }

    /// Puts the limit with these rules, or accepts the one that exists if none was expected.
    async fn put(&self, rules: &ActivityRules, expect: ExpectedVersion) -> Result<(), ActivityError> {
        let store = self.inner.limiter.store();
        let spec = rules.spec();
        if store.get(ID).is_some_and(|limit| *limit.spec() == spec) {
            return Ok(());
        }
        let refused = |why: String| Unavailable { reason: format!("the limit '{ID}' cannot be put: {why}") };
        let edited = store.edit(vec![Edit::Put(spec, expect)], Origin::Put).wait_async(store).await?;
        match edited {
            Err(ApplyError { refused }) if refused.iter().all(|(_, why)| *why == PutError::Exists) => {}
            edited => drop(edited.map_err(|why| refused(why.to_string()))?),
        }
        if let Some(lsn) = store.log_end() {
            durable(store, lsn).await?;
        }
        Ok(())
    }

    /// Checks that the existing limit can count activities.
    fn check_limit(&self) -> Result<(), ActivityError> {
        let limit = self.inner.limiter.store().get(ID);
        match limit.map(|limit| ActivityRules::misfit(limit.spec())) {
            Some(Some(flaw)) => Err(ActivityError::Misfit(flaw)),
            _ => Ok(()),
        }
    }

    async fn holders(&self, user: &str) -> Result<Vec<LeaseTerm>, ActivityError> {
        let store = self.inner.limiter.store();
        Ok(store.holders(ID, Some(user.as_bytes())).wait_async(store).await??)
    }

    /// Expiry of this task, if it belongs to this user.
    async fn held(&self, user: &str, active_id: LeaseId) -> Result<Option<Timestamp>, ActivityError> {
        let holders = self.holders(user).await?;
        Ok(holders.iter().find(|tenure| tenure.lease == active_id).map(|tenure| tenure.expires_at))
    }

    /// Ends a task. With `compat` its charge to the window is refunded too. Returns whether it was active.
    async fn end(&self, id: LeaseId, rules: ActivityRules) -> Result<bool, ActivityError> {
        let limiter = &self.inner.limiter;
        let ended = if rules.compat {
            limiter.settle_async(id, Actual::Every(0)).await? == Settlement::Settled
        } else {
            limiter.release_async(id).await?
        };
        self.inner.watcher.report_end(id, Ended::Released);
        Ok(ended)
    }
}

impl fmt::Debug for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Activity").field("rules", &self.rules()).finish_non_exhaustive()
    }
}

impl ActivityRules {
    /// With `compat`: whether as many running tasks of the user started in the window as are allowed.
    fn window_full(&self, used: Option<u64>) -> bool {
        match (self.compat, self.window_requests) {
            (true, Capacity::AtMost(most)) => used.unwrap_or_default() >= most,
            _ => false,
        }
    }
}

/// Time of a decision.
fn decided_at(decision: &Result<Permit, Refused>) -> Timestamp {
    match decision {
        Ok(permit) => permit.decided_at(),
        Err(refused) => refused.at(),
    }
}

/// Error for a reply that was not counted, because the limit is off or the store is unreachable.
fn unknown() -> Unavailable {
    Unavailable { reason: format!("the store did not count for the limit '{ID}'") }
}
