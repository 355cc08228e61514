//! Models of lock-free readers of a cache line and of a rule snapshot.

use std::sync::Arc;

use tidegate_core::{ItemSpec, Limit, LimitSpec, Policy, Tick};

use super::super::cache_line::{self, HELD, Line, Look, PRESENT, SLOTS};
use super::super::fingerprint::{Printer, Secret};
use super::super::row_epoch::{Because, Edition};
use super::super::rule_snapshot::{Board, Short};
use super::super::shared_rows::Gallery;
use super::super::sync::loom_sync::beside;
use super::{START, explore, tag};

const OURS: u64 = PRESENT | 1;
const THEIRS: u64 = PRESENT | 2;

/// Whoever looks for a key while its place goes to another, and perhaps back, never takes the other's row for it.
#[test]
fn nobody_sees_the_row_of_another() {
    for slot in 0..SLOTS {
        look_while(move |line| replace(line, slot, 2, OURS, THEIRS), slot);
        look_while(
            move |line| {
                replace(line, slot, 2, OURS, THEIRS);
                replace(line, slot, 1, THEIRS, OURS);
            },
            slot,
        );
        look_while(
            move |line| {
                replace(line, slot, 2, OURS, THEIRS);
                line.set_passed(true);
            },
            slot,
        );
    }
}

fn look_while(change: impl Fn(&Line) + Copy + Send + Sync + 'static, slot: usize) {
    explore(3, move || {
        let line = Arc::new(Line::new());
        line.place(slot, tag(0, 1), OURS);
        let changed = Arc::clone(&line);
        let owner = beside(move || change(&changed));
        if let Look::Found { word, seen, .. } = line.look(tag(0, 1))
            && word & HELD == 0
            && line.unchanged(seen)
        {
            assert_eq!(word, OURS);
        }
        owner.join().expect("it ends");
    });
}

fn replace(line: &Line, slot: usize, number: u32, former: u64, cell: u64) {
    assert!(cache_line::take(line.cell(slot), former), "nobody else takes it");
    line.place(slot, tag(0, number), cell);
}

/// Whoever takes a cell and then finds the key's tag beside it has the key's row, even if both rows say the same.
#[test]
fn nobody_takes_the_row_of_another() {
    for slot in 0..SLOTS {
        explore(3, move || {
            let (own, other) = (tag(0, 1), tag(0, 2));
            let line = Arc::new(Line::new());
            line.place(slot, own, OURS);
            let replaced = Arc::clone(&line);
            let owner = beside(move || {
                let cell = replaced.cell(slot);
                let kept = cache_line::take_any(cell);
                replaced.place(slot, other, OURS);
                kept
            });
            let mut charged = false;
            if let Look::Found { slot, word: OURS, seen } = line.look(own)
                && cache_line::take(line.cell(slot), OURS)
            {
                charged = line.unchanged(seen);
                cache_line::give_back(line.cell(slot), if charged { OURS + 1 } else { OURS });
            }
            let kept = owner.join().expect("it ends");
            assert_eq!(kept, if charged { OURS + 1 } else { OURS });
            assert_eq!(line.cell(slot).load(super::super::sync::Ordering::Relaxed), OURS);
        });
    }
}

/// A brief is read as it was written, or not at all.
#[test]
fn a_brief_is_whole() {
    let [one, two] = [(1, 3), (2, 7)].map(|(number, limit)| {
        let item = ItemSpec::of(Policy::Total, limit);
        let spec = LimitSpec::named("model").with(item.clone()).with(item.per_key());
        let limit = Arc::new(Limit::new(spec, Tick::NANOSECOND).expect("it makes sense"));
        let printer = Printer::new(Secret::of([1, 2]), 1);
        Arc::new(Edition::new(number, START, Because::Put, limit, [0, 1].into(), &printer))
    });
    explore(2, move || {
        let board = Arc::new(Board::new(Gallery::new().place()));
        board.show(&one, START);
        let old = read(&board).expect("it was shown");
        let (shown, next) = (Arc::clone(&board), Arc::clone(&two));
        let writer = beside(move || shown.show(&next, START));
        let seen = read(&board);
        writer.join().expect("it ends");
        let new = read(&board).expect("it was shown");
        assert!(seen.is_none_or(|seen| seen == old || seen == new));
    });
}

/// Both items, if they belong together.
fn read(board: &Board) -> Option<(Short, Short)> {
    let sheet = board.sheet();
    let items = (sheet.first(), sheet.second());
    sheet.stands().then_some(items)
}
