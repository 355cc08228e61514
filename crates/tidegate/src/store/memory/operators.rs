//! What operators do: put and remove limits, reset counts, look at them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use tidegate_core::{Limit, LimitSpec, Line, Load, Per, Season, Timestamp};

use super::Shared;
use super::edition::Because;
use super::rows::{Missing, with_row};
use super::tenant::Tenant;
use crate::answer::Rejection;
use crate::catalog::{Expect, Parting, PutError, RETIREMENT};
use crate::store::Usage;
use crate::store::looking::usage;

impl Shared {
    /// A limit that vanished from a file and may come back.
    pub(super) fn retired(&self, id: &str) -> Option<Arc<Tenant>> {
        let retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.get(id).map(|(_, tenant)| Arc::clone(tenant))
    }

    fn known(&self, limit_id: &str) -> Result<Arc<Tenant>, Rejection> {
        self.tenant(limit_id).ok_or_else(|| Rejection::UnknownLimit { limit_id: limit_id.to_owned() })
    }

    pub(super) fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> Result<(), Rejection> {
        let _one_at_a_time = self.changing();
        let now = self.latest(self.clock.now());
        let tenant = self.known(limit_id)?;
        // The desk first: nothing is settled while what it was charged to goes.
        let mut desk = self.desk();
        if key.is_some() {
            with_row(&tenant, key, now, Missing::Ignored, |edition, _, row, _| {
                row.reset(&edition.limit, Per::Key);
            });
        } else {
            tenant.publish(tenant.limit(), Because::Reset, || self.latest(self.clock.now()));
        }
        // What was charged before cannot be given back: it is no longer counted.
        for holding in desk.leases.holdings() {
            if *holding.limit_id == *limit_id && (key.is_none() || holding.key.as_deref() == key) {
                holding.void();
            }
        }
        Ok(())
    }

    pub(super) fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> Result<Usage, Rejection> {
        let now = self.now();
        let tenant = self.known(limit_id)?;
        let looked = with_row(&tenant, key, now, Missing::Blank, |edition, seat, row, now| {
            let now = row.latest_charge().max(now);
            usage(&Line { limit: &edition.limit, seat, row, load: Load::default() }, now)
        });
        Ok(looked.unwrap_or(Usage { count: None, items: Vec::new() }))
    }

    pub(super) fn put(&self, spec: LimitSpec, expect: Expect) -> Result<Arc<Limit>, PutError> {
        let now = self.latest(self.clock.now());
        self.forget_retired(now);
        let id: Box<str> = spec.id.as_str().into();
        let current = self.tenant(&id);
        match (expect, current.as_ref().map(|tenant| tenant.limit().version())) {
            (Expect::Absent, Some(_)) => return Err(PutError::Exists),
            (Expect::Version(_) | Expect::Present, None) => return Err(PutError::Unknown),
            (Expect::Version(wanted), Some(version)) if wanted != version => {
                return Err(PutError::Stale { version });
            }
            _ => {}
        }
        let Some(tenant) = current.clone().or_else(|| self.retired(&id)) else {
            let limit = Arc::new(Limit::new(spec, self.tick).map_err(PutError::Invalid)?);
            self.add(id, &limit, now);
            return Ok(limit);
        };
        let former = tenant.limit();
        let limit = if *former.spec() == spec {
            former
        } else {
            let limit = Arc::new(former.succeed(spec).map_err(PutError::Invalid)?);
            self.replace(&tenant, &former, Arc::clone(&limit), now);
            limit
        };
        if current.is_none() {
            self.retired.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            tenant.refresh(now);
            self.limits.write().unwrap_or_else(PoisonError::into_inner).insert(id, tenant);
        }
        Ok(limit)
    }

    fn add(&self, id: Box<str>, limit: &Arc<Limit>, now: Timestamp) {
        let generation = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        let fence = self.highest_fence.load(Ordering::Relaxed);
        let tenant =
            Tenant::new(limit, generation, fence, self.secret, &self.budget, self.gallery.place(), now);
        self.limits.write().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::new(tenant));
    }

    fn replace(&self, tenant: &Tenant, former: &Limit, limit: Arc<Limit>, now: Timestamp) {
        let mut desk = self.desk();
        tenant.publish(limit, Because::Put, || self.latest(self.clock.now()));
        if former.season(now) == Season::After {
            // Its state was dropped; what was charged to it cannot be given back by what begins now.
            for holding in desk.leases.holdings().filter(|holding| holding.limit_id == tenant.id) {
                holding.void();
                holding.pins = false;
            }
        }
    }

    pub(super) fn remove(&self, id: &str, parting: Parting) -> Option<Arc<Limit>> {
        let now = self.latest(self.clock.now());
        let (id, tenant) = self.limits.write().unwrap_or_else(PoisonError::into_inner).remove_entry(id)?;
        tenant.retire();
        let limit = tenant.limit();
        match parting {
            Parting::Forget => self.desk().leases.forget(tenant.generation),
            Parting::Retire => {
                let until = now.plus(self.tick.span(RETIREMENT));
                self.retired.lock().unwrap_or_else(PoisonError::into_inner).insert(id, (until, tenant));
            }
        }
        Some(limit)
    }

    /// Forgets limits that vanished from a file too long ago to come back as they were.
    fn forget_retired(&self, now: Timestamp) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<u64> = retired
            .extract_if(|_, (forgotten_at, _)| *forgotten_at <= now)
            .map(|(_, (_, tenant))| tenant.generation)
            .collect();
        drop(retired);
        if !gone.is_empty() {
            let mut desk = self.desk();
            for generation in gone {
                desk.leases.forget(generation);
            }
        }
    }
}
