//! What operators do: put and remove limits, reset counts, look at them.

use std::sync::Arc;

use tidegate_core::{Limit, LimitSpec, Line, Load, Per, Row, Season, Seat};

use super::Inner;
use super::tenant::Tenant;
use crate::answer::Rejection;
use crate::catalog::{Expect, Parting, PutError, RETIREMENT};
use crate::store::Usage;
use crate::store::looking::usage;

impl Inner {
    pub(super) fn reset(&mut self, limit_id: &str, key: Option<&[u8]>) -> Result<(), Rejection> {
        let tenant = self.limits.get_mut(limit_id);
        let tenant = tenant.ok_or_else(|| Rejection::UnknownLimit { limit_id: limit_id.to_owned() })?;
        let limit = Arc::clone(&tenant.limit);
        tenant.table.may_have_room();
        if key.is_some() {
            if let Some(row) = tenant.row(key) {
                row.reset(&limit, Per::Key);
            }
        } else {
            tenant.all.reset(&limit, Per::All);
            tenant.table.reset(&limit, self.latest);
        }
        // What was charged before cannot be given back: it is no longer counted.
        for holding in self.leases.holdings() {
            if *holding.limit_id == *limit_id && (key.is_none() || holding.key.as_deref() == key) {
                holding.void();
            }
        }
        Ok(())
    }

    pub(super) fn usage(&mut self, limit_id: &str, key: Option<&[u8]>) -> Result<Usage, Rejection> {
        let now = self.latest;
        let tenant = self.limits.get_mut(limit_id);
        let tenant = tenant.ok_or_else(|| Rejection::UnknownLimit { limit_id: limit_id.to_owned() })?;
        tenant.drop_if_ended(now);
        let limit = Arc::clone(&tenant.limit);
        let per = if key.is_some() { Per::Key } else { Per::All };
        let mut blank = Row::blank(&limit, per);
        let row = tenant.row(key).unwrap_or(&mut blank);
        let seat = key.map_or(Seat::All, |key| Seat::from(limit.overrides(key)));
        Ok(usage(&Line { limit: &limit, seat, row, load: Load::default() }, now))
    }

    pub(super) fn put(&mut self, spec: LimitSpec, expect: Expect) -> Result<Arc<Limit>, PutError> {
        let now = self.latest;
        for (_, (_, tenant)) in self.retired.extract_if(|_, (forgotten_at, _)| *forgotten_at <= now) {
            self.leases.forget(tenant.generation);
        }
        let current = self.limits.get(&*spec.id).map(|tenant| tenant.limit.version());
        match (expect, current) {
            (Expect::Absent, Some(_)) => return Err(PutError::Exists),
            (Expect::Version(_) | Expect::Present, None) => return Err(PutError::Unknown),
            (Expect::Version(wanted), Some(version)) if wanted != version => {
                return Err(PutError::Stale { version });
            }
            _ => {}
        }
        let id: Box<str> = spec.id.as_str().into();
        let standing = self.limits.get(&id).or_else(|| self.retired.get(&id).map(|(_, tenant)| tenant));
        let Some(standing) = standing else {
            let limit = Arc::new(Limit::new(spec, self.tick).map_err(PutError::Invalid)?);
            self.generations += 1;
            let tenant = Tenant::new(Arc::clone(&limit), self.generations, self.highest_fence);
            self.limits.insert(id, tenant);
            return Ok(limit);
        };
        let limit = if *standing.limit.spec() == spec {
            Arc::clone(&standing.limit)
        } else {
            Arc::new(standing.limit.succeed(spec).map_err(PutError::Invalid)?)
        };
        if let Some((_, tenant)) = self.retired.remove(&id) {
            self.limits.insert(id.clone(), tenant);
        }
        let tenant = self.limits.get_mut(&id).expect("it stands, or has just come back");
        if tenant.limit.version() != limit.version() {
            let was_over = tenant.limit.season(now) == Season::After;
            tenant.drop_if_ended(now);
            tenant.adopt(Arc::clone(&limit), now);
            if was_over {
                // Its state was dropped; what was charged to it cannot be given back by what begins now.
                for holding in self.leases.holdings().filter(|holding| holding.limit_id == id) {
                    holding.void();
                    holding.pins = false;
                }
            }
        }
        Ok(limit)
    }

    pub(super) fn remove(&mut self, id: &str, parting: Parting) -> Option<Arc<Limit>> {
        let (id, tenant) = self.limits.remove_entry(id)?;
        let limit = Arc::clone(&tenant.limit);
        match parting {
            Parting::Forget => self.leases.forget(tenant.generation),
            Parting::Retire => {
                self.retired.insert(id, (self.latest.plus(self.tick.span(RETIREMENT)), tenant));
            }
        }
        Some(limit)
    }
}
