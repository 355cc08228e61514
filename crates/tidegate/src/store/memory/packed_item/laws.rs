//! The laws on words. Each law is a type, so that a decision is compiled for it.

#![expect(clippy::inline_always, reason = "these functions are parts of a decision of 20 ns")]

use tidegate_core::law::fixed_window::WindowCount;
use tidegate_core::law::lifetime_total::TotalCount;
use tidegate_core::law::token_bucket::BucketState;
use tidegate_core::law::{FixedWindow, TokenBucket, lifetime_total};
use tidegate_core::{Amount, Capacity, Span, Timestamp, Verdict};

use super::super::memory_budget::Budget;
use super::super::slab::Slab;
use super::super::sliding_words::{Judgement, SlidingWords};
use super::{COUNT_BITS, FULL, ItemHead, ItemWords, Judged, MAX_ITEM_WORDS, PackedItem, SECOND_BITS};

/// A count beside the second of its last charge.
#[inline(always)]
pub(super) fn short_count(head: ItemHead, words: ItemWords) -> WindowCount {
    let count = words[0] & ((1 << COUNT_BITS) - 1);
    let last_time = if count == 0 { Timestamp::EPOCH } else { head.at_second(words[0] >> COUNT_BITS) };
    WindowCount { count, last_time }
}

#[inline(always)]
pub(super) fn pack_short(head: ItemHead, WindowCount { count, last_time }: WindowCount) -> Option<ItemWords> {
    let second = head.second_of(last_time);
    match count {
        0 => Some([0; MAX_ITEM_WORDS]),
        _ => (count >> COUNT_BITS == 0 && second >> SECOND_BITS == 0)
            .then_some([second << COUNT_BITS | count, 0]),
    }
}

/// A count beside the instant of its last charge.
#[inline(always)]
pub(super) fn long_count(words: ItemWords) -> WindowCount {
    WindowCount { count: words[1], last_time: Timestamp::from_ticks(words[0]) }
}

#[inline(always)]
pub(super) fn long_total(words: ItemWords) -> TotalCount {
    TotalCount { used: words[1], last_time: Timestamp::from_ticks(words[0]) }
}

#[inline(always)]
pub(super) fn pack_long(count: WindowCount) -> Option<ItemWords> {
    match count.count {
        0 => Some([0; MAX_ITEM_WORDS]),
        units => Some([count.last_time.ticks(), units]).filter(|words| words[0] & FULL == 0),
    }
}

/// A law on words of a row that is not full. Each law is a type, so that the engine is compiled for it.
pub(in super::super) trait PackedLaw: Sized {
    fn of(item: &PackedItem) -> Self;

    /// Whether `cost` fits, and the words after the charge. The words may be torn: the result is checked afterwards.
    fn judge(&self, words: ItemWords, cost: Amount, now: Timestamp, slab: &Slab) -> Judged;

    /// The words after a granted charge, with the row locked. `judged` are those of the judgement. `None` if the charge does
    /// not fit words; then nothing has changed.
    #[inline(always)]
    fn charge_locked(
        &self,
        judged: ItemWords,
        _cost: Amount,
        _now: Timestamp,
        _slab: &Slab,
        _budget: &Budget,
    ) -> Option<ItemWords> {
        Some(judged)
    }
}

/// Packs the state after a charge.
#[inline(always)]
fn granted(words: Option<ItemWords>) -> Judged {
    words.map_or(Judged::Locked, Judged::Granted)
}

pub(in super::super) struct Bucket {
    capacity: Capacity,
    step: Span,
}

impl Bucket {
    #[inline(always)]
    pub(super) fn law(&self) -> TokenBucket {
        TokenBucket::every(self.step)
    }

    #[inline(always)]
    pub(super) fn state(&self, words: ItemWords) -> BucketState {
        BucketState { tat: Timestamp::from_ticks(words[0]), step: self.step, credits: Span::ZERO }
    }
}

impl PackedLaw for Bucket {
    #[inline(always)]
    fn of(item: &PackedItem) -> Bucket {
        Bucket { capacity: item.capacity(), step: Span::from_ticks(item.a) }
    }

    #[inline(always)]
    fn judge(&self, words: ItemWords, cost: Amount, now: Timestamp, _: &Slab) -> Judged {
        let (law, mut state) = (self.law(), self.state(words));
        match law.check(self.capacity, &state, cost, now) {
            Verdict::Denied(wait) => Judged::Denied(wait),
            Verdict::Granted if cost == 0 => Judged::Granted(words),
            Verdict::Granted => {
                let _receipt = law.charge(self.capacity, &mut state, cost, now);
                let arrival = state.tat.ticks();
                granted((arrival & FULL == 0).then_some([arrival, 0]))
            }
        }
    }
}

/// Judges a window and charges it.
#[inline(always)]
fn judge_window(
    law: &FixedWindow,
    capacity: Capacity,
    mut state: WindowCount,
    (words, cost): (ItemWords, Amount),
    now: Timestamp,
    pack: impl FnOnce(WindowCount) -> Option<ItemWords>,
) -> Judged {
    if state.last_time > now {
        return Judged::At(state.last_time);
    }
    match law.check(capacity, &state, cost, now) {
        Verdict::Denied(wait) if capacity != Capacity::Unlimited => Judged::Denied(wait),
        _ if cost == 0 => Judged::Granted(words),
        _ => {
            let _receipt = law.charge(&mut state, cost, now);
            granted(pack(state))
        }
    }
}

