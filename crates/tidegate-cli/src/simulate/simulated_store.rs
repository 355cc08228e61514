//! The simulated store: an in-memory store whose clock is set by the events.

use std::sync::Arc;

use hashbrown::HashMap;
use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::ManualClock;
use tidegate::model::{Amount, Ask, LeaseId, LimitSpec, Order, Timestamp};
use tidegate::reply::{Detail, OrderError, OrderReply, Outcome, Replies};
use tidegate::store::map::LOOK_AHEAD;
use tidegate::store::{MapStore, Store};

use crate::Failure;

use super::decision_json::DecisionJsonWriter;
use super::event::{EventOp, EventText, SimulatedEvent};
use super::summary::SimulationSummary;

/// Number of labels before expired ones are first removed.
const FIRST_CLEANUP: usize = 1024;

/// The store, its clock, and the leases that events have labeled.
#[derive(Debug)]
pub(super) struct SimulatedStore {
    store: MapStore,
    clock: Arc<ManualClock>,
    latest: Timestamp,
    answers: Replies,
    writer: DecisionJsonWriter,
    labels: LeaseLabels,
    summary: SimulationSummary,
}

impl SimulatedStore {
    /// A store with these limits and no counts.
    pub(super) fn new(limits: Vec<LimitSpec>) -> Result<SimulatedStore, Failure> {
        let clock = Arc::new(ManualClock::at(Timestamp::EPOCH));
        // A fixed secret gives equal lease ids in every run.
        let store = MapStore::new(Arc::clone(&clock), 0);
        let summary = SimulationSummary::of(&limits);
        for limit in limits {
            let id = limit.id.clone();
            let refuse = |error| Failure::BadInput(format!("limit '{id}': {error}"));
            store.put(limit, ExpectedVersion::Absent).map_err(refuse)?;
        }
        let answers = Replies::new(Detail::Readings);
        let (latest, writer, labels) =
            (Timestamp::EPOCH, DecisionJsonWriter::default(), LeaseLabels::default());
        Ok(SimulatedStore { store, clock, latest, answers, writer, labels, summary })
    }

    /// Applies events in order and appends their output. Stops at the first invalid event; nothing is appended for
    /// it.
    pub(super) fn pass(
        &mut self,
        events: &[SimulatedEvent],
        text: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), (u64, String)> {
        for group in events.chunks(LOOK_AHEAD) {
            self.store.look_ahead(group.iter().map(|event| ask(event, 0, text)));
            for event in group {
                self.take(event, text, out).map_err(|why| (event.line, why))?;
            }
        }
        Ok(())
    }

    /// Applies an event and appends its output line, or explains why it is invalid.
    fn take(&mut self, event: &SimulatedEvent, text: &str, out: &mut Vec<u8>) -> Result<(), String> {
        if event.at > self.latest {
            self.latest = event.at;
            self.clock.set(event.at);
        }
        match &event.op {
            EventOp::Acquire { count, label } => self.acquire(event, *count, label.as_ref(), text, out),
            EventOp::Peek { count } => self.peek(event, *count, text, out),
            EventOp::Release { label } => self.release(event, label, text, out),
            EventOp::Reset => self.reset(event, text, out),
        }
    }

    /// Appends the summary line.
    pub(super) fn write_summary(&self, out: &mut Vec<u8>) {
        self.summary.write(out);
    }

    fn acquire(
        &mut self,
        event: &SimulatedEvent,
        count: Amount,
        label: Option<&EventText>,
        text: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let asks = [ask(event, count, text)];
        let id = asks[0].limit_id;
        if label.is_some() && self.summary.has_leases(id) == Some(false) {
            return Err(format!(
                "as: limit '{id}' has no concurrency item, so its grants have no lease to name"
            ));
        }
        self.submit(&Order::acquire(&asks), event, text, out, |store, answer| {
            store.summary.count(id, answer);
            if let (Some(label), Outcome::Granted(grant)) = (label, &answer.outcome) {
                let named = grant.as_ref().map(|grant| LabeledLease {
                    lease: grant.lease,
                    expires_at: grant.expires_at,
                    limit_id: id.into(),
                });
                store.labels.set(label.meant(text), named, store.latest);
            }
        })
    }

    fn peek(
        &mut self,
        event: &SimulatedEvent,
        count: Amount,
        text: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        self.submit(&Order::peek(&[ask(event, count, text)]), event, text, out, |_, _| {})
    }

