//! Orders of one ask on one limit, decided by limit id. Most requests from sockets are of this form.
//!
//! Such an order takes the lock-free path for one row. The observed row is reported to the caller and to the log. All
//! other cases go to [`super::order_path`].

use std::sync::Arc;

use arrayvec::ArrayVec;
use tidegate_core::limit::MAX_KEY_BYTES;
use tidegate_core::order::MAX_WAIT;
use tidegate_core::{Hold, Intent, Order, Timestamp, Verdict};

use super::cache_line::PAYLOAD;
use super::insert::{self, Begun};
use super::leaf::Near;
use super::limit_table::Tenant;
use super::lockfree::{self, Plea, Single, Told, Witness};
use super::order_path::{fetch, plea};
use super::row_epoch::Edition;
use super::rule_snapshot::Short;
use super::{LOOK_AHEAD, Limits};
use crate::reply::{Detail, ItemReading, OrderRefusal, OrderReply, Outcome, Replies};

/// What was found for an order of one ask before it is decided.
#[derive(Clone, Copy)]
pub(super) struct FoundAlone<'a> {
    pub(super) plea: Plea<'a>,
    near: Option<Near<'a>>,
}

/// Brings the rows of a group near: rows of many keys are far apart in memory, and looked at one after the other the processor
/// fetches them side by side, where deciding would wait for each in turn. Orders of one ask keep what was found for them.
pub(super) fn bring_near<'a>(
    limits: &'a Limits,
    group: &'a [Order<'a>],
) -> ArrayVec<Option<FoundAlone<'a>>, LOOK_AHEAD> {
    let mut found: ArrayVec<Option<FoundAlone<'a>>, LOOK_AHEAD> = ArrayVec::new();
    // Most of what is read at once is about one limit.
    let mut last: Option<Plea<'a>> = None;
    for order in group {
        let plea = find_alone(limits, order, last);
        last = plea.or(last);
        found.push(plea.map(|plea| FoundAlone { plea, near: None }));
    }
    let nears =
        fetch(found.iter().map(|found| found.and_then(|found| Some((found.plea.tenant, found.plea.tag?)))));
    for (found, near) in found.iter_mut().zip(nears) {
        if let Some(found) = found {
            found.near = near;
        }
    }
    found
}

/// The limit and the fingerprint of an order of one ask; `None` if it is not one, or nobody knows its limit.
#[inline]
fn find_alone<'a>(limits: &'a Limits, order: &Order<'a>, last: Option<Plea<'a>>) -> Option<Plea<'a>> {
    let [ask] = order.asks else { return None };
    let again = last.filter(|last| *last.tenant.id == *ask.limit_id);
    let found = match again {
        Some(last) => Plea { key: ask.key, tag: None, count: ask.count, ..last },
        None => plea(limits, ask).ok()?,
    };
    Some(Plea { tag: found.tag(), ..found })
}

/// The edition of the limit that was asked last. As long as it is held, none that comes after it is forgotten.
pub(super) type Held<'a> = Option<(&'a Tenant, Arc<Edition>)>;

/// What was seen of a row after it was decided on.
#[derive(Default)]
pub(super) struct Seen(pub(super) Option<(Short, u64, u64)>);

impl Witness for Seen {
    const SEES: bool = true;

    #[inline]
    fn saw(&mut self, short: &Short, edition: u64, payload: u64) {
        self.0 = Some((*short, edition, payload));
    }
}

/// Decides an order of one ask of a limit with one item, which is most of them. `None` if it is not that simple.
#[inline]
pub(super) fn decide_alone<'a>(
    order: &Order<'_>,
    FoundAlone { plea, near }: &FoundAlone<'a>,
    held: &mut Held<'a>,
    now: Timestamp,
    answers: &mut Replies,
) -> Option<OrderReply> {
    let is_plain = order.intent == Intent::Acquire
        && order.hold == Hold::No
        && order.request_id.is_none()
        && order.ttl.is_none()
        && order.max_wait <= MAX_WAIT;
    let tenant = plea.tenant;
    let head = tenant.board.sheet().head();
    if !is_plain || head.has_second() || head.ends() || tenant.lean().is_some() {
        return None;
    }
    match plea.key {
        Some(key) if key.len() <= MAX_KEY_BYTES => {}
        None if !head.is_of_key() => {}
        _ => return None,
    }
    if !matches!(held, Some((last, _)) if std::ptr::eq(*last, tenant)) {
        *held = Some((tenant, tenant.edition()));
    }
    let single = Single { tenant, count: plea.count };
    let mut seen = Seen::default();
    let verdict = if head.is_of_key() {
        lockfree::decide_near(&single, plea.tag?, *near, now, &mut seen)
    } else {
        Some(lockfree::decide_all(&single, now, &mut seen)?)
    };
    let (verdict, at, short, number, payload) = if let (Some(verdict), Some(seen)) = (verdict, seen.0) {
        if verdict == Verdict::Granted {
            tenant.counts.granted();
        }
        let (short, number, payload) = seen;
        (verdict, now, short, number, payload)
    } else {
        // A key that nobody has seen is begun, which counts it.
        let tag = plea.tag.filter(|tag| tenant.leaf(*tag).is_none_or(|leaf| leaf.find(*tag).is_none()))?;
        let Begun { at, short, edition, word } = insert::begin(plea, tag, now)?;
        (Verdict::Granted, at, short, edition, word & PAYLOAD)
    };
    let limit = match held {
        Some((_, edition)) if edition.number == number => Arc::clone(&edition.limit),
        _ => {
            let later = tenant.edition_of(number).expect("while one is held, none after it is forgotten");
            Arc::clone(&later.limit)
        }
    };
    let outcome = match verdict {
        Verdict::Granted => Outcome::Granted(None),
        Verdict::Denied(wait) => {
            let item = short.head.item();
            let first = (Arc::clone(&limit), item);
            Outcome::Denied(OrderRefusal { limit: Arc::clone(&limit), item, wait, first, lapses_at: None })
        }
    };
    let first = answers.mark();
    let ends = Timestamp::from_ticks(u64::MAX);
    let told = Told { ask: 0, edition: number, short: &short, payload, ends, at };
    if let (Verdict::Granted, Some(notes)) = (verdict, answers.notes()) {
        notes.charges.extend(told.charge(plea, limit.version()));
    }
    if answers.detail() == Detail::Readings {
        answers.read(ItemReading { limit, item: short.head.item(), reading: told.reading() });
    }
    Some(OrderReply { outcome, at, degraded: false, shadowed: Vec::new(), readings: first..answers.mark() })
}