pub(in super::super) struct Window {
    head: ItemHead,
    capacity: Capacity,
    law: FixedWindow,
}

impl Window {
    #[inline(always)]
    pub(super) fn count(&self, words: ItemWords) -> WindowCount {
        short_count(self.head, words)
    }
}

impl PackedLaw for Window {
    #[inline(always)]
    fn of(item: &PackedItem) -> Window {
        let (start, end) = (Timestamp::from_ticks(item.a), Timestamp::from_ticks(item.b));
        Window { head: item.head, capacity: item.capacity(), law: FixedWindow::Resolved { start, end } }
    }

    #[inline(always)]
    fn judge(&self, words: ItemWords, cost: Amount, now: Timestamp, _: &Slab) -> Judged {
        let pack = |count| pack_short(self.head, count);
        judge_window(&self.law, self.capacity, self.count(words), (words, cost), now, pack)
    }
}

pub(in super::super) struct LongWindow {
    capacity: Capacity,
    law: FixedWindow,
}

impl PackedLaw for LongWindow {
    #[inline(always)]
    fn of(item: &PackedItem) -> LongWindow {
        let (start, end) = (Timestamp::from_ticks(item.a), Timestamp::from_ticks(item.b));
        LongWindow { capacity: item.capacity(), law: FixedWindow::Resolved { start, end } }
    }

    #[inline(always)]
    fn judge(&self, words: ItemWords, cost: Amount, now: Timestamp, _: &Slab) -> Judged {
        judge_window(&self.law, self.capacity, long_count(words), (words, cost), now, pack_long)
    }
}

pub(in super::super) struct Interval {
    capacity: Capacity,
    law: FixedWindow,
}

impl PackedLaw for Interval {
    #[inline(always)]
    fn of(item: &PackedItem) -> Interval {
        Interval {
            capacity: item.capacity(),
            law: FixedWindow::FirstHit { window: Span::from_ticks(item.a) },
        }
    }

    #[inline(always)]
    fn judge(&self, words: ItemWords, cost: Amount, now: Timestamp, _: &Slab) -> Judged {
        judge_window(&self.law, self.capacity, long_count(words), (words, cost), now, pack_long)
    }
}

/// Judges a total and charges it.
#[inline(always)]
fn judge_total(
    capacity: Capacity,
    mut state: TotalCount,
    (words, cost): (ItemWords, Amount),
    now: Timestamp,
    pack: impl FnOnce(WindowCount) -> Option<ItemWords>,
) -> Judged {
    if state.last_time > now {
        return Judged::At(state.last_time);
    }
    match lifetime_total::check(capacity, &state, cost) {
        Verdict::Denied(wait) if capacity != Capacity::Unlimited => Judged::Denied(wait),
        _ if cost == 0 => Judged::Granted(words),
        _ => {
            let _receipt = lifetime_total::charge(&mut state, cost, now);
            granted(pack(WindowCount { count: state.used, last_time: state.last_time }))
        }
    }
}

pub(in super::super) struct Total {
    head: ItemHead,
    capacity: Capacity,
}

impl PackedLaw for Total {
    #[inline(always)]
    fn of(item: &PackedItem) -> Total {
        Total { head: item.head, capacity: item.capacity() }
    }

    #[inline(always)]
    fn judge(&self, words: ItemWords, cost: Amount, now: Timestamp, _: &Slab) -> Judged {
        let WindowCount { count, last_time } = short_count(self.head, words);
        let state = TotalCount { used: count, last_time };
        judge_total(self.capacity, state, (words, cost), now, |count| pack_short(self.head, count))
    }
}

pub(in super::super) struct LongTotal {
    capacity: Capacity,
}

impl PackedLaw for LongTotal {
    #[inline(always)]
    fn of(item: &PackedItem) -> LongTotal {
        LongTotal { capacity: item.capacity() }
    }

    #[inline(always)]
    fn judge(&self, words: ItemWords, cost: Amount, now: Timestamp, _: &Slab) -> Judged {
        judge_total(self.capacity, long_total(words), (words, cost), now, pack_long)
    }
}

pub(in super::super) struct Sliding(SlidingWords);

impl PackedLaw for Sliding {
    #[inline(always)]
    fn of(item: &PackedItem) -> Sliding {
        Sliding(item.sliding())
    }

    #[inline(always)]
    fn judge(&self, words: ItemWords, cost: Amount, now: Timestamp, slab: &Slab) -> Judged {
        match self.0.judge(slab, words[0], cost, now) {
            Judgement::Granted => Judged::Granted(words),
            Judgement::Denied(wait) => Judged::Denied(wait),
            Judgement::At(later) => Judged::At(later),
            Judgement::Tidy => Judged::Tidy,
        }
    }

    #[inline(always)]
    fn charge_locked(
        &self,
        judged: ItemWords,
        cost: Amount,
        now: Timestamp,
        slab: &Slab,
        budget: &Budget,
    ) -> Option<ItemWords> {
        self.0.charge(slab, budget, judged[0], cost, now).map(|word| [word, 0])
    }
}
