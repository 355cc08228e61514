//! Document 000: who may begin a task now, and how many are running.
//!
//! An [`Activity`] is one limit called [`activity`](ID), with three items: the requests of a user in a window, the tasks of a user, the
//! tasks of everybody. Setting a task active asks all three as one: either there is room everywhere and it is counted everywhere,
//! or nothing has happened. What is granted is a lease, and the lease is the activity: it is given back once, by whoever has its name.
//!
//! ```
//! use tidegate::Limiter;
//! use tidegate::activity::{Activity, Reason, Rules};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let activity = Activity::new(Limiter::in_memory(), Rules::default())?;
//! for _ in 0..5 {
//!     let task = activity.set_active("ada").await?;
//!     assert!(task.release().await, "a short one");
//! }
//! let sixth = activity.set_active("ada").await.unwrap_err();
//! assert_eq!(sixth.refusal().map(|refusal| refusal.reason), Some(Reason::UserWindow));
//! assert!(activity.is_active("ada").await?.limited, "as the document has it: true is limited");
//! assert!(activity.can_active("bob").await?);
//! # Ok(())
//! # }
//! ```
//!
//! Where the original went wrong: the window counts requests that were *admitted*, so that short ones are not forgotten; nobody looks first
//! and acts later; a task whose process died loses its place when its time is over; a task is released by its name, so that nobody
//! ends another one's; and who was refused has nothing to release. With [`Rules::compat`] the document is followed to the letter where it
//! says otherwise: the window counts tasks that are running, and only [`Activity::is_active`] looks at it.
//!
//! Decided: a refusal is an `Err` here, as in the document, where everything else in this crate answers with it.
//!
//! Decided: what [`Activity::is_active`] needs to know is one question to the store, whatever it finds out.
//!
//! Refused: a table of its own. Whatever store there is keeps activities like any other lease.

mod active;
mod rules;
mod status;
mod vigil;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tidegate_core::{Capacity, LeaseId, LeaseTerm, Per, Timestamp};

use crate::catalog::{ApplyError, Edit, ExpectedVersion, Origin, PutError};
use crate::limiter::{AcquireError, Limiter, Permit, Refused, Renewal};
use crate::store::{Actual, Settlement, Unavailable, durable};
use status::{Gauge, cause_of, retry_after};
use vigil::Vigil;

pub use active::Active;
pub use rules::{BadRules, LONGEST_TTL, Rules};
pub use status::{ActivityError, BadUser, Reason, Refusal, SYSTEM_IS_FULL, Status};
pub use vigil::{Ended, LOOK_EVERY, MOST_WATCHED, Standing, Watching};

/// The id of the limit.
pub const ID: &str = "activity";

/// Who may begin a task now, and how many are running. Copies are the same activity.
#[derive(Clone)]
pub struct Activity {
    inner: Arc<Inner>,
}

struct Inner {
    limiter: Limiter,
    in_force: RwLock<Arc<InForce>>,
    vigil: Vigil,
}

/// The rules, and whether the limit says them.
struct InForce {
    rules: Rules,
    kept_by: TaskOwner,
    is_put: AtomicBool,
}

/// Who sees to it that there is a limit with these rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskOwner {
    /// The activity itself, when it is first asked.
    Activity,
    /// Somebody else: the limit comes from a file.
    SomebodyElse,
    /// Whoever was there first: what the store has holds, and these rules are put only if a task is to begin and there are none.
    Store,
}

/// What a limit is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// For looking at it, or for ending what was begun: nothing is made for that.
    Look,
    /// For a task that is to begin.
    Begin,
}

impl InForce {
    fn new(rules: Rules, kept_by: TaskOwner) -> Result<Arc<InForce>, BadRules> {
        match rules.flaws() {
            flaws if flaws.is_empty() => {
                Ok(Arc::new(InForce { rules, kept_by, is_put: AtomicBool::new(false) }))
            }
            flaws => Err(BadRules { flaws }),
        }
    }
}

impl Activity {
    /// The activity of everybody who asks this limiter's store. The limit is put there when it is first needed.
    pub fn new(limiter: Limiter, rules: Rules) -> Result<Activity, BadRules> {
        Ok(Activity::with(limiter, InForce::new(rules, TaskOwner::Activity)?))
    }

    /// The activity of a store that others may use: with the limit that is there, whoever put it, or the document's numbers if there
    /// is none when a task is to begin.
    pub fn of_store(limiter: Limiter) -> Activity {
        let is_put = AtomicBool::new(false);
        let usual = InForce { rules: Rules::default(), kept_by: TaskOwner::Store, is_put };
        Activity::with(limiter, Arc::new(usual))
    }

