//! "Did you mean": the word of a list that is most similar to a given text.

use super::quote::quoted;

/// The suffix of a message about an unknown word: a suggestion, or nothing if no word is similar.
pub fn suggestion<'w>(written: &str, words: impl IntoIterator<Item = &'w str>) -> String {
    nearest(written, words).map(|word| format!("; {}", did_you_mean(word))).unwrap_or_default()
}

/// A suggestion as text: `did you mean 'word'?`.
pub fn did_you_mean(word: &str) -> String {
    format!("did you mean {}?", quoted(word))
}

/// The most similar word, by the number of letters changed, inserted, removed or swapped.
///
/// At most a third of the letters may differ. If no word is that similar, a word with the same beginning is returned.
pub fn nearest<'w>(written: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    const MAX_BYTES: usize = 64;
    const MIN_STEM: usize = 3;
    if written.is_empty() || written.len() > MAX_BYTES {
        return None;
    }
    let written = normalize_word(written);
    let max_changes = (written.len() / 3).max(1);
    let rank = |word: &str| {
        let word = normalize_word(word);
        let changes = if word.len().abs_diff(written.len()) <= max_changes {
            edit_distance(&written, &word)
        } else {
            usize::MAX
        };
        let same_stem = written.len().min(word.len()) >= MIN_STEM
            && (word.starts_with(&written) || written.starts_with(&word));
        match changes {
            _ if changes <= max_changes => Some(changes),
            _ => same_stem.then_some(max_changes + 1),
        }
    };
    words
        .into_iter()
        .filter_map(|word| rank(word).map(|rank| (rank, word)))
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, word)| word)
}

/// A word in lower case, with underscores instead of spaces and hyphens.
pub(crate) fn normalize_word(word: &str) -> String {
    word.to_lowercase().replace([' ', '-'], "_")
}

/// The edit distance: letters changed, inserted, removed, or swapped with their neighbor.
fn edit_distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    // Rows of the dynamic programming table: two back (for swaps), one back, and the current one.
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
