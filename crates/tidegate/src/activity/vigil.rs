//! The vigil: who wants to know when an activity ends, and the one task that looks for all of them.
//!
//! ```text
//!   Watching ─┐                      every 200 ms, while anybody watches
//!   Watching ─┼─▶ posts ◀── lookout ─────────▶ held_until([id, id, …]) ──▶ store
//!   Watching ─┘     ▲
//!                   └──── what this process ends itself is told at once
//! ```
//!
//! Decided: one question for all, however many watch, so that the store is asked five times a second and not five times a second for
//! each task. While nobody watches nothing is asked.
//!
//! The lookout is a task of whichever runtime somebody watched in first. If that runtime ends before the others, those who still watch are
//! woken and the first of them begins anew in its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use tidegate_core::{LeaseId, Timestamp};
use tokio::sync::watch;

use super::ID;
use crate::limiter::{AcquireError, Limiter};

/// How long it is from one look at the store to the next: an end is known within this and the time an answer takes.
pub const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The most activities that are watched at once.
pub const MOST_WATCHED: usize = 100_000;

/// How many of them one question is about.
const LOOK_AT_ONCE: usize = 1_024;

/// How an activity ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    /// Somebody gave it back.
    Released,
    /// Nobody renewed it in time.
    Expired,
}

impl Ended {
    /// The word that programs look at.
    pub const fn word(self) -> &'static str {
        match self {
            Ended::Released => "released",
            Ended::Expired => "expired",
        }
    }
}

/// How an activity stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It goes on, at least until this instant of the store's clock.
    Until(Timestamp),
    /// It is over.
    Ended(Ended),
}

/// Those who watch.
#[derive(Clone)]
pub(super) struct Vigil {
    shared: Arc<Shared>,
}

struct Shared {
    limiter: Limiter,
    posts: Mutex<Posts>,
}

#[derive(Default)]
struct Posts {
    watched: HashMap<LeaseId, Post>,
    /// Whether somebody looks.
    is_kept: bool,
}

struct Post {
    user: Box<str>,
    standing: watch::Sender<Standing>,
}

impl Vigil {
    pub(super) fn new(limiter: Limiter) -> Vigil {
        Vigil { shared: Arc::new(Shared { limiter, posts: Mutex::default() }) }
    }

    /// Watches an activity that is held until then. `None` if too many are watched already.
    pub(super) fn watch(&self, user: &str, id: LeaseId, until: Timestamp) -> Option<Watching> {
        let mut posts = self.shared.posts();
        if posts.watched.len() >= MOST_WATCHED && !posts.watched.contains_key(&id) {
            posts.leave_unwatched();
            if posts.watched.len() >= MOST_WATCHED {
                return None;
            }
        }
        let post = posts.watched.entry(id).or_insert_with(|| Post {
            user: user.into(),
            standing: watch::Sender::new(Standing::Until(until)),
        });
        let changes = post.standing.subscribe();
        let known = *changes.borrow();
        drop(posts);
        Some(Watching { shared: Arc::clone(&self.shared), changes, known })
    }

    /// This process ended it.
    pub(super) fn tell(&self, id: LeaseId, ended: Ended) {
        if let Some(post) = self.shared.posts().watched.remove(&id) {
            post.standing.send_replace(Standing::Ended(ended));
        }
    }

    /// This process renewed it.
    pub(super) fn renewed(&self, id: LeaseId, until: Timestamp) {
        if let Some(post) = self.shared.posts().watched.get(&id) {
            post.standing.send_replace(Standing::Until(until));
        }
    }

    /// How many are watched.
    pub(super) fn len(&self) -> usize {
        let mut posts = self.shared.posts();
        posts.leave_unwatched();
        posts.watched.len()
    }
}

/// Somebody who wants to know when an activity ends. Waiting needs a tokio runtime.
#[must_use = "whoever watches has to ask what became of it"]
pub struct Watching {
    shared: Arc<Shared>,
    changes: watch::Receiver<Standing>,
    known: Standing,
}

impl Watching {
    /// How it stood when that was last told.
    pub fn standing(&self) -> Standing {
        self.known
    }

