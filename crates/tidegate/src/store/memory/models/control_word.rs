//! Models of the control word of a line and of the rows under it.

use std::sync::Arc;

use super::super::line::{self, LOCKED, Line, PASSED, RowWords, Shape, Tag};
use super::super::sync::Ordering;
use super::super::sync::loom_sync::beside;
use super::{explore, tag};

/// A row whose words are all the same.
const fn row_of(word: u64) -> RowWords {
    [word; 5]
}

/// A line with these words in its rows.
fn line_of(shape: Shape, words: &[u64]) -> Arc<Line> {
    let line = Line::new();
    for (slot, (word, number)) in words.iter().zip(1..).enumerate() {
        line.place(shape, slot, tag(0, number), &row_of(*word));
    }
    Arc::new(line)
}

/// Adds one to a row, as a decision does: reads, judges, and locks from what was read. Returns how much was added.
fn add_one(line: &Line, shape: Shape, slot: usize) -> u64 {
    let seen = line.seen();
    if seen & LOCKED != 0 {
        return 0;
    }
    let row = line.read(shape, slot);
    if !line::try_lock(line.control(), seen) {
        return 0;
    }
    line.write(shape, slot, &row_of(row[0] + 1));
    line::unlock(line.control(), seen);
    1
}

/// Adds one to a row under the lock.
fn add_one_locked(line: &Line, shape: Shape, slot: usize) -> u64 {
    let seen = line::lock(line.control());
    let row = line.read(shape, slot);
    line.write(shape, slot, &row_of(row[0] + 1));
    line::unlock(line.control(), seen);
    1
}

#[test]
fn two_charges_of_one_row_both_count() {
    for shape in [Shape::Narrow, Shape::Pair] {
        explore(3, move || {
            let line = line_of(shape, &[0]);
            let shared = Arc::clone(&line);
            let other = beside(move || add_one(&shared, shape, 0) + add_one(&shared, shape, 0));
            let added = add_one(&line, shape, 0);
            let added = added + other.join().expect("it ends");
            assert_eq!(line.read(shape, 0)[..shape.words()], row_of(added)[..shape.words()]);
        });
    }
}

#[test]
fn charge_beside_locked_charge_both_count() {
    explore(3, || {
        let line = line_of(Shape::Narrow, &[0]);
        let shared = Arc::clone(&line);
        let other = beside(move || add_one(&shared, Shape::Narrow, 0));
        let added = add_one_locked(&line, Shape::Narrow, 0);
        let added = added + other.join().expect("it ends");
        assert_eq!(line.read(Shape::Narrow, 0)[0], added);
    });
}

/// One row is charged. Its neighbor is charged, and the line is marked.
#[test]
fn charges_of_neighbor_rows_both_count() {
    explore(3, || {
        let line = line_of(Shape::Narrow, &[0, 0]);
        let shared = Arc::clone(&line);
        let other = beside(move || {
            let added = add_one(&shared, Shape::Narrow, 1);
            shared.set_passed();
            added
        });
        let first = add_one(&line, Shape::Narrow, 0);
        let second = other.join().expect("it ends");
        assert_eq!([0, 1].map(|slot| line.read(Shape::Narrow, slot)[0]), [first, second]);
        assert_eq!(line.seen() & (PASSED | LOCKED), PASSED);
    });
}

#[test]
fn reader_of_several_words_sees_all_of_a_write() {
    for shape in [Shape::Pair, Shape::Wide] {
        explore(2, move || {
            let line = line_of(shape, &[0]);
            let shared = Arc::clone(&line);
            let other = beside(move || add_one(&shared, shape, 0) + add_one(&shared, shape, 0));
            let seen = line.seen();
            let row = line.read(shape, 0);
            if seen & LOCKED == 0 && line::is_unchanged(line.control(), seen) {
                let words = &row[..shape.words()];
                assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
            }
            other.join().expect("it ends");
        });
    }
}

/// Gives the first slot of a line to a key.
fn replace(line: &Line, tag: Tag, word: u64) -> u64 {
    let seen = line::lock(line.control());
    let former = line.read(Shape::Narrow, 0)[0];
    line.place(Shape::Narrow, 0, tag, &row_of(word));
    line::unlock(line.control(), seen);
    former
}

/// The slot of a key goes to another key, and perhaps back.
#[test]
fn reader_of_slot_that_changes_its_key_sees_the_own_row() {
    let (own, other) = (tag(0, 1), tag(0, 7));
    for comes_back in [false, true] {
        explore(3, move || {
            let line = line_of(Shape::Narrow, &[1]);
            let shared = Arc::clone(&line);
            let replacing = beside(move || {
                replace(&shared, other, 2);
                if comes_back {
                    replace(&shared, own, 1);
                }
            });
            let seen = line.seen();
            if let Some(slot) = line.find::<3>(own) {
                let word = line.row::<1>(slot)[0].load(Ordering::Relaxed);
                if seen & LOCKED == 0 && line::is_unchanged(line.control(), seen) {
                    assert_eq!(word, 1);
                }
            }
            replacing.join().expect("it ends");
        });
    }
}

/// Another key gets the slot with the same word.
#[test]
fn charge_of_slot_that_changes_its_key_is_of_the_own_row() {
    let (own, other) = (tag(0, 1), tag(0, 7));
    explore(3, move || {
        let line = line_of(Shape::Narrow, &[1]);
        let shared = Arc::clone(&line);
        let replacing = beside(move || replace(&shared, other, 1));
        let seen = line.seen();
        let mut charged = 0;
        if let Some(slot) = line.find::<3>(own)
            && seen & LOCKED == 0
        {
            let row = line.read(Shape::Narrow, slot);
            if line::try_lock(line.control(), seen) {
                line.write(Shape::Narrow, slot, &row_of(row[0] + 1));
                line::unlock(line.control(), seen);
                charged = 1;
            }
        }
        assert_eq!(replacing.join().expect("it ends"), 1 + charged);
        assert_eq!(line.read(Shape::Narrow, 0)[0], 1);
    });
}