    /// Submits an order, appends the decision, and passes it to `follow`.
    fn submit(
        &mut self,
        order: &Order<'_>,
        event: &SimulatedEvent,
        text: &str,
        out: &mut Vec<u8>,
        follow: impl FnOnce(&mut SimulatedStore, &OrderReply),
    ) -> Result<(), String> {
        let buffer = std::mem::take(&mut self.answers);
        let answers = self.store.submit(std::slice::from_ref(order), buffer).now();
        let decided = match answers.get(0) {
            Some(Ok(answer)) => {
                follow(self, answer);
                self.write_head(event, text, out);
                self.writer.write(answer, &answers, out);
                out.extend_from_slice(b"}\n");
                Ok(())
            }
            Some(Err(rejection)) => Err(self.explain(rejection)),
            None => Err("the store returned no reply; this is a defect, please report it".to_owned()),
        };
        self.answers = answers;
        decided
    }

    fn release(
        &mut self,
        event: &SimulatedEvent,
        label: &EventText,
        text: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let label = label.meant(text);
        if let Some(limit_id) = &event.limit_id {
            let limit_id = limit_id.meant(text);
            self.known(limit_id)?;
            if let Some(named) = self.labels.get(label).filter(|named| *named.limit_id != *limit_id) {
                return Err(format!("limit_id: lease '{label}' is one of limit '{}'", named.limit_id));
            }
        }
        let released = self.labels.take(label).is_some_and(|lease| self.store.release(lease).now());
        self.write_head(event, text, out);
        out.extend_from_slice(if released { b"\"released\":true}\n" } else { b"\"released\":false}\n" });
        Ok(())
    }

    fn reset(&mut self, event: &SimulatedEvent, text: &str, out: &mut Vec<u8>) -> Result<(), String> {
        let Ask { limit_id, key, .. } = ask(event, 0, text);
        self.store.reset(limit_id, key).now().map_err(|rejection| self.explain(&rejection))?;
        self.write_head(event, text, out);
        out.extend_from_slice(b"\"reset\":true}\n");
        Ok(())
    }

    fn known(&self, id: &str) -> Result<(), String> {
        let unknown = || self.explain(&OrderError::UnknownLimit { limit_id: id.to_owned() });
        self.summary.has_leases(id).map(|_| ()).ok_or_else(unknown)
    }

    /// Explains an error with its field and advice.
    fn explain(&self, rejection: &OrderError) -> String {
        match rejection {
            OrderError::UnknownLimit { limit_id } => {
                format!("limit_id: {rejection}; {}", self.summary.known(limit_id))
            }
            _ => format!("limit_key: {rejection}"),
        }
    }

    /// Appends the echoed fields of an event, up to the comma before the result.
    fn write_head(&mut self, event: &SimulatedEvent, text: &str, out: &mut Vec<u8>) {
        let written = |value: &Option<EventText>| match value {
            Some(value) => text[value.written.clone()].as_bytes(),
            None => b"null",
        };
        out.extend_from_slice(b"{\"at\":");
        out.extend_from_slice(text[event.at_written.clone()].as_bytes());
        out.extend_from_slice(b",\"limit_id\":");
        out.extend_from_slice(written(&event.limit_id));
        out.extend_from_slice(b",\"limit_key\":");
        out.extend_from_slice(written(&event.limit_key));
        if event.at < self.latest {
            out.extend_from_slice(b",\"decided_at\":");
            self.writer.instant(self.latest, out);
        }
        out.push(b',');
    }
}

fn ask<'a>(event: &'a SimulatedEvent, count: Amount, text: &'a str) -> Ask<'a> {
    let meant = |value: &'a Option<EventText>| value.as_ref().map(|value| value.meant(text));
    Ask {
        limit_id: meant(&event.limit_id).unwrap_or_default(),
        key: meant(&event.limit_key).map(str::as_bytes),
        count,
    }
}

/// Leases by label.
#[derive(Debug, Default)]
struct LeaseLabels {
    leases: HashMap<Box<str>, LabeledLease>,
    cleanup_at: usize,
}

/// A labeled lease.
#[derive(Debug)]
struct LabeledLease {
    lease: LeaseId,
    expires_at: Timestamp,
    limit_id: Box<str>,
}

impl LeaseLabels {
    /// Labels a lease, replacing an earlier one. A grant without a lease sets no label.
    fn set(&mut self, label: &str, lease: Option<LabeledLease>, now: Timestamp) {
        let Some(lease) = lease else { return };
        if self.leases.len() >= self.cleanup_at {
            self.leases.retain(|_, named| now < named.expires_at);
            self.cleanup_at = (2 * self.leases.len()).max(FIRST_CLEANUP);
        }
        self.leases.insert(label.into(), lease);
    }

    fn get(&self, label: &str) -> Option<&LabeledLease> {
        self.leases.get(label)
    }

    fn take(&mut self, label: &str) -> Option<LeaseId> {
        self.leases.remove(label).map(|named| named.lease)
    }
}