    /// Waits until it stands otherwise: it was renewed, or it is over. What is over stays so, and is told again at once.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn changed(&mut self) -> Standing {
        while matches!(self.known, Standing::Until(_)) {
            let now = *self.changes.borrow_and_update();
            if now != self.known {
                self.known = now;
                break;
            }
            Shared::keep(&self.shared);
            if self.changes.changed().await.is_err() {
                // Nobody looks for it any more, so it was told before, or is gone with everybody who could.
                self.known = match *self.changes.borrow() {
                    Standing::Until(_) => Standing::Ended(Ended::Released),
                    ended @ Standing::Ended(_) => ended,
                };
            }
        }
        self.known
    }

    /// Waits until it is over.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn ended(mut self) -> Ended {
        loop {
            if let Standing::Ended(ended) = self.changed().await {
                return ended;
            }
        }
    }
}

impl std::fmt::Debug for Watching {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watching").field("known", &self.known).finish_non_exhaustive()
    }
}

impl Posts {
    /// Nobody looks for what nobody wants to know.
    fn leave_unwatched(&mut self) {
        self.watched.retain(|_, post| post.standing.receiver_count() > 0);
    }
}

impl Shared {
    fn posts(&self) -> MutexGuard<'_, Posts> {
        self.posts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees to it that somebody looks.
    fn keep(this: &Arc<Shared>) {
        let mut posts = this.posts();
        if posts.is_kept {
            return;
        }
        let here = tokio::runtime::Handle::current();
        posts.is_kept = true;
        drop(posts);
        here.spawn(Lookout { shared: Arc::clone(this), is_relieved: false }.look_out());
    }

    /// Which are watched. If none are, whoever looks may stop, and has.
    fn watched(&self) -> Vec<LeaseId> {
        let mut posts = self.posts();
        posts.leave_unwatched();
        posts.is_kept = !posts.watched.is_empty();
        posts.watched.keys().copied().collect()
    }

    /// Until when these are held, as the store says; those of which it says nothing are returned.
    fn saw(&self, ids: &[LeaseId], until: &[Option<Timestamp>]) -> Vec<LeaseId> {
        let posts = self.posts();
        let mut gone = Vec::new();
        for (id, until) in ids.iter().zip(until) {
            let Some(post) = posts.watched.get(id) else { continue };
            match until {
                None => gone.push(*id),
                Some(until) => {
                    let standing = Standing::Until(*until);
                    post.standing.send_if_modified(|known| std::mem::replace(known, standing) != standing);
                }
            }
        }
        gone
    }

    /// These are gone: they lapsed if their time is over by the store's clock, which an answer of the store tells.
    async fn bury(&self, gone: &[LeaseId]) {
        let whose = gone.first().and_then(|id| self.posts().watched.get(id).map(|post| post.user.clone()));
        let Some(user) = whose else { return };
        let now = match self.limiter.ask(ID, &*user).peek_async().await {
            Ok(permit) if !permit.is_degraded() => Some(permit.at()),
            Err(AcquireError::Refused(refused)) if !refused.is_degraded() => Some(refused.at()),
            Err(AcquireError::Invalid(_)) => None,
            // The store's time is unknown: ask again at the next check.
            Ok(_) | Err(_) => return,
        };
        let mut posts = self.posts();
        for post in gone.iter().filter_map(|id| posts.watched.remove(id)) {
            let lapsed = |until: Timestamp| now.is_some_and(|now| until <= now);
            post.standing.send_modify(|standing| {
                if let Standing::Until(until) = *standing {
                    let ended = if lapsed(until) { Ended::Expired } else { Ended::Released };
                    *standing = Standing::Ended(ended);
                }
            });
        }
    }
}

/// The one who looks.
struct Lookout {
    shared: Arc<Shared>,
    /// Nobody watched any more, so that it could go.
    is_relieved: bool,
}

impl Lookout {
    /// Looks until nobody watches. A store that cannot answer is asked again; nobody is told what is not known.
    async fn look_out(mut self) {
        let shared = Arc::clone(&self.shared);
        let holder_clock = shared.limiter.holder_clock();
        loop {
            holder_clock.sleep_until(holder_clock.now().plus(LOOK_EVERY)).await;
            let ids = shared.watched();
            if ids.is_empty() {
                self.is_relieved = true;
                return;
            }
            let store = shared.limiter.store();
            for some in ids.chunks(LOOK_AT_ONCE) {
                if let Ok(until) = store.held_until(some).wait_async(store).await {
                    let gone = shared.saw(some, &until);
                    shared.bury(&gone).await;
                }
            }
        }
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        if self.is_relieved {
            return;
        }
        let mut posts = self.shared.posts();
        // Its runtime ended, and others still watch: one of them takes its place.
        posts.is_kept = false;
        for post in posts.watched.values() {
            post.standing.send_modify(|_| {});
        }
    }
}