    fn with(limiter: Limiter, in_force: Arc<InForce>) -> Activity {
        let (in_force, vigil) = (RwLock::new(in_force), Vigil::new(limiter.clone()));
        Activity { inner: Arc::new(Inner { limiter, in_force, vigil }) }
    }

    /// The rules in force.
    pub fn rules(&self) -> Rules {
        self.in_force().rules
    }

    /// From now on these are in force. Tasks that are running go on.
    pub fn set_rules(&self, rules: Rules, kept_by: TaskOwner) -> Result<(), BadRules> {
        let next = InForce::new(rules, kept_by)?;
        *self.inner.in_force.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    /// Whether a task of this user would be refused now, and by what.
    pub async fn is_active(&self, user: &str) -> Result<Status, ActivityError> {
        let Some(in_force) = self.prepared(user, Need::Look).await? else {
            return Ok(Status::of_nobody(&self.rules()));
        };
        self.shaped()?;
        let decision = match self.inner.limiter.ask(ID, user).readings().peek_async().await {
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

    /// Whether a task of this user may begin: the opposite of limited.
    pub async fn can_active(&self, user: &str) -> Result<bool, ActivityError> {
        Ok(self.is_active(user).await?.can_active())
    }

    /// Begins a task of this user, if there is room in the window and among the tasks; to the letter, if there is among the tasks.
    pub async fn set_active(&self, user: &str) -> Result<Active, ActivityError> {
        self.set_active_for(user, None).await
    }

    /// The same, for a task that keeps its place for this long unless it is renewed.
    pub async fn set_active_for(&self, user: &str, ttl: Option<Duration>) -> Result<Active, ActivityError> {
        let rules = self.prepared(user, Need::Begin).await?.map_or_else(|| self.rules(), |it| it.rules);
        self.shaped()?;
        let mut question = self.inner.limiter.ask(ID, user).readings();
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
                let at = permit.at();
                // A task that could not be counted must not begin, whatever `on_outage` says.
                let lease = permit.into_lease().ok_or_else(unknown)?;
                Ok(Active::new(self, user, lease, at, rules))
            }
        }
    }

    /// Ends this task of this user; how many that were: one, or none if it was over or is not theirs.
    pub async fn remove(&self, user: &str, active_id: LeaseId) -> Result<usize, ActivityError> {
        let Some(in_force) = self.prepared(user, Need::Look).await? else { return Ok(0) };
        if self.held(user, active_id).await?.is_none() {
            return Ok(0);
        }
        Ok(usize::from(self.end(active_id, in_force.rules).await?))
    }

    /// Ends all tasks of this user; how many that were. Whoever runs them is told.
    pub async fn remove_active(&self, user: &str) -> Result<usize, ActivityError> {
        let Some(in_force) = self.prepared(user, Need::Look).await? else { return Ok(0) };
        let mut removed = 0;
        for LeaseTerm { lease, .. } in self.holders(user).await? {
            removed += usize::from(self.end(lease, in_force.rules).await?);
        }
        Ok(removed)
    }

    /// Keeps the place of this task of this user for this long from now, or for as long as when it began.
    pub async fn renew(
        &self,
        user: &str,
        active_id: LeaseId,
        ttl: Option<Duration>,
    ) -> Result<Renewal, ActivityError> {
        let Some(in_force) = self.prepared(user, Need::Look).await? else { return Ok(Renewal::Gone) };
        let ttl = Activity::allowed(&in_force.rules, ttl)?;
        if self.held(user, active_id).await?.is_none() {
            return Ok(Renewal::Gone);
        }
        let renewal = self.inner.limiter.renew_async(active_id, ttl).await?;
        if let Renewal::Until(until) = renewal {
            self.inner.vigil.renewed(active_id, until);
        }
        Ok(renewal)
    }

    /// Watches this task of this user, to be told when it ends. `None` if it is over or is not theirs.
    pub async fn watch(&self, user: &str, active_id: LeaseId) -> Result<Option<Watching>, ActivityError> {
        if self.prepared(user, Need::Look).await?.is_none() {
            return Ok(None);
        }
        let Some(until) = self.held(user, active_id).await? else { return Ok(None) };
        let full = || Unavailable { reason: format!("{MOST_WATCHED} activities are watched already") };
        Ok(Some(self.inner.vigil.watch(user, active_id, until).ok_or_else(full)?))
    }

    /// How many tasks are watched.
    pub fn watched(&self) -> usize {
        self.inner.vigil.len()
    }

    fn limiter(&self) -> &Limiter {
        &self.inner.limiter
    }

    fn vigil(&self) -> &Vigil {
        &self.inner.vigil
    }

    fn in_force(&self) -> Arc<InForce> {
        Arc::clone(&self.inner.in_force.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A time to live that may be had.
    fn allowed(rules: &Rules, ttl: Option<Duration>) -> Result<Option<Duration>, ActivityError> {
        match ttl.and_then(|ttl| rules.bad_ttl(ttl)) {
            None => Ok(ttl),
            Some(why) => Err(ActivityError::BadTtl(why)),
        }
    }

    /// The rules, when there is a limit and somebody can be called this; `None` if there is no limit and none is needed.
    async fn prepared(&self, user: &str, need: Need) -> Result<Option<Arc<InForce>>, ActivityError> {
        BadUser::check(user)?;
        let in_force = self.in_force();
        let is_there = || self.inner.limiter.store().get(ID).is_some();
        match in_force.kept_by {
            TaskOwner::SomebodyElse => {}
            TaskOwner::Activity => {
                let is_put = in_force.is_put.load(Ordering::Acquire);
                // Somebody may have deleted it since.
                if !is_put || !is_there() {
                    self.put(&in_force.rules, ExpectedVersion::Anything).await?;
                    in_force.is_put.store(true, Ordering::Release);
                }
            }
            TaskOwner::Store if is_there() => {}
            TaskOwner::Store if need == Need::Look => {
                // Nobody knows what is there while nobody can look.
                return self.inner.limiter.store().trouble().map_or(Ok(None), |why| Err(why.into()));
            }
            TaskOwner::Store => self.put(&in_force.rules, ExpectedVersion::Absent).await?,
        }
        Ok(Some(in_force))
    }

    /// Sees to it that there is a limit: with these rules, or if none was expected, whichever is there by now.
    async fn put(&self, rules: &Rules, expect: ExpectedVersion) -> Result<(), ActivityError> {
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
        if let Some(lsn) = store.tip() {
            durable(store, lsn).await?;
        }
        Ok(())
    }

    /// Whether the limit that is there can keep activities.
    fn shaped(&self) -> Result<(), ActivityError> {
        let limit = self.inner.limiter.store().get(ID);
        match limit.map(|limit| Rules::misfit(limit.spec())) {
            Some(Some(flaw)) => Err(ActivityError::Misfit(flaw)),
            _ => Ok(()),
        }
    }

    async fn holders(&self, user: &str) -> Result<Vec<LeaseTerm>, ActivityError> {
        let store = self.inner.limiter.store();
        Ok(store.holders(ID, Some(user.as_bytes())).wait_async(store).await??)
    }

    /// Until when this task is held, if it is this user's.
    async fn held(&self, user: &str, active_id: LeaseId) -> Result<Option<Timestamp>, ActivityError> {
        let holders = self.holders(user).await?;
        Ok(holders.iter().find(|tenure| tenure.lease == active_id).map(|tenure| tenure.expires_at))
    }

    /// Gives the place of a task back; to the letter also its place in the window. Whether it was there.
    async fn end(&self, id: LeaseId, rules: Rules) -> Result<bool, ActivityError> {
        let limiter = &self.inner.limiter;
        let ended = if rules.compat {
            limiter.settle_async(id, Actual::Every(0)).await? == Settlement::Settled
        } else {
            limiter.release_async(id).await?
        };
        self.inner.vigil.tell(id, Ended::Released);
        Ok(ended)
    }
}

impl fmt::Debug for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Activity").field("rules", &self.rules()).finish_non_exhaustive()
    }
}

impl Rules {
    /// Whether, to the letter, as many tasks of the user began in the window and are running as are allowed.
    fn window_full(&self, used: Option<u64>) -> bool {
        match (self.compat, self.window_requests) {
            (true, Capacity::AtMost(most)) => used.unwrap_or_default() >= most,
            _ => false,
        }
    }
}

/// The instant of a decision.
fn decided_at(decision: &Result<Permit, Refused>) -> Timestamp {
    match decision {
        Ok(permit) => permit.at(),
        Err(refused) => refused.at(),
    }
}

/// What is said when the limit was answered for by rule, or is off: nobody has counted.
fn unknown() -> Unavailable {
    Unavailable { reason: format!("nobody could count for the limit '{ID}'") }
}
