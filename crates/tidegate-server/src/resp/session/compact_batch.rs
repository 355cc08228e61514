//! CompactBatch of a session: a pipeline that asks the same few limits again and again, and nothing else.
//!
//! They are gathered by their [openings](super::super::frame_prefix), put to the store in short, and said in one piece each. As soon as something else is to be decided in the same batch, or
//! the store has no more to say in short, they are orders like all others, in their place.

use tidegate::store::bid::MOST_LIMITS;
use tidegate::store::{CompactBatch, CompactReply, CompactRequest};
use tidegate::{Intent, Verdict};

use super::{Session, Workroom};
use crate::resp::batch::{Entry, LARGEST_BATCH};
use crate::resp::decision_reply::{Due, Speaker};
use crate::resp::frame::Framing;
use crate::resp::frame_prefix::LimitIds;
use crate::resp::deferred_reply::Mouth;
use crate::resp::reply::Writer;

/// What was gathered and not decided yet: bids, and behind them entries.
#[derive(Debug)]
pub(super) struct Gathered<'i> {
    pub(super) entries: Vec<Entry<'i>>,
    bids: Vec<CompactRequest<'i>>,
    limit_ids: LimitIds<'i>,
}

impl<'i> Gathered<'i> {
    pub(super) fn new(entries: Vec<Entry<'i>>, bids: Vec<CompactRequest<'i>>) -> Gathered<'i> {
        Gathered { entries, bids, limit_ids: [""; MOST_LIMITS] }
    }

    /// The room for the next ones.
    pub(super) fn room(self) -> (Vec<Entry<'i>>, Vec<CompactRequest<'i>>) {
        (self.entries, self.bids)
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.len().max(self.bids.len()) >= LARGEST_BATCH
    }

    /// One more order, behind everything that was gathered before.
    pub(super) fn push(&mut self, entry: Entry<'i>) {
        self.decide_as_orders(0);
        self.entries.push(entry);
    }

    /// Makes entries of the bids that were not decided in short.
    fn decide_as_orders(&mut self, decided: usize) {
        let limit_ids = &self.limit_ids;
        self.entries.extend(self.bids.drain(..).skip(decided).map(|CompactRequest { limit, key, count }| {
            Entry {
                due: Due::Question,
                intent: Intent::Acquire,
                limit_id: limit_ids[limit],
                key,
                count,
                request_id: None,
            }
        }));
    }
}

impl Session {
    /// Gathers bids from the beginning of `rest`; how many bytes they take.
    #[inline]
    pub(super) fn gather<'i>(&mut self, rest: &'i [u8], gathered: &mut Gathered<'i>) -> usize {
        if !gathered.entries.is_empty() || !self.reader.is_between() {
            return 0;
        }
        let Gathered { bids, limit_ids, .. } = gathered;
        let before = bids.len();
        let length = self.openings.gather(rest, bids, limit_ids, LARGEST_BATCH);
        self.tally.commands += (bids.len() - before) as u64;
        length
    }

    /// Takes an order that was read from `rest`: as a bid if that is all it is, and then the next frame that begins like this one is known.
    pub(super) fn take<'i>(
        &mut self,
        entry: Entry<'i>,
        rest: &'i [u8],
        framing: Framing,
        gathered: &mut Gathered<'i>,
    ) {
        let is_bid = entry.intent == Intent::Acquire
            && entry.request_id.is_none()
            && matches!(entry.due, Due::Question)
            && framing == Framing::Array
            && gathered.entries.is_empty();
        let pending = !gathered.bids.is_empty();
        let limit =
            if is_bid { self.openings.learn(rest, &self.reader.arguments(rest), pending) } else { None };
        match limit {
            Some(limit) => {
                gathered.limit_ids[limit] = entry.limit_id;
                gathered.bids.push(CompactRequest { limit, key: entry.key, count: entry.count });
            }
            None => gathered.push(entry),
        }
    }

    /// Puts the bids to the store and says what it told; those that it did not decide are entries then.
    pub(super) fn bid(&mut self, gathered: &mut Gathered<'_>, mouth: &mut Mouth<'_>) {
        if gathered.bids.is_empty() {
            return;
        }
        let Session { door, workroom: Workroom { gists, grants, .. }, tally, protocol, .. } = self;
        let bids = CompactBatch { limit_ids: &gathered.limit_ids, list: &gathered.bids };
        let spoken = door.limiter().bid(&bids, gists);
        let start = mouth.output.len();
        let writer = Writer::new(mouth.output, *protocol);
        let mut speaker = Speaker { writer, tick: door.tick(), throttles: door.throttles() };
        let durable = match spoken {
            Ok(durable) => durable,
            Err(why) => {
                gathered.bids.drain(..).for_each(|_| speaker.writer.error("UNAVAILABLE", &why));
                return;
            }
        };
        let (decided, mut refused) = (gists.list().len(), 0);
        for (gist, bid) in gists.list().iter().zip(bids.list) {
            match gist.verdict {
                Verdict::Granted => speaker.grant(&gist.reading, gist.at, grants),
                Verdict::Denied(wait) => {
                    refused += 1;
                    let CompactReply { reading, at, item, .. } = gist;
                    let limit = gists.text(gist);
                    speaker.denial(reading, wait, *at, limit.items()[*item].name());
                    door.refused(limit, *item, bid.key, *at);
                }
            }
        }
        tally.granted += decided as u64 - refused;
        tally.refused += refused;
        if decided > 0 {
            mouth.pledge(start, decided, durable);
        }
        gathered.decide_as_orders(decided);
        // Nobody keeps a limit that may be gone soon.
        gists.clear();
    }
}
