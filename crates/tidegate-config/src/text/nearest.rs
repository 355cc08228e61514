//! "Did you mean": the word of a list that is nearest to what was written.

use super::quoted;

/// What to add to a message about a word that is none of these: the one that was probably meant, or nothing.
pub fn suggestion<'w>(written: &str, words: impl IntoIterator<Item = &'w str>) -> String {
    nearest(written, words).map(|word| format!("; {}", did_you_mean(word))).unwrap_or_default()
}

/// How people are told of the word they probably meant.
pub fn did_you_mean(word: &str) -> String {
    format!("did you mean {}?", quoted(word))
}

/// The word that was probably meant: the one with the fewest letters changed, added, dropped or swapped, if that
/// is at most a third of them; or else one that is longer or shorter at its end only.
pub fn nearest<'w>(written: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    const LONGEST: usize = 64;
    const SHORTEST_STEM: usize = 3;
    if written.is_empty() || written.len() > LONGEST {
        return None;
    }
    let written = folded(written);
    let furthest = (written.len() / 3).max(1);
    let rank = |word: &str| {
        let word = folded(word);
        let changes = if word.len().abs_diff(written.len()) <= furthest {
            distance(&written, &word)
        } else {
            usize::MAX
        };
        let same_stem = written.len().min(word.len()) >= SHORTEST_STEM
            && (word.starts_with(&written) || written.starts_with(&word));
        match changes {
            _ if changes <= furthest => Some(changes),
            _ => same_stem.then_some(furthest + 1),
        }
    };
    words
        .into_iter()
        .filter_map(|word| rank(word).map(|rank| (rank, word)))
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, word)| word)
}

/// A word without the differences that nobody means.
pub(crate) fn folded(word: &str) -> String {
    word.to_lowercase().replace([' ', '-'], "_")
}

/// How many letters must be changed, added, dropped, or swapped with their neighbour.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    // Rows of the usual table: two back (for swaps), one back, and the one being filled.
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=to.len()).collect();
    for (row, letter) in from.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, other) in to.iter().enumerate() {
            let changed = above[column] + usize::from(letter != other);
            let mut least = changed.min(above[column + 1] + 1).min(current[column] + 1);
            if row > 0 && column > 0 && *letter == to[column - 1] && from[row - 1] == *other {
                least = least.min(before[column - 1] + 1);
            }
            current.push(least);
        }
        before = std::mem::replace(&mut above, current);
    }
    above.last().copied().unwrap_or(0)
}
